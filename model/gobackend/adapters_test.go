package gobackend

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/model"
)

// unlikeAdapters are the base and adapters of different rank, scale and
// targets.
func unlikeAdapters(t testing.TB, m *model.Model) []*model.Adapter {
	p := m.Config.Projections()
	return []*model.Adapter{
		nil,
		randomAdapter(t, m, model.LoRAConfig{Rank: 4, Alpha: 8, Targets: p}, 201),
		randomAdapter(t, m, model.LoRAConfig{Rank: 1, Alpha: 3, RSLoRA: true, Targets: p[1:], RankPattern: model.Pattern[int]{{Key: p[1], Value: 5}}}, 202),
		randomAdapter(t, m, model.LoRAConfig{Rank: 33, Alpha: 9, Targets: p[:1]}, 203),
	}
}

// TestRowsUnderDifferentAdapters: rows of one call, prefilled together, each
// under its own adapter, draw what each draws alone with only that adapter
// loaded; a swap at one place leaves the others' rows alone.
func TestRowsUnderDifferentAdapters(t *testing.T) {
	configs := oddConfigs()
	configs["quick"] = quickConfig()
	for name, c := range configs {
		t.Run(name, func(t *testing.T) {
			m := randomModel(t, c, 204)
			adapters := unlikeAdapters(t, m)
			r := rand.New(rand.NewPCG(205, 1))
			const rows, steps = 11, 12
			row := func(slot, i, place int, last int32) model.DecodeRow {
				return model.DecodeRow{Slot: slot, Adapter: place, Last: last, MaxNew: steps, Sampling: model.Sampling{Temperature: 0.8, Seed: uint64(i)}}
			}
			var prompts [][]int32
			var want []model.DecodeOut
			solo := newBackend(t, m, Options{Threads: 1})
			for i := range rows {
				p := randomIDs(r, c, 2+r.IntN(60))
				prompts = append(prompts, p)
				a := adapters[i*7%4]
				d := newDecoder(t, solo, 1, 100, a)
				n := len(p) - 1
				require.NoError(t, d.Prefill(ctx, []model.PrefillRow{{Adapter: place(a), Tokens: p[:n]}}))
				out, err := d.Decode(ctx, []model.DecodeRow{row(0, i, place(a), p[n])}, steps)
				require.NoError(t, err)
				want = append(want, out[0])
			}

			made, err := newBackend(t, m, Options{Threads: 2}).NewDecoder(model.DecoderConfig{Slots: rows, MaxLen: 100, Adapters: 3})
			require.NoError(t, err)
			for i := 1; i < 4; i++ {
				require.NoError(t, made.SetAdapter(i, adapters[i]))
			}
			var fill []model.PrefillRow
			var batch []model.DecodeRow
			for i, p := range prompts {
				n := len(p) - 1
				fill = append(fill, model.PrefillRow{Slot: i, Adapter: i * 7 % 4, Tokens: p[:n]})
				batch = append(batch, row(i, i, i*7%4, p[n]))
			}
			require.NoError(t, made.Prefill(ctx, fill))
			first, err := made.Decode(ctx, batch, 5)
			require.NoError(t, err)
			shares := 0
			for _, ln := range made.(*decoder).lanes {
				shares += len(ln.shares)
			}
			require.LessOrEqual(t, shares, 5, "rows of an adapter stand together, but for where the lanes part")
			var rest []model.DecodeRow
			for i, o := range first {
				require.Equal(t, want[i].IDs[:5], o.IDs, i)
				require.Equal(t, want[i].Logprobs[:5], o.Logprobs, i)
				if batch[i].Adapter != 2 {
					batch[i].Last, batch[i].MaxNew = o.IDs[4], steps-5
					rest = append(rest, batch[i])
				}
			}
			require.NoError(t, made.SetAdapter(2, nil))
			second, err := made.Decode(ctx, rest, steps)
			require.NoError(t, err)
			for i, o := range second {
				require.Equal(t, want[rest[i].Slot].IDs[5:], o.IDs, i)
				require.Equal(t, want[rest[i].Slot].Logprobs[5:], o.Logprobs, i)
			}
		})
	}
}

func TestAdapterPlacesAreChecked(t *testing.T) {
	c := tinyConfig()
	m := randomModel(t, c, 211)
	b := newBackend(t, m, Options{})
	_, err := b.NewDecoder(model.DecoderConfig{Slots: 1, MaxLen: 9, Adapters: -1})
	require.ErrorContains(t, err, "adapters is -1")
	d, err := b.NewDecoder(model.DecoderConfig{Slots: 1, MaxLen: 9, Adapters: 2})
	require.NoError(t, err)
	a := randomAdapter(t, m, everyLoRA(c), 212)
	require.ErrorContains(t, d.SetAdapter(0, a), "place 0, the decoder has 1 to 2")
	require.ErrorContains(t, d.SetAdapter(3, nil), "place 3")
	require.NoError(t, d.SetAdapter(1, a))
	for place, want := range map[int]string{2: "adapter 2: the place is empty", 3: "adapter 3, the decoder has places 0 (the base) to 2", -1: "adapter -1"} {
		_, err := d.Decode(ctx, []model.DecodeRow{{Adapter: place, MaxNew: 1}}, 1)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, d.Prefill(ctx, []model.PrefillRow{{Adapter: place, Tokens: []int32{1}}}), want)
	}
	require.NoError(t, d.Prefill(ctx, []model.PrefillRow{{Adapter: 1, Tokens: []int32{1}}}))
	require.NoError(t, d.Close())
	require.ErrorIs(t, d.SetAdapter(1, a), ErrClosed)
}

// BenchmarkDecodeAdapters: the price of rows under several adapters, beside
// BenchmarkDecode's one.
func BenchmarkDecodeAdapters(b *testing.B) {
	c := quickConfig()
	m := randomModel(b, c, 1)
	be := newBackend(b, m, Options{})
	for _, adapters := range []int{0, 1, 4, 16} {
		b.Run(fmt.Sprintf("tiny/batch=16/adapters=%d", adapters), func(b *testing.B) {
			const prompt, steps, batch = 256, 64, 16
			d, err := be.NewDecoder(model.DecoderConfig{Slots: batch, MaxLen: 512, Adapters: adapters})
			require.NoError(b, err)
			for p := range adapters {
				lora := model.LoRAConfig{Rank: 8, Alpha: 16, Targets: model.Projections}
				require.NoError(b, d.SetAdapter(p+1, randomAdapter(b, m, lora, uint64(p))))
			}
			var fill []model.PrefillRow
			var rows []model.DecodeRow
			for i := range batch {
				place := 0
				if adapters > 0 {
					place = 1 + i%adapters
				}
				fill = append(fill, model.PrefillRow{Slot: i, Adapter: place, Tokens: make([]int32, prompt)})
				rows = append(rows, model.DecodeRow{Slot: i, Adapter: place, Last: 1, MaxNew: steps, Sampling: model.Sampling{Temperature: 1, Seed: uint64(i)}})
			}
			require.NoError(b, d.Prefill(ctx, fill))
			for b.Loop() {
				for i := range batch {
					d.Truncate(i, prompt)
				}
				_, err := d.Decode(ctx, rows, steps)
				require.NoError(b, err)
			}
			b.ReportMetric(float64(batch*steps*b.N)/b.Elapsed().Seconds(), "tokens/s")
		})
	}
}
