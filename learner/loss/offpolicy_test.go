package loss

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// IcePop: inside the band the ratio weighs, outside on either side the token is
// gone; reject modes keep what is inside at 1.
func TestDoubleSidedMasks(t *testing.T) {
	old, samp := make([]float64, 4), []float64{math.Log(10), math.Log(2), -math.Log(4), -math.Log(6)} // ratios .1, .5, 4, 6
	lo, hi := .4, 5.0
	for mode, want := range map[string][]float64{TokenMask: {0, .5, 4, 0}, TokenReject: {0, 1, 1, 0}, TokenTruncate: {.4, .5, 4, 5}} {
		got, err := RolloutIS{Mode: mode, ClipMin: &lo, ClipMax: &hi}.Ratio(old, samp, nil)
		require.NoError(t, err)
		require.InDeltaSlice(t, want, got, 1e-12, mode)
	}
	got, err := RolloutIS{Mode: GeometricReject, ClipMin: &lo, ClipMax: &hi}.Ratio(old, samp, nil)
	require.NoError(t, err)
	require.Equal(t, []float64{1}, got)
	got, err = RolloutIS{Mode: SequenceReject, ClipMax: &lo}.Ratio(old, samp, nil)
	require.NoError(t, err)
	require.Equal(t, []float64{0}, got) // the product is 1.2
	require.ErrorContains(t, RolloutIS{Mode: TokenReject}.Validate(), "neither is set")
}

// After the mask the second moment is at most the threshold, what was left out
// was at least as large as what was kept, and nothing was left out in vain.
func TestM2MaskProperties(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		tau := rapid.SampledFrom([]float64{.01, .04, 1}).Draw(rt, "tau")
		lp := rapid.SampledFrom([]float64{-3, -2, -1.5, -1.1, -1, -.9, math.NaN()})
		rows := make([]M2Row, rapid.IntRange(1, 5).Draw(rt, "rows"))
		for i := range rows {
			T := rapid.IntRange(0, 6).Draw(rt, "T")
			rows[i] = M2Row{fill(T, -1), rapid.SliceOfN(lp, T, T).Draw(rt, "s"), rapid.SliceOfN(rapid.Bool(), T, T).Draw(rt, "m")}
		}
		keep, err := M2Mask(tau, rows)
		require.NoError(rt, err)
		sum, n, most, least, ties := 0.0, 0.0, 0.0, math.Inf(1), 0.0
		for i, r := range rows {
			for k := range r.Old {
				switch sq := r.square(k); {
				case !r.Mask[k]:
					require.Zero(rt, keep[i][k])
				case keep[i][k] == 1:
					sum, n, most = sum+sq, n+1, max(most, sq)
				default:
					if sq < least {
						least, ties = sq, 0
					}
					if sq == least {
						ties++
					}
				}
			}
		}
		require.LessOrEqual(rt, sum, tau*n+1e-12)
		if ties > 0 {
			require.Less(rt, most, least)
			require.Greater(rt, sum+ties*least, tau*(n+ties))
		}
		perm := rapid.Permutation(rows).Draw(rt, "perm")
		again, err := M2Mask(tau, perm)
		require.NoError(rt, err)
		total := func(v [][]float64) (s float64) {
			for _, r := range v {
				for _, x := range r {
					s += x
				}
			}
			return s
		}
		require.Equal(rt, total(keep), total(again))
	})
	_, err := M2Mask(0, nil)
	require.ErrorContains(t, err, "m2_threshold: 0")
}

func TestStalenessWeights(t *testing.T) {
	lags := []uint64{0, 1, 2, 5}
	for _, c := range []struct {
		s    Staleness
		want []float64
	}{
		{Staleness{}, []float64{1, 1, 1, 1}},
		{Staleness{Rule: StalenessInverse}, []float64{1, 1, .5, .2}},
		{Staleness{Rule: StalenessExponential, Decay: .5}, []float64{1, .5, .25, 1. / 32}},
		{Staleness{Rule: StalenessNone, MaxLag: 2}, []float64{1, 1, 1, 0}},
	} {
		got, err := c.s.Weights(lags)
		require.NoError(t, err)
		require.Equal(t, c.want, got)
	}
	require.ErrorContains(t, Staleness{Rule: "x"}.Validate(), `staleness_weighting: unknown "x"`)
	require.ErrorContains(t, Staleness{Rule: StalenessExponential, Decay: 1}.Validate(), "staleness_decay: 1")
}

