package gobackend

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/skein-rl/skein/model"
)

func newDecoder(t testing.TB, b *backend, slots, maxLen int, a *model.Adapter) *decoder {
	t.Helper()
	d, err := b.NewDecoder(model.DecoderConfig{Slots: slots, MaxLen: maxLen})
	require.NoError(t, err)
	require.NoError(t, d.SetAdapter(1, a))
	return d.(*decoder)
}

// place is where newDecoder puts an adapter: rows name it.
func place(a *model.Adapter) int {
	if a == nil {
		return 0
	}
	return 1
}

// everyLoRA adapts every projection that the model has.
func everyLoRA(c model.Config) model.LoRAConfig {
	return model.LoRAConfig{Rank: 4, Alpha: 8, Targets: c.Projections()}
}

var allLoRA = model.LoRAConfig{Rank: 4, Alpha: 8, Targets: model.Projections}

// TestRowsAreIndependent: ragged rows of one batch draw what each draws alone,
// on any number of goroutines, in steps of any size, prefilled in any chunks.
func TestRowsAreIndependent(t *testing.T) {
	configs := oddConfigs()
	configs["quick"] = quickConfig()
	for name, c := range configs {
		t.Run(name, func(t *testing.T) { testRowsAreIndependent(t, c) })
	}
}

func testRowsAreIndependent(t *testing.T, c model.Config) {
	m := randomModel(t, c, 71)
	a := randomAdapter(t, m, everyLoRA(c), 72)
	solo, many := newBackend(t, m, Options{Threads: 1}), newBackend(t, m, Options{Threads: 3})
	r := rand.New(rand.NewPCG(73, 1))
	const rows, total = 8, 40
	var prompts [][]int32
	var want []model.DecodeOut
	row := func(slot, i, n int) model.DecodeRow {
		return model.DecodeRow{Slot: slot, Adapter: 1, Last: prompts[i][len(prompts[i])-1], MaxNew: n,
			Sampling: model.Sampling{Temperature: 0.9, TopP: 0.95, TopK: 40, Seed: uint64(1000 + i)}}
	}
	for i := range rows {
		prompts = append(prompts, randomIDs(r, c, 1+r.IntN(150)))
		d := newDecoder(t, solo, 1, 200, a)
		p := prompts[i]
		require.NoError(t, d.Prefill(ctx, []model.PrefillRow{{Adapter: 1, Tokens: p[:len(p)-1]}}))
		out, err := d.Decode(ctx, []model.DecodeRow{row(0, i, total)}, total)
		require.NoError(t, err)
		require.Equal(t, len(p)-1+total, d.Len(0))
		want = append(want, out[0])
	}

	d := newDecoder(t, many, rows, 200, a)
	var fill []model.PrefillRow
	for i, p := range prompts {
		fill = append(fill, model.PrefillRow{Slot: rows - 1 - i, Adapter: 1, Tokens: p[:len(p)-1]})
	}
	require.NoError(t, d.Prefill(ctx, fill))
	var batch []model.DecodeRow
	for i := range prompts {
		batch = append(batch, row(rows-1-i, i, total))
	}
	got, err := d.Decode(ctx, batch, total)
	require.NoError(t, err)
	require.Equal(t, want, got)

	// Again, in prefill chunks of odd sizes and decode steps of 7.
	for i, p := range prompts {
		d.Truncate(rows-1-i, 0)
		for p = p[:len(p)-1]; len(p) > 0; {
			n := min(len(p), 1+r.IntN(17))
			require.NoError(t, d.Prefill(ctx, []model.PrefillRow{{Slot: rows - 1 - i, Adapter: 1, Tokens: p[:n]}}))
			p = p[n:]
		}
	}
	got = make([]model.DecodeOut, rows)
	for done := 0; done < total; {
		n := min(7, total-done)
		out, err := d.Decode(ctx, batch, n)
		require.NoError(t, err)
		for i, o := range out {
			got[i].IDs, got[i].Logprobs = append(got[i].IDs, o.IDs...), append(got[i].Logprobs, o.Logprobs...)
			batch[i].Last = o.IDs[len(o.IDs)-1]
		}
		done += n
	}
	require.Equal(t, want, got)
}

