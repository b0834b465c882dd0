//go:build xla

package xla

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"testing"

	"github.com/skein-rl/skein/model"
	"github.com/stretchr/testify/require"
)

// TestSmolLM2 compares with transformers on the real model, in f32: logits, the
// hidden state after every layer, greedy tokens and their logprobs.
func TestSmolLM2(t *testing.T) {
	path := os.Getenv("SKEIN_SMOLLM2")
	if path == "" {
		t.Skip("SKEIN_SMOLLM2 is not set to the SmolLM2-135M-Instruct GGUF")
	}
	m, err := model.Open(path)
	require.NoError(t, err)
	raw, err := os.ReadFile("../gobackend/testdata/smollm2_greedy.json")
	require.NoError(t, err)
	var golden struct {
		Prompts []struct {
			Prompt   []int32      `json:"prompt_ids"`
			Greedy   []int32      `json:"greedy_ids"`
			Logprobs []float64    `json:"greedy_logprobs"`
			First    []float64    `json:"last_logits_first8"`
			Sum      float64      `json:"last_logits_sum"`
			Top      [][2]float64 `json:"last_top5"`
			Norms    []float64    `json:"hidden_last_pos_l2_per_layer"`
		}
	}
	require.NoError(t, json.Unmarshal(raw, &golden))
	b := open(t, m, "f32")
	d := newDecoder(t, b, 4, 128)
	tr := newTrainer(t, b, model.LoRAConfig{Rank: 4, Alpha: 8, Targets: []string{"q_proj"}})
	for slot, p := range golden.Prompts {
		last := len(p.Prompt) - 1
		require.NoError(t, d.Prefill(t.Context(), []model.PrefillRow{{Slot: slot, Tokens: p.Prompt[:last]}}))
		logits := stepLogits(t, d.(*decoder), slot, 0, p.Prompt[last])
		worst, sum := 0.0, 0.0
		for i, want := range p.First {
			worst = max(worst, math.Abs(float64(logits[i])-want))
		}
		for _, top := range p.Top {
			worst = max(worst, math.Abs(float64(logits[int(top[0])])-top[1]))
		}
		for _, x := range logits {
			sum += float64(x)
		}
		require.LessOrEqual(t, worst, 2e-4, "logits")
		require.InDelta(t, p.Sum, sum, 2e-4*float64(len(logits)))

		out, err := d.Decode(t.Context(), []model.DecodeRow{{Slot: slot, Last: p.Prompt[last], MaxNew: len(p.Greedy)}}, len(p.Greedy))
		require.NoError(t, err)
		require.Equal(t, p.Greedy, out[0].IDs)
		require.InDeltaSlice(t, p.Logprobs, out[0].Logprobs, 1e-4)

		// The trainer on the same tokens, and its layer inputs.
		train := make([]bool, len(p.Greedy))
		for i := range train {
			train[i] = true
		}
		s, err := tr.Forward(t.Context(), []model.PrefixGroup{{Prompt: p.Prompt, Members: []model.Sequence{{Tokens: p.Greedy, Train: train}}}}, 1)
		require.NoError(t, err)
		require.InDeltaSlice(t, p.Logprobs, s.LogProbs, 1e-4)
		pass := tr.(*trainer).passes[0]
		h := m.Config.HiddenSize
		for l, in := range pass.inputs {
			x, err := get[float32](in, pass.rows()*h)
			require.NoError(t, err)
			var square float64
			for _, v := range x[last*h : (last+1)*h] {
				square += float64(v) * float64(v)
			}
			require.InEpsilon(t, p.Norms[l], math.Sqrt(square), 1e-5, "hidden state %d", l)
		}
		t.Logf("prompt %d: largest logit difference %.1e, logprob difference of the decoder %.1e, of the trainer %.1e", slot, worst,
			maxDiff(t, toF32(p.Logprobs), out[0].Logprobs), maxDiff(t, toF32(p.Logprobs), s.LogProbs))
	}
}

func toF32(x []float64) (out []float32) {
	for _, v := range x {
		out = append(out, float32(v))
	}
	return out
}

// stepLogits feeds one token to a slot and reads the logits, leaving the
// decoder as it was.
func stepLogits(t *testing.T, d *decoder, slot, place int, token int32) []float32 {
	t.Helper()
	b := d.cfg.Slots
	require.NoError(t, d.reserve(d.length[slot]+1))
	spec := decodeSpec{slots: b, size: d.size, steps: 1, stops: 4, logits: true}
	st := d.stack.shape
	p, err := d.b.stablehlo(fmt.Sprintf("decode %v %v", spec, st), func(e *emitter) []value {
		return emitDecode(e, d.b.shape, d.b.dev.elem, st, spec)
	})
	require.NoError(t, err)
	slots := make([]rowState, b)
	for i := range slots {
		slots[i].done = i != slot
	}
	slots[slot].last = token
	args, err := d.decodeArgs(spec, []model.DecodeRow{{Slot: slot, Adapter: place}}, slots, 1)
	require.NoError(t, err)
	out, err := d.runCaches(p, args, true)
	require.NoError(t, err)
	defer free(out...)
	v := d.b.shape.vocab
	logits, err := get[float32](out[3], b*v)
	require.NoError(t, err)
	return logits[slot*v : (slot+1)*v]
}
