package gobackend

import (
	"encoding/json"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/model"
)

// The golden numbers come from transformers, TRL and PEFT in float64; see
// testdata/tiny_llama/case.json for the source of each.
const goldenDir = "testdata/tiny_llama"

type goldenCase struct {
	InputIDs   [][]int32   `json:"input_ids"`
	Mask       [][]int     `json:"attention_mask"`
	Labels     [][]int32   `json:"labels"`
	LogitsLast [][]float64 `json:"logits_last"`
	LogProbs   [][]float64 `json:"log_probs"` // of label t at t-1
	Entropy    [][]float64 `json:"entropy"`
	Loss       float64     `json:"loss"`
	Greedy     []int32     `json:"greedy12_from_row0"`
	LoRA       struct {
		Loss       float64     `json:"loss"`
		LogitsLast [][]float64 `json:"logits_last"`
		Greedy     []int32     `json:"greedy12_from_row0"`
	} `json:"lora"`
}

func loadGolden(t testing.TB) (*model.Model, goldenCase) {
	t.Helper()
	m, err := model.OpenWeights(goldenDir)
	require.NoError(t, err)
	data, err := os.ReadFile(goldenDir + "/case.json")
	require.NoError(t, err)
	var c goldenCase
	require.NoError(t, json.Unmarshal(data, &c))
	return m, c
}