// TestDecoderAgreesWithTrainer: the logprob of every sampled token is the
// trainer's, at several temperatures (the probability ratio of on-policy data
// is 1); and the adapter matters.
func TestDecoderAgreesWithTrainer(t *testing.T) {
	configs := oddConfigs()
	configs["quick"] = quickConfig()
	for name, c := range configs {
		t.Run(name, func(t *testing.T) { testDecoderAgreesWithTrainer(t, c) })
	}
}

func testDecoderAgreesWithTrainer(t *testing.T, c model.Config) {
	m := randomModel(t, c, 81)
	a := randomAdapter(t, m, everyLoRA(c), 82)
	b := newBackend(t, m, Options{})
	tr := newTrainer(t, b, model.TrainerConfig{LoRA: a.LoRA}, a.Params)
	r := rand.New(rand.NewPCG(83, 1))
	for _, temperature := range []float64{0.5, 1, 1.7} {
		d := newDecoder(t, b, 4, 256, a)
		prompt := randomIDs(r, c, 37)
		require.NoError(t, d.Prefill(ctx, []model.PrefillRow{{Slot: 0, Adapter: 1, Tokens: prompt[:36]}}))
		var rows []model.DecodeRow
		for i := range 4 {
			require.NoError(t, d.CopyPrefix(i, 0, 36))
			rows = append(rows, model.DecodeRow{Slot: i, Adapter: 1, Last: prompt[36], MaxNew: 20 + 30*i, Sampling: model.Sampling{Temperature: temperature, Seed: uint64(i)}})
		}
		outs, err := d.Decode(ctx, rows, 1000)
		require.NoError(t, err)
		g := model.PrefixGroup{Prompt: prompt}
		var sampled []float32
		for i, o := range outs {
			require.Len(t, o.IDs, 20+30*i)
			train := make([]bool, len(o.IDs))
			for j := range train {
				train[j] = true
			}
			g.Members = append(g.Members, model.Sequence{Tokens: o.IDs, Train: train})
			sampled = append(sampled, o.Logprobs...)
		}
		s, err := tr.Forward(ctx, []model.PrefixGroup{g}, temperature)
		require.NoError(t, err)
		require.InDeltaSlice(t, sampled, s.LogProbs, 1e-5)

		base, err := tr.Score(ctx, []model.PrefixGroup{g}, temperature, nil)
		require.NoError(t, err)
		var diff float64
		for i := range sampled {
			diff = max(diff, abs(base.LogProbs[i]-sampled[i]))
		}
		require.Greater(t, diff, 0.1, "without the adapter the logprobs differ: it is not ignored")
	}
}

func abs(x float32) float64 {
	if x < 0 {
		x = -x
	}
	return float64(x)
}