// Decoupled PPO: with Old the proximal policy and Ratio prox/sampling, the
// unclipped derivative is that of plain importance sampling, whatever the
// proximal policy; interpolation meets both ends.
func TestProximalPolicy(t *testing.T) {
	lp, samp := []float64{-1, -2, -.5}, []float64{-1.2, -1.7, -.4}
	for lag, want := range map[uint64][]float64{0: lp, 1: samp, 2: {-1.1, -1.85, -.45}} {
		got, err := Interpolate(lp, samp, []uint64{lag})
		require.NoError(t, err)
		require.InDeltaSlice(t, want, got, 1e-12, "lag %d", lag)
	}
	prox, err := Interpolate(lp, []float64{-1.2, math.NaN(), -.4}, []uint64{4, 4, 0})
	require.NoError(t, err)
	require.InDeltaSlice(t, []float64{-1.05, -2, -.5}, prox, 1e-12)
	_, err = Interpolate(lp, samp, []uint64{1, 2})
	require.ErrorContains(t, err, "2 lags")

	c := DefaultConfig()
	c.EpsilonLow, c.EpsilonHigh = .99, 99
	direct := compute(t, c, Row{LogP: lp, Old: samp, Adv: []float64{1}})
	for _, lag := range []uint64{0, 1, 3} {
		prox, err := Interpolate(lp, samp, []uint64{lag})
		require.NoError(t, err)
		w, err := RolloutIS{Mode: TokenTruncate}.Ratio(prox, samp, nil)
		require.NoError(t, err)
		res := compute(t, c, Row{LogP: lp, Old: prox, Ratio: w, Adv: []float64{1}})
		require.InDeltaSlice(t, direct.DLogP[0], res.DLogP[0], 1e-12)
	}
}

func TestWeigh(t *testing.T) {
	for _, c := range []struct {
		in   [][]float64
		want []float64
	}{
		{nil, nil}, {[][]float64{nil, {2}}, []float64{2}}, {[][]float64{{2}, {3}}, []float64{6}},
		{[][]float64{{2}, nil, {1, 0, 3}, {2}}, []float64{4, 0, 12}},
	} {
		got, err := Weigh(3, c.in...)
		require.NoError(t, err)
		require.Equal(t, c.want, got)
	}
	in := []float64{1, 2, 3}
	_, err := Weigh(3, in, []float64{2})
	require.NoError(t, err)
	require.Equal(t, []float64{1, 2, 3}, in)
	_, err = Weigh(3, []float64{1, 2})
	require.ErrorContains(t, err, "2 values for 3 tokens")
}

func TestKLEstimators(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		lp, ref := rapid.Float64Range(-5, 0).Draw(rt, "lp"), rapid.Float64Range(-5, 0).Draw(rt, "ref")
		for _, est := range []string{KLK1, KLK2, KLK3} {
			_, d := KL(est, lp, ref)
			up, _ := KL(est, lp+1e-6, ref)
			down, _ := KL(est, lp-1e-6, ref)
			require.InDelta(rt, (up-down)/2e-6, d, 1e-6*(1+math.Abs(d)), est)
			zero, _ := KL(est, lp, lp)
			require.Zero(rt, zero)
		}
	})
	got, err := TokenKL(KLK1, []float64{-1, math.NaN(), -1}, []float64{-1.1, -6, -1.1}, []bool{true, false, true})
	require.NoError(t, err)
	require.InDeltaSlice(t, []float64{.1, 0, .1}, got, 1e-12)
	_, err = TokenKL("k4", nil, nil, nil)
	require.ErrorContains(t, err, `kl_estimator: unknown "k4"`)
	_, err = TokenKL(KLK3, []float64{-2000}, []float64{-1}, nil)
	require.ErrorContains(t, err, "token 0: k3")
	c := DefaultConfig()
	c.KLEstimator, c.Beta, c.BiasCorrectedKL = KLK1, .1, false
	require.ErrorContains(t, c.Validate(), "use_bias_correction_kl")

	// each estimator reaches the loss, and its derivative
	for _, est := range []string{KLK1, KLK2, KLK3} {
		for _, level := range []string{LevelToken, LevelSequence, LevelSum} {
			c := DefaultConfig()
			c.KLEstimator, c.Beta, c.Level = est, .3, level
			row := Row{LogP: []float64{-1, -2}, Old: []float64{-1.1, -1.9}, Ref: []float64{-.7, -2.2}, Adv: []float64{.4}}
			at := func(k int, d float64) float64 {
				r := row
				r.LogP = slices.Clone(row.LogP)
				r.LogP[k] += d
				return compute(t, c, r).Loss
			}
			g := compute(t, c, row).DLogP[0]
			for k := range g {
				require.InDelta(t, (at(k, 1e-6)-at(k, -1e-6))/2e-6, g[k], 1e-8, "%s %s", est, level)
			}
		}
	}
}
