//go:build xla

package xla

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/skein-rl/skein/model"
	"github.com/stretchr/testify/require"
)

// The value head's outputs and the gradients through it are those of the
// pure-Go backend, with and without trained tokens beside it.
func TestValueHead(t *testing.T) {
	m, b := small(t, "f32")
	cfg := model.TrainerConfig{LoRA: tinyLoRA, Value: true}
	make2 := func(b model.Backend) model.Trainer {
		tr, err := b.NewTrainer(cfg)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, tr.Close()) })
		return tr
	}
	ours, theirs := make2(b), make2(goBackend(t, m))
	require.Equal(t, theirs.Layout(), ours.Layout())
	rng := rand.New(rand.NewPCG(11, 1))
	params := append(randomAdapter(t, m, tinyLoRA, 1).Params, randomWeights(rng, m.Config.HiddenSize)...)
	groups := randomGroups(rng, m.Config.VocabSize)
	// A critic reads the value before the first token, after the prompt's last: of
	// a prompt of one token nothing is shared.
	alone := groups[1]
	alone.Prompt, alone.Members = nil, slices.Clone(alone.Members[1:])
	for i, s := range alone.Members {
		alone.Members[i].Train, alone.Members[i].Parent = append([]bool{false}, s.Train[1:]...), 0
	}
	groups = append(groups, alone)
	for g := range groups {
		for i, s := range groups[g].Members {
			groups[g].Members[i].Value = make([]bool, len(s.Tokens))
			for j := range s.Tokens {
				groups[g].Members[i].Value[j] = j%3 == i%3
			}
		}
	}
	for _, only := range []bool{false, true} {
		if only { // a reward model: no trained token
			for g := range groups {
				for i := range groups[g].Members {
					groups[g].Members[i].Train = make([]bool, len(groups[g].Members[i].Tokens))
				}
			}
		}
		var scores [2]model.Scores
		var d model.Scores
		for i, tr := range []model.Trainer{ours, theirs} {
			require.NoError(t, tr.SetParams(params))
			tr.ZeroGrad()
			var err error
			scores[i], err = tr.Forward(t.Context(), groups, 1)
			require.NoError(t, err)
			if i == 0 {
				d = model.Scores{LogProbs: randomWeights(rng, len(scores[0].LogProbs)), Values: randomWeights(rng, len(scores[0].Values))}
			}
			require.NoError(t, tr.Backward(t.Context(), d))
		}
		require.NotEmpty(t, scores[0].Values)
		require.InDeltaSlice(t, scores[1].Values, scores[0].Values, 2e-5)
		for _, p := range ours.Layout() {
			at := func(v []float32) []float32 { return v[p.Offset : p.Offset+p.Len()] }
			require.Lessf(t, relative(at(ours.Grad()), at(theirs.Grad())), 1e-4, "gradient of %s", p.Name)
		}
		require.ErrorContains(t, ours.Backward(t.Context(), model.Scores{Values: []float32{1}}), "valued tokens")
	}
	_, err := ours.Score(t.Context(), groups, 1, nil)
	require.ErrorContains(t, err, "no value head")
	_, err = newTrainer(t, b, tinyLoRA).Forward(t.Context(), groups, 1)
	require.ErrorContains(t, err, "TrainerConfig.Value")
}
