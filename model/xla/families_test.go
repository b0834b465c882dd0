//go:build xla

package xla

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/skein-rl/skein/model"
	"github.com/stretchr/testify/require"
)

// familiesDir holds tiny models of every family with what transformers and PEFT
// compute with them in float32; its README.md tells the layout.
const familiesDir = "../testdata/families"

// familyTolerance bounds |a-b|/|b| of a tensor: float32 on both sides, added in
// other orders. A missing norm, scale, bias or cap is above 1e-3.
const familyTolerance = 2e-5

// sharedPrompt are the families whose layers differ in what a prompt shared by
// members could get wrong; the others differ from them in weights only.
var sharedPrompt = []string{"gemma2", "gemma3", "mistral", "mixtral", "phi3", "qwen2", "qwen3moe", "smollm3"}

// family is one folder.
type family struct {
	dir       string
	model     *model.Model
	adapter   *model.Adapter
	Sequences [][]int32 `json:"sequences"`
	Loss      float64   `json:"loss"`
	Greedy    greedy    `json:"greedy"`
	LoRA      struct {
		Loss   float64 `json:"loss"`
		Greedy greedy  `json:"greedy"`
	} `json:"lora"`
	Long *struct {
		Sequence []int32 `json:"sequence"`
		From     int     `json:"from"`
	} `json:"long"`
}

type greedy struct {
	Prompt []int32 `json:"prompt"`
	Tokens []int32 `json:"tokens"`
}

