//go:build xla

package xla

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/model/sample"
	"github.com/stretchr/testify/require"
)

var warm = model.Sampling{Temperature: 0.8, Seed: 7}

func TestGoldenGreedy(t *testing.T) {
	m, c := tinyLlama(t)
	d := newDecoder(t, open(t, m, "f32"), 3, 64)
	require.Equal(t, c.Greedy, decode(t, d, 1, c.IDs[0], 12, model.Sampling{}).IDs)
	a := &model.Adapter{LoRA: tinyLoRA, BaseDigest: m.Digest, Params: tinyAdapter(t, m, "w")}
	require.NoError(t, d.SetAdapter(1, a))
	require.Equal(t, c.LoRA.Greedy, decodeAt(t, d, 2, 1, c.IDs[0], 12, model.Sampling{}).IDs)
	require.NoError(t, d.SetAdapter(1, nil))
	require.Equal(t, c.Greedy, decode(t, d, 0, c.IDs[0], 12, model.Sampling{}).IDs)
}

// A row's tokens and logprobs are the same bits alone and in any company.
func TestBatchIndependence(t *testing.T) {
	for _, dtype := range []string{"f32", "bf16"} {
		m, b := small(t, dtype)
		d := newDecoder(t, b, 4, 100)
		rng := rand.New(rand.NewPCG(1, 1))
		prompt := randomTokens(rng, 20, m.Config.VocabSize)
		alone := decode(t, d, 2, prompt, 30, warm)
		for s := range 4 {
			d.Truncate(s, 0)
			tokens := prompt[:19]
			if s != 2 {
				tokens = randomTokens(rng, 3+10*s, m.Config.VocabSize)
			}
			require.NoError(t, d.Prefill(t.Context(), []model.PrefillRow{{Slot: s, Tokens: tokens}}))
		}
		out, err := d.Decode(t.Context(), []model.DecodeRow{
			{Slot: 3, Last: 9, MaxNew: 5, Sampling: model.Sampling{Temperature: 2, Seed: 1}},
			{Slot: 2, Last: prompt[19], MaxNew: 30, Sampling: warm},
			{Slot: 0, Last: 8, MaxNew: 30},
		}, 30)
		require.NoError(t, err)
		require.Equal(t, alone, out[1], dtype)
		require.Len(t, out[0].IDs, 5)
		require.Equal(t, []int{3 + 30, 13, 19 + 30, 33 + 5}, []int{d.Len(0), d.Len(1), d.Len(2), d.Len(3)})
	}
}

// However a sequence got into its cache (in pieces, copied, cut back, through
// growth of the caches, in several calls), what follows is the same.
func TestCacheHistory(t *testing.T) {
	m, b := small(t, "f32")
	d := newDecoder(t, b, 4, 600)
	rng := rand.New(rand.NewPCG(2, 1))
	prompt := randomTokens(rng, 90, m.Config.VocabSize)
	want := decode(t, d, 0, prompt, 24, warm)
	row := func(slot int, last int32, n int) model.DecodeRow {
		return model.DecodeRow{Slot: slot, Last: last, MaxNew: n, Sampling: warm}
	}
	check := func(name string, got model.DecodeOut, from int) {
		t.Helper()
		require.Equal(t, want.IDs[from:], got.IDs, name)
		require.InDeltaSlice(t, want.Logprobs[from:], got.Logprobs, 2e-5, name)
	}

	// Pieces of other lengths, while another slot forces larger caches.
	for at := 0; at < 89; {
		n := min(1+rng.IntN(40), 89-at)
		require.NoError(t, d.Prefill(t.Context(), []model.PrefillRow{{Slot: 1, Tokens: prompt[at : at+n]}}))
		at += n
	}
	require.NoError(t, d.Prefill(t.Context(), []model.PrefillRow{{Slot: 2, Tokens: randomTokens(rng, 580, m.Config.VocabSize)}}))
	out, err := d.Decode(t.Context(), []model.DecodeRow{row(1, prompt[89], 24)}, 24)
	require.NoError(t, err)
	check("pieces", out[0], 0)

	// Cut back into the middle of the completion and smaller caches again.
	d.Truncate(2, 0)
	d.Truncate(1, 89+10)
	out, err = d.Decode(t.Context(), []model.DecodeRow{row(1, want.IDs[9], 14)}, 14)
	require.NoError(t, err)
	check("cut", out[0], 10)

	// A copied prefix, decoded in steps of 5.
	require.NoError(t, d.CopyPrefix(2, 1, 89))
	require.Equal(t, 89, d.Len(2))
	var got model.DecodeOut
	for last, n := prompt[89], 0; n < 24; n += 5 {
		out, err := d.Decode(t.Context(), []model.DecodeRow{row(2, last, 24-n)}, 5)
		require.NoError(t, err)
		got.IDs, got.Logprobs = append(got.IDs, out[0].IDs...), append(got.Logprobs, out[0].Logprobs...)
		last = out[0].IDs[len(out[0].IDs)-1]
	}
	check("copy", got, 0)

	// More tokens than one device call makes.
	steps := b.dev.limits.steps
	long := decode(t, d, 0, prompt, 2*steps+3, warm)
	require.Len(t, long.IDs, 2*steps+3)
	require.Equal(t, want.IDs, long.IDs[:24])
}

