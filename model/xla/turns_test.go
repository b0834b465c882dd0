//go:build xla

package xla

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/model"
)

// Trainers of several users stand on one copy of the base's buffers, and taking
// turns each gets what it gets alone.
func TestUsersShareOneBase(t *testing.T) {
	m := randomModel(t, smallConfig, 3)
	b := openOn(t, m, "f32", 1, false)
	kept := slices.Clone(b.weights.kept())
	groups := unlikeGroups(rand.New(rand.NewPCG(9, 9)), 3)
	shapes := []model.LoRAConfig{tinyLoRA, {Rank: 5, Alpha: 3, Targets: tinyLoRA.Targets[:1]}}
	pass := func(be model.Backend, i int) (model.Scores, []float32) {
		tr, err := be.NewTrainer(model.TrainerConfig{LoRA: shapes[i]})
		require.NoError(t, err)
		defer tr.Close()
		require.NoError(t, tr.SetParams(randomAdapter(t, m, shapes[i], uint64(i)).Params))
		s, err := tr.Forward(t.Context(), groups, 0.9)
		require.NoError(t, err)
		require.NoError(t, tr.Backward(t.Context(), model.Scores{LogProbs: s.LogProbs}))
		return s, slices.Clone(tr.Grad())
	}
	turns := model.NewTurns(b, 0)
	var wg sync.WaitGroup
	for i := range shapes {
		wantScores, wantGrad := pass(b, i)
		for range 2 {
			wg.Go(func() {
				s, g := pass(turns.User(1), i)
				if !slices.Equal(wantScores.LogProbs, s.LogProbs) || !slices.Equal(wantGrad, g) {
					t.Errorf("adapter %d is not as alone", i)
				}
			})
		}
	}
	wg.Wait()
	require.Equal(t, kept, b.weights.kept(), "no trainer has weights of its own")
}
