//go:build xla

package xla

import (
	"math/rand/v2"
	"testing"

	"github.com/skein-rl/skein/model"
	"github.com/stretchr/testify/require"
)

// cases/training.tsv lora/compile: "compiled graph captured adapter weights as
// constants, updates had no effect on it": an optimizer step changes what the
// cached executable computes, to what the pure-Go backend computes, forward and
// backward, without a new program.
func TestCaseTrainerParametersAreInputs(t *testing.T) {
	m, b := small(t, "f32")
	ours, theirs := newTrainer(t, b, tinyLoRA), newTrainer(t, goBackend(t, m), tinyLoRA)
	rng := rand.New(rand.NewPCG(21, 1))
	train := []bool{true, true, true, true, true, true}
	groups := []model.PrefixGroup{{Prompt: randomTokens(rng, 5, 300), Members: []model.Sequence{{Tokens: randomTokens(rng, 6, 300), Train: train}}}}
	d := randomWeights(rng, len(train))
	params := randomAdapter(t, m, tinyLoRA, 5).Params
	var before []float32
	var programs int
	for i := range 3 {
		require.NoError(t, ours.SetParams(params))
		require.NoError(t, theirs.SetParams(params))
		ours.ZeroGrad()
		theirs.ZeroGrad()
		x, y := step(t, ours, groups, 1, d, nil), step(t, theirs, groups, 1, d, nil)
		require.InDeltaSlice(t, y.LogProbs, x.LogProbs, 2e-4, "step %d", i)
		require.Less(t, relative(ours.Grad(), theirs.Grad()), 1e-4, "step %d", i)
		if i == 0 {
			programs = b.programs.size()
		} else {
			require.Greater(t, maxDiff(t, before, x.LogProbs), 1e-2, "the update must show")
			require.Equal(t, programs, b.programs.size())
		}
		before = x.LogProbs
		params = append([]float32(nil), params...)
		for j, g := range theirs.Grad() {
			params[j] += 0.1 * g
		}
	}
}
