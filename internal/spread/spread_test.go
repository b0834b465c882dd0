package spread

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestOf(t *testing.T) {
	s := Of([]float64{4, math.NaN(), 1, 3, 2})
	require.Equal(t, 4, s.Len())
	require.Equal(t, []float64{1, 4, 2.5, 10, 30}, []float64{s.Min, s.Max, s.Mean, s.Sum, s.Squares})
	require.InDelta(t, math.Sqrt(1.25), s.Std, 1e-15)
	for q, want := range map[float64]float64{0: 1, .5: 2.5, 1: 4, 1. / 3: 2, -1: 1, 2: 4} {
		require.InDelta(t, want, s.Quantile(q), 1e-12, "%v", q)
	}
	h := s.Histogram(3)
	require.Equal(t, []float64{2, 3, 4}, h.Limits)
	require.Equal(t, []float64{2, 1, 1}, h.Counts)
}

func TestNothingAndEqualValues(t *testing.T) {
	s := Of(nil)
	require.True(t, math.IsNaN(s.Quantile(.5)))
	require.Empty(t, s.Histogram(4).Limits)
	s = Of([]float64{.1, .1, .1})
	require.Equal(t, .1, s.Mean)
	require.Zero(t, s.Std)
	require.Equal(t, Histogram{Min: .1, Max: .1, Num: 3, Sum: s.Sum, Squares: s.Squares, Limits: []float64{.1}, Counts: []float64{3}}, s.Histogram(5))
}

func TestPropertySpread(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		v := rapid.SliceOfN(rapid.Float64Range(-1e6, 1e6), 1, 50).Draw(rt, "v")
		w := slices.Clone(v)
		rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0)).Shuffle(len(w), func(i, j int) { w[i], w[j] = w[j], w[i] })
		s := Of(v)
		require.Equal(rt, s, Of(w), "order cannot matter")
		h := s.Histogram(rapid.IntRange(1, 20).Draw(rt, "n"))
		sum := 0.0
		for _, c := range h.Counts {
			sum += c
		}
		require.Equal(rt, float64(len(v)), sum)
		require.True(rt, slices.IsSorted(h.Limits))
		require.Equal(rt, s.Max, h.Limits[len(h.Limits)-1])
		last := math.Inf(-1)
		for q := 0.0; q <= 1; q += .1 {
			x := s.Quantile(q)
			require.GreaterOrEqual(rt, x, last)
			last = x
		}
	})
}
