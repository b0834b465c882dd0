//go:build xla

package xla

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/model/sample"
	"github.com/stretchr/testify/require"
)

// everySampling covers what the device's sampler knows.
var everySampling = []model.Sampling{
	{}, {Temperature: 1, Seed: 1}, {Temperature: 0.3, Seed: 1 << 40}, {Temperature: 1.5, TopK: 7, Seed: 2}, {Temperature: 1.5, TopP: 0.6, Seed: 3},
	{Temperature: 2, TopP: 0.5, TopK: 40, Seed: 4}, {Temperature: 1.5, MinP: 0.2, Seed: 5}, {Temperature: 2, TopP: 0.9, MinP: 0.05, Seed: 6},
}

// A row draws the same tokens on the device, and on the host because it wants
// its likeliest tokens too; and a row of the device stays the same to the bit
// when a companion forces one token a call.
func TestHostAndDeviceAgree(t *testing.T) {
	m, b := small(t, "f32")
	d := newDecoder(t, b, 4, 100)
	prompt := randomTokens(rand.New(rand.NewPCG(4, 1)), 9, m.Config.VocabSize)
	for _, s := range everySampling {
		device := decode(t, d, 0, prompt, 20, s)
		for slot := range 2 {
			d.Truncate(slot, 0)
			require.NoError(t, d.Prefill(t.Context(), []model.PrefillRow{{Slot: slot, Tokens: prompt[:8]}}))
		}
		out, err := d.Decode(t.Context(), []model.DecodeRow{
			{Slot: 1, Last: prompt[8], MaxNew: 20, Sampling: s, Top: 3, Raw: true},
			{Slot: 0, Last: prompt[8], MaxNew: 20, Sampling: s},
		}, 20)
		require.NoError(t, err)
		require.Equal(t, device, out[1], "%+v", s)
		require.Equal(t, device.IDs, out[0].IDs, "%+v", s)
		require.InDeltaSlice(t, device.Logprobs, out[0].Logprobs, 2e-5, "%+v", s)
		require.Len(t, out[0].Raw, 20)
		require.Len(t, out[0].Top, 20)
		require.Equal(t, []int{28, 28}, []int{d.Len(0), d.Len(1)})

		// Raw logprobs of the device are those of the host.
		d.Truncate(0, 8)
		raw, err := d.Decode(t.Context(), []model.DecodeRow{{Slot: 0, Last: prompt[8], MaxNew: 20, Sampling: s, Raw: true}}, 20)
		require.NoError(t, err)
		require.Equal(t, device.IDs, raw[0].IDs)
		require.InDeltaSlice(t, out[0].Raw, raw[0].Raw, 2e-5, "%+v", s)
	}
}

// only allows one id, after a number of tokens none, and counts.
type only struct {
	id    int32
	left  int
	taken []int32
}

func (o *only) Allow(mask []uint64) {
	clear(mask)
	if o.left > 0 {
		mask[o.id/64] |= 1 << (o.id % 64)
	}
}

func (o *only) Accept(id int32) error {
	o.left--
	o.taken = append(o.taken, id)
	return nil
}

// Penalties, bias and constraints give what the pure-Go backend gives; a row
// that fails ends alone.
func TestHostRows(t *testing.T) {
	m, b := small(t, "f32")
	rng := rand.New(rand.NewPCG(5, 1))
	prompt := randomTokens(rng, 12, m.Config.VocabSize)
	run := func(d model.Decoder) ([]model.DecodeOut, *only) {
		c := &only{id: 77, left: 5}
		rows := []model.DecodeRow{
			{Sampling: model.Sampling{Temperature: 1, RepetitionPenalty: 1.3, Seed: 1}},
			{Sampling: model.Sampling{Temperature: 1, FrequencyPenalty: 0.5, PresencePenalty: 0.4, TopK: 50, Seed: 2}},
			{Bias: []model.TokenBias{{ID: 9, Bias: 50}}, Stop: []int32{9}},
			{Constraint: c, Sampling: model.Sampling{Temperature: 1}},
		}
		for s := range rows {
			require.NoError(t, d.Prefill(t.Context(), []model.PrefillRow{{Slot: s, Tokens: prompt[:11]}}))
			rows[s].Slot, rows[s].Last, rows[s].MaxNew, rows[s].History, rows[s].Prompt = s, prompt[11], 16, prompt, 12
		}
		out, err := d.Decode(t.Context(), rows, 16)
		require.NoError(t, err)
		return out, c
	}
	ours, c := run(newDecoder(t, b, 4, 100))
	theirs, _ := run(newDecoder(t, goBackend(t, m), 4, 100))
	for i := range ours {
		require.Equal(t, theirs[i].IDs, ours[i].IDs, "row %d", i)
		require.InDeltaSlice(t, theirs[i].Logprobs, ours[i].Logprobs, 2e-4)
	}
	require.Len(t, ours[0].IDs, 16)
	require.Equal(t, []int32{9}, ours[2].IDs)
	require.True(t, ours[2].Stopped)
	require.Equal(t, []int32{77, 77, 77, 77, 77}, ours[3].IDs)
	require.Equal(t, c.taken, ours[3].IDs)
	require.ErrorIs(t, ours[3].Err, sample.ErrNoToken)
	require.NoError(t, errors.Join(ours[0].Err, ours[1].Err, ours[2].Err))
}

