package model

import (
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Files made by scripts/golden_gguf.py from the models of testdata/families:
// the same configuration and, matrices rounded to F16, the same weights.
func TestGGUFFamilies(t *testing.T) {
	// What the file can't say, or llama.cpp fixes.
	differ := map[string]func(*Config){
		// The formula's parameters are not in the file, but its factors.
		"llama3":   func(c *Config) { c.RopeScaling = RopeScaling{} },
		"smollm3":  func(c *Config) { c.NoRopeLayers = nil },            // every fourth layer
		"qwen3moe": func(c *Config) { c.NormTopK = true },               // always
		"gemma2":   func(c *Config) { c.AttnScale = 1 / math.Sqrt(16) }, // by head_dim
		"gemma3":   func(c *Config) { c.AttnScale = 1 / math.Sqrt(16) },
	}
	for _, name := range []string{"llama3", "llama-bias", "llama-yarn", "mixtral", "smollm3", "qwen2", "qwen3", "qwen3moe", "phi3", "gemma2", "gemma3"} {
		t.Run(name, func(t *testing.T) {
			want := openFamily(t, name)
			got, err := Open(filepath.Join("testdata/gguf", name+".gguf"))
			require.NoError(t, err)
			loaded(t, got)
			for i := range want.Config.NumHiddenLayers {
				if name == "smollm3" {
					break
				}
				a, b := want.Config.Rope(i), got.Config.Rope(i)
				require.Len(t, b.Inv, len(a.Inv))
				for j := range a.Inv {
					require.InEpsilon(t, a.Inv[j], b.Inv[j], 1e-6)
				}
				require.InEpsilon(t, a.Scale, b.Scale, 1e-6)
			}
			require.Equal(t, want.Config.ContextLimit(), got.Config.ContextLimit())
			if f := differ[name]; f != nil {
				f(&want.Config)
			}
			want.Config.RopeScaling, got.Config.RopeScaling = RopeScaling{}, RopeScaling{}
			require.Equal(t, want.Config, got.Config)

			a, b := slots(want.Config, want.Weights), slots(got.Config, got.Weights)
			require.Len(t, b, len(a))
			for i, s := range a {
				wanted := slices.Clone(*s.data)
				// Vectors and routers are F32.
				if len(s.shape) > 1 && !strings.HasSuffix(s.gguf, ".ffn_gate_inp.weight") {
					for i, v := range wanted {
						wanted[i] = halfToFloat(floatToHalf(v))
					}
				}
				require.Equal(t, wanted, *b[i].data, s.name)
			}
		})
	}
}

// What no file of the converter has: windows, scalings and mixtures by keys.
func TestGGUFKeys(t *testing.T) {
	m := tinyModel(t)
	config := func(set map[string]any, extra ...ggufTensor) (Config, error) {
		g := tinyGGUF(t, m)
		for k, v := range set {
			g.meta[k] = v
		}
		g.tensors = append(g.tensors, extra...)
		got, err := openGGUFBytes(t, g.bytes())
		if err != nil {
			return Config{}, err
		}
		return got.Config, nil
	}
	ok := func(set map[string]any, extra ...ggufTensor) Config {
		t.Helper()
		c, err := config(set, extra...)
		require.NoError(t, err)
		return c
	}
	c := ok(map[string]any{"llama.attention.sliding_window": 8})
	require.Equal(t, []any{"mistral", 8, 8}, []any{c.ModelType, c.Window(0), c.Window(1)})
	c = ok(map[string]any{"llama.attention.sliding_window": 8, "llama.attention.sliding_window_pattern": 2})
	require.Equal(t, []int{8, 0}, []int{c.Window(0), c.Window(1)})
	require.Zero(t, ok(map[string]any{"llama.attention.sliding_window": 64}).SlidingWindow, "as long as the context")
	require.Equal(t, RopeScaling{Type: "linear", Factor: 4}, ok(map[string]any{"llama.rope.scaling.factor": float32(4)}).RopeScaling)
	require.Equal(t, RopeScaling{Type: "linear", Factor: 4}, ok(map[string]any{"llama.rope.scale_linear": float32(4)}).RopeScaling)
	require.Zero(t, ok(map[string]any{"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": float32(4)}).RopeScaling)
	yarn := map[string]any{"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": float32(4), "llama.rope.scaling.original_context_length": 16}
	require.Equal(t, RopeScaling{Type: "yarn", Factor: 4, OriginalMaxPositions: 16}, ok(yarn).RopeScaling)
	yarn["llama.rope.scaling.yarn_attn_factor"] = float32(1.5)
	require.Equal(t, 1.5, ok(yarn).RopeScaling.AttentionFactor)
	factors, err := F32.encode(nil, []float32{1, 2, 3, 4})
	require.NoError(t, err)
	c = ok(nil, ggufTensor{"rope_freqs.weight", 0, []int{4}, factors})
	require.Equal(t, []float32{1, 0.05, 0.01 / 3, 0.001 / 4}, c.Rope(0).Inv)
	require.Equal(t, float32(1), c.Rope(0).Scale)
	require.Equal(t, 64, c.ContextLimit())

	for want, set := range map[string]map[string]any{
		`llama.rope.scaling.type "ntk"`:          {"llama.rope.scaling.type": "ntk"},
		"there are no tensors":                   {"llama.rope.scaling.type": "longrope"},
		"llama.logit_scale 0.5":                  {"llama.logit_scale": float32(0.5)},
		"llama.attention.causal false":           {"llama.attention.causal": false},
		"llama.expert_shared_count 1":            {"llama.expert_shared_count": 1},
		"llama.rope.scaling.yarn_log_multiplier": {"llama.rope.scaling.yarn_log_multiplier": float32(0.1)},
		"num_experts_per_tok is 9, want 1 to 8":  {"llama.expert_count": 8, "llama.expert_used_count": 9},
		`tensor "blk.0.ffn_gate_inp.weight" is`:  {"llama.expert_count": 8, "llama.expert_used_count": 2},
		"num_experts is 1073741824":              {"llama.expert_count": 1 << 30, "llama.expert_used_count": 2},
		"llama.expert_gating_func 2 is not":      {"llama.expert_count": 8, "llama.expert_used_count": 2, "llama.expert_gating_func": 2},
		"llama.attention.head_count is []int64":  {"llama.attention.head_count": []int32{4, 4}},
	} {
		_, err := config(set)
		require.ErrorIs(t, err, ErrFormat)
		require.ErrorContains(t, err, want)
	}
	_, err = config(nil, ggufTensor{"rope_freqs.weight", 0, []int{2}, factors[:8]})
	require.ErrorContains(t, err, `tensor "rope_freqs.weight" has shape [2], 4 rotated pairs want [4]`)
	_, err = config(nil, ggufTensor{"rope_factors_long.weight", 0, []int{4}, factors})
	require.ErrorContains(t, err, "there is only one")
}
