package sample

import (
	"math"
	"math/rand/v2"
	"sort"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/skein-rl/skein/model"
)

func draw(t testing.TB, logits []float32, s model.Sampling, pos int) (int32, float64) {
	t.Helper()
	id, lp, err := Draw(logits, s, pos)
	require.NoError(t, err)
	return id, float64(lp)
}

// TestTemperatureBeforeSoftmax is cases/training.tsv's logprobs rows: the
// logprob of the distribution sampled from, not the raw one, not divided by T.
func TestTemperatureBeforeSoftmax(t *testing.T) {
	for seed := range uint64(50) {
		id, lp := draw(t, []float32{2, 0}, model.Sampling{Temperature: 0.5, Seed: seed}, 3)
		want := -0.01815
		if id == 1 {
			want -= 4
		}
		require.InDelta(t, want, lp, 1e-5)
	}
	_, lp := draw(t, []float32{2, 0}, model.Sampling{}, 0)
	require.InDelta(t, -0.12693, lp, 1e-5, "greedy: the untempered softmax")
}

// TestLogprobIsTheSampledToken is cases/training.tsv's row on the first entry
// of a logprob list: the value belongs to the id drawn, likely or not.
func TestLogprobIsTheSampledToken(t *testing.T) {
	logits := make([]float32, 400)
	for i := range logits {
		logits[i] = -12
	}
	logits[13], logits[382] = -0.704, -1.9
	seen := map[int32]bool{}
	var sum float64
	for _, v := range logits {
		sum += math.Exp(float64(v))
	}
	for pos := range 200 {
		id, lp := draw(t, logits, model.Sampling{Temperature: 1, Seed: 9}, pos)
		require.InDelta(t, float64(logits[id])-math.Log(sum), lp, 1e-5)
		seen[id] = true
	}
	require.True(t, seen[13] && seen[382])
}

// reference is the distribution by definition: a full sort.
func reference(logits []float32, s model.Sampling) map[int32]float64 {
	ids := make([]int, len(logits))
	for i := range ids {
		ids[i] = i
	}
	sort.SliceStable(ids, func(a, b int) bool { return logits[ids[a]] > logits[ids[b]] })
	if s.TopK > 0 {
		ids = ids[:min(s.TopK, len(ids))]
	}
	weight := func(i int) float64 { return math.Exp(float64(logits[i]-logits[ids[0]]) / s.Temperature) }
	total := 0.0
	for _, i := range ids {
		total += weight(i)
	}
	if s.TopP > 0 && s.TopP < 1 {
		cum := 0.0
		for n, i := range ids {
			if cum += weight(i); cum >= s.TopP*total {
				ids = ids[:n+1]
				break
			}
		}
	}
	total = 0
	for _, i := range ids {
		total += weight(i)
	}
	p := map[int32]float64{}
	for _, i := range ids {
		p[int32(i)] = weight(i) / total
	}
	return p
}

func TestDrawMatchesTheDefinition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "data"), 1))
		logits := make([]float32, rapid.IntRange(1, 60).Draw(t, "vocab"))
		for i := range logits {
			logits[i] = float32(math.Round(4*r.NormFloat64()) / 2) // with ties
		}
		s := model.Sampling{Temperature: rapid.Float64Range(0.1, 3).Draw(t, "temperature"),
			TopP: rapid.SampledFrom([]float64{0, 0.1, 0.5, 0.9, 0.999, 1}).Draw(t, "top_p"),
			TopK: rapid.SampledFrom([]int{0, 1, 3, 20, 100}).Draw(t, "top_k"), Seed: rapid.Uint64().Draw(t, "seed")}
		before := append([]float32(nil), logits...)
		pos := rapid.IntRange(0, 1000).Draw(t, "position")
		id, lp, err := Draw(logits, s, pos)
		require.NoError(t, err)
		p, ok := reference(logits, s)[id]
		require.True(t, ok, "token %d was filtered out", id)
		require.InDelta(t, math.Log(p), lp, 1e-5)
		again, lp2, err := Draw(logits, s, pos)
		require.NoError(t, err)
		require.Equal(t, id, again)
		require.Equal(t, lp, lp2)
		require.Equal(t, before, logits)
	})
}

