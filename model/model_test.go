package model

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const tinyDir = "testdata/tiny_llama"

func tinyModel(t testing.TB) *Model {
	t.Helper()
	m, err := OpenWeights(tinyDir)
	require.NoError(t, err)
	return loaded(t, m)
}

// loaded has all weights in memory.
func loaded(t testing.TB, m *Model) *Model {
	t.Helper()
	require.NoError(t, m.Weights.Load())
	return m
}

func TestOpenWeightsReadsHFDirectory(t *testing.T) {
	m := tinyModel(t)
	require.Equal(t, 61, m.Config.VocabSize)
	require.Equal(t, 10000.0, m.Config.RopeTheta) // rope_parameters form
	require.Equal(t, 1e-5, m.Config.RMSNormEps)
	require.Equal(t, []int32{2}, m.StopIDs)
	require.Len(t, m.Weights.Layers, 2)
	require.Same(t, &m.Weights.Embed[0], &m.Weights.Head[0], "tied head aliases the embedding")
	require.Len(t, m.Weights.Layers[1].Down, 24*40)
	require.True(t, strings.HasPrefix(m.Digest, "blake3:"))
	require.EqualValues(t, FullLayout(m.Config).Size(), m.Config.NumParams())

	again := tinyModel(t)
	require.Equal(t, m.Digest, again.Digest)
	again.Weights.Layers[1].Up[3]++
	require.NotEqual(t, m.Digest, weightsDigest(again.Config, again.Weights))
}

func TestFlattenRoundTripAliases(t *testing.T) {
	m := tinyModel(t)
	flat, err := m.Weights.Flatten(m.Config)
	require.NoError(t, err)
	w, err := UnflattenWeights(m.Config, flat)
	require.NoError(t, err)
	require.Equal(t, m.Weights, w)
	w.Layers[0].Gate[0] = 42
	layout := FullLayout(m.Config)
	for _, p := range layout {
		if p.Name == "model.layers.0.mlp.gate_proj.weight" {
			require.Equal(t, float32(42), flat[p.Offset])
		}
	}
	_, err = UnflattenWeights(m.Config, flat[1:])
	require.ErrorContains(t, err, "vector has")
}

// goldenAdapter is peft's own LoRA over the tiny model.
func goldenAdapter(t testing.TB, m *Model) *Adapter {
	t.Helper()
	f, err := os.Open(filepath.Join(tinyDir, "lora.safetensors"))
	require.NoError(t, err)
	defer f.Close()
	st, err := openSafeTensors(f)
	require.NoError(t, err)
	lora := LoRAConfig{Rank: 4, Alpha: 8, Targets: Projections}
	layout, err := LoRALayout(m.Config, lora)
	require.NoError(t, err)
	a := &Adapter{LoRA: lora, BaseDigest: m.Digest, Params: make([]float32, layout.Size())}
	for _, p := range layout {
		name := "w." + strings.TrimSuffix(p.Name, ".weight") + ".default.weight"
		require.NoError(t, st.ReadF32(name, p.Shape, a.Params[p.Offset:p.Offset+p.Len()]))
	}
	return a
}

func TestAdapterRoundTrips(t *testing.T) {
	m := tinyModel(t)
	a := goldenAdapter(t, m)

	b, err := DecodeAdapter(a.Encode())
	require.NoError(t, err)
	require.Equal(t, a, b)
	require.Equal(t, a.Digest(), b.Digest())
	require.NoError(t, b.CheckBase(m.Digest))

	dir := t.TempDir()
	require.NoError(t, a.Save(dir, m.Config, "tiny"))
	c, err := LoadAdapter(dir, m.Config)
	require.NoError(t, err)
	require.Equal(t, a, c)
}

func TestNewAdapterStartsAtTheBase(t *testing.T) {
	m := tinyModel(t)
	lora := LoRAConfig{Rank: 3, Alpha: 6, Targets: []string{"down_proj", "q_proj"}}
	a, err := NewAdapter(m.Config, lora, m.Digest, 7)
	require.NoError(t, err)
	layout, err := LoRALayout(m.Config, lora)
	require.NoError(t, err)
	require.Len(t, layout, 2*2*2)
	require.Equal(t, "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", layout[0].Name)
	require.Equal(t, "base_model.model.model.layers.0.mlp.down_proj.lora_B.weight", layout[3].Name)
	for _, p := range layout {
		v := a.Params[p.Offset : p.Offset+p.Len()]
		var maxAbs float64
		for _, x := range v {
			maxAbs = max(maxAbs, math.Abs(float64(x)))
		}
		if strings.Contains(p.Name, "lora_B") {
			require.Zero(t, maxAbs, p.Name)
		} else {
			bound := 1 / math.Sqrt(float64(p.Shape[1]))
			require.LessOrEqual(t, maxAbs, bound, p.Name)
			require.Greater(t, maxAbs, bound/2, p.Name)
		}
	}
	same, err := NewAdapter(m.Config, lora, m.Digest, 7)
	require.NoError(t, err)
	require.True(t, bytes.Equal(a.Encode(), same.Encode()))
	other, err := NewAdapter(m.Config, lora, m.Digest, 8)
	require.NoError(t, err)
	require.NotEqual(t, a.Digest(), other.Digest())
}