// TestAdapterSwap is cases/training.tsv's kv-cache and weight-sync rows: after
// a swap a reset slot gives what a cold decoder gives, and nil is the base.
func TestAdapterSwap(t *testing.T) {
	c := tinyConfig()
	m := randomModel(t, c, 91)
	b := newBackend(t, m, Options{})
	v1, v2 := randomAdapter(t, m, allLoRA, 92), randomAdapter(t, m, allLoRA, 93)
	prompt := []int32{5, 6, 7, 8, 9}
	run := func(d *decoder, a *model.Adapter) model.DecodeOut {
		d.Truncate(0, 0)
		require.NoError(t, d.Prefill(ctx, []model.PrefillRow{{Adapter: place(a), Tokens: prompt[:4]}}))
		out, err := d.Decode(ctx, []model.DecodeRow{{Adapter: place(a), Last: prompt[4], MaxNew: 10}}, 10)
		require.NoError(t, err)
		return out[0]
	}
	cold := map[*model.Adapter]model.DecodeOut{}
	for _, a := range []*model.Adapter{nil, v1, v2} {
		cold[a] = run(newDecoder(t, b, 1, 32, a), a)
	}
	require.NotEqual(t, cold[nil], cold[v1])
	require.NotEqual(t, cold[v1], cold[v2])
	d := newDecoder(t, b, 1, 32, nil)
	for _, a := range []*model.Adapter{v1, v2, nil, v1} {
		require.NoError(t, d.SetAdapter(1, a))
		require.Equal(t, cold[a], run(d, a))
	}
	// The decoder holds its own copy, and keeps it when a bad one is refused.
	v1.Params[0] += 5
	bad := *v2
	bad.BaseDigest = "blake3:other"
	require.ErrorIs(t, d.SetAdapter(1, &bad), model.ErrAdapter)
	bad = *v2
	bad.Params = bad.Params[1:]
	require.ErrorIs(t, d.SetAdapter(1, &bad), model.ErrAdapter)
	require.Equal(t, cold[v1], run(d, v1))

	// A zero B is the base, bit for bit.
	zero, err := model.NewAdapter(c, allLoRA, m.Digest, 1)
	require.NoError(t, err)
	require.NoError(t, d.SetAdapter(1, zero))
	require.Equal(t, cold[nil], run(d, zero))
}

// TestCacheOperations drives slots with random operations against a model that
// recomputes every slot from its tokens.
func TestCacheOperations(t *testing.T) {
	for name, c := range oddConfigs() {
		t.Run(name, func(t *testing.T) { testCacheOperations(t, c) })
	}
}

func testCacheOperations(t *testing.T, c model.Config) {
	m := randomModel(t, c, 101)
	b := newBackend(t, m, Options{})
	rapid.Check(t, func(rt *rapid.T) {
		const slots, maxLen = 3, 70
		d := newDecoder(t, b, slots, maxLen, nil)
		held := make([][]int32, slots)
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 4))
		for range rapid.IntRange(1, 12).Draw(rt, "ops") {
			s := r.IntN(slots)
			switch r.IntN(4) {
			case 0:
				ids := randomIDs(r, c, r.IntN(maxLen-len(held[s])+1))
				require.NoError(t, d.Prefill(ctx, []model.PrefillRow{{Slot: s, Tokens: ids}}))
				held[s] = append(held[s][:len(held[s]):len(held[s])], ids...)
			case 1:
				n := r.IntN(maxLen)
				d.Truncate(s, n)
				held[s] = held[s][:min(n, len(held[s]))]
			case 2:
				src := r.IntN(slots)
				n := r.IntN(len(held[src]) + 1)
				require.NoError(t, d.CopyPrefix(s, src, n))
				held[s] = append([]int32(nil), held[src][:n]...)
			case 3:
				n := min(3, maxLen-len(held[s]))
				out, err := d.Decode(ctx, []model.DecodeRow{{Slot: s, Last: 4, MaxNew: n}}, n)
				require.NoError(t, err)
				if n > 0 {
					held[s] = append(append(held[s][:len(held[s]):len(held[s])], 4), out[0].IDs[:n-1]...)
				}
			}
			require.Equal(t, len(held[s]), d.Len(s))
		}
		for s := range slots {
			if len(held[s]) == maxLen {
				continue
			}
			got, err := d.Decode(ctx, []model.DecodeRow{{Slot: s, Last: 9, MaxNew: 1}}, 1)
			require.NoError(t, err)
			fresh := newDecoder(t, b, 1, maxLen, nil)
			require.NoError(t, fresh.Prefill(ctx, []model.PrefillRow{{Tokens: held[s]}}))
			want, err := fresh.Decode(ctx, []model.DecodeRow{{Last: 9, MaxNew: 1}}, 1)
			require.NoError(t, err)
			require.Equal(t, want, got)
		}
	})
}

