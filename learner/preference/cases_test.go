package preference

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// cases/training.tsv dpo: "IPO divides by the unshifted mask count after
// keep_end truncation removed the prompt": chosen [20,21,22] cut to the last 3
// of 5 tokens leaves 2 scored ones (the first has nothing before it). At .5 a
// token the mean is .5, not .333: the loss at 1/(2β) = .5 is then exactly 0.
func TestCaseDPOIPODividesByScoredTokens(t *testing.T) {
	c := DefaultDPOConfig()
	c.LossTypes, c.Beta = []string{"ipo"}, 1
	seq := func(theta float64) Seq {
		return Seq{LogP: []float64{math.NaN(), theta - 1, theta - 1}, Ref: []float64{math.NaN(), -1, -1}, Mask: []bool{false, true, true}}
	}
	res := dpo(t, c, []Pair{{seq(.5), seq(0)}})
	require.InDelta(t, 0, res.Loss, 1e-12)
	require.InDelta(t, 2, res.Stats.Metrics(c)["lengths/chosen"], 0)
}

// A step without pairs is a step of loss 0, and so is a pair of which nothing is
// trained, but for its constant.
func TestEmptyStepsAndSides(t *testing.T) {
	for _, lt := range DPOTypes() {
		c := DefaultDPOConfig()
		c.LossTypes = []string{lt}
		if lt == "exo_pair" {
			c.LabelSmoothing = .1
		}
		res := dpo(t, c, nil)
		require.Zero(t, res.Loss)
		require.Empty(t, res.Stats.Metrics(c))
		off := Seq{LogP: []float64{-1}, Ref: []float64{-2}, Mask: []bool{false}}
		res = dpo(t, c, []Pair{{off, off}})
		require.Equal(t, []PairGrad{{[]float64{0}, []float64{0}}}, res.DLogP, lt)
		require.True(t, finite(res.Loss))
	}
	k, err := KTO(DefaultKTOConfig(), nil, KTOTotals{})
	require.NoError(t, err)
	require.Zero(t, k.Loss)
	require.Empty(t, k.Stats.Metrics())
	r, err := Reward(RewardConfig{}, nil, 0)
	require.NoError(t, err)
	require.Zero(t, r.Loss)
	require.Empty(t, r.Stats.Metrics())
}

// SimPO by hand: β = 2, γ = .5, means -1 and -2 a token.
func TestSimPOAndORPOByHand(t *testing.T) {
	p := []Pair{{Seq{LogP: []float64{-1, -1}}, Seq{LogP: []float64{-2}}}}
	c := DefaultDPOConfig()
	c.LossTypes, c.Beta, c.SimPOGamma = []string{"simpo"}, 2, .5
	require.False(t, c.NeedsReference())
	res := dpo(t, c, p)
	require.InDelta(t, math.Log1p(math.Exp(-1.5)), res.Loss, 1e-12)
	require.InDelta(t, -1/(1+math.Exp(1.5)), res.DLogP[0].Chosen[0], 1e-12) // β/|y| = 1

	c.LossTypes, c.Beta = []string{"orpo", SFTTerm}, .1
	odds := func(p float64) float64 { return math.Log(p / (1 - p)) }
	x := odds(math.Exp(-1)) - odds(math.Exp(-2))
	require.InDelta(t, .1*math.Log1p(math.Exp(-x))+1, dpo(t, c, p).Loss, 1e-12)
	p[0].Chosen.LogP = []float64{0, 0} // certain: finite all the same
	require.True(t, finite(dpo(t, c, p).Loss))
}

// Plain WPO weighs a pair by both completions' mean probability, undifferentiated.
func TestWPOPlain(t *testing.T) {
	p := []Pair{{Seq{LogP: []float64{-1, -3}, Ref: []float64{-1, -1}}, Seq{LogP: []float64{-.5}, Ref: []float64{-1}}}}
	c := DefaultDPOConfig()
	plain := dpo(t, c, p)
	c.Weighting = WeightingWPO
	res := dpo(t, c, p)
	require.InDelta(t, plain.Loss*math.Exp(-2.5), res.Loss, 1e-12)
	require.InDelta(t, plain.DLogP[0].Chosen[1]*math.Exp(-2.5), res.DLogP[0].Chosen[1], 1e-12)
	c.Weighting = WeightingWPOAligned
	tot, _ := NewDPOTotals(p)
	_, err := DPO(c, p, tot)
	require.ErrorContains(t, err, "pair 0 chosen: LogSumSq is missing but the configuration needs it")
}

