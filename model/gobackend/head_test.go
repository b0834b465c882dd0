package gobackend

import (
	"io/fs"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/model"
)

// TestLargeVocabulary crosses the blocks of the head: more scored rows than
// headRows, more tokens than headVocab.
func TestLargeVocabulary(t *testing.T) {
	c := tinyConfig()
	c.VocabSize = headVocab + 133
	m := randomModel(t, c, 131)
	b := newBackend(t, m, Options{})
	lora := model.LoRAConfig{Rank: 2, Alpha: 4, Targets: []string{"down_proj"}}
	params := randomAdapter(t, m, lora, 132).Params
	r := rand.New(rand.NewPCG(133, 1))
	var groups []model.PrefixGroup
	for range 2 {
		g := model.PrefixGroup{Prompt: randomIDs(r, c, 5), Members: []model.Sequence{{Tokens: randomIDs(r, c, 170), Train: make([]bool, 170)}}}
		for i := range g.Members[0].Train {
			g.Members[0].Train[i] = true
		}
		groups = append(groups, g)
	}
	tr := newTrainer(t, b, model.TrainerConfig{LoRA: lora}, params)
	together, s := gradient(t, tr, [][]model.PrefixGroup{groups}, 1)
	require.Greater(t, len(s.LogProbs), headRows)
	apart, s2 := gradient(t, tr, [][]model.PrefixGroup{groups[:1], groups[1:]}, 1)
	require.Equal(t, s, s2)
	require.Less(t, relative(together, apart), 1e-5)

	// The head's block-wise product against finite differences along the gradient.
	const h = 1e-2
	var norm float64
	for _, g := range together {
		norm += float64(g) * float64(g)
	}
	at := func(step float64) float64 {
		moved := append([]float32(nil), params...)
		for i, g := range together {
			moved[i] += float32(step * float64(g) / norm)
		}
		s, err := tr.Score(ctx, groups, 1, moved)
		require.NoError(t, err)
		return loss(groups, s)
	}
	require.InDelta(t, 1, (at(h)-at(-h))/(2*h), 0.02)
}

// TestWeightsInFiles: a model in its files, closed once it is packed, and one in
// memory give the same bits.
func TestWeightsInFiles(t *testing.T) {
	inMemory, _ := loadGolden(t)
	require.NoError(t, inMemory.Weights.Load())
	want := logitsAfter(t, newBackend(t, inMemory, Options{}), nil, []int32{1, 2, 3})
	m, _ := loadGolden(t)
	b := newBackend(t, m, Options{})
	require.NoError(t, m.Close())
	require.Equal(t, want, logitsAfter(t, b, nil, []int32{1, 2, 3}))
	_, err := New(m, Options{})
	require.ErrorIs(t, err, fs.ErrClosed)
}