// TestFrequencies compares counts with probabilities (chi-square, fixed seeds).
func TestFrequencies(t *testing.T) {
	logits := []float32{1, -0.5, 0.3, 2, float32(math.Inf(-1)), 0, -2}
	for _, s := range []model.Sampling{{Temperature: 1}, {Temperature: 0.6}, {Temperature: 1.5, TopK: 4}, {Temperature: 1, TopP: 0.8}, {Temperature: 2, TopK: 5, TopP: 0.9}} {
		want := reference(logits, s)
		const n = 20000
		counts := map[int32]int{}
		for i := range n {
			s.Seed = uint64(i / 100) // consecutive positions and neighbouring seeds
			id, _ := draw(t, logits, s, i%100)
			counts[id]++
		}
		chi := 0.0
		for id, p := range want {
			if p > 0 {
				d := float64(counts[id]) - n*p
				chi += d * d / (n * p)
			}
			delete(counts, id)
		}
		require.Empty(t, counts)
		require.Less(t, chi, 25.0, "%+v", s) // 6 degrees of freedom: p < 0.0004
	}
}

func TestFilterThatKeepsAllChangesNothing(t *testing.T) {
	logits := []float32{0.5, -1, 3, 2, 2, -0.3}
	for pos := range 300 {
		a, la := draw(t, logits, model.Sampling{Temperature: 1.3, Seed: 7}, pos)
		b, lb := draw(t, logits, model.Sampling{Temperature: 1.3, Seed: 7, TopK: 6, TopP: 1}, pos)
		c, lc := draw(t, logits, model.Sampling{Temperature: 1.3, Seed: 7, TopP: 0.9999999999}, pos)
		require.Equal(t, a, b)
		require.Equal(t, la, lb)
		require.Equal(t, a, c)
		require.InDelta(t, la, lc, 1e-6)
	}
}

func TestTiesGoToTheLowerID(t *testing.T) {
	logits := []float32{1, 5, 5, 5}
	id, lp := draw(t, logits, model.Sampling{}, 0)
	require.EqualValues(t, 1, id)
	require.InDelta(t, -math.Log(3+math.Exp(-4)), lp, 1e-6)
	for pos := range 50 {
		id, lp := draw(t, logits, model.Sampling{Temperature: 1, TopK: 1, Seed: 1}, pos)
		require.EqualValues(t, 1, id)
		require.Zero(t, lp)
		id, _ = draw(t, logits, model.Sampling{Temperature: 1, TopP: 0.5, Seed: 1}, pos)
		require.Contains(t, []int32{1, 2}, id)
	}
}

func TestBadInput(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, logits := range [][]float32{{0, nan}, {nan, 0}, {1, inf}, {-inf, -inf}, {}} {
		for _, s := range []model.Sampling{{}, {Temperature: 1}, {Temperature: 1, TopP: 0.5}} {
			_, _, err := Draw(logits, s, 0)
			require.ErrorIs(t, err, ErrNonFinite)
		}
	}
	_, _, err := Draw([]float32{0, nan}, model.Sampling{}, 0)
	require.ErrorContains(t, err, "logit of token 1 is NaN")
	err = Check(model.Sampling{Temperature: -1, TopP: 1.5, TopK: -2})
	require.ErrorContains(t, err, "temperature is -1")
	require.ErrorContains(t, err, "top_p is 1.5")
	require.ErrorContains(t, err, "top_k is -2")
	require.Error(t, Check(model.Sampling{Temperature: math.NaN()}))
}

// TestGoldenDraws pins the hash and the inversion: changing either would make
// recorded rollouts unrepeatable.
func TestGoldenDraws(t *testing.T) {
	require.Equal(t, 0.28176129772258496, uniform(0, 0))
	logits := []float32{0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5}
	var got []int32
	for pos := range 16 {
		id, _ := draw(t, logits, model.Sampling{Temperature: 2, Seed: 42}, pos)
		got = append(got, id)
	}
	require.Equal(t, []int32{6, 7, 7, 7, 6, 5, 5, 7, 7, 7, 0, 5, 4, 5, 7, 2}, got)
}

func BenchmarkDraw(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, bc := range []struct {
		name  string
		vocab int
		s     model.Sampling
	}{{"512", 512, model.Sampling{Temperature: 1}}, {"49152", 49152, model.Sampling{Temperature: 1}}, {"49152/top_p", 49152, model.Sampling{Temperature: 1, TopP: 0.95}}} {
		b.Run(bc.name, func(b *testing.B) {
			logits := make([]float32, bc.vocab)
			for i := range logits {
				logits[i] = 3 * float32(r.NormFloat64())
			}
			for i := 0; b.Loop(); i++ {
				if _, _, err := Draw(logits, bc.s, i); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
