//go:build xla

package xla

import (
	"math/rand/v2"
	"testing"

	"github.com/skein-rl/skein/model"
	"github.com/stretchr/testify/require"
)

// Scores are those of the pure-Go backend, whatever is cached before, and a
// scored sequence is cached as a prefilled one.
func TestScore(t *testing.T) {
	m, b := small(t, "f32")
	ids := randomTokens(rand.New(rand.NewPCG(9, 1)), 45, m.Config.VocabSize)
	a := randomAdapter(t, m, tinyLoRA, 1)
	score := func(d model.Decoder, rows ...model.ScoreRow) []model.ScoreOut {
		out, err := d.(model.Scorer).Score(t.Context(), rows)
		require.NoError(t, err)
		return out
	}
	ours, theirs := newDecoder(t, b, 4, 100), newDecoder(t, goBackend(t, m), 4, 100)
	var outs [2][]model.ScoreOut
	for i, d := range []model.Decoder{ours, theirs} {
		require.NoError(t, d.SetAdapter(1, a))
		outs[i] = score(d, model.ScoreRow{Slot: 0, Adapter: 1, Tokens: ids, Top: 2}, model.ScoreRow{Slot: 1, Tokens: ids[:1]}, model.ScoreRow{Slot: 2, Tokens: ids[:20]})
		require.Equal(t, []int{45, 1, 20}, []int{d.Len(0), d.Len(1), d.Len(2)})
	}
	for i, want := range outs[1] {
		require.InDeltaSlice(t, want.Logprobs, outs[0][i].Logprobs, 2e-4, "row %d", i)
	}
	require.Empty(t, outs[0][1].Logprobs)
	for i, top := range outs[1][0].Top {
		require.Equal(t, top[0].ID, outs[0][0].Top[i][0].ID)
		require.Len(t, outs[0][0].Top[i], 2)
	}
	tail := score(ours, model.ScoreRow{Slot: 2, Tokens: ids[20:]})
	whole := score(ours, model.ScoreRow{Slot: 3, Tokens: ids})
	require.InDeltaSlice(t, whole[0].Logprobs[20:], tail[0].Logprobs, 2e-5)
	next := func(slot int) model.DecodeOut {
		out, err := ours.Decode(t.Context(), []model.DecodeRow{{Slot: slot, Last: 5, MaxNew: 8, Sampling: warm}}, 8)
		require.NoError(t, err)
		return out[0]
	}
	ours.Truncate(0, 0)
	require.NoError(t, ours.Prefill(t.Context(), []model.PrefillRow{{Slot: 0, Tokens: ids}}))
	want := next(0)
	got := next(3)
	require.Equal(t, want.IDs, got.IDs)
	require.InDeltaSlice(t, want.Logprobs, got.Logprobs, 2e-5)

	_, err := ours.(model.Scorer).Score(t.Context(), []model.ScoreRow{{Tokens: ids, Top: -1}})
	require.ErrorContains(t, err, "top is -1")
	_, err = ours.(model.Scorer).Score(t.Context(), []model.ScoreRow{{Slot: 1, Tokens: make([]int32, 100)}})
	require.ErrorContains(t, err, "max_len is 100")
}