func openFamily(t *testing.T, name string) *family {
	t.Helper()
	f := &family{dir: filepath.Join(familiesDir, name)}
	var err error
	f.model, err = model.OpenWeights(f.dir)
	require.NoError(t, err)
	f.adapter, err = model.LoadAdapter(f.dir, f.model.Config)
	require.NoError(t, err)
	f.adapter.BaseDigest = f.model.Digest
	data, err := os.ReadFile(filepath.Join(f.dir, "golden.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, f))
	return f
}

// golden reads a tensor of golden.safetensors.
func (f *family) golden(t *testing.T, name string, shape ...int) []float32 {
	t.Helper()
	file, err := os.Open(filepath.Join(f.dir, "golden.safetensors"))
	require.NoError(t, err)
	defer file.Close()
	info, err := file.Stat()
	require.NoError(t, err)
	st, err := model.ReadSafeTensors(file, info.Size())
	require.NoError(t, err)
	out := make([]float32, count(shape))
	require.NoError(t, st.ReadF32(name, shape, out))
	return out
}

// allLogits feeds a sequence token by token and gives the logits of all
// positions.
func allLogits(t *testing.T, d *decoder, slot, place int, ids []int32) []float32 {
	t.Helper()
	d.Truncate(slot, 0)
	var out []float32
	for _, id := range ids {
		out = append(out, stepLogits(t, d, slot, place, id)...)
		d.length[slot]++
	}
	return out
}

// Every family computes what transformers and PEFT compute: logits of every
// position, greedy tokens of base and adapter in one batch after a prefill, loss
// and LoRA gradients; and what the pure-Go backend computes for groups with a
// shared prompt.
func TestFamilies(t *testing.T) {
	entries, err := os.ReadDir(familiesDir)
	require.NoError(t, err)
	seen := 0
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		seen++
		t.Run(e.Name(), func(t *testing.T) {
			f := openFamily(t, e.Name())
			b := open(t, f.model, "f32")
			c := f.model.Config
			d := newDecoder(t, b, 2, c.ContextLimit()).(*decoder)
			require.NoError(t, d.SetAdapter(1, f.adapter))
			for i, ids := range f.Sequences {
				name := "logits." + string(rune('0'+i))
				base, with := f.golden(t, name, len(ids), c.VocabSize), f.golden(t, "lora."+name, len(ids), c.VocabSize)
				require.Less(t, relative(allLogits(t, d, 1, 0, ids), base), familyTolerance, name)
				require.Less(t, relative(allLogits(t, d, 0, 1, ids), with), familyTolerance, "lora."+name)
				require.Greater(t, relative(base, with), 1e-2, "the adapter matters")
			}
			f.greedy(t, d)
			f.gradients(t, b)
			if slices.Contains(sharedPrompt, e.Name()) {
				f.asGo(t, b)
			}
		})
	}
	require.GreaterOrEqual(t, seen, 16)
}

func (f *family) greedy(t *testing.T, d model.Decoder) {
	var prefill []model.PrefillRow
	var rows []model.DecodeRow
	for slot, g := range []greedy{f.Greedy, f.LoRA.Greedy} {
		d.Truncate(slot, 0)
		n := len(g.Prompt) - 1
		prefill = append(prefill, model.PrefillRow{Slot: slot, Adapter: slot, Tokens: g.Prompt[:n]})
		rows = append(rows, model.DecodeRow{Slot: slot, Adapter: slot, Last: g.Prompt[n], MaxNew: len(g.Tokens)})
	}
	require.NoError(t, d.Prefill(t.Context(), prefill))
	out, err := d.Decode(t.Context(), rows, len(f.Greedy.Tokens))
	require.NoError(t, err)
	require.Equal(t, f.Greedy.Tokens, out[0].IDs)
	require.Equal(t, f.LoRA.Greedy.Tokens, out[1].IDs)
}

// gradients checks the mean negative log-likelihood of all tokens but each
// sequence's first. The shorter sequence gets a tail that does not count, so
// that both take the same programs.
func (f *family) gradients(t *testing.T, b model.Backend) {
	tr := newTrainer(t, b, f.adapter.LoRA)
	require.NoError(t, tr.SetParams(f.adapter.Params))
	var groups []model.PrefixGroup
	var weight []float32 // of each scored token
	n := 0
	for _, ids := range f.Sequences {
		s := model.Sequence{Tokens: slices.Clone(ids[1:])}
		n += len(s.Tokens)
		s.Train = slices.Repeat([]bool{true}, len(s.Tokens))
		weight = append(weight, slices.Repeat([]float32{1}, len(s.Tokens))...)
		if tail := len(f.Sequences[0]) - len(ids); tail > 0 {
			s.Tokens = append(s.Tokens, f.Sequences[0][:tail]...)
			s.Train = append(append(s.Train, make([]bool, tail-1)...), true)
			weight = append(weight, 0)
		}
		groups = append(groups, model.PrefixGroup{Prompt: ids[:1], Members: []model.Sequence{s}})
	}
	for i := range weight {
		weight[i] /= -float32(n)
	}
	loss := func(s model.Scores) (sum float64) {
		for i, lp := range s.LogProbs {
			sum += float64(lp) * float64(weight[i])
		}
		return sum
	}
	s, err := tr.Score(t.Context(), groups, 1, nil)
	require.NoError(t, err)
	require.InEpsilon(t, f.Loss, loss(s), 2e-6)
	s = step(t, tr, groups, 1, weight, nil)
	require.InEpsilon(t, f.LoRA.Loss, loss(s), 2e-6)
	for _, p := range tr.Layout() {
		want := f.golden(t, "lora.grad."+p.Name, p.Shape...)
		require.Less(t, relative(tr.Grad()[p.Offset:p.Offset+p.Len()], want), familyTolerance, p.Name)
	}
}

// asGo compares groups whose members share a prompt longer than any window.
func (f *family) asGo(t *testing.T, b model.Backend) {
	ours, theirs := newTrainer(t, b, f.adapter.LoRA), newTrainer(t, goBackend(t, f.model), f.adapter.LoRA)
	rng := rand.New(rand.NewPCG(8, 8))
	g := model.PrefixGroup{Prompt: randomTokens(rng, 17, f.model.Config.VocabSize)}
	for range 3 {
		n := 5 + rng.IntN(9)
		g.Members = append(g.Members, model.Sequence{Tokens: randomTokens(rng, n, f.model.Config.VocabSize), Train: slices.Repeat([]bool{true}, n)})
	}
	groups := []model.PrefixGroup{g}
	x, err := ours.Score(t.Context(), groups, 0.8, f.adapter.Params)
	require.NoError(t, err)
	y, err := theirs.Score(t.Context(), groups, 0.8, f.adapter.Params)
	require.NoError(t, err)
	require.InDeltaSlice(t, y.LogProbs, x.LogProbs, 2e-5)
	require.InDeltaSlice(t, y.Entropy, x.Entropy, 2e-5)
	dl, de := randomWeights(rng, len(x.LogProbs)), randomWeights(rng, len(x.LogProbs))
	for _, tr := range []model.Trainer{ours, theirs} {
		require.NoError(t, tr.SetParams(f.adapter.Params))
		step(t, tr, groups, 0.8, dl, de)
	}
	require.Less(t, relative(ours.Grad(), theirs.Grad()), 2e-5)
}

// Contexts beyond the trained one use the table made for them.
func TestLongFamilies(t *testing.T) {
	for _, name := range []string{"llama-dynamic", "phi3"} {
		f := openFamily(t, name)
		require.NotNil(t, f.Long)
		m, err := model.OpenWeights(f.dir, model.WithLongContext())
		require.NoError(t, err)
		d := newDecoder(t, open(t, m, "f32"), 1, m.Config.ContextLimit()).(*decoder)
		v := m.Config.VocabSize
		z := allLogits(t, d, 0, 0, f.Long.Sequence)
		require.Less(t, relative(z[f.Long.From*v:], f.golden(t, "long.logits", len(f.Long.Sequence)-f.Long.From, v)), familyTolerance, name)
	}
}

// In bf16 the numbers stay near those of f32: nothing overflows or is lost.
func TestFamiliesBF16(t *testing.T) {
	for _, name := range []string{"gemma2", "qwen3moe"} {
		f := openFamily(t, name)
		b := open(t, f.model, "bf16")
		d := newDecoder(t, b, 1, 32).(*decoder)
		require.NoError(t, d.SetAdapter(1, f.adapter))
		ids := f.Sequences[0]
		diff := relative(allLogits(t, d, 0, 1, ids), f.golden(t, "lora.logits.0", len(ids), f.model.Config.VocabSize))
		require.Less(t, diff, 0.1, name)
		tr := newTrainer(t, b, f.adapter.LoRA)
		require.NoError(t, tr.SetParams(f.adapter.Params))
		n := len(ids) - 1
		step(t, tr, []model.PrefixGroup{{Prompt: ids[:1], Members: []model.Sequence{{Tokens: ids[1:], Train: slices.Repeat([]bool{true}, n)}}}}, 1,
			slices.Repeat([]float32{-1 / float32(n)}, n), nil)
		for _, g := range tr.Grad() {
			require.False(t, math.IsNaN(float64(g)), name)
		}
		t.Logf("%s: logits differ by %.1e", name, diff)
	}
}

// What programs do differently on accelerators (indexed writes, explicit
// precision, other sizes) computes the same, as far as a CPU can tell.
func TestAcceleratorPrograms(t *testing.T) {
	f := openFamily(t, "gemma3")
	b := open(t, f.model, "f32")
	dev := b.(*backend).dev
	dev.accel, dev.limits = true, limitsOf("cuda")
	d := newDecoder(t, b, 2, f.model.Config.ContextLimit()).(*decoder)
	require.NoError(t, d.SetAdapter(1, f.adapter))
	f.greedy(t, d)
	f.gradients(t, b)
}