func TestDecodeStops(t *testing.T) {
	c := tinyConfig()
	b := newBackend(t, randomModel(t, c, 111), Options{})
	d := newDecoder(t, b, 3, 64, nil)
	row := model.DecodeRow{Slot: 1, Last: 3, MaxNew: 30, Sampling: model.Sampling{Temperature: 1, Seed: 5}}
	free, err := d.Decode(ctx, []model.DecodeRow{row}, 30)
	require.NoError(t, err)
	require.Len(t, free[0].IDs, 30)
	stop := free[0].IDs[4]
	n := 0
	for free[0].IDs[n] != stop {
		n++
	}
	d.Truncate(1, 0)
	row.Stop = []int32{stop}
	out, err := d.Decode(ctx, []model.DecodeRow{{Slot: 0, Last: 3, MaxNew: 2}, row, {Slot: 2, Last: 3}}, 30)
	require.NoError(t, err)
	require.Equal(t, free[0].IDs[:n+1], out[1].IDs, "the stop token is emitted")
	require.True(t, out[1].Stopped)
	require.Len(t, out[0].IDs, 2)
	require.False(t, out[0].Stopped)
	require.Empty(t, out[2].IDs)
	require.Zero(t, d.Len(2), "a row without a budget appends nothing")
	require.Equal(t, n+1, d.Len(1))
}

func TestDecoderRefuses(t *testing.T) {
	c := tinyConfig()
	b := newBackend(t, randomModel(t, c, 121), Options{})
	_, err := b.NewDecoder(model.DecoderConfig{Slots: 0, MaxLen: 401})
	require.ErrorContains(t, err, "slots is 0")
	require.ErrorContains(t, err, "max_len is 401")
	d := newDecoder(t, b, 2, 10, nil)
	for want, rows := range map[string][]model.PrefillRow{
		"row 1: slot 2, the decoder has 0 to 1":                      {{Slot: 0}, {Slot: 2}},
		"row 1: slot 1 is listed twice":                              {{Slot: 1}, {Slot: 1}},
		"row 0: slot 0 holds 0 tokens and 11 more exceed max_len 10": {{Slot: 0, Tokens: make([]int32, 11)}},
		"row 0: index 1: token 71, the vocabulary has 0 to 70":       {{Slot: 0, Tokens: []int32{1, 71}}},
	} {
		require.ErrorContains(t, d.Prefill(ctx, rows), want)
	}
	require.Zero(t, d.Len(0), "a refused prefill computes nothing")
	for want, row := range map[string]model.DecodeRow{
		"slot -1, the decoder":       {Slot: -1, MaxNew: 1},
		"token -7, the vocabulary":   {Last: -7, MaxNew: 1},
		"temperature is -1":          {MaxNew: 1, Sampling: model.Sampling{Temperature: -1}},
		"holds 0 tokens and 11 more": {MaxNew: 11},
	} {
		_, err := d.Decode(ctx, []model.DecodeRow{row}, 100)
		require.ErrorContains(t, err, want)
	}
	require.ErrorContains(t, d.CopyPrefix(0, 1, 1), "slot 1 holds 0")
	require.ErrorContains(t, d.CopyPrefix(0, 5, 0), "slot 5")
	done, cancel := context.WithCancel(ctx)
	cancel()
	_, err = d.Decode(done, []model.DecodeRow{{MaxNew: 1}}, 1)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, d.Prefill(done, []model.PrefillRow{{Tokens: []int32{1}}}), context.Canceled)
	require.NoError(t, d.Close())
	require.ErrorIs(t, d.Prefill(ctx, []model.PrefillRow{{Tokens: []int32{1}}}), ErrClosed)
}

