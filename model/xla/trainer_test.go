//go:build xla

package xla

import (
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
	require.NoError(t, tr.Backward(t.Context(), d, nil))
	want := tinyAdapter(t, m, "g")
	for _, p := range tr.Layout() {
		w, g := want[p.Offset:p.Offset+p.Len()], tr.Grad()[p.Offset:p.Offset+p.Len()]
		require.Lessf(t, relative(g, w), 1e-4, "gradient of %s", p.Name)
	}
}
