package preference

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func drawSeq(rt *rapid.T, lp *rapid.Generator[float64], name string, least int) Seq {
	T := rapid.IntRange(least, 5).Draw(rt, name+" T")
	s := func(what string) []float64 { return rapid.SliceOfN(lp, T, T).Draw(rt, name+what) }
	return Seq{LogP: s(" lp"), Ref: s(" ref"), LogSumSq: s(" sq"), Mask: rapid.SliceOfN(rapid.Bool(), T, T).Draw(rt, name+" mask")}
}

func drawConfig(rt *rapid.T) DPOConfig {
	c := DefaultDPOConfig()
	c.LossTypes = []string{rapid.SampledFrom(DPOTypes()).Draw(rt, "type")}
	if rapid.Bool().Draw(rt, "mix") && c.LossTypes[0] != SFTTerm {
		c.LossTypes = append(c.LossTypes, SFTTerm)
		c.LossWeights = []float64{.7, .3}
	}
	k := kinds[c.LossTypes[0]]
	c.Beta = rapid.Float64Range(.05, 1).Draw(rt, "beta")
	if k.smooth {
		c.LabelSmoothing = rapid.Float64Range(.01, .4).Draw(rt, "ls")
	}
	if k.score {
		c.FDivergence = rapid.SampledFrom(Divergences).Draw(rt, "div")
		c.FAlpha = rapid.SampledFrom([]float64{-.5, 0, .5, 1, 2}).Draw(rt, "alpha")
	}
	if rapid.Bool().Draw(rt, "ld") {
		x := rapid.Float64Range(0, 1).Draw(rt, "ld_alpha")
		c.LDAlpha = &x
	}
	if !k.step {
		c.Weighting = rapid.SampledFrom([]string{WeightingNone, WeightingWPO, WeightingWPOAligned}).Draw(rt, "weighting")
	}
	c.ReferenceFree = !k.unlinked && rapid.Bool().Draw(rt, "reference free")
	return c
}

func drawPairs(rt *rapid.T, lp *rapid.Generator[float64]) []Pair {
	pairs := make([]Pair, rapid.IntRange(1, 6).Draw(rt, "pairs"))
	for i := range pairs {
		pairs[i] = Pair{drawSeq(rt, lp, "w", 1), drawSeq(rt, lp, "l", 0)}
	}
	return pairs
}

// The derivative is that of the loss, for every type, divergence and option.
func TestDPOGradientIsTheDerivative(t *testing.T) {
	const h = 1e-6
	rapid.Check(t, func(rt *rapid.T) {
		c := drawConfig(rt)
		c.Weighting = WeightingNone // held constant, so not part of the derivative
		pairs := drawPairs(rt, rapid.Float64Range(-3, -.02))
		res := dpo(t, c, pairs)
		tot, err := NewDPOTotals(pairs)
		require.NoError(rt, err)
		i := rapid.IntRange(0, len(pairs)-1).Draw(rt, "pair")
		for _, chosen := range []bool{true, false} {
			seq, g := &pairs[i].Rejected, res.DLogP[i].Rejected
			if chosen {
				seq, g = &pairs[i].Chosen, res.DLogP[i].Chosen
			}
			orig := seq.LogP
			at := func(k int, d float64) float64 {
				seq.LogP = slices.Clone(orig)
				seq.LogP[k] += d
				r, err := DPO(c, pairs, tot)
				require.NoError(rt, err)
				seq.LogP = orig
				return r.Loss
			}
			for k := range g {
				up, mid, down := at(k, h), at(k, 0), at(k, -h)
				smooth := 1e-9 * (1 + math.Abs(mid))
				if c.WholeStep() {
					smooth = 1e-11
				}
				if math.Abs((up-mid)-(mid-down)) > smooth {
					continue // on a hinge, or where ranks of aot cross
				}
				num := (up - down) / (2 * h)
				require.InDelta(rt, num, g[k], 1e-5*(1+math.Abs(num))+1e-9*math.Abs(mid), "%v token %d", c.LossTypes, k) // the last is rounding of the loss
			}
		}
	})
}

