package loss

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func ptr(x float64) *float64 { return &x }

func fill(n int, x float64) []float64 {
	v := make([]float64, n)
	for i := range v {
		v[i] = x
	}
	return v
}

func compute(t testing.TB, c Config, rows ...Row) Result {
	t.Helper()
	tot, err := NewTotals(c, rows)
	require.NoError(t, err)
	res, err := Compute(c, rows, tot)
	require.NoError(t, err)
	return res
}

// cases/training.tsv loss: "importance level None gave exp(0)=1 as a constant,
// no policy gradient".
func TestCaseLossUnknownLevelIsAnErrorAndRatioOneIsREINFORCE(t *testing.T) {
	c := DefaultConfig()
	c.Level = "none"
	require.ErrorContains(t, c.Validate(), `importance_sampling_level: unknown "none"`)
	c = DefaultConfig()
	c.LossType = "grop"
	require.ErrorContains(t, c.Validate(), `loss_type: unknown "grop"; use one of bnpo, cispo, dapo, dr_grpo, grpo, luspo, rloo, sapo, vespo`)
	_, err := Compute(c, nil, Totals{})
	require.Error(t, err)

	for _, level := range []string{LevelToken, LevelSequence} {
		c := DefaultConfig()
		c.Level = level
		res := compute(t, c, Row{LogP: []float64{-1, -2}, Adv: []float64{1}}, Row{LogP: []float64{-3, -.5}, Adv: []float64{-1}})
		require.InDeltaSlice(t, []float64{-.25, -.25}, res.DLogP[0], 1e-12, level) // -A/4: REINFORCE
		require.InDeltaSlice(t, []float64{.25, .25}, res.DLogP[1], 1e-12, level)
	}
}

// cases/training.tsv loss-agg: "seq-mean denominator multiplied by dp_size":
// shares of any number of workers or micro-batches add up to the whole.
func TestCaseLossAggPartitionCannotChangeTheResult(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := DefaultConfig()
		c.LossType = rapid.SampledFrom(Types()).Draw(rt, "type")
		if c.LossType == "cispo" {
			c.EpsilonHigh = 1.5 // the cap itself
		}
		c.Level = rapid.SampledFrom([]string{LevelToken, LevelSequence, LevelSum}).Draw(rt, "level")
		c.Beta = rapid.SampledFrom([]float64{0, .04}).Draw(rt, "beta")
		c.KLEstimator = rapid.SampledFrom([]string{"", KLK1, KLK2, KLK3}).Draw(rt, "kl")
		if c.LossType == "rloo" {
			c.Level, c.Beta = LevelSum, 0
		}
		c.EntropyCoef = rapid.SampledFrom([]float64{0, .01}).Draw(rt, "ent")
		c.TopEntropyQuantile = rapid.SampledFrom([]float64{1, .5}).Draw(rt, "topq")
		c.Denominator = rapid.SampledFrom([]string{DenominatorFixed, DenominatorKept}).Draw(rt, "den")
		lp := rapid.Float64Range(-4, -.01)
		n := rapid.IntRange(1, 8).Draw(rt, "rows")
		rows := make([]Row, n)
		for i := range rows {
			T := rapid.IntRange(0, 6).Draw(rt, "T")
			s := func(name string, g *rapid.Generator[float64]) []float64 {
				return rapid.SliceOfN(g, T, T).Draw(rt, name)
			}
			rows[i] = Row{LogP: s("lp", lp), Old: s("old", lp), Ref: s("ref", lp), Entropy: s("ent", rapid.Float64Range(0, 3)),
				Adv: []float64{rapid.Float64Range(-2, 2).Draw(rt, "adv")}, Ratio: s("is", rapid.SampledFrom([]float64{0, .5, 1, 2}))}
		}
		tot, err := NewTotals(c, rows)
		require.NoError(rt, err)
		whole, err := Compute(c, rows, tot)
		require.NoError(rt, err)
		var sum float64
		var st Stats
		var d [][]float64
		for at := 0; at < n; {
			k := rapid.IntRange(1, n-at).Draw(rt, "micro")
			part, err := Compute(c, rows[at:at+k], tot)
			require.NoError(rt, err)
			sum += part.Loss
			st.Merge(part.Stats)
			d = append(d, part.DLogP...)
			at += k
		}
		require.InDelta(rt, whole.Loss, sum, 1e-9)
		require.Equal(rt, whole.DLogP, d)
		want, got := whole.Stats.Metrics(c), st.Metrics(c)
		require.Len(rt, got, len(want))
		for k := range want {
			require.InDelta(rt, want[k], got[k], 1e-9, k)
		}
	})
}

