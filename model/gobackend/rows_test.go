package gobackend

import (
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/model/sample"
)

// TestHistoryGrows: penalties see the tokens drawn earlier in the same call, so
// that one call and many give the same tokens, and the caller's history is not
// written to.
func TestHistoryGrows(t *testing.T) {
	c := tinyConfig()
	b := newBackend(t, randomModel(t, c, 221), Options{})
	history := []int32{5, 6, 7, 71}[:3] // what follows must stay
	row := model.DecodeRow{Last: 7, MaxNew: 30, History: history, Prompt: 3, Raw: true, Top: 2,
		Bias:     []model.TokenBias{{ID: 3, Bias: 1}},
		Sampling: model.Sampling{Temperature: 0.7, RepetitionPenalty: 1.3, FrequencyPenalty: 0.5, Seed: 4}}
	run := func(n int, row model.DecodeRow) (out model.DecodeOut) {
		d := newDecoder(t, b, 2, 64, nil)
		require.NoError(t, d.Prefill(ctx, []model.PrefillRow{{Tokens: history[:2]}}))
		for len(out.IDs) < 30 {
			// Company with a sampling of its own.
			d.Truncate(1, 0)
			got, err := d.Decode(ctx, []model.DecodeRow{{Slot: 1, Last: 1, MaxNew: n}, row}, n)
			require.NoError(t, err)
			o := got[1]
			require.NoError(t, o.Err)
			out.IDs, out.Logprobs = append(out.IDs, o.IDs...), append(out.Logprobs, o.Logprobs...)
			out.Raw, out.Top = append(out.Raw, o.Raw...), append(out.Top, o.Top...)
			row.Last = o.IDs[len(o.IDs)-1]
			row.History = slices.Concat(row.History, o.IDs)
		}
		return out
	}
	want := run(30, row)
	require.Len(t, want.Raw, 30)
	require.Len(t, want.Top, 30)
	require.Len(t, want.Top[0], 2)
	require.Equal(t, want, run(1, row))
	require.Equal(t, int32(71), history[:4][3])
}

// oneToken allows a single token, and breaks after so many.
type oneToken struct {
	id   int32
	left int
}

func (o *oneToken) Allow(mask []uint64) {
	clear(mask)
	mask[o.id/64] |= 1 << (o.id % 64)
}

func (o *oneToken) Accept(id int32) error {
	if o.left--; o.left < 0 {
		return errors.New("no more")
	}
	return nil
}

// TestRowFailsAlone: a constraint that breaks ends its own row only, and what
// it drew before stays.
func TestRowFailsAlone(t *testing.T) {
	c := tinyConfig()
	b := newBackend(t, randomModel(t, c, 231), Options{})
	free := model.DecodeRow{Slot: 1, Last: 2, MaxNew: 9, Sampling: model.Sampling{Temperature: 1, Seed: 8}}
	alone, err := newDecoder(t, b, 2, 32, nil).Decode(ctx, []model.DecodeRow{free}, 9)
	require.NoError(t, err)
	out, err := newDecoder(t, b, 2, 32, nil).Decode(ctx, []model.DecodeRow{{Last: 2, MaxNew: 9, Constraint: &oneToken{id: 70, left: 3}}, free}, 9)
	require.NoError(t, err)
	require.ErrorIs(t, out[0].Err, sample.ErrConstraint)
	require.ErrorContains(t, out[0].Err, "row 0, slot 0, position 4")
	require.Equal(t, []int32{70, 70, 70}, out[0].IDs)
	require.Equal(t, alone[0], out[1])
}