func BenchmarkDecode(b *testing.B) {
	c := quickConfig()
	m := randomModel(b, c, 1)
	be := newBackend(b, m, Options{})
	a := randomAdapter(b, m, model.LoRAConfig{Rank: 8, Alpha: 16, Targets: model.Projections}, 2)
	r := rand.New(rand.NewPCG(3, 4))
	for _, batch := range []int{1, 8, 16, 64} {
		b.Run(fmt.Sprintf("tiny/batch=%d", batch), func(b *testing.B) {
			d := newDecoder(b, be, batch, 512, a)
			const prompt, steps = 256, 64
			var fill []model.PrefillRow
			var rows []model.DecodeRow
			for i := range batch {
				fill = append(fill, model.PrefillRow{Slot: i, Adapter: 1, Tokens: randomIDs(r, c, prompt)})
				rows = append(rows, model.DecodeRow{Slot: i, Adapter: 1, Last: 1, MaxNew: steps, Sampling: model.Sampling{Temperature: 1, Seed: uint64(i)}})
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
	b.Run("tiny/prefill=8x256", func(b *testing.B) {
		d := newDecoder(b, be, 8, 512, a)
		var fill []model.PrefillRow
		for i := range 8 {
			fill = append(fill, model.PrefillRow{Slot: i, Adapter: 1, Tokens: randomIDs(r, c, 256)})
		}
		for b.Loop() {
			for i := range 8 {
				d.Truncate(i, 0)
			}
			require.NoError(b, d.Prefill(ctx, fill))
		}
		b.ReportMetric(float64(8*256*b.N)/b.Elapsed().Seconds(), "tokens/s")
	})
}

func BenchmarkTrainStep(b *testing.B) {
	c := quickConfig()
	m := randomModel(b, c, 1)
	be := newBackend(b, m, Options{})
	r := rand.New(rand.NewPCG(3, 4))
	var groups []model.PrefixGroup
	for range 4 {
		g := model.PrefixGroup{Prompt: randomIDs(r, c, 256)}
		for range 8 {
			s := model.Sequence{Tokens: randomIDs(r, c, 48), Train: make([]bool, 48)}
			for i := range s.Train {
				s.Train[i] = true
			}
			g.Members = append(g.Members, s)
		}
		groups = append(groups, g)
	}
	rows := 4 * (256 + 8*48)
	lora := model.LoRAConfig{Rank: 8, Alpha: 16, Targets: model.Projections}
	full, err := m.Weights.Flatten(c)
	require.NoError(b, err)
	for name, tr := range map[string]model.Trainer{
		"lora": newTrainer(b, be, model.TrainerConfig{LoRA: lora}, randomAdapter(b, m, lora, 5).Params),
		"full": newTrainer(b, be, model.TrainerConfig{Full: true}, full),
	} {
		b.Run("tiny/"+name+"/4x(256+8x48)", func(b *testing.B) {
			for b.Loop() {
				s, err := tr.Forward(ctx, groups, 1)
				require.NoError(b, err)
				require.NoError(b, tr.Backward(ctx, model.Scores{LogProbs: s.LogProbs}))
			}
			b.ReportMetric(float64(rows*b.N)/b.Elapsed().Seconds(), "rows/s")
		})
	}
}

// TestRankStabilisedScale is cases/training.tsv's lora row: rank 16 and alpha
// 16 under rsLoRA scale by 4, as rank 16 and alpha 64 do without.
func TestRankStabilisedScale(t *testing.T) {
	c := tinyConfig()
	m := randomModel(t, c, 151)
	b := newBackend(t, m, Options{})
	rs := randomAdapter(t, m, model.LoRAConfig{Rank: 16, Alpha: 16, RSLoRA: true, Targets: []string{"q_proj", "up_proj"}}, 152)
	plain := *rs
	plain.LoRA.RSLoRA, plain.LoRA.Alpha = false, 64
	require.Equal(t, logitsAfter(t, b, &plain, []int32{1, 2, 3}), logitsAfter(t, b, rs, []int32{1, 2, 3}))
	plain.LoRA.Alpha = 16
	require.NotEqual(t, logitsAfter(t, b, &plain, []int32{1, 2, 3}), logitsAfter(t, b, rs, []int32{1, 2, 3}))
}
