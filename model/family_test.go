package model

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

const familiesDir = "testdata/families"

// families lists the golden folders; see testdata/families/README.md.
func families(t testing.TB) []string {
	t.Helper()
	entries, err := os.ReadDir(familiesDir)
	require.NoError(t, err)
	var out []string
	for _, e := range entries {
		if e.IsDir() {
			out = append(out, e.Name())
		}
	}
	require.GreaterOrEqual(t, len(out), 16)
	return out
}

func openFamily(t testing.TB, name string, options ...OpenOption) *Model {
	t.Helper()
	m, err := OpenWeights(filepath.Join(familiesDir, name), options...)
	require.NoError(t, err)
	return loaded(t, m)
}

// What each family's configuration adds to a plain Llama, spelt out.
func TestFamilyConfigs(t *testing.T) {
	base := Config{VocabSize: 96, HiddenSize: 32, IntermediateSize: 40, NumHiddenLayers: 2, NumAttentionHeads: 4, NumKeyValueHeads: 2, HeadDim: 8,
		MaxPositionEmbeddings: 64, RMSNormEps: 1e-6, RopeTheta: 1e4, BOSTokenID: 1, EOSTokenID: 2}
	want := map[string]func(*Config){
		"llama2": func(c *Config) { c.ModelType, c.NumKeyValueHeads, c.RMSNormEps = "llama", 4, 1e-5 },
		"llama3": func(c *Config) {
			c.ModelType, c.HeadDim, c.TieWordEmbeddings, c.RopeTheta = "llama", 16, true, 500
			c.RopeScaling = RopeScaling{Type: "llama3", Factor: 4, LowFreqFactor: 1, HighFreqFactor: 4, OriginalMaxPositions: 32}
		},
		"llama-linear": func(c *Config) { c.ModelType, c.RopeScaling = "llama", RopeScaling{Type: "linear", Factor: 2.5} },
		"llama-dynamic": func(c *Config) {
			c.ModelType, c.MaxPositionEmbeddings, c.TieWordEmbeddings = "llama", 32, true
			c.RopeScaling = RopeScaling{Type: "dynamic", Factor: 2, OriginalMaxPositions: 32}
		},
		"llama-yarn": func(c *Config) {
			c.ModelType, c.HeadDim, c.MaxPositionEmbeddings, c.TieWordEmbeddings, c.RopeTheta = "llama", 16, 128, true, 100
			c.RopeScaling = RopeScaling{Type: "yarn", Factor: 4, OriginalMaxPositions: 32, BetaFast: 4}
		},
		"llama-bias": func(c *Config) { c.ModelType, c.QKVBias, c.OutputBias = "llama", true, true },
		"smollm3": func(c *Config) {
			c.ModelType, c.NumHiddenLayers, c.TieWordEmbeddings, c.RopeTheta = "smollm3", 3, true, 2000
			c.NoRopeLayers = []bool{false, true, false}
		},
		"qwen2": func(c *Config) { c.ModelType, c.TieWordEmbeddings, c.RopeTheta, c.QKVBias = "qwen2", true, 1e6, true },
		"qwen3": func(c *Config) {
			c.ModelType, c.HeadDim, c.TieWordEmbeddings, c.RopeTheta, c.QKNorm = "qwen3", 16, true, 1e6, true
		},
		"mistral": func(c *Config) { c.ModelType, c.SlidingWindow = "mistral", 8 },
		"phi3": func(c *Config) {
			c.ModelType, c.NumAttentionHeads, c.NumKeyValueHeads, c.HeadDim, c.RotaryDim, c.RMSNormEps = "phi3", 2, 1, 16, 12, 1e-5
			c.MaxPositionEmbeddings, c.SlidingWindow, c.FusedProjections = 128, 10, true
			c.RopeScaling = RopeScaling{Type: "longrope", OriginalMaxPositions: 32, ShortFactor: []float64{1, 1.1, 1.25, 1.5, 1.75, 2}, LongFactor: []float64{1.2, 1.7, 2.5, 3.5, 5, 8}}
		},
		"phi4": func(c *Config) {
			c.ModelType, c.RMSNormEps, c.RopeTheta, c.FusedProjections = "phi3", 1e-5, 250000, true
		},
		"gemma2": func(c *Config) {
			c.ModelType, c.HeadDim, c.TieWordEmbeddings, c.HiddenAct = "gemma2", 16, true, "gelu_pytorch_tanh"
			c.SandwichNorm, c.NormPlusOne, c.EmbedScale, c.AttnScale = true, true, math.Sqrt(32), 1/math.Sqrt(24)
			c.AttnSoftcap, c.LogitSoftcap, c.SlidingWindow, c.FullLayers = 3, 2, 8, []bool{false, true}
		},
		"gemma3": func(c *Config) {
			c.ModelType, c.NumHiddenLayers, c.NumKeyValueHeads, c.HeadDim, c.TieWordEmbeddings, c.HiddenAct = "gemma3_text", 3, 1, 16, true, "gelu_pytorch_tanh"
			c.SandwichNorm, c.NormPlusOne, c.EmbedScale, c.AttnScale, c.QKNorm = true, true, math.Sqrt(32), 1/math.Sqrt(20), true
			c.SlidingWindow, c.FullLayers, c.RopeTheta, c.LocalRopeTheta = 8, []bool{false, false, true}, 1e6, 1e4
			c.RopeScaling = RopeScaling{Type: "linear", Factor: 4}
		},
		"mixtral": func(c *Config) {
			c.ModelType, c.IntermediateSize, c.RMSNormEps, c.RopeTheta = "mixtral", 24, 1e-5, 1e6
			c.Experts, c.ExpertsPerToken, c.ExpertSize, c.NormTopK = 4, 2, 24, true
		},
		"qwen3moe": func(c *Config) {
			c.ModelType, c.NumHiddenLayers, c.TieWordEmbeddings, c.RopeTheta, c.QKNorm = "qwen3_moe", 3, true, 1e6, true
			c.Experts, c.ExpertsPerToken, c.ExpertSize, c.DenseLayers = 4, 2, 16, []bool{false, true, false}
		},
	}
	for _, name := range families(t) {
		t.Run(name, func(t *testing.T) {
			data, err := os.ReadFile(filepath.Join(familiesDir, name, hfConfigFile))
			require.NoError(t, err)
			got, _, err := ParseConfig(data)
			require.NoError(t, err)
			c := base
			require.Contains(t, want, name)
			want[name](&c)
			if c.RMSNormEps == 1e-6 {
				c.RMSNormEps = got.RMSNormEps // the class's own default, tested elsewhere
			}
			require.Equal(t, c, got)
		})
	}
}

