//go:build xla

package xla

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/skein-rl/skein/model"
	"github.com/stretchr/testify/require"
)

// testOptions are the device that the tests run on: the CPU plugin of PluginEnv,
// or what SKEIN_XLA_DEVICE and SKEIN_XLA_PLUGIN name (scripts/gpu_check.sh).
// Without a plugin the test is skipped.
func testOptions(t testing.TB, dtype string) Options {
	t.Helper()
	o := Options{Dtype: dtype, Device: os.Getenv("SKEIN_XLA_DEVICE"), Plugin: os.Getenv("SKEIN_XLA_PLUGIN")}
	if o.Plugin == "" && os.Getenv(PluginEnv) == "" {
		t.Skipf("%s is not set: run make plugin", PluginEnv)
	}
	return o
}

// open opens a backend of a model.
func open(t testing.TB, m *model.Model, dtype string) model.Backend {
	t.Helper()
	o := testOptions(t, dtype)
	o.Logger = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	b, err := Open(m, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

// small is a backend of smallConfig that tests share, with its programs.
func small(t testing.TB, dtype string) (*model.Model, *backend) {
	t.Helper()
	o := testOptions(t, dtype)
	if smallModel == nil {
		smallModel = randomModel(t, smallConfig, 3)
		smallModel.Digest = "blake3:00"
	}
	if smallBackends[dtype] == nil {
		b, err := Open(smallModel, o)
		require.NoError(t, err)
		smallBackends[dtype] = b.(*backend)
	}
	return smallModel, smallBackends[dtype]
}

var (
	smallModel    *model.Model
	smallBackends = map[string]*backend{}
)

func TestMain(m *testing.M) {
	code := m.Run()
	for _, b := range smallBackends {
		if err := b.Close(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

func newDecoder(t testing.TB, b model.Backend, slots, maxLen int) model.Decoder {
	t.Helper()
	d, err := b.NewDecoder(model.DecoderConfig{Slots: slots, MaxLen: maxLen})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return d
}

func newTrainer(t testing.TB, b model.Backend, l model.LoRAConfig) model.Trainer {
	t.Helper()
	tr, err := b.NewTrainer(model.TrainerConfig{LoRA: l})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, tr.Close()) })
	return tr
}

// The reference case: a two-layer model of transformers, with its numbers.

const tinyDir = "../testdata/tiny_llama"

type tinyCase struct {
	IDs      [][]int32   `json:"input_ids"`
	Mask     [][]int     `json:"attention_mask"`
	Labels   [][]int32   `json:"labels"`
	LogProbs [][]float64 `json:"log_probs"`
	Entropy  [][]float64 `json:"entropy"`
	Last     [][]float64 `json:"logits_last"`
	Greedy   []int32     `json:"greedy12_from_row0"`
	LoRA     struct {
		Loss   float64     `json:"loss"`
		Last   [][]float64 `json:"logits_last"`
		Greedy []int32     `json:"greedy12_from_row0"`
	} `json:"lora"`
}

var tinyLoRA = model.LoRAConfig{Rank: 4, Alpha: 8, Targets: model.Projections}

func tinyLlama(t testing.TB) (*model.Model, tinyCase) {
	t.Helper()
	m, err := model.OpenWeights(tinyDir)
	require.NoError(t, err)
	raw, err := os.ReadFile(filepath.Join(tinyDir, "case.json"))
	require.NoError(t, err)
	var c tinyCase
	require.NoError(t, json.Unmarshal(raw, &c))
	return m, c
}

// tinyAdapter reads the case's adapter ("w") or its gradient ("g") as a flat
// vector.
func tinyAdapter(t testing.TB, m *model.Model, kind string) []float32 {
	t.Helper()
	f, err := os.Open(filepath.Join(tinyDir, "lora.safetensors"))
	require.NoError(t, err)
	defer f.Close()
	fi, err := f.Stat()
	require.NoError(t, err)
	st, err := model.ReadSafeTensors(f, fi.Size())
	require.NoError(t, err)
	layout, err := model.LoRALayout(m.Config, tinyLoRA)
	require.NoError(t, err)
	out := make([]float32, layout.Size())
	for _, p := range layout {
		name := kind + "." + p.Name[:len(p.Name)-len(".weight")] + ".default.weight"
		require.NoError(t, st.ReadF32(name, p.Shape, out[p.Offset:p.Offset+p.Len()]))
	}
	return out
}

// randomModel has the given shape and random weights.
func randomModel(t testing.TB, c model.Config, seed uint64) *model.Model {
	t.Helper()
	require.NoError(t, c.Validate())
	rng := rand.New(rand.NewPCG(seed, 1))
	flat := make([]float32, model.FullLayout(c).Size())
	for _, p := range model.FullLayout(c) {
		for i := range p.Len() {
			x := rng.NormFloat64() * 0.15
			if len(p.Shape) == 1 {
				x++ // norms
			}
			flat[p.Offset+i] = float32(x)
		}
	}
	w, err := model.UnflattenWeights(c, flat)
	require.NoError(t, err)
	return &model.Model{Name: "random", Config: c, Weights: w}
}

var smallConfig = model.Config{
	ModelType: "llama", VocabSize: 300, HiddenSize: 32, IntermediateSize: 48, NumHiddenLayers: 2,
	NumAttentionHeads: 6, NumKeyValueHeads: 2, HeadDim: 8, MaxPositionEmbeddings: 4096,
	RMSNormEps: 1e-5, RopeTheta: 10000, BOSTokenID: -1, EOSTokenID: -1,
}

// randomAdapter has non-zero A and B.
func randomAdapter(t testing.TB, m *model.Model, l model.LoRAConfig, seed uint64) *model.Adapter {
	t.Helper()
	layout, err := model.LoRALayout(m.Config, l)
	require.NoError(t, err)
	rng := rand.New(rand.NewPCG(seed, 2))
	a := &model.Adapter{LoRA: l, BaseDigest: m.Digest, Params: make([]float32, layout.Size())}
	for i := range a.Params {
		a.Params[i] = float32(rng.NormFloat64() * 0.1)
	}
	return a
}

func randomTokens(rng *rand.Rand, n, vocab int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(rng.IntN(vocab))
	}
	return out
}

// decode prefills all but the last prompt token and makes n tokens in a slot
// under the base.
func decode(t testing.TB, d model.Decoder, slot int, prompt []int32, n int, s model.Sampling) model.DecodeOut {
	t.Helper()
	return decodeAt(t, d, slot, 0, prompt, n, s)
}

// decodeAt does so under an adapter.
func decodeAt(t testing.TB, d model.Decoder, slot, place int, prompt []int32, n int, s model.Sampling) model.DecodeOut {
	t.Helper()
	d.Truncate(slot, 0)
	last := len(prompt) - 1
	require.NoError(t, d.Prefill(t.Context(), []model.PrefillRow{{Slot: slot, Adapter: place, Tokens: prompt[:last]}}))
	out, err := d.Decode(t.Context(), []model.DecodeRow{{Slot: slot, Adapter: place, Last: prompt[last], MaxNew: n, Sampling: s}}, n)
	require.NoError(t, err)
	require.NoError(t, out[0].Err)
	return out[0]
}

func maxDiff(t testing.TB, a, b []float32) float64 {
	t.Helper()
	require.Equal(t, len(a), len(b))
	worst := 0.0
	for i := range a {
		d := math.Abs(float64(a[i]) - float64(b[i]))
		if !(d <= worst) {
			worst = d
		}
	}
	return worst
}

// relative is |a-b|/|b|.
func relative(a, b []float32) float64 {
	var d, n float64
	for i := range a {
		d += math.Pow(float64(a[i])-float64(b[i]), 2)
		n += math.Pow(float64(b[i]), 2)
	}
	return math.Sqrt(d / n)
}
