package gobackend

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/model"
)

// A score is what decoding reports of the same token, and what the trainer
// computes, whatever the passes and the cached beginning.
func TestScore(t *testing.T) {
	m := randomModel(t, tinyConfig(), 1)
	b := newBackend(t, m, Options{Threads: 2})
	ids := randomIDs(rand.New(rand.NewPCG(1, 2)), m.Config, 40)
	dec, err := b.NewDecoder(model.DecoderConfig{Slots: 2, MaxLen: 64})
	require.NoError(t, err)
	s := dec.(model.Scorer)
	ctx := context.Background()
	whole, err := s.Score(ctx, []model.ScoreRow{{Slot: 0, Tokens: ids, Top: 3}})
	require.NoError(t, err)
	require.Len(t, whole[0].Logprobs, len(ids)-1)
	require.Equal(t, len(ids), dec.Len(0))

	require.NoError(t, dec.Prefill(ctx, []model.PrefillRow{{Slot: 1, Tokens: ids[:15]}}))
	tail, err := s.Score(ctx, []model.ScoreRow{{Slot: 1, Tokens: ids[15:]}})
	require.NoError(t, err)
	require.Nil(t, tail[0].Top)
	require.Equal(t, whole[0].Logprobs[15:], tail[0].Logprobs)

	for i, top := range whole[0].Top {
		require.Len(t, top, 3)
		dec.Truncate(1, 0)
		require.NoError(t, dec.Prefill(ctx, []model.PrefillRow{{Slot: 1, Tokens: ids[:i]}}))
		out, err := dec.Decode(ctx, []model.DecodeRow{{Slot: 1, Last: ids[i], MaxNew: 1, Raw: true, Top: 3, Constraint: only(ids[i+1])}}, 1)
		require.NoError(t, err)
		require.Equal(t, out[0].Raw[0], whole[0].Logprobs[i], "token %d", i+1)
		require.Equal(t, out[0].Top[0], top, "token %d", i+1)
	}
}

// only is a constraint that leaves one token.
type only int32

func (o only) Allow(mask []uint64) {
	clear(mask)
	mask[o/64] |= 1 << (o % 64)
}
func (o only) Accept(int32) error { return nil }

func TestScoreRefusals(t *testing.T) {
	m := randomModel(t, tinyConfig(), 1)
	dec, err := newBackend(t, m, Options{}).NewDecoder(model.DecoderConfig{Slots: 1, MaxLen: 8})
	require.NoError(t, err)
	s := dec.(model.Scorer)
	for want, row := range map[string]model.ScoreRow{
		"exceed max_len 8": {Tokens: make([]int32, 9)},
		"top is -1":        {Tokens: []int32{1, 2}, Top: -1},
		"place is empty":   {Tokens: []int32{1, 2}, Adapter: 1},
		"slot 3":           {Slot: 3, Tokens: []int32{1, 2}},
	} {
		_, err := s.Score(context.Background(), []model.ScoreRow{row})
		require.ErrorContains(t, err, want)
	}
}
