//go:build xla

package xla

import (
	"math/rand/v2"
	"testing"

	"github.com/skein-rl/skein/model"
	"github.com/stretchr/testify/require"
)

// The head's optional outputs and the gradient through the mean logprob are the
// pure-Go backend's, which are torch's; asking for them changes nothing else, and
// splitting groups over calls changes no gradient but by rounding.
func TestHeadsAsGo(t *testing.T) {
	capped := smallConfig
	capped.LogitSoftcap, capped.VocabSize = 3, 700 // neither a multiple of a block
	for i, c := range []model.Config{smallConfig, capped} {
		m := randomModel(t, c, uint64(20+i))
		cfg := model.TrainerConfig{LoRA: tinyLoRA, MeanLogProb: true, LogSumSq: true}
		params := randomAdapter(t, m, tinyLoRA, 1).Params
		make2 := func(b model.Backend, cfg model.TrainerConfig) model.Trainer {
			tr, err := b.NewTrainer(cfg)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, tr.Close()) })
			require.NoError(t, tr.SetParams(params))
			return tr
		}
		b := open(t, m, "f32")
		ours, theirs, plain := make2(b, cfg), make2(goBackend(t, m), cfg), make2(b, model.TrainerConfig{LoRA: tinyLoRA})
		rng := rand.New(rand.NewPCG(21, 1))
		groups := randomGroups(rng, c.VocabSize)

		x, err := ours.Forward(t.Context(), groups, 0.7)
		require.NoError(t, err)
		y, err := theirs.Forward(t.Context(), groups, 0.7)
		require.NoError(t, err)
		z, err := plain.Forward(t.Context(), groups, 0.7)
		require.NoError(t, err)
		require.Equal(t, z.LogProbs, x.LogProbs)
		require.Equal(t, z.Entropy, x.Entropy)
		require.Nil(t, z.MeanLogProb)
		require.Nil(t, z.LogSumSq)
		require.InDeltaSlice(t, y.MeanLogProb, x.MeanLogProb, 2e-4)
		require.InDeltaSlice(t, y.LogSumSq, x.LogSumSq, 2e-4)

		n := len(x.LogProbs)
		d := model.Scores{LogProbs: randomWeights(rng, n), Entropy: randomWeights(rng, n), MeanLogProb: randomWeights(rng, n)}
		for _, d := range []model.Scores{{MeanLogProb: d.MeanLogProb}, d} {
			ours.ZeroGrad()
			theirs.ZeroGrad()
			require.NoError(t, ours.Backward(t.Context(), d))
			require.NoError(t, theirs.Backward(t.Context(), d))
			for _, p := range ours.Layout() {
				at := func(v []float32) []float32 { return v[p.Offset : p.Offset+p.Len()] }
				require.Lessf(t, relative(at(ours.Grad()), at(theirs.Grad())), 1e-4, "gradient of %s", p.Name)
			}
		}
		require.ErrorContains(t, plain.Backward(t.Context(), d), "TrainerConfig.MeanLogProb")
		require.ErrorContains(t, ours.Backward(t.Context(), model.Scores{LogSumSq: x.LogSumSq}), "not differentiated")
		require.ErrorContains(t, ours.Backward(t.Context(), model.Scores{MeanLogProb: []float32{1}}), "1 mean logprob derivatives")

		whole := append([]float32(nil), ours.Grad()...)
		ours.ZeroGrad()
		at := 0
		for _, g := range groups {
			s, err := ours.Forward(t.Context(), []model.PrefixGroup{g}, 0.7)
			require.NoError(t, err)
			k := len(s.LogProbs)
			require.InDeltaSlice(t, x.MeanLogProb[at:at+k], s.MeanLogProb, 1e-5)
			require.NoError(t, ours.Backward(t.Context(), model.Scores{LogProbs: d.LogProbs[at : at+k], Entropy: d.Entropy[at : at+k], MeanLogProb: d.MeanLogProb[at : at+k]}))
			at += k
		}
		require.Less(t, relative(ours.Grad(), whole), 1e-5)
	}
}