// A step's loss and derivatives do not depend on how it is cut into
// micro-batches, on the order of pairs, or on anything under the mask.
func TestDPOPartitionOrderAndMaskDoNotMatter(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := drawConfig(rt)
		pairs := drawPairs(rt, rapid.SampledFrom([]float64{-2.5, -1, -1, -.25}))
		whole := dpo(t, c, pairs)
		tot, err := NewDPOTotals(pairs)
		require.NoError(rt, err)

		perm := rapid.Permutation(indices(len(pairs))).Draw(rt, "perm")
		moved := make([]Pair, len(pairs))
		for j, i := range perm {
			moved[j] = Pair{scribble(rt, pairs[i].Chosen), scribble(rt, pairs[i].Rejected)}
		}
		sum := 0.0
		var st PairStats
		var d []PairGrad
		for at := 0; at < len(moved); {
			k := len(moved)
			if !c.WholeStep() {
				k = rapid.IntRange(1, len(moved)-at).Draw(rt, "micro")
			}
			part, err := DPO(c, moved[at:at+k], tot)
			require.NoError(rt, err)
			sum += part.Loss
			st.Merge(part.Stats)
			d = append(d, part.DLogP...)
			at += k
		}
		require.InDelta(rt, whole.Loss, sum, 1e-9*(1+math.Abs(sum)))
		for j, i := range perm {
			require.InDeltaSlice(rt, whole.DLogP[i].Chosen, d[j].Chosen, 1e-9)
			require.InDeltaSlice(rt, whole.DLogP[i].Rejected, d[j].Rejected, 1e-9)
		}
		want, got := whole.Stats.Metrics(c), st.Metrics(c)
		require.Len(rt, got, len(want))
		for k, v := range want {
			require.InDelta(rt, v, got[k], 1e-9*(1+math.Abs(v)), k)
		}
	})
}