func newBackend(t testing.TB, m *model.Model, opts Options) *backend {
	t.Helper()
	b, err := New(m, opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b.(*backend)
}

// groups drops the left padding of each row and splits it at the first label.
func (c goldenCase) groups() []model.PrefixGroup {
	var out []model.PrefixGroup
	for r, ids := range c.InputIDs {
		var g model.PrefixGroup
		var s model.Sequence
		for i, id := range ids {
			switch label := c.Labels[r][i]; {
			case c.Mask[r][i] == 0:
			case label < 0 && len(s.Tokens) == 0:
				g.Prompt = append(g.Prompt, id)
			default:
				s.Tokens, s.Train = append(s.Tokens, id), append(s.Train, label >= 0)
			}
		}
		g.Members = []model.Sequence{s}
		out = append(out, g)
	}
	return out
}

// labelled flattens a golden table at the labels; values stand one to the left.
func (c goldenCase) labelled(table [][]float64) []float64 {
	var out []float64
	for r, labels := range c.Labels {
		for i, l := range labels {
			if l >= 0 {
				out = append(out, table[r][i-1])
			}
		}
	}
	return out
}

func requireClose(t testing.TB, want []float64, got []float32, tol float64, what string) {
	t.Helper()
	require.Len(t, got, len(want), what)
	for i := range want {
		require.InDelta(t, want[i], got[i], tol, "%s[%d]", what, i)
	}
}

// readTensor reads one tensor of a safetensors file of testdata.
func readTensor(t testing.TB, file, name string, shape []int) []float32 {
	t.Helper()
	f, err := os.Open(goldenDir + "/" + file)
	require.NoError(t, err)
	defer f.Close()
	info, err := f.Stat()
	require.NoError(t, err)
	st, err := model.ReadSafeTensors(f, info.Size())
	require.NoError(t, err)
	n := 1
	for _, d := range shape {
		n *= d
	}
	out := make([]float32, n)
	require.NoError(t, st.ReadF32(name, shape, out))
	return out
}

// requireGradient compares a gradient tensor by tensor: largest difference
// relative to the tensor's largest element.
func requireGradient(t testing.TB, layout model.Layout, file, prefix string, grad []float32, tol float64) {
	t.Helper()
	for _, p := range layout {
		name := p.Name
		if prefix != "" {
			name = prefix + strings.Replace(name, "lora_A.weight", "lora_A.default.weight", 1)
			name = strings.Replace(name, "lora_B.weight", "lora_B.default.weight", 1)
		}
		want := readTensor(t, file, name, p.Shape)
		got := grad[p.Offset : p.Offset+p.Len()]
		require.Less(t, relative(want, got), tol, name)
	}
}

func relative(want, got []float32) float64 {
	var diff, scale float64
	for i, w := range want {
		diff = max(diff, math.Abs(float64(w)-float64(got[i])))
		scale = max(scale, math.Abs(float64(w)))
	}
	return diff / (scale + 1e-12)
}

// goldenLoRA is the adapter of lora.safetensors.
func goldenLoRA(t testing.TB, m *model.Model) *model.Adapter {
	t.Helper()
	cfg := model.LoRAConfig{Rank: 4, Alpha: 8, Targets: model.Projections}
	layout, err := model.LoRALayout(m.Config, cfg)
	require.NoError(t, err)
	a := &model.Adapter{LoRA: cfg, BaseDigest: m.Digest, Params: make([]float32, layout.Size())}
	for _, p := range layout {
		name := "w." + strings.Replace(strings.Replace(p.Name, "lora_A.weight", "lora_A.default.weight", 1), "lora_B.weight", "lora_B.default.weight", 1)
		copy(a.Params[p.Offset:], readTensor(t, "lora.safetensors", name, p.Shape))
	}
	return a
}

// logitsAfter prefills ids but the last and returns the logits after the last.
func logitsAfter(t testing.TB, b *backend, a *model.Adapter, ids []int32) []float32 {
	t.Helper()
	dec := newDecoder(t, b, 1, len(ids)+1, a)
	n := len(ids) - 1
	require.NoError(t, dec.Prefill(ctx, []model.PrefillRow{{Adapter: place(a), Tokens: ids[:n]}}))
	_, err := dec.Decode(ctx, []model.DecodeRow{{Adapter: place(a), Last: ids[n], MaxNew: 1}}, 1)
	require.NoError(t, err)
	return dec.lanes[0].logits
}

func TestGoldenLogits(t *testing.T) {
	m, c := loadGolden(t)
	b := newBackend(t, m, Options{})
	ad := goldenLoRA(t, m)
	for r, ids := range c.InputIDs {
		var real []int32
		for i, id := range ids {
			if c.Mask[r][i] == 1 {
				real = append(real, id)
			}
		}
		requireClose(t, c.LogitsLast[r], logitsAfter(t, b, nil, real), 1e-5, "base logits")
		requireClose(t, c.LoRA.LogitsLast[r], logitsAfter(t, b, ad, real), 1e-5, "adapter logits")
	}
}

func TestGoldenGreedy(t *testing.T) {
	m, c := loadGolden(t)
	b := newBackend(t, m, Options{})
	dec, err := b.NewDecoder(model.DecoderConfig{Slots: 2, MaxLen: 32})
	require.NoError(t, err)
	ids := c.InputIDs[0]
	for slot, want := range [][]int32{c.Greedy, c.LoRA.Greedy} {
		if slot == 1 {
			require.NoError(t, dec.SetAdapter(1, goldenLoRA(t, m)))
		}
		require.NoError(t, dec.Prefill(ctx, []model.PrefillRow{{Slot: slot, Adapter: slot, Tokens: ids[:len(ids)-1]}}))
		out, err := dec.Decode(ctx, []model.DecodeRow{{Slot: slot, Adapter: slot, Last: ids[len(ids)-1], MaxNew: 12}}, 12)
		require.NoError(t, err)
		require.Equal(t, want, out[0].IDs)
		require.False(t, out[0].Stopped)
	}
}

// goldenLoss is mean NLL - weight * mean entropy and its derivatives.
func goldenLoss(s model.Scores, weight float64) (loss float64, dlp, dent []float32) {
	n := float64(len(s.LogProbs))
	for i := range s.LogProbs {
		loss += (-float64(s.LogProbs[i]) - weight*float64(s.Entropy[i])) / n
		dlp, dent = append(dlp, float32(-1/n)), append(dent, float32(-weight/n))
	}
	return loss, dlp, dent
}

func TestGoldenFullGradient(t *testing.T) {
	m, c := loadGolden(t)
	for _, opts := range []Options{{}, {ActivationBytes: -1, Threads: 1}} {
		tr, err := newBackend(t, m, opts).NewTrainer(model.TrainerConfig{Full: true})
		require.NoError(t, err)
		flat, err := m.Weights.Flatten(m.Config)
		require.NoError(t, err)
		require.NoError(t, tr.SetParams(flat))
		s, err := tr.Forward(ctx, c.groups(), 0.9)
		require.NoError(t, err)
		requireClose(t, c.labelled(c.LogProbs), s.LogProbs, 5e-6, "log_probs")
		requireClose(t, c.labelled(c.Entropy), s.Entropy, 5e-6, "entropy")
		loss, dlp, dent := goldenLoss(s, 0.01)
		require.InDelta(t, c.Loss, loss, 2e-6)
		require.NoError(t, tr.Backward(ctx, model.Scores{LogProbs: dlp, Entropy: dent}))
		requireGradient(t, tr.Layout(), "grads.safetensors", "", tr.Grad(), 1e-5)
		require.NoError(t, tr.Close())
	}
}

func TestGoldenLoRAGradient(t *testing.T) {
	m, c := loadGolden(t)
	ad := goldenLoRA(t, m)
	for _, opts := range []Options{{}, {ActivationBytes: -1, Threads: 1}} {
		tr, err := newBackend(t, m, opts).NewTrainer(model.TrainerConfig{LoRA: ad.LoRA})
		require.NoError(t, err)
		require.NoError(t, tr.SetParams(ad.Params))
		s, err := tr.Forward(ctx, c.groups(), 1)
		require.NoError(t, err)
		loss, dlp, _ := goldenLoss(s, 0)
		require.InDelta(t, c.LoRA.Loss, loss, 2e-6)
		require.NoError(t, tr.Backward(ctx, model.Scores{LogProbs: dlp}))
		requireGradient(t, tr.Layout(), "lora.safetensors", "g.", tr.Grad(), 1e-5)
	}
}