// Several rows prefilled in one call are cached as each alone, and slots that
// take no part keep theirs.
func TestPrefillTogether(t *testing.T) {
	for _, dtype := range []string{"f32", "bf16"} {
		m, b := small(t, dtype)
		d := newDecoder(t, b, 5, 200)
		rng := rand.New(rand.NewPCG(6, 1))
		var rows []model.PrefillRow
		var want [][]float32
		next := func(s int) []float32 {
			out, err := d.Decode(t.Context(), []model.DecodeRow{{Slot: s, Last: 3, MaxNew: 8, Sampling: warm}}, 8)
			require.NoError(t, err)
			return out[0].Logprobs
		}
		for s, n := range []int{20, 70, 1, 31, 90} {
			r := model.PrefillRow{Slot: s, Tokens: randomTokens(rng, n, m.Config.VocabSize)}
			require.NoError(t, d.Prefill(t.Context(), []model.PrefillRow{r}))
			want = append(want, next(s))
			d.Truncate(s, 0)
			if s == 2 {
				require.NoError(t, d.Prefill(t.Context(), []model.PrefillRow{r}))
				continue
			}
			rows = append(rows, r)
		}
		require.NoError(t, d.Prefill(t.Context(), rows))
		for s := range want {
			require.Equal(t, want[s], next(s), "%s slot %d", dtype, s)
		}
		require.ErrorContains(t, d.Prefill(t.Context(), []model.PrefillRow{{Tokens: []int32{1}}, {Tokens: []int32{1}}}), "twice")
	}
}

// A vocabulary of a quarter million draws as the host does.
func TestLargeVocabulary(t *testing.T) {
	c := smallConfig
	c.VocabSize, c.HiddenSize, c.NumHiddenLayers, c.LogitSoftcap, c.TieWordEmbeddings = 262_144, 32, 1, 30, true
	m := randomModel(t, c, 4)
	b := open(t, m, "f32")
	d := newDecoder(t, b, 2, 40)
	for _, s := range []model.Sampling{{}, {Temperature: 2, Seed: 1}, {Temperature: 0.2, TopP: 0.9, Seed: 2}} {
		device := decode(t, d, 0, []int32{5, 6}, 6, s)
		d.Truncate(1, 0)
		require.NoError(t, d.Prefill(t.Context(), []model.PrefillRow{{Slot: 1, Tokens: []int32{5}}}))
		host, err := d.Decode(t.Context(), []model.DecodeRow{{Slot: 1, Last: 6, MaxNew: 6, Sampling: s, Top: 1}}, 6)
		require.NoError(t, err)
		require.Equal(t, device.IDs, host[0].IDs, "%+v", s)
		require.InDeltaSlice(t, device.Logprobs, host[0].Logprobs, 5e-5)
	}
	tr := newTrainer(t, b, model.LoRAConfig{Rank: 2, Alpha: 2, Targets: []string{"q_proj"}})
	s, err := tr.Score(t.Context(), []model.PrefixGroup{{Prompt: []int32{5}, Members: []model.Sequence{{Tokens: []int32{6, 262_143}, Train: []bool{true, true}}}}}, 1, nil)
	require.NoError(t, err)
	for _, lp := range s.LogProbs {
		require.False(t, math.IsNaN(float64(lp)))
		require.Less(t, float64(lp), 0.0)
	}
	require.Equal(t, 32, b.(*backend).headChunk(1000))
}