func indices(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

// scribble fills what the mask hides with anything.
func scribble(rt *rapid.T, s Seq) Seq {
	junk := rapid.SampledFrom([]float64{math.NaN(), math.Inf(1), math.Inf(-1), 1e300, 0})
	out := Seq{slices.Clone(s.LogP), slices.Clone(s.Ref), slices.Clone(s.LogSumSq), s.Mask}
	for t := range out.LogP {
		if !s.on(t) {
			out.LogP[t], out.Ref[t], out.LogSumSq[t] = junk.Draw(rt, "junk"), junk.Draw(rt, "junk"), junk.Draw(rt, "junk")
		}
	}
	return out
}

// Extreme log-probabilities give a finite loss or an error that names the pair,
// never NaN or infinity.
func TestExtremeLogProbsAreFiniteOrAnError(t *testing.T) {
	lp := rapid.SampledFrom([]float64{-1e308, -1e30, -1e6, -800, -40, -1, -1e-300, 0, 1e-12, 1e30, 1e308})
	rapid.Check(t, func(rt *rapid.T) {
		c := drawConfig(rt)
		pairs := drawPairs(rt, lp)
		tot, err := NewDPOTotals(pairs)
		require.NoError(rt, err)
		if res, err := DPO(c, pairs, tot); err != nil {
			require.ErrorContains(rt, err, "preference: pair")
		} else {
			require.True(rt, finite(res.Loss))
			for _, g := range res.DLogP {
				require.False(rt, slices.ContainsFunc(append(g.Chosen, g.Rejected...), func(x float64) bool { return !finite(x) }))
			}
		}
		rows := []Unpaired{{Seq: pairs[0].Chosen, Desirable: true}, {Seq: pairs[0].Rejected}}
		k, err := KTO(DefaultKTOConfig(), rows, KTOTotals{Rows: 2, KL: 1e9})
		if err == nil {
			require.True(rt, finite(k.Loss))
		}
		if bt, _, err := NewBCOTotals(DefaultBCOConfig(), BCOState{}, rows); err == nil {
			if b, err := BCO(DefaultBCOConfig(), rows, bt); err == nil {
				require.True(rt, finite(b.Loss))
			}
		}
	})
	// what a policy may well say of one token must not be an error
	far := []Pair{{Seq{LogP: []float64{-900}, Ref: []float64{-1}}, Seq{LogP: []float64{-1}, Ref: []float64{-900}}}}
	for _, lt := range DPOTypes() {
		for _, div := range Divergences {
			c := DefaultDPOConfig()
			c.LossTypes, c.FDivergence = []string{lt}, div
			if lt == "exo_pair" {
				c.LabelSmoothing = .1
			}
			if c.Validate() != nil {
				continue
			}
			res := dpo(t, c, far)
			require.True(t, finite(res.Loss), "%s %s", lt, div)
		}
	}
}

// Verdict losses: derivative, partition, order and mask.
func TestUnpairedLossesProperties(t *testing.T) {
	const h = 1e-6
	rapid.Check(t, func(rt *rapid.T) {
		lp := rapid.Float64Range(-3, -.02)
		rows := make([]Unpaired, rapid.IntRange(1, 6).Draw(rt, "rows"))
		for i := range rows {
			rows[i] = Unpaired{Seq: drawSeq(rt, lp, "s", 0), Desirable: rapid.Bool().Draw(rt, "label"), Weight: rapid.SampledFrom([]float64{0, .5, 3}).Draw(rt, "weight")}
		}
		kc := DefaultKTOConfig()
		kc.LossType = rapid.SampledFrom([]string{KTOType, APOZeroUnpaired}).Draw(rt, "type")
		kc.DesirableWeight = rapid.Float64Range(0, 2).Draw(rt, "wd")
		bc := DefaultBCOConfig()
		bc.Shift = rapid.SampledFrom([]string{ShiftPooled, ShiftClassMeans}).Draw(rt, "shift")
		bt, _, err := NewBCOTotals(bc, BCOState{}, rows)
		require.NoError(rt, err)
		n := float64(len(rows))
		for name, f := range map[string]func(rows []Unpaired) (UnpairedResult, error){
			"kto": func(r []Unpaired) (UnpairedResult, error) { return KTO(kc, r, KTOTotals{n, 1.3}) },
			"bco": func(r []Unpaired) (UnpairedResult, error) { return BCO(bc, r, bt) },
		} {
			whole, err := f(rows)
			require.NoError(rt, err)
			sum := 0.0
			var st UnpairedStats
			perm := rapid.Permutation(indices(len(rows))).Draw(rt, "perm")
			for _, i := range perm { // one row a micro-batch
				u := rows[i]
				u.Seq = scribble(rt, u.Seq)
				one, err := f([]Unpaired{u})
				require.NoError(rt, err)
				require.Equal(rt, whole.DLogP[i], one.DLogP[0], name)
				sum += one.Loss
				st.Merge(one.Stats)
			}
			require.InDelta(rt, whole.Loss, sum, 1e-12)
			for k, v := range whole.Stats.Metrics() {
				require.InDelta(rt, v, st.Metrics()[k], 1e-12, k)
			}
			for i, u := range rows {
				for k := range u.LogP {
					at := func(d float64) float64 {
						m := slices.Clone(rows)
						m[i].LogP = slices.Clone(u.LogP)
						m[i].LogP[k] += d
						r, err := f(m)
						require.NoError(rt, err)
						return r.Loss
					}
					require.InDelta(rt, (at(h)-at(-h))/(2*h), whole.DLogP[i][k], 1e-7, name)
				}
			}
		}
	})
}

func TestRewardGradientIsTheDerivative(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := rapid.Float64Range(-5, 5)
		c := RewardConfig{Center: rapid.SampledFrom([]float64{0, .1}).Draw(rt, "center")}
		p := ScorePair{s.Draw(rt, "w"), s.Draw(rt, "l"), s.Draw(rt, "margin")}
		at := func(p ScorePair) RewardResult {
			r, err := Reward(c, []ScorePair{p}, 3)
			require.NoError(rt, err)
			return r
		}
		const h = 1e-6
		up, down, left, right := p, p, p, p
		up.Chosen, down.Chosen, left.Rejected, right.Rejected = p.Chosen+h, p.Chosen-h, p.Rejected+h, p.Rejected-h
		require.InDelta(rt, (at(up).Loss-at(down).Loss)/(2*h), at(p).DChosen[0], 1e-8)
		require.InDelta(rt, (at(left).Loss-at(right).Loss)/(2*h), at(p).DRejected[0], 1e-8)
	})
}
