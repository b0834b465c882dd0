//go:build xla

package xla

import (
	"math/rand/v2"
	"testing"

	"github.com/gomlx/go-xla/pkg/pjrt"
	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/model"
)

// Masks are the pure-Go backend's, every one.
func TestMasksAsGo(t *testing.T) {
	_, b := small(t, "f32")
	const m, in = 37, 300
	d := model.Dropout{Rate: 0.3}
	rng := rand.New(rand.NewPCG(1, 2))
	rows := make([]uint64, m)
	for i := range rows {
		rows[i] = rng.Uint64()
	}
	p, err := b.stablehlo("masks", func(e *emitter) []value {
		n := &net{emitter: e, s: b.shape, elem: "f32"}
		n.masks = e.maskArgs(d, m)
		ones := e.constant("f32", 1, m, in)
		return []value{n.dropped(ones, "q_proj"), n.dropped(ones, "gate_up_proj")}
	})
	require.NoError(t, err)
	keys, err := b.dev.putKeys(rows)
	require.NoError(t, err)
	site, err := b.dev.putI32([]int32{int32(model.DropoutSite(29, "q_proj"))})
	require.NoError(t, err)
	defer free(append(keys, site)...)
	out, err := b.dev.run(p, []*pjrt.Buffer{keys[0], keys[1], site})
	require.NoError(t, err)
	defer free(out...)
	for k, name := range []string{"q_proj", "gate_up_proj"} {
		got, err := get[float32](out[k], m*in)
		require.NoError(t, err)
		want := make([]float32, m*in)
		for i, row := range rows {
			x, y := model.MaskKeys(row, model.DropoutSite(29, name))
			for f := range in {
				if model.MaskBits(x, y, uint32(f)) >= d.Threshold() {
					want[i*in+f] = d.Scale()
				}
			}
		}
		require.Equal(t, want, got, name)
	}
}

// Scores and gradients under dropout are those of the pure-Go backend; splitting
// groups and members changes no score by a bit.
func TestDropoutAsGo(t *testing.T) {
	for i, c := range agreeConfigs() {
		m := randomModel(t, c, uint64(i))
		a := randomAdapter(t, m, agreeLoRA[i], 1)
		ours, theirs := newTrainer(t, open(t, m, "f32"), a.LoRA), newTrainer(t, goBackend(t, m), a.LoRA)
		require.NoError(t, ours.SetParams(a.Params))
		require.NoError(t, theirs.SetParams(a.Params))
		rng := rand.New(rand.NewPCG(5, 6))
		groups := randomGroups(rng, c.VocabSize)
		plain, err := ours.Score(t.Context(), groups, 1.3, a.Params)
		require.NoError(t, err)
		for g := range groups {
			groups[g].Dropout = model.Dropout{Rate: 0.4, Key: 1234567}
		}
		dl := randomWeights(rng, len(plain.LogProbs))
		x, y := step(t, ours, groups, 1.3, dl, nil), step(t, theirs, groups, 1.3, dl, nil)
		require.InDeltaSlice(t, y.LogProbs, x.LogProbs, 2e-4)
		require.Greater(t, maxDiff(t, plain.LogProbs, x.LogProbs), 1e-2, "something is dropped")
		for _, p := range ours.Layout() {
			at := func(v []float32) []float32 { return v[p.Offset : p.Offset+p.Len()] }
			require.Lessf(t, relative(at(ours.Grad()), at(theirs.Grad())), 1e-4, "gradient of %s", p.Name)
		}
		scored, err := ours.Score(t.Context(), groups, 1.3, a.Params)
		require.NoError(t, err)
		require.Equal(t, x.LogProbs, scored.LogProbs)

		whole := append([]float32(nil), ours.Grad()...)
		ours.ZeroGrad()
		var apart []float32
		for _, g := range groups {
			n := 0
			for _, s := range g.Members {
				for _, on := range s.Train {
					if on {
						n++
					}
				}
			}
			part := step(t, ours, []model.PrefixGroup{g}, 1.3, dl[:n], nil)
			apart, dl = append(apart, part.LogProbs...), dl[n:]
		}
		require.Equal(t, x.LogProbs, apart)
		require.Equal(t, whole, ours.Grad(), "batches are groups: their sum is the same")
	}
}
