//go:build xla

package xla

import (
	"math/rand/v2"
	"testing"

	"github.com/skein-rl/skein/model"
	"github.com/stretchr/testify/require"
)

// tinyGroups are the case's rows without padding, each a group of one; labels
// mark what is trained.
func tinyGroups(c tinyCase) (groups []model.PrefixGroup) {
	for r, ids := range c.IDs {
		first := 0
		for c.Mask[r][first] == 0 {
			first++
		}
		g := model.PrefixGroup{Prompt: ids[first : first+1]}
		s := model.Sequence{Tokens: ids[first+1:]}
		for _, l := range c.Labels[r][first+1:] {
			s.Train = append(s.Train, l != -100)
		}
		g.Members = []model.Sequence{s}
		groups = append(groups, g)
	}
	return groups
}

// labelled picks the case's per-position numbers at the labels.
func labelled(c tinyCase, x [][]float64) (out []float32) {
	for r := range x {
		for j, v := range x[r] { // x[j] belongs to token j+1
			if c.Labels[r][j+1] != -100 {
				out = append(out, float32(v))
			}
		}
	}
	return out
}

func TestGoldenScores(t *testing.T) {
	m, c := tinyLlama(t)
	tr := newTrainer(t, open(t, m, "f32"), tinyLoRA)
	require.NoError(t, tr.SetParams(tinyAdapter(t, m, "w")))
	s, err := tr.Score(t.Context(), tinyGroups(c), 0.9, nil) // nil: the base
	require.NoError(t, err)
	require.InDeltaSlice(t, labelled(c, c.LogProbs), s.LogProbs, 2e-5)
	require.InDeltaSlice(t, labelled(c, c.Entropy), s.Entropy, 2e-5)
}

func TestGoldenLoRAGradient(t *testing.T) {
	m, c := tinyLlama(t)
	tr := newTrainer(t, open(t, m, "f32"), tinyLoRA)
	require.NoError(t, tr.SetParams(tinyAdapter(t, m, "w")))
	s, err := tr.Forward(t.Context(), tinyGroups(c), 1)
	require.NoError(t, err)
	n := float32(len(s.LogProbs))
	var loss float32
	d := make([]float32, len(s.LogProbs))
	for i, lp := range s.LogProbs {
		loss -= lp / n
		d[i] = -1 / n
	}
	require.InDelta(t, c.LoRA.Loss, loss, 2e-5)
	require.NoError(t, tr.Backward(t.Context(), model.Scores{LogProbs: d}))
	want := tinyAdapter(t, m, "g")
	for _, p := range tr.Layout() {
		w, g := want[p.Offset:p.Offset+p.Len()], tr.Grad()[p.Offset:p.Offset+p.Len()]
		require.Lessf(t, relative(g, w), 1e-4, "gradient of %s", p.Name)
	}
}

