package gobackend

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/model"
)

// familiesDir holds tiny models of every family with what transformers and PEFT
// compute with them in float32; its README.md tells the layout.
const familiesDir = "../testdata/families"

// familyTolerance is the largest difference relative to the largest number of a
// tensor. Both sides compute in float32 and add in different orders: the worst
// measured is 3e-6 for logits, 7e-6 for gradients. A window off by one or a
// missing embedding scale makes it about 1.
const familyTolerance = 1e-5

type familyCase struct {
	Sequences [][]int32    `json:"sequences"`
	Loss      float64      `json:"loss"`
	Greedy    familyGreedy `json:"greedy"`
	LoRA      struct {
		Loss   float64      `json:"loss"`
		Greedy familyGreedy `json:"greedy"`
	} `json:"lora"`
	Long *struct {
		Sequence []int32 `json:"sequence"`
		From     int     `json:"from"`
	} `json:"long"`
}

type familyGreedy struct {
	Prompt []int32 `json:"prompt"`
	Tokens []int32 `json:"tokens"`
}

// tensors reads tensors of one safetensors file.
type tensors struct {
	t  testing.TB
	st *model.SafeTensors
}

func openTensors(t testing.TB, path string) tensors {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	info, err := f.Stat()
	require.NoError(t, err)
	st, err := model.ReadSafeTensors(f, info.Size())
	require.NoError(t, err)
	return tensors{t, st}
}

func (s tensors) has(name string) bool { return s.st.Has(name) }

func (s tensors) read(name string, shape ...int) []float32 {
	s.t.Helper()
	n := 1
	for _, d := range shape {
		n *= d
	}
	out := make([]float32, n)
	require.NoError(s.t, s.st.ReadF32(name, shape, out))
	return out
}

// eachFamily runs a test for every folder.
func eachFamily(t *testing.T, f func(t *testing.T, m *model.Model, a *model.Adapter, c familyCase, golden tensors)) {
	entries, err := os.ReadDir(familiesDir)
	require.NoError(t, err)
	seen := 0
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		seen++
		t.Run(e.Name(), func(t *testing.T) {
			dir := filepath.Join(familiesDir, e.Name())
			m, err := model.OpenWeights(dir)
			require.NoError(t, err)
			a, err := model.LoadAdapter(dir, m.Config)
			require.NoError(t, err)
			a.BaseDigest = m.Digest
			data, err := os.ReadFile(filepath.Join(dir, "golden.json"))
			require.NoError(t, err)
			var c familyCase
			require.NoError(t, json.Unmarshal(data, &c))
			f(t, m, a, c, openTensors(t, filepath.Join(dir, "golden.safetensors")))
		})
	}
	require.GreaterOrEqual(t, seen, 16)
}

// allLogits computes the logits [len(ids), V] of every position as the decoder
// does.
func allLogits(t testing.TB, b *backend, a *model.Adapter, ids []int32) []float32 {
	t.Helper()
	d := newDecoder(t, b, 1, len(ids), a)
	ln, n := d.lanes[0], b.net
	ln.pool = b.pool
	ln.begin(b.net)
	ln.add(d.slot(0), d.adapters[place(a)], 0, ids...)
	d.forward(ln, false)
	ln.rmsNorm(ln.acts.xn, ln.acts.inv1, ln.acts.x, n.norm, n.eps, len(ids))
	z := make([]float32, len(ids)*n.vocab)
	n.logits(&ln.exec, z, ln.acts.xn, len(ids))
	return z
}

// nll makes groups whose trained tokens are all but the first of each sequence.
func nll(sequences [][]int32) []model.PrefixGroup {
	var out []model.PrefixGroup
	for _, ids := range sequences {
		train := slices.Repeat([]bool{true}, len(ids)-1)
		out = append(out, model.PrefixGroup{Prompt: ids[:1], Members: []model.Sequence{{Tokens: ids[1:], Train: train}}})
	}
	return out
}