func TestFamilyWeights(t *testing.T) {
	for _, name := range families(t) {
		t.Run(name, func(t *testing.T) {
			m := openFamily(t, name)
			c := m.Config
			require.Equal(t, int64(FullLayout(c).Size()), c.NumParams())
			// Flat and back gives the same tensors, parts of fused ones included.
			flat, err := m.Weights.Flatten(c)
			require.NoError(t, err)
			back, err := UnflattenWeights(c, flat)
			require.NoError(t, err)
			require.Equal(t, m.Weights, back)
			for i, l := range m.Weights.Layers {
				require.Len(t, l.Q, qDim(c)*c.HiddenSize)
				require.Len(t, l.V, kvDim(c)*c.HiddenSize)
				require.Equal(t, c.MoE(i), l.Gate == nil)
				require.Equal(t, c.MoE(i), len(l.Experts) == c.Experts && c.Experts > 0)
			}
		})
	}
	m := openFamily(t, "gemma2")
	mean := float32(0)
	for _, v := range m.Weights.Layers[0].AttnOutNorm {
		mean += v / float32(m.Config.HiddenSize)
	}
	require.InDelta(t, 1, mean, 0.3, "norms are effective factors, files hold them minus one")

	m = openFamily(t, "phi3")
	l := &m.Weights.Layers[1]
	l.QKV[0], l.GateUp[len(l.GateUp)-1] = 77, 78
	require.Equal(t, []float32{77, 78}, []float32{l.Q[0], l.Up[len(l.Up)-1]}, "parts alias the fused matrix")
	require.Equal(t, l.QKV, slices.Concat(l.Q, l.K, l.V))
}

// A model opened for long contexts is another model.
func TestWithLongContext(t *testing.T) {
	for name, limit := range map[string][2]int{"llama-dynamic": {32, 64}, "phi3": {32, 128}} {
		short, long := openFamily(t, name), openFamily(t, name, WithLongContext())
		require.Equal(t, limit, [2]int{short.Config.ContextLimit(), long.Config.ContextLimit()}, name)
		require.NotEqual(t, short.Digest, long.Digest)
		require.NotEqual(t, short.Config.Rope(0), long.Config.Rope(0))
	}
	require.Equal(t, openFamily(t, "llama-yarn"), openFamily(t, "llama-yarn", WithLongContext()))
}

// The digest of a plain model, which recorded adapters and runs are bound to.
func TestDigestStays(t *testing.T) {
	require.Equal(t, "blake3:d0c0838880e9b0122ebd6551c2f988aa3d645014280ba3768ec2eeab969d7590", tinyModel(t).Digest)
}