func TestConfigsReportEveryProblem(t *testing.T) {
	two := 2.0
	for want, mod := range map[string]func(c *DPOConfig){
		"loss_type: none":                                          func(c *DPOConfig) { c.LossTypes = nil },
		`loss_type: unknown "sgmoid"; use one of `:                 func(c *DPOConfig) { c.LossTypes = []string{"sgmoid"} },
		`loss_type: "ipo" twice`:                                   func(c *DPOConfig) { c.LossTypes = []string{"ipo", "ipo"} },
		"loss_weights: 2 values for 1 loss types":                  func(c *DPOConfig) { c.LossWeights = []float64{1, 2} },
		"loss_weights[0]: -1":                                      func(c *DPOConfig) { c.LossWeights = []float64{-1} },
		"beta: 0 is not":                                           func(c *DPOConfig) { c.Beta = 0 },
		"label_smoothing: 0.5 is outside":                          func(c *DPOConfig) { c.LabelSmoothing = .5 },
		"label_smoothing: 0, but exo_pair":                         func(c *DPOConfig) { c.LossTypes = []string{"exo_pair"} },
		"label_smoothing: 0.1, but hinge heeds":                    func(c *DPOConfig) { c.LossTypes, c.LabelSmoothing = []string{"hinge"}, .1 },
		`f_divergence_type: unknown "kl"`:                          func(c *DPOConfig) { c.FDivergence = "kl" },
		`f_divergence_type: "forward_kl", but nca_pair heeds only`: func(c *DPOConfig) { c.LossTypes, c.FDivergence = []string{"nca_pair"}, ForwardKL },
		"f_alpha_divergence_coef: NaN":                             func(c *DPOConfig) { c.FDivergence, c.FAlpha = AlphaDivergence, math.NaN() },
		"ld_alpha: 2 is outside":                                   func(c *DPOConfig) { c.LDAlpha = &two },
		`weighting: unknown "x"`:                                   func(c *DPOConfig) { c.Weighting = "x" },
		`weighting: "wpo", but aot compares`:                       func(c *DPOConfig) { c.LossTypes, c.Weighting = []string{"aot"}, WeightingWPO },
		"reference_free: true, but simpo":                          func(c *DPOConfig) { c.LossTypes, c.ReferenceFree = []string{"simpo"}, true },
		"rpo_alpha: -1":                                            func(c *DPOConfig) { c.RPOAlpha = -1 },
		`rpo_alpha: 1, but loss_type has "sft" already`:            func(c *DPOConfig) { c.LossTypes, c.RPOAlpha = []string{"sigmoid", "sft"}, 1 },
		"discopop_tau: 2":                                          func(c *DPOConfig) { c.LossTypes, c.DiscopopTau = []string{"discopop"}, 2 },
		"simpo_gamma: -1":                                          func(c *DPOConfig) { c.LossTypes, c.SimPOGamma = []string{"simpo"}, -1 },
	} {
		c := DefaultDPOConfig()
		require.NoError(t, c.Validate())
		mod(&c)
		require.ErrorContains(t, c.Validate(), want)
		c.Beta = -3
		require.ErrorContains(t, c.Validate(), "beta: -3")
		_, err := DPO(c, nil, DPOTotals{})
		require.Error(t, err)
	}
	k := KTOConfig{LossType: "x", Beta: -1, DesirableWeight: math.NaN(), UndesirableWeight: -1}
	for _, f := range []string{`loss_type: unknown "x"`, "beta: -1", "desirable_weight: NaN", "undesirable_weight: -1"} {
		require.ErrorContains(t, k.Validate(), f)
	}
	require.ErrorContains(t, KTOConfig{LossType: KTOType, Beta: 1}.Validate(), "both 0")
	b := BCOConfig{Shift: "x"}
	for _, f := range []string{"beta: 0", `bco_shift: unknown "x"`} {
		require.ErrorContains(t, b.Validate(), f)
	}
	d := DensityConfig{}
	for _, f := range []string{"density_c: 0", "min_density_ratio", "density_max_iterations: 0", "density_tolerance: 0"} {
		require.ErrorContains(t, d.Validate(), f)
	}
	require.ErrorContains(t, RewardConfig{Center: -1}.Validate(), "center_rewards_coefficient: -1")
}