func TestFamilyLogits(t *testing.T) {
	eachFamily(t, func(t *testing.T, m *model.Model, a *model.Adapter, c familyCase, golden tensors) {
		b := newBackend(t, m, Options{})
		for i, ids := range c.Sequences {
			name := "logits." + string(rune('0'+i))
			want := golden.read(name, len(ids), m.Config.VocabSize)
			require.Less(t, relative(want, allLogits(t, b, nil, ids)), familyTolerance, name)
			wantLoRA := golden.read("lora."+name, len(ids), m.Config.VocabSize)
			require.Less(t, relative(wantLoRA, allLogits(t, b, a, ids)), familyTolerance, "lora."+name)
			require.Greater(t, relative(want, wantLoRA), 1e-2, "the adapter matters")
		}
		if c.Long == nil {
			return
		}
		long, err := model.OpenWeights(filepath.Join(familiesDir, filepath.Base(t.Name())), model.WithLongContext())
		require.NoError(t, err)
		v := m.Config.VocabSize
		z := allLogits(t, newBackend(t, long, Options{}), nil, c.Long.Sequence)
		require.Less(t, relative(golden.read("long.logits", len(c.Long.Sequence)-c.Long.From, v), z[c.Long.From*v:]), familyTolerance, "long.logits")
	})
}

func TestFamilyGreedy(t *testing.T) {
	eachFamily(t, func(t *testing.T, m *model.Model, a *model.Adapter, c familyCase, _ tensors) {
		d := newDecoder(t, newBackend(t, m, Options{}), 2, m.Config.ContextLimit(), a)
		var rows []model.DecodeRow
		for slot, g := range []familyGreedy{c.Greedy, c.LoRA.Greedy} { // base and adapter in one batch
			n := len(g.Prompt) - 1
			require.NoError(t, d.Prefill(ctx, []model.PrefillRow{{Slot: slot, Adapter: slot, Tokens: g.Prompt[:n]}}))
			rows = append(rows, model.DecodeRow{Slot: slot, Adapter: slot, Last: g.Prompt[n], MaxNew: len(g.Tokens)})
		}
		out, err := d.Decode(ctx, rows, len(c.Greedy.Tokens))
		require.NoError(t, err)
		require.Equal(t, c.Greedy.Tokens, out[0].IDs)
		require.Equal(t, c.LoRA.Greedy.Tokens, out[1].IDs)
	})
}

// backwardNLL runs mean NLL forward and backward and returns the loss.
func backwardNLL(t testing.TB, tr model.Trainer, sequences [][]int32) float64 {
	t.Helper()
	s, err := tr.Forward(ctx, nll(sequences), 1)
	require.NoError(t, err)
	loss, dlp, _ := goldenLoss(s, 0)
	require.NoError(t, tr.Backward(ctx, model.Scores{LogProbs: dlp}))
	return loss
}

func TestFamilyGradients(t *testing.T) {
	eachFamily(t, func(t *testing.T, m *model.Model, a *model.Adapter, c familyCase, golden tensors) {
		b := newBackend(t, m, Options{})
		flat, err := m.Weights.Flatten(m.Config)
		require.NoError(t, err)
		tr := newTrainer(t, b, model.TrainerConfig{Full: true}, flat)
		require.InEpsilon(t, c.Loss, backwardNLL(t, tr, c.Sequences), 1e-6)
		compared := 0
		for _, p := range tr.Layout() {
			if name := "grad." + p.Name; golden.has(name) {
				compared++
				require.Less(t, relative(golden.read(name, p.Shape...), tr.Grad()[p.Offset:p.Offset+p.Len()]), familyTolerance, name)
			}
		}
		require.Greater(t, compared, 10)

		// Recomputing each layer in Backward gives the same bits.
		again := newTrainer(t, newBackend(t, m, Options{ActivationBytes: -1, Threads: 1}), model.TrainerConfig{Full: true}, flat)
		backwardNLL(t, again, c.Sequences)
		require.True(t, slices.Equal(tr.Grad(), again.Grad()))

		tr = newTrainer(t, b, model.TrainerConfig{LoRA: a.LoRA}, a.Params)
		require.InEpsilon(t, c.LoRA.Loss, backwardNLL(t, tr, c.Sequences), 1e-6)
		for _, p := range tr.Layout() {
			require.Less(t, relative(golden.read("lora.grad."+p.Name, p.Shape...), tr.Grad()[p.Offset:p.Offset+p.Len()]), familyTolerance, p.Name)
		}
	})
}