// The gradient of a step doesn't depend on how its groups are split, batched,
// padded or repeated over calls.
func TestTrainerSplits(t *testing.T) {
	m, b := small(t, "f32")
	tr := newTrainer(t, b, tinyLoRA)
	require.NoError(t, tr.SetParams(randomAdapter(t, m, tinyLoRA, 1).Params))
	rng := rand.New(rand.NewPCG(7, 7))
	group := model.PrefixGroup{Prompt: randomTokens(rng, 30, 300)}
	for range maxBlocks + 3 { // more than one program call takes
		n := 1 + rng.IntN(12)
		s := model.Sequence{Tokens: randomTokens(rng, n, 300), Train: make([]bool, n)}
		for i := range s.Train {
			s.Train[i] = rng.IntN(3) > 0
		}
		group.Members = append(group.Members, s)
	}
	scores, err := tr.Score(t.Context(), []model.PrefixGroup{group}, 1, nil)
	require.NoError(t, err)
	d := randomWeights(rng, len(scores.LogProbs))
	whole := step(t, tr, []model.PrefixGroup{group}, 1, d, nil)
	want := append([]float32{}, tr.Grad()...)

	tr.ZeroGrad()
	at := 0
	for _, s := range group.Members { // each member its own group, call by call
		n := 0
		for _, on := range s.Train {
			if on {
				n++
			}
		}
		got := step(t, tr, []model.PrefixGroup{{Prompt: group.Prompt, Members: []model.Sequence{s}}}, 1, d[at:at+n], nil)
		if n > 0 {
			require.InDeltaSlice(t, whole.LogProbs[at:at+n], got.LogProbs, 2e-5)
		}
		at += n
	}
	require.Less(t, relative(tr.Grad(), want), 1e-5)

	// Part of the prompt given as untrained member tokens is the same sequence.
	tr.ZeroGrad()
	var moved []model.PrefixGroup
	for _, s := range group.Members {
		moved = append(moved, model.PrefixGroup{Prompt: group.Prompt[:26], Members: []model.Sequence{{
			Tokens: append(append([]int32{}, group.Prompt[26:]...), s.Tokens...),
			Train:  append(make([]bool, 4), s.Train...),
		}}})
	}
	step(t, tr, moved, 1, d, nil)
	require.Less(t, relative(tr.Grad(), want), 1e-5)
}

func TestTrainerRefuses(t *testing.T) {
	_, b := small(t, "f32")
	_, err := b.NewTrainer(model.TrainerConfig{Full: true})
	require.ErrorContains(t, err, "full fine-tuning")
	_, err = b.NewTrainer(model.TrainerConfig{LoRA: model.LoRAConfig{Rank: 0, Alpha: 1, Targets: []string{"x"}}})
	require.ErrorContains(t, err, "rank is 0")

	tr := newTrainer(t, b, tinyLoRA)
	ctx := t.Context()
	require.ErrorContains(t, tr.SetParams(make([]float32, 3)), "3 parameters")
	require.ErrorContains(t, tr.Backward(ctx, model.Scores{}), "without a Forward")
	one := func(tokens []int32, train ...bool) []model.PrefixGroup {
		return []model.PrefixGroup{{Prompt: []int32{1, 2}, Members: []model.Sequence{{Tokens: tokens, Train: train}}}}
	}
	for name, groups := range map[string][]model.PrefixGroup{
		"prompt is empty":   {{Members: []model.Sequence{{Tokens: []int32{1}, Train: []bool{true}}}}},
		"1 train marks":     one([]int32{1, 2}, true),
		"token 0 is 300":    one([]int32{300}, true),
		"group 1: member 0": append(one([]int32{1}, true), one([]int32{-1}, true)...),
	} {
		_, err := tr.Forward(ctx, groups, 1)
		require.ErrorContains(t, err, name)
	}
	_, err = tr.Forward(ctx, one([]int32{1}, true), 0)
	require.ErrorContains(t, err, "temperature 0")

	// Nothing to train is no error and no gradient.
	s, err := tr.Forward(ctx, one([]int32{1}, false), 1)
	require.NoError(t, err)
	require.Empty(t, s.LogProbs)
	require.NoError(t, tr.Backward(ctx, model.Scores{}))

	_, err = tr.Forward(ctx, one([]int32{1}, true), 1)
	require.NoError(t, err)
	require.ErrorContains(t, tr.Backward(ctx, model.Scores{LogProbs: make([]float32, 2)}), "1 scored tokens")
	require.NoError(t, tr.SetParams(make([]float32, tr.Layout().Size())))
	require.ErrorContains(t, tr.Backward(ctx, model.Scores{LogProbs: make([]float32, 1)}), "since the last SetParams")
	for _, g := range tr.Grad() {
		require.Zero(t, g)
	}
	huge := make([]float32, tr.Layout().Size())
	for i := range huge {
		huge[i] = 1e30
	}
	_, err = tr.Score(ctx, one([]int32{1}, true), 1, huge)
	require.ErrorContains(t, err, "overflow")
}