func TestBadRowsAreNamed(t *testing.T) {
	ok := Seq{LogP: []float64{-1}, Ref: []float64{-1}}
	for want, p := range map[string]Pair{
		"pair 1 rejected token 0: LogP is NaN":            {ok, Seq{LogP: []float64{math.NaN()}, Ref: []float64{-1}}},
		"pair 1 chosen: Ref is missing":                   {Seq{LogP: []float64{-1}}, ok},
		"pair 1 chosen: Ref has 2 values for 1 tokens":    {Seq{LogP: []float64{-1}, Ref: []float64{-1, -1}}, ok},
		"pair 1 rejected: Mask has 0 values for 1 tokens": {ok, Seq{LogP: []float64{-1}, Ref: []float64{-1}, Mask: []bool{}}},
	} {
		_, err := DPO(DefaultDPOConfig(), []Pair{{ok, ok}, p}, DPOTotals{Pairs: 2})
		require.ErrorContains(t, err, want)
	}
	_, err := DPO(DefaultDPOConfig(), []Pair{{ok, ok}}, DPOTotals{})
	require.ErrorContains(t, err, "compute the totals over the whole step")
	c := DefaultDPOConfig()
	c.LossTypes = []string{"aot"}
	require.True(t, c.WholeStep())
	_, err = DPO(c, []Pair{{ok, ok}}, DPOTotals{Pairs: 2})
	require.ErrorContains(t, err, "score them all first and call DPO once")
	_, err = KTO(DefaultKTOConfig(), []Unpaired{{Seq: ok, Weight: -1}}, KTOTotals{Rows: 1})
	require.ErrorContains(t, err, "row 0: Weight is -1")
	_, err = KTO(DefaultKTOConfig(), nil, KTOTotals{KL: -1})
	require.ErrorContains(t, err, "the step's KL is -1")
	_, err = KTOKL(nil)
	require.ErrorContains(t, err, "no mismatched rows")
	kl, err := KTOKL([]Seq{{LogP: []float64{-3}, Ref: []float64{-1}}})
	require.NoError(t, err)
	require.Zero(t, kl) // clamped
	_, err = BCO(DefaultBCOConfig(), nil, BCOTotals{Shift: math.NaN()})
	require.ErrorContains(t, err, "shift is NaN")
	_, err = Reward(RewardConfig{}, []ScorePair{{Chosen: math.Inf(1)}}, 1)
	require.ErrorContains(t, err, "pair 0: scores +Inf")
}

// The paper's shift does not move with class sizes; TRL's does. One class alone
// gives its own mean.
func TestBCOShiftRules(t *testing.T) {
	row := func(r float64, good bool) Unpaired {
		return Unpaired{Seq: Seq{LogP: []float64{r}, Ref: []float64{0}}, Desirable: good}
	}
	c := BCOConfig{Beta: 1, Shift: ShiftClassMeans}
	rows := []Unpaired{row(3, true), row(0, false), row(0, false), row(0, false)}
	tot, st, err := NewBCOTotals(c, BCOState{}, rows)
	require.NoError(t, err)
	require.InDelta(t, 1.5, tot.Shift, 1e-12)
	c.Shift = ShiftPooled
	require.InDelta(t, .75, st.Shift(c), 1e-12)
	tot, _, err = NewBCOTotals(c, BCOState{}, rows[:1])
	require.NoError(t, err)
	require.Equal(t, 3.0, tot.Shift)
	require.Zero(t, BCOState{}.Shift(c))
	// a failed step leaves the state as it was
	_, same, err := NewBCOTotals(c, st, []Unpaired{row(math.NaN(), true)})
	require.Error(t, err)
	require.Equal(t, st, same)
	// moments merge as one batch
	var m Moments
	for _, x := range []float64{1, 2, 4, 9} {
		m = m.Merge(momentsOf([]float64{x}))
	}
	want := momentsOf([]float64{1, 2, 4, 9})
	require.InDelta(t, want.Mean, m.Mean, 1e-12)
	require.InDelta(t, want.M2, m.M2, 1e-12)
}

