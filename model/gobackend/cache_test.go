package gobackend

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/model"
)

// TestGroupsShareTheirPrompt: members copied from one prefill hold its pages,
// decode what each would decode alone, bit for bit, and give the pages back.
func TestGroupsShareTheirPrompt(t *testing.T) {
	for _, c := range []model.Config{tinyConfig(), windowed(tinyConfig(), 40)} {
		m := randomModel(t, c, 7)
		b := newBackend(t, m, Options{Threads: 3})
		r := rand.New(rand.NewPCG(8, 9))
		const members, n = 7, 50
		prompt := randomIDs(r, c, 70) // two pages and a part of a third
		row := func(slot, i int) model.DecodeRow {
			return model.DecodeRow{Slot: slot, Last: 3, MaxNew: n, Sampling: model.Sampling{Temperature: 1, Seed: uint64(i)}}
		}
		shared := newDecoder(t, b, members+1, 200, nil)
		require.NoError(t, shared.Prefill(ctx, []model.PrefillRow{{Slot: 0, Tokens: prompt}}))
		var rows []model.DecodeRow
		for i := range members {
			require.NoError(t, shared.CopyPrefix(i+1, 0, len(prompt)))
			rows = append(rows, row(i+1, i))
		}
		require.Len(t, pagesOf(shared), 3)
		outs, err := shared.Decode(ctx, rows, n)
		require.NoError(t, err)
		// Two common pages; the third was copied by each, and a fourth made.
		require.Len(t, pagesOf(shared), 3+2*members)
		for i := range members {
			require.Same(t, shared.slots[0].pages[1], shared.slots[i+1].pages[1])
			alone := newDecoder(t, b, 1, 200, nil)
			require.NoError(t, alone.Prefill(ctx, []model.PrefillRow{{Slot: 0, Tokens: prompt}}))
			want, err := alone.Decode(ctx, []model.DecodeRow{row(0, i)}, n)
			require.NoError(t, err)
			require.Equal(t, want[0].IDs, outs[i].IDs)
			require.Equal(t, want[0].Logprobs, outs[i].Logprobs)
		}
		// The prompt is still what it was, whatever its members did.
		again, err := shared.Decode(ctx, []model.DecodeRow{row(0, 2)}, n)
		require.NoError(t, err)
		require.Equal(t, outs[2].Logprobs, again[0].Logprobs)
		for i := range members + 1 {
			shared.Truncate(i, 0)
		}
		require.Empty(t, pagesOf(shared))
		require.Len(t, shared.shape.free.list, 3+2*members+1)
	}
}

func windowed(c model.Config, window int) model.Config {
	c.SlidingWindow = window
	return c
}

// pagesOf counts the distinct pages that slots hold, and checks their counts.
func pagesOf(d *decoder) map[*page]int {
	held := map[*page]int{}
	for _, c := range d.slots {
		if c != nil {
			for _, p := range c.pages {
				held[p]++
			}
		}
	}
	for p, n := range held {
		if int(p.slots.Load()) != n {
			panic("a page's count is wrong")
		}
	}
	return held
}