func TestCaseLossAggDPSize(t *testing.T) {
	// global batch of 32 rows whose every token has loss 1, on 1, 2 and 4 workers
	rows := make([]Row, 32)
	for i := range rows {
		rows[i] = Row{LogP: fill(1+i%5, -1), Adv: []float64{-1}}
	}
	for _, kind := range []string{"grpo", "bnpo", "dapo"} { // means over rows and over tokens
		c := DefaultConfig()
		c.LossType = kind
		tot, err := NewTotals(c, rows)
		require.NoError(t, err)
		for _, dp := range []int{1, 2, 4} {
			sum := 0.0
			for w := range dp {
				res, err := Compute(c, rows[w*32/dp:(w+1)*32/dp], tot)
				require.NoError(t, err)
				sum += res.Loss
			}
			require.InDelta(t, 1, sum, 1e-12, "%s dp=%d", kind, dp)
		}
	}
}

// cases/training.tsv loss-agg: "Dr.GRPO-style norm divides by the padded width".
func TestCaseLossAggDrGRPOIgnoresPadding(t *testing.T) {
	c := DefaultConfig()
	c.LossType, c.MaxCompletionLength = "dr_grpo", 16
	loss := func(width int) float64 {
		row := func(n int, adv float64) Row {
			r := Row{LogP: fill(width, -1), Mask: make([]bool, width), Adv: []float64{adv}}
			for t := range n {
				r.Mask[t] = true
			}
			return r
		}
		return compute(t, c, row(3, 1), row(2, -.5)).Loss
	}
	require.Equal(t, loss(4), loss(8))
	require.InDelta(t, -(3-1.)/(2*16), loss(4), 1e-12)
}

// cases/training.tsv loss-agg: "distillation/SFT loss normalised inside each
// micro-batch".
func TestCaseLossAggSFTPartition(t *testing.T) {
	rows := []SFTRow{{LogP: []float64{-1}}, {LogP: []float64{-2, -3}}, {LogP: []float64{-1, -1, -1, -1, -4}}}
	total := SFTWeight(rows)
	require.Equal(t, 8.0, total)
	whole, err := SFT(NLL, rows, total)
	require.NoError(t, err)
	require.InDelta(t, 14./8, whole.Loss, 1e-12)
	sum := 0.0
	for i := range rows {
		part, err := SFT(NLL, rows[i:i+1], total)
		require.NoError(t, err)
		sum += part.Loss
		require.Equal(t, whole.DLogP[i], part.DLogP[0])
	}
	require.InDelta(t, whole.Loss, sum, 1e-12)
}

// cases/training.tsv loss-mask: "masked mean without a floor gives 0/0" and
// "DAPO normaliser not floored".
func TestCaseLossMaskAllMaskedIsZeroNotNaN(t *testing.T) {
	for _, lt := range Types() {
		for _, level := range []string{LevelToken, LevelSequence} {
			for _, q := range []float64{1, .4} {
				c := DefaultConfig()
				c.LossType, c.Level, c.Beta, c.EntropyCoef, c.TopEntropyQuantile = lt, level, .1, .01, q
				c.EpsilonHigh = 5 // cispo's cap
				if lt == "rloo" {
					c.Level, c.Beta = LevelSum, 0
				}
				r := Row{LogP: fill(4, -1), Ref: fill(4, -2), Entropy: fill(4, 1), Mask: make([]bool, 4), Adv: []float64{1}}
				res := compute(t, c, r, r)
				require.Zero(t, res.Loss, lt)
				require.Equal(t, make([]float64, 4), res.DLogP[0])
				require.Equal(t, make([]float64, 4), res.DEntropy[1])
				for k, v := range res.Stats.Metrics(c) {
					require.False(t, math.IsNaN(v), k)
				}
			}
		}
	}
	sft, err := SFT(NLL, []SFTRow{{LogP: fill(4, -1), Weight: fill(4, 0)}}, 0)
	require.NoError(t, err)
	require.Zero(t, sft.Loss)
}

