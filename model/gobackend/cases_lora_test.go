package gobackend

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/model"
)

// cases/training.tsv lora: "scale used alpha instead of alpha/r": with r=8 and
// alpha=16 the decoder and the trainer compute what the merged weights compute,
// and a scale of 16 would be seen.
func TestCaseLoRAMergedEqualsUnmerged(t *testing.T) {
	c := tinyConfig()
	m := randomModel(t, c, 161)
	a := randomAdapter(t, m, model.LoRAConfig{Rank: 8, Alpha: 16, Targets: model.Projections}, 162)
	w, err := m.Merge(a)
	require.NoError(t, err)
	folded := *m
	folded.Weights = w
	plain, merged := newBackend(t, m, Options{}), newBackend(t, &folded, Options{})
	r := rand.New(rand.NewPCG(163, 1))
	prompt, tokens := randomIDs(r, c, 9), randomIDs(r, c, 12)

	want := logitsAfter(t, merged, nil, prompt)
	require.InDeltaSlice(t, want, logitsAfter(t, plain, a, prompt), 2e-4)
	faulty := *a
	faulty.LoRA.Alpha *= float64(a.LoRA.Rank) // alpha/r of it is alpha of a
	far := 0.0
	for i, x := range logitsAfter(t, plain, &faulty, prompt) {
		far = max(far, abs(x-want[i]))
	}
	require.Greater(t, far, 0.1, "the scale must matter for this test to mean something")

	train := make([]bool, len(tokens))
	for i := range train {
		train[i] = true
	}
	groups := []model.PrefixGroup{{Prompt: prompt, Members: []model.Sequence{{Tokens: tokens, Train: train}}}}
	unmerged, err := newTrainer(t, plain, model.TrainerConfig{LoRA: a.LoRA}, a.Params).Forward(ctx, groups, 1)
	require.NoError(t, err)
	zero := make([]float32, len(a.Params))
	base, err := newTrainer(t, merged, model.TrainerConfig{LoRA: a.LoRA}, zero).Forward(ctx, groups, 1)
	require.NoError(t, err)
	require.InDeltaSlice(t, base.LogProbs, unmerged.LogProbs, 2e-4)
}
