package gobackend

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/model"
)

// TestFullAdapters: a full adapter at a place computes what a backend of its
// weights computes, bit for bit, beside rows of the base and of LoRA adapters.
func TestFullAdapters(t *testing.T) {
	for name, c := range oddConfigs() {
		t.Run(name, func(t *testing.T) {
			m, other := randomModel(t, c, 301), randomModel(t, c, 302)
			flat, err := other.Weights.Flatten(c)
			require.NoError(t, err)
			full := &model.Adapter{Full: true, BaseDigest: m.Digest, Params: flat}
			low := randomAdapter(t, m, everyLoRA(c), 303)
			r := rand.New(rand.NewPCG(304, 1))
			const rows = 6
			var prompts [][]int32
			for range rows {
				prompts = append(prompts, randomIDs(r, c, 3+r.IntN(20)))
			}
			run := func(b *backend, set map[int]*model.Adapter, slots []int, places []int) []model.DecodeOut {
				d, err := b.NewDecoder(model.DecoderConfig{Slots: rows, MaxLen: 64, Adapters: 3})
				require.NoError(t, err)
				defer d.Close()
				for place, a := range set {
					require.NoError(t, d.SetAdapter(place, a))
				}
				var fill []model.PrefillRow
				var dec []model.DecodeRow
				for i, s := range slots {
					p := prompts[s]
					n := len(p) - 1
					fill = append(fill, model.PrefillRow{Slot: s, Adapter: places[i], Tokens: p[:n]})
					dec = append(dec, model.DecodeRow{Slot: s, Adapter: places[i], Last: p[n], MaxNew: 8, Sampling: model.Sampling{Temperature: 0.9, Seed: uint64(s)}})
				}
				require.NoError(t, d.Prefill(ctx, fill))
				out, err := d.Decode(ctx, dec, 8)
				require.NoError(t, err)
				return out
			}
			b := newBackend(t, m, Options{Threads: 2})
			places := []int{1, 0, 2, 1, 2, 0}
			got := run(b, map[int]*model.Adapter{1: full, 2: low}, []int{0, 1, 2, 3, 4, 5}, places)
			theirs := newBackend(t, other, Options{Threads: 1})
			for s, place := range places {
				if place == 1 {
					require.Equal(t, run(theirs, nil, []int{s}, []int{0})[0], got[s])
				} else {
					require.Equal(t, run(b, map[int]*model.Adapter{2: low}, []int{s}, []int{place})[0], got[s])
				}
			}

			d := newDecoder(t, b, 1, 64, full)
			scored, err := d.Score(ctx, []model.ScoreRow{{Adapter: 1, Tokens: prompts[0]}})
			require.NoError(t, err)
			plain, err := newDecoder(t, theirs, 1, 64, nil).Score(ctx, []model.ScoreRow{{Tokens: prompts[0]}})
			require.NoError(t, err)
			require.Equal(t, plain, scored)

			short := *full
			short.Params = flat[1:]
			require.ErrorContains(t, d.SetAdapter(1, &short), "all weights of this model wants")
		})
	}
}