// cases/training.tsv eos/pad: "tokens after the first EOS were filled with EOS,
// all rows got the same length and BNPO loss became constant 0".
func TestCaseEOSPadRowLengthsAreReal(t *testing.T) {
	c := DefaultConfig()
	c.LossType = "bnpo"
	res := compute(t, c, Row{LogP: fill(2, -1), Adv: []float64{1}}, Row{LogP: fill(4, -1), Adv: []float64{-1}})
	require.InDelta(t, -(2-4.)/6, res.Loss, 1e-12)
}

// cases/training.tsv metrics: "padding rows count as ppl 1 / diff 0".
func TestCaseMetricsIgnorePaddingRows(t *testing.T) {
	c := DefaultConfig()
	c.Beta, c.Level = .1, LevelSequence
	real := Row{LogP: fill(3, -2), Ref: fill(3, -1), Entropy: fill(3, 1), Adv: []float64{-1}, Ratio: fill(3, .5)}
	pad := Row{LogP: fill(3, 0), Ref: fill(3, 0), Entropy: fill(3, 0), Mask: make([]bool, 3), Adv: []float64{0}, Ratio: fill(3, 1)}
	one := compute(t, c, real).Stats.Metrics(c)
	require.InDelta(t, math.Exp(2), one["training_ppl"], 1e-9)
	require.Equal(t, one, compute(t, c, real, pad, pad, pad).Stats.Metrics(c))
}

// cases/training.tsv off-policy: "sequence-level IS ratio is the product over
// tokens, explodes with length".
func TestCaseOffPolicySequenceLevelIsExplicit(t *testing.T) {
	old, samp := fill(64, -1), fill(64, -1.05)
	for mode, want := range map[string]float64{SequenceTruncate: math.Exp(3.2), GeometricTruncate: math.Exp(.05), TokenTruncate: math.Exp(.05)} {
		got, err := RolloutIS{Mode: mode}.Ratio(old, samp, nil)
		require.NoError(t, err)
		require.InDelta(t, want, got[0], 1e-9, mode)
	}
	require.InDelta(t, 24.5, math.Exp(3.2), .05)
	masked, err := RolloutIS{Mode: SequenceMask, ClipMax: ptr(3)}.Ratio(old, samp, nil)
	require.NoError(t, err)
	require.Equal(t, []float64{0}, masked)
	_, err = RolloutIS{}.Ratio(old, samp, nil)
	require.ErrorContains(t, err, "rollout_importance_sampling_mode")
}

// cases/training.tsv off-policy: "importance-rejected tokens were zero in the
// numerator yet stayed in the denominator": the rule is explicit, both tested.
func TestCaseOffPolicyDenominatorRule(t *testing.T) {
	r := Row{LogP: fill(5, -1), Adv: []float64{-1}, Ratio: []float64{0, 1, 0, 1, 0}}
	for rule, den := range map[string]float64{DenominatorKept: 2, DenominatorFixed: 5} {
		for _, lt := range []string{"grpo", "bnpo", "dapo"} {
			c := DefaultConfig()
			c.LossType, c.Denominator = lt, rule
			res := compute(t, c, r)
			require.InDelta(t, 2/den, res.Loss, 1e-12, "%s %s", rule, lt)
			m := res.Stats.Metrics(c)
			require.Equal(t, 2.0, m["rollout_is/kept_tokens"])
			require.Equal(t, 3.0, m["rollout_is/rejected_tokens"])
			require.Equal(t, b2f(rule == DenominatorKept), m["rollout_is/denominator_kept"])
		}
	}
	c := DefaultConfig()
	c.Denominator = ""
	require.ErrorContains(t, c.Validate(), "rollout_is_denominator")
}