func TestStops(t *testing.T) {
	_, b := small(t, "f32")
	d := newDecoder(t, b, 4, 100)
	prompt := []int32{1, 2, 3}
	free := decode(t, d, 0, prompt, 20, warm)
	stop := free.IDs[7]
	first := 0
	for free.IDs[first] != stop {
		first++
	}
	var never []int32 // enough to need a larger program
	for id := int32(0); len(never) < 5; id++ {
		if !slices.Contains(free.IDs, id) {
			never = append(never, id)
		}
	}
	for _, others := range [][]int32{nil, never} {
		d.Truncate(0, 2)
		out, err := d.Decode(t.Context(), []model.DecodeRow{{Slot: 0, Last: 3, MaxNew: 20, Stop: append(others, stop), Sampling: warm}}, 20)
		require.NoError(t, err)
		require.True(t, out[0].Stopped)
		require.Equal(t, free.IDs[:first+1], out[0].IDs, "the stop token is emitted, nothing after it")
		require.Equal(t, 2+first+1, d.Len(0), "the stop token itself is not cached")
	}
}

// Another adapter of the same shape reuses the compiled programs and changes
// what they compute.
func TestAdapterIsAnInput(t *testing.T) {
	m, b := small(t, "f32")
	d := newDecoder(t, b, 4, 100)
	prompt := []int32{4, 5, 6, 7}
	base := decode(t, d, 0, prompt, 4, model.Sampling{})
	a := randomAdapter(t, m, tinyLoRA, 1)
	require.NoError(t, d.SetAdapter(1, a))
	one := decodeAt(t, d, 0, 1, prompt, 4, model.Sampling{})
	require.Greater(t, maxDiff(t, base.Logprobs, one.Logprobs), 1e-2)
	programs := b.programs.size()
	require.NoError(t, d.SetAdapter(1, randomAdapter(t, m, tinyLoRA, 2)))
	two := decodeAt(t, d, 0, 1, prompt, 4, model.Sampling{})
	require.Greater(t, maxDiff(t, one.Logprobs, two.Logprobs), 1e-2)
	require.NoError(t, d.SetAdapter(1, &model.Adapter{LoRA: tinyLoRA, BaseDigest: m.Digest, Params: make([]float32, len(a.Params))}))
	require.Equal(t, base, decodeAt(t, d, 0, 1, prompt, 4, model.Sampling{}), "a zero adapter is the base")
	require.Equal(t, programs, b.programs.size())
}

func TestDecoderRefuses(t *testing.T) {
	m, b := small(t, "f32")
	_, err := b.NewDecoder(model.DecoderConfig{Slots: 0, MaxLen: 5000})
	require.ErrorContains(t, err, "slots 0")
	require.ErrorContains(t, err, "max_len 5000")

	d := newDecoder(t, b, 4, 100)
	ctx := t.Context()
	prefill := func(slot int, ids ...int32) error {
		return d.Prefill(ctx, []model.PrefillRow{{Slot: slot, Tokens: ids}})
	}
	require.ErrorContains(t, prefill(4, 1), "slot 4")
	require.ErrorContains(t, prefill(0, 300), "token 0 is 300")
	require.ErrorContains(t, prefill(0, make([]int32, 101)...), "max_len is 100")
	require.NoError(t, prefill(0, make([]int32, 95)...))
	for name, row := range map[string]model.DecodeRow{
		"temperature": {Last: 1, MaxNew: 1, Sampling: model.Sampling{Temperature: -1}},
		"top_p":       {Last: 1, MaxNew: 1, Sampling: model.Sampling{TopP: 2}},
		"max_len":     {Last: 1, MaxNew: 6},
		"max_new":     {Last: 1},
		"token":       {Last: -1, MaxNew: 1},
		"slot":        {Slot: -1, Last: 1, MaxNew: 1},
	} {
		_, err := d.Decode(ctx, []model.DecodeRow{row}, 10)
		require.ErrorContains(t, err, name)
	}
	_, err = d.Decode(ctx, []model.DecodeRow{{Last: 1, MaxNew: 1}, {Last: 1, MaxNew: 1}}, 1)
	require.ErrorContains(t, err, "twice")
	require.ErrorContains(t, d.CopyPrefix(1, 0, 96), "holds 95")
	require.Equal(t, 95, d.Len(0), "refused calls change nothing")

	a := randomAdapter(t, m, tinyLoRA, 1)
	a.BaseDigest = "blake3:11"
	require.ErrorIs(t, d.SetAdapter(1, a), model.ErrAdapter)
	a.BaseDigest = m.Digest
	a.Params = a.Params[1:]
	require.ErrorIs(t, d.SetAdapter(1, a), model.ErrAdapter)
	a = randomAdapter(t, m, tinyLoRA, 1)
	for i := range a.Params {
		a.Params[i] *= 1e30
	}
	require.NoError(t, d.SetAdapter(1, a))
	out, err := d.Decode(ctx, []model.DecodeRow{{Adapter: 1, Last: 1, MaxNew: 1}, {Slot: 1, Last: 1, MaxNew: 1}}, 1)
	require.NoError(t, err)
	require.ErrorIs(t, out[0].Err, sample.ErrNonFinite)
	require.NoError(t, out[1].Err, "another row of the batch")
	require.Len(t, out[1].IDs, 1)

	gone, cancel := context.WithCancel(ctx)
	cancel()
	_, err = d.Decode(gone, []model.DecodeRow{{Last: 1, MaxNew: 1}}, 1)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, b.Close(), "still open")
}
