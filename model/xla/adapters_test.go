//go:build xla

package xla

import (
	"math/rand/v2"
	"testing"

	"github.com/skein-rl/skein/model"
	"github.com/stretchr/testify/require"
)

// adapterShapes differ in rank, scale and targets.
var adapterShapes = []model.LoRAConfig{
	{Rank: 4, Alpha: 8, Targets: model.Projections},
	{Rank: 9, Alpha: 5, RSLoRA: true, Targets: []string{"q_proj", "v_proj"}},
	{Rank: 1, Alpha: 3, Targets: []string{"down_proj", "k_proj"},
		RankPattern: model.Pattern[int]{{Key: `layers\.1\..*`, Value: 3}, {Key: "k_proj", Value: 2}}, AlphaPattern: model.Pattern[float64]{{Key: "k_proj", Value: 4}}},
}

// Rows of one batch use different adapters and the base; each row's numbers are
// the same bits as alone, and those of the pure-Go backend.
func TestAdaptersInOneBatch(t *testing.T) {
	for _, dtype := range []string{"f32", "bf16"} {
		m, b := small(t, dtype)
		ours, err := b.NewDecoder(model.DecoderConfig{Slots: 5, MaxLen: 100, Adapters: 3})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, ours.Close()) })
		theirs, err := goBackend(t, m).NewDecoder(model.DecoderConfig{Slots: 5, MaxLen: 100, Adapters: 3})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, theirs.Close()) })
		for i, l := range adapterShapes {
			a := randomAdapter(t, m, l, uint64(i))
			require.NoError(t, ours.SetAdapter(i+1, a))
			require.NoError(t, theirs.SetAdapter(i+1, a))
		}
		rng := rand.New(rand.NewPCG(3, 1))
		var prompts [][]int32
		var alone []model.DecodeOut
		var prefill []model.PrefillRow
		var rows []model.DecodeRow
		for s, place := range []int{2, 0, 3, 1, 2} {
			prompts = append(prompts, randomTokens(rng, 5+4*s, m.Config.VocabSize))
			n := len(prompts[s]) - 1
			sampling := model.Sampling{Temperature: 1, Seed: uint64(s)}
			alone = append(alone, decodeAt(t, ours, s, place, prompts[s], 16, sampling))
			prefill = append(prefill, model.PrefillRow{Slot: s, Adapter: place, Tokens: prompts[s][:n]})
			rows = append(rows, model.DecodeRow{Slot: s, Adapter: place, Last: prompts[s][n], MaxNew: 16, Sampling: sampling})
		}
		together := func(d model.Decoder) []model.DecodeOut {
			for s := range rows {
				d.Truncate(s, 0)
			}
			require.NoError(t, d.Prefill(t.Context(), prefill))
			out, err := d.Decode(t.Context(), rows, 16)
			require.NoError(t, err)
			return out
		}
		require.Equal(t, alone, together(ours), dtype)
		if dtype == "f32" {
			for s, want := range together(theirs) {
				require.Equal(t, want.IDs, alone[s].IDs, "slot %d", s)
				require.InDeltaSlice(t, want.Logprobs, alone[s].Logprobs, 2e-4)
			}
		}
	}
}

// A place gets another adapter between two calls of the same rows: no program is
// compiled, the other rows go on unmoved, and no cache is touched.
func TestAdapterHotSwap(t *testing.T) {
	m, b := small(t, "f32")
	d, err := b.NewDecoder(model.DecoderConfig{Slots: 2, MaxLen: 100, Adapters: 2})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	wide := model.LoRAConfig{Rank: 8, Alpha: 8, Targets: model.Projections}
	require.NoError(t, d.SetAdapter(1, randomAdapter(t, m, wide, 1)))
	require.NoError(t, d.SetAdapter(2, randomAdapter(t, m, wide, 2)))
	prompt := []int32{4, 5, 6, 7}
	whole := decodeAt(t, d, 0, 1, prompt, 20, warm)
	other := decodeAt(t, d, 1, 2, prompt, 20, warm)

	d.Truncate(0, 0)
	d.Truncate(1, 0)
	require.NoError(t, d.Prefill(t.Context(), []model.PrefillRow{{Slot: 0, Adapter: 1, Tokens: prompt[:3]}, {Slot: 1, Adapter: 2, Tokens: prompt[:3]}}))
	rows := []model.DecodeRow{{Slot: 0, Adapter: 1, Last: 7, MaxNew: 10, Sampling: warm}, {Slot: 1, Adapter: 2, Last: 7, MaxNew: 10, Sampling: warm}}
	one, err := d.Decode(t.Context(), rows, 10)
	require.NoError(t, err)
	programs := b.programs.size()
	require.NoError(t, d.SetAdapter(2, randomAdapter(t, m, model.LoRAConfig{Rank: 3, Alpha: 30, Targets: []string{"o_proj"}}, 3)))
	require.Equal(t, 13, d.Len(1))
	for i := range rows {
		rows[i].Last = one[i].IDs[9]
	}
	two, err := d.Decode(t.Context(), rows, 10)
	require.NoError(t, err)
	require.Equal(t, programs, b.programs.size())
	require.Equal(t, whole.Logprobs, append(one[0].Logprobs, two[0].Logprobs...))
	require.Equal(t, other.Logprobs[:10], one[1].Logprobs)
	require.NotEqual(t, other.Logprobs[10:], two[1].Logprobs)
}

func TestAdapterPlaces(t *testing.T) {
	m, b := small(t, "f32")
	_, err := b.NewDecoder(model.DecoderConfig{Slots: 1, MaxLen: 10, Adapters: 65})
	require.ErrorContains(t, err, "adapters 65")
	d := newDecoder(t, b, 4, 100)
	a := randomAdapter(t, m, tinyLoRA, 1)
	require.ErrorContains(t, d.SetAdapter(0, a), "place 0")
	require.ErrorContains(t, d.SetAdapter(2, a), "places 1 to 1")
	use := func(place int) error {
		_, err := d.Decode(t.Context(), []model.DecodeRow{{Adapter: place, Last: 1, MaxNew: 1}}, 1)
		return err
	}
	require.ErrorContains(t, use(2), "adapter 2")
	require.ErrorContains(t, use(1), "is empty")
	require.ErrorContains(t, d.Prefill(t.Context(), []model.PrefillRow{{Adapter: 1, Tokens: []int32{1}}}), "is empty")
	require.NoError(t, d.SetAdapter(1, a))
	require.NoError(t, use(1))
	require.NoError(t, d.SetAdapter(1, nil))
	require.ErrorContains(t, use(1), "is empty")
}
