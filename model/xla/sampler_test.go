//go:build xla

package xla

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/gomlx/go-xla/pkg/pjrt"
	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/model/sample"
	"github.com/stretchr/testify/require"
)

// drawRows runs the device's sampler alone: one row of logits, one draw per seed.
func drawRows(t testing.TB, b *backend, logits []float32, s model.Sampling, seeds int) (ids []int32, lps []float32) {
	t.Helper()
	v := len(logits)
	p, err := b.stablehlo(fmt.Sprintf("test draw %d of %d %v", seeds, v, filters(s)), func(e *emitter) []value {
		z := e.broadcast(e.arg("logits", "f32", v), []int{1}, seeds, v)
		d := &sampler{emitter: e, vocab: v, filter: filters(s)}
		d.greedy, d.inv, d.topK = e.arg("greedy", "i1", seeds), e.arg("inv", "f32", seeds), e.arg("top_k", "i32", seeds)
		d.topP, d.minP = e.arg("top_p", "f64", seeds), e.arg("min_p", "f32", seeds)
		id, lp, _ := d.draw(z, e.arg("u", "f64", seeds))
		return []value{id, lp}
	})
	require.NoError(t, err)
	greedy, inv, topK, topP, minP, u := make([]bool, seeds), make([]float32, seeds), make([]int32, seeds), make([]float64, seeds), make([]float32, seeds), make([]float64, seeds)
	for i := range seeds {
		inv[i], topK[i], topP[i], minP[i] = float32(1/s.Temperature), int32(s.TopK), s.TopP, float32(s.MinP)
		u[i] = sample.Uniform(s.Seed+uint64(i), 3)
	}
	var args []*pjrt.Buffer
	put := func(x *pjrt.Buffer, err error) {
		require.NoError(t, err)
		args = append(args, x)
	}
	put(b.dev.putF32(logits, v))
	put(b.dev.putBool(greedy, seeds))
	put(b.dev.putF32(inv, seeds))
	put(b.dev.putI32(topK, seeds))
	put(b.dev.putF64(topP, seeds))
	put(b.dev.putF32(minP, seeds))
	put(b.dev.putF64(u, seeds))
	out, err := b.dev.run(p, args)
	require.NoError(t, err)
	defer free(append(args, out...)...)
	ids, err = get[int32](out[0], seeds)
	require.NoError(t, err)
	lps, err = get[float32](out[1], seeds)
	require.NoError(t, err)
	return ids, lps
}

// Over a nearly flat distribution of a quarter million tokens, the hardest case
// for sums in f32, the device draws what the host draws, filters included.
func TestSamplerLargeVocabulary(t *testing.T) {
	_, b := small(t, "f32")
	rng := rand.New(rand.NewPCG(1, 9))
	logits := make([]float32, 262_144)
	for i := range logits {
		logits[i] = float32(rng.NormFloat64())
	}
	const seeds = 4 // the host's filters take their time on a flat distribution
	for _, s := range []model.Sampling{
		{Temperature: 1, TopP: 1}, {Temperature: 1, TopP: 0.9}, {Temperature: 1, TopK: 1000, TopP: 1}, {Temperature: 1, TopP: 1, MinP: 0.01},
	} {
		ids, lps := drawRows(t, b, logits, s, seeds)
		var bad []string
		for i := range seeds {
			one := s
			one.Seed += uint64(i)
			id, lp, err := sample.Draw(logits, one, 3)
			require.NoError(t, err)
			if id != ids[i] {
				bad = append(bad, fmt.Sprintf("%d/%d", id, ids[i]))
			} else {
				require.InDelta(t, lp, lps[i], 5e-5, "%+v", s)
			}
		}
		require.LessOrEqual(t, len(bad), 1, "%+v: host and device drew %v", s, bad)
	}
}