// cases/training.tsv KL: "KL penalty on tool-result tokens": masked tokens
// never enter the KL.
func TestCaseKLIgnoresToolTokens(t *testing.T) {
	c := DefaultConfig()
	c.Beta, c.BiasCorrectedKL = 1, false
	r := Row{LogP: []float64{-1, -1, -1}, Ref: []float64{-1.2, -9, -1.2}, Mask: []bool{true, false, true}, Adv: []float64{0}}
	k, _ := k3(-1, -1.2)
	res := compute(t, c, r)
	require.InDelta(t, k, res.Loss, 1e-12)
	require.InDelta(t, k, res.Stats.Metrics(c)["kl"], 1e-12)
	require.Zero(t, res.DLogP[0][1])
}

// cases/training.tsv ref-model: KL is exactly 0 where policy and reference agree.
func TestCaseRefModelKLZeroWhereEqual(t *testing.T) {
	kl, d := k3(-1.234567, -1.234567)
	require.Zero(t, kl)
	require.Zero(t, d)
}

// cases/training.tsv zero-advantage: a constant group's policy term is 0; with
// beta > 0 only its KL remains.
func TestCaseZeroAdvantagePolicyTermIsZero(t *testing.T) {
	c := DefaultConfig()
	c.Beta = .1
	r := Row{LogP: fill(2, -1), Ref: fill(2, -2), Adv: []float64{0}}
	k, _ := k3(-1, -2)
	require.InDelta(t, .1*k, compute(t, c, r).Loss, 1e-12)
	c.Beta = 0
	res := compute(t, c, r)
	require.Zero(t, res.Loss)
	require.Equal(t, []float64{0, 0}, res.DLogP[0])
}

func TestBadInputNamesRowAndField(t *testing.T) {
	c := DefaultConfig()
	ok := Row{LogP: fill(2, -1), Adv: []float64{1}}
	for name, tc := range map[string]struct {
		row  Row
		want string
	}{
		"nan":     {Row{LogP: []float64{-1, math.NaN()}, Adv: []float64{1}}, "row 1 token 1: LogP is NaN"},
		"length":  {Row{LogP: fill(2, -1), Old: fill(3, -1), Adv: []float64{1}}, "row 1: Old has 3 values for 2 tokens"},
		"no adv":  {Row{LogP: fill(2, -1)}, "row 1: Adv is missing"},
		"diverge": {Row{LogP: fill(1, -1), Old: fill(1, -2000), Adv: []float64{-1}}, "row 1: loss is"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Compute(c, []Row{ok, tc.row}, Totals{Rows: 2, Tokens: 4})
			require.ErrorContains(t, err, tc.want)
		})
	}
	c.Beta = .1
	_, err := Compute(c, []Row{ok}, Totals{Rows: 1, Tokens: 2})
	require.ErrorContains(t, err, "Ref is missing")
	bad := Config{Level: "x", EpsilonLow: 1, EpsilonHigh: -1, Delta: ptr(0), Beta: -1, OffPolicyMaskThreshold: ptr(-1), TopEntropyQuantile: 2, EntropyCoef: math.NaN()}
	for _, f := range []string{"loss_type", "importance_sampling_level", "epsilon:", "epsilon_high", "delta", "beta", "off_policy_mask_threshold", "top_entropy_quantile", "entropy_coef", "rollout_is_denominator"} {
		require.ErrorContains(t, bad.Validate(), f)
	}
	// a huge ratio under a positive advantage is clipped, not NaN
	c = DefaultConfig()
	res := compute(t, c, Row{LogP: fill(1, -1), Old: fill(1, -2000), Adv: []float64{1}})
	require.Equal(t, []float64{0}, res.DLogP[0])
	_, err = SFT("nlll", nil, 1)
	require.ErrorContains(t, err, `unknown "nlll"`)
	_, err = SFT(NLL, []SFTRow{{LogP: fill(1, -1)}}, 0)
	require.ErrorContains(t, err, "total weight is 0")
}

// Clip fractions count the ratio after the delta cap, as TRL does.
func TestClippedCountsAfterDelta(t *testing.T) {
	c := DefaultConfig()
	_, high := clipped(c, 1.5, 1)
	require.True(t, high)
	c.Delta = ptr(1.1)
	_, high = clipped(c, 1.5, 1)
	require.False(t, high)
}