// The classifier stands where its objective's gradient is 0, gives the same
// bits again, and the odds of the side an embedding lies on.
func TestFitDensity(t *testing.T) {
	up := [][]float64{{1, .2}, {.8, -.1}, {1.2, 0}, {.1, .3}}
	down := [][]float64{{-1, .1}, {-.7, .2}}
	c := DefaultDensityConfig()
	d, err := FitDensity(c, up, down)
	require.NoError(t, err)
	again, err := FitDensity(c, up, down)
	require.NoError(t, err)
	require.Equal(t, d, again)
	slices.Reverse(up)
	turned, err := FitDensity(c, up, down)
	require.NoError(t, err)
	require.InDeltaSlice(t, d.Weights, turned.Weights, 1e-7)
	f := logistic{dim: 2}
	for _, x := range up {
		f.x, f.y, f.w = append(f.x, x), append(f.y, 1), append(f.w, 6./8)
	}
	for _, x := range down {
		f.x, f.y, f.w = append(f.x, x), append(f.y, -1), append(f.w, 6./4)
	}
	theta := append(slices.Clone(d.Weights), d.Bias)
	g, _ := f.slope(theta)
	require.Less(t, largest(g), 1e-7)
	for j := range theta { // and that gradient is the objective's
		move := func(h float64) float64 {
			m := []float64{.3, -.2, .1}
			m[j] += h
			return f.value(m)
		}
		g, _ := f.slope([]float64{.3, -.2, .1})
		require.InDelta(t, (move(1e-6)-move(-1e-6))/2e-6, g[j], 1e-7)
	}
	hi, err := d.Ratio([]float64{5, 0})
	require.NoError(t, err)
	lo, err := d.Ratio([]float64{-5, 0})
	require.NoError(t, err)
	require.Greater(t, hi, 3.0)
	require.Equal(t, .5, lo)
	far, err := d.Ratio([]float64{1e5, 0})
	require.NoError(t, err)
	require.Equal(t, 10.0, far)
	mid, err := Density{Weights: []float64{1}, Bias: .25, MinRatio: .1, MaxRatio: 9}.Ratio([]float64{.25})
	require.NoError(t, err)
	require.InDelta(t, math.Exp(.5), mid, 1e-12)
}

// High dimension, more columns than rows, large numbers, equal classes.
func TestFitDensityHardInputs(t *testing.T) {
	x := uint64(7)
	next := func() float64 {
		x = x*6364136223846793005 + 1442695040888963407
		return float64(x>>11)/(1<<53) - .5
	}
	make2 := func(n, dim int, scale, shift float64) [][]float64 {
		out := make([][]float64, n)
		for i := range out {
			out[i] = make([]float64, dim)
			for j := range out[i] {
				out[i][j] = scale * (next() + shift)
			}
		}
		return out
	}
	for name, c := range map[string]struct{ up, down [][]float64 }{
		"wide":      {make2(20, 384, .1, .05), make2(30, 384, .1, 0)},
		"large":     {make2(40, 8, 100, .3), make2(40, 8, 100, 0)},
		"separable": {make2(5, 3, 1, 10), make2(5, 3, 1, -10)},
		"the same":  {[][]float64{{1, 2}}, [][]float64{{1, 2}}},
		"zeros":     {[][]float64{{0}}, [][]float64{{0}, {0}}},
	} {
		d, err := FitDensity(DefaultDensityConfig(), c.up, c.down)
		require.NoError(t, err, name)
		r, err := d.Ratio(c.up[0])
		require.NoError(t, err)
		require.True(t, r >= .5 && r <= 10, name)
		if name == "the same" || name == "zeros" {
			require.InDelta(t, 1, r, 1e-6, name) // balanced classes
		}
	}
	for want, c := range map[string]struct{ up, down [][]float64 }{
		"0 desirable and 1 undesirable":         {nil, [][]float64{{1}}},
		"undesirable prompt 0 has 2 dimensions": {[][]float64{{1}}, [][]float64{{1, 2}}},
		"desirable prompt 1 dimension 0 is NaN": {[][]float64{{1}, {math.NaN()}}, [][]float64{{1}}},
	} {
		_, err := FitDensity(DefaultDensityConfig(), c.up, c.down)
		require.ErrorContains(t, err, want)
	}
	_, err := Density{Weights: []float64{1}}.Ratio([]float64{1, 2})
	require.ErrorContains(t, err, "2 dimensions for a classifier of 1")
}

// Pairs that tie share what their ranks would get.
func TestAOTTiesShareTheDerivative(t *testing.T) {
	c := DefaultDPOConfig()
	c.LossTypes, c.Beta = []string{"aot_unpaired"}, 1
	seq := func(ratio float64) Seq { return Seq{LogP: []float64{ratio - 5}, Ref: []float64{-5}} }
	res := dpo(t, c, []Pair{{seq(0), seq(1)}, {seq(0), seq(-1)}})
	want := -(1/(1+math.Exp(1)) + 1/(1+math.Exp(-1))) / 2 / 2 // mean over ranks, then over pairs
	for i := range 2 {
		require.InDelta(t, want, res.DLogP[i].Chosen[0], 1e-12)
	}
	require.InDelta(t, 1/(1+math.Exp(-1))/2, res.DLogP[0].Rejected[0], 1e-12)
}
