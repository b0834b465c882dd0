package model

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

// confOf is a configuration of the least fields, in older spellings.
func confOf(t testing.TB, modelType string, set map[string]any, drop ...string) []byte {
	t.Helper()
	conf := map[string]any{"model_type": modelType, "vocab_size": 96, "hidden_size": 32, "intermediate_size": 40,
		"num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2}
	maps.Copy(conf, set)
	for _, k := range drop {
		delete(conf, k)
	}
	return toJSONText(t, conf)
}

func mustParse(t testing.TB, data []byte) Config {
	t.Helper()
	c, _, err := ParseConfig(data)
	require.NoError(t, err, string(data))
	return c
}

// What transformers' configuration classes take for absent fields.
func TestParseConfigDefaults(t *testing.T) {
	for name, want := range map[string]struct {
		maxPos, headDim, kv int
		theta, eps          float64
		tied                bool
	}{
		"llama":       {2048, 8, 4, 1e4, 1e-6, false},
		"mistral":     {131072, 8, 8, 1e4, 1e-6, false},
		"smollm3":     {32768, 8, 4, 2e6, 1e-6, true},
		"qwen2":       {32768, 8, 32, 1e4, 1e-6, false},
		"qwen3":       {32768, 128, 32, 1e4, 1e-6, false},
		"qwen3_moe":   {32768, 8, 4, 1e4, 1e-6, false},
		"phi3":        {4096, 8, 4, 1e4, 1e-5, false},
		"gemma2":      {8192, 256, 4, 1e4, 1e-6, true},
		"gemma3_text": {131072, 256, 4, 1e6, 1e-6, true},
		"mixtral":     {131072, 8, 8, 1e6, 1e-5, false},
	} {
		heads := max(want.kv, 4)
		c := mustParse(t, confOf(t, name, map[string]any{"hidden_size": 8 * heads, "num_attention_heads": heads}, "num_key_value_heads"))
		if want.kv == 4 && (name == "llama" || name == "phi3") {
			want.kv = heads
		}
		require.Equal(t, []any{want.maxPos, want.headDim, want.kv, want.theta, want.eps, want.tied},
			[]any{c.MaxPositionEmbeddings, c.HeadDim, c.NumKeyValueHeads, c.RopeTheta, c.RMSNormEps, c.TieWordEmbeddings}, name)
	}
	c := mustParse(t, confOf(t, "mistral", nil))
	require.Equal(t, 4096, c.SlidingWindow)
	c = mustParse(t, confOf(t, "qwen3_moe", nil))
	require.Equal(t, []any{128, 8, 768, false}, []any{c.Experts, c.ExpertsPerToken, c.ExpertSize, c.NormTopK})
	c = mustParse(t, confOf(t, "mixtral", nil))
	require.Equal(t, []any{8, 2, 40, true}, []any{c.Experts, c.ExpertsPerToken, c.ExpertSize, c.NormTopK})
	c = mustParse(t, confOf(t, "gemma2", nil))
	require.Equal(t, []any{50.0, 30.0, 1.0 / 16, 4096, []bool{false, true, false, true, false, true}}, []any{c.AttnSoftcap, c.LogitSoftcap, c.AttnScale, c.SlidingWindow, c.FullLayers})
}

// The same model in the older spelling and in that of transformers 5.
func TestParseConfigSpellings(t *testing.T) {
	full, local := "full_attention", "sliding_attention"
	for name, tc := range map[string]struct {
		modelType string
		old, new  map[string]any
	}{
		"linear": {"llama",
			map[string]any{"rope_theta": 5e5, "rope_scaling": map[string]any{"type": "linear", "factor": 4.0}},
			map[string]any{"rope_parameters": map[string]any{"rope_type": "linear", "rope_theta": 5e5, "factor": 4.0}}},
		"yarn": {"qwen2",
			map[string]any{"rope_theta": 1e6, "rope_scaling": map[string]any{"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192, "finetuned": true}},
			map[string]any{"rope_parameters": map[string]any{"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 8192}}},
		"su": {"phi3",
			map[string]any{"max_position_embeddings": 8192, "original_max_position_embeddings": 4096, "rope_scaling": map[string]any{"type": "su", "short_factor": []int{1, 1, 1, 1}, "long_factor": []int{1, 2, 3, 4}}},
			map[string]any{"max_position_embeddings": 8192, "rope_parameters": map[string]any{"rope_type": "longrope", "short_factor": []int{1, 1, 1, 1}, "long_factor": []int{1, 2, 3, 4}, "original_max_position_embeddings": 4096}}},
		"gemma 2": {"gemma2", map[string]any{"sliding_window": 8}, map[string]any{"sliding_window": 8, "layer_types": []string{local, full, local, full, local, full}}},
		"gemma 3": {"gemma3_text",
			map[string]any{"sliding_window": 8, "sliding_window_pattern": 3, "rope_theta": 1e6, "rope_local_base_freq": 2e4, "rope_scaling": map[string]any{"rope_type": "linear", "factor": 8.0}},
			map[string]any{"sliding_window": 8, "layer_types": []string{local, local, full, local, local, full}, "rope_parameters": map[string]any{
				full: map[string]any{"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}, local: map[string]any{"rope_type": "default", "rope_theta": 2e4}}}},
		"smollm3": {"smollm3",
			map[string]any{"no_rope_layer_interval": 3, "rope_theta": 5e6},
			map[string]any{"no_rope_layers": []int{1, 1, 0, 1, 1, 0}, "layer_types": slices.Repeat([]string{full}, 6), "rope_parameters": map[string]any{"rope_type": "default", "rope_theta": 5e6}}},
		"qwen windows": {"qwen3",
			map[string]any{"use_sliding_window": true, "sliding_window": 8, "max_window_layers": 4},
			map[string]any{"use_sliding_window": true, "sliding_window": 8, "layer_types": []string{full, full, full, full, local, local}}},
		"qwen without": {"qwen2", map[string]any{"use_sliding_window": false, "sliding_window": 8, "max_window_layers": 4}, nil},
		"wide window":  {"mistral", map[string]any{"sliding_window": 200000}, map[string]any{"sliding_window": nil}},
		"experts":      {"qwen3_moe", map[string]any{"num_experts": 8, "decoder_sparse_step": 2}, map[string]any{"num_local_experts": 8, "mlp_only_layers": []int{0, 2, 4}}},
	} {
		a, b := mustParse(t, confOf(t, tc.modelType, tc.old)), mustParse(t, confOf(t, tc.modelType, tc.new))
		require.Equal(t, a, b, name)
	}
	c := mustParse(t, confOf(t, "gemma3_text", map[string]any{"sliding_window": 8}))
	require.Equal(t, []bool{false, false, false, false, false, true}, c.FullLayers, "every sixth layer is global")
	require.Equal(t, 1e4, c.LocalRopeTheta)
	c = mustParse(t, confOf(t, "smollm3", nil))
	require.Equal(t, []bool{false, false, false, true, false, false}, c.NoRopeLayers)
	c = mustParse(t, confOf(t, "llama", map[string]any{"rope_scaling": map[string]any{"type": "dynamic", "factor": 2.0}, "max_position_embeddings": 100}))
	require.Equal(t, RopeScaling{Type: "dynamic", Factor: 2, OriginalMaxPositions: 100}, c.RopeScaling)
	c = mustParse(t, confOf(t, "phi3", map[string]any{"rope_scaling": map[string]any{"type": "yarn", "short_factor": []int{1, 1, 1, 1}, "long_factor": []int{1, 2, 3, 4}}}))
	require.Equal(t, 4096, c.RopeScaling.OriginalMaxPositions, "the class's own default")
}

// Anything that would compute something else is refused by its name.
func TestParseConfigRefuses(t *testing.T) {
	rope := func(v map[string]any) map[string]any { return map[string]any{"rope_parameters": v} }
	for want, tc := range map[string]struct {
		modelType string
		set       map[string]any
	}{
		"sliding_window 8 is not implemented for model_type \"llama\"": {"llama", map[string]any{"sliding_window": 8}},
		`layer_types: layer 1 is "full_attention"`:                     {"mistral", map[string]any{"sliding_window": 8, "layer_types": []string{"sliding_attention", "full_attention"}}},
		`layer 0 is "chunked_attention"`:                               {"qwen2", map[string]any{"layer_types": slices.Repeat([]string{"chunked_attention"}, 6)}},
		"layer_types has 2 entries, num_hidden_layers is 6":            {"qwen3", map[string]any{"layer_types": []string{"full_attention", "full_attention"}}},
		"but there is no sliding_window":                               {"gemma2", map[string]any{"sliding_window": nil}},
		"sliding_window is -1":                                         {"mistral", map[string]any{"sliding_window": -1}},
		"use_bidirectional_attention":                                  {"gemma3_text", map[string]any{"use_bidirectional_attention": true}},
		"rope_parameters.mrope_section is not implemented":             {"qwen2", rope(map[string]any{"mrope_section": []int{1, 2}})},
		"rope_parameters.factor is missing":                            {"llama", rope(map[string]any{"rope_type": "linear"})},
		"factor is 0.5, want 1 or more":                                {"llama", rope(map[string]any{"rope_type": "linear", "factor": 0.5})},
		`rope_parameters type "proportional"`:                          {"llama", rope(map[string]any{"rope_type": "proportional"})},
		"partial_rotary_factor 0.5 is not implemented for model_type":  {"llama", map[string]any{"partial_rotary_factor": 0.5}},
		"partial_rotary_factor is 1.5":                                 {"phi3", map[string]any{"partial_rotary_factor": 1.5}},
		"short_factor is 2 numbers, want 4":                            {"phi3", rope(map[string]any{"rope_type": "longrope", "short_factor": []int{1, 2}, "long_factor": []int{1, 2, 3, 4}})},
		"long_factor[1] is 0":                                          {"phi3", rope(map[string]any{"rope_type": "longrope", "short_factor": []int{1, 1, 1, 1}, "long_factor": []int{1, 0, 3, 4}})},
		"high_freq_factor is 1, want more than low_freq_factor 4":      {"llama", rope(map[string]any{"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 1})},
		"other than max_position_embeddings":                           {"llama", rope(map[string]any{"rope_type": "dynamic", "factor": 8, "original_max_position_embeddings": 7})},
		"attention_factor is 0, want":                                  {"llama", rope(map[string]any{"rope_type": "yarn", "factor": 8, "attention_factor": 0})},
		"by layer type is not implemented":                             {"llama", rope(map[string]any{"full_attention": map[string]any{}})},
		"rope_parameters.sliding_attention type \"linear\"":            {"gemma3_text", rope(map[string]any{"sliding_attention": map[string]any{"rope_type": "linear", "factor": 2}})},
		"wants one dictionary for full_attention":                      {"gemma3_text", rope(map[string]any{"rope_type": "default"})},
		"rope_local_base_freq is not implemented":                      {"gemma2", map[string]any{"rope_local_base_freq": 1e4}},
		"no_rope_layers has 1 entries":                                 {"smollm3", map[string]any{"no_rope_layers": []int{1}}},
		"no_rope_layer_interval is 0":                                  {"smollm3", map[string]any{"no_rope_layer_interval": 0}},
		"sliding_window_pattern is 0":                                  {"gemma3_text", map[string]any{"sliding_window_pattern": 0}},
		"decoder_sparse_step is 0":                                     {"qwen3_moe", map[string]any{"decoder_sparse_step": 0}},
		"num_experts is 0":                                             {"qwen3_moe", map[string]any{"num_experts": 0}},
		"num_experts 4 and num_local_experts 5 differ":                 {"qwen3_moe", map[string]any{"num_experts": 4, "num_local_experts": 5}},
		"num_experts_per_tok is 9, want 1 to 8":                        {"mixtral", map[string]any{"num_experts_per_tok": 9}},
		"num_experts is 1000000":                                       {"mixtral", map[string]any{"num_local_experts": 1000000}},
		"times num_experts 4096 is above":                              {"mixtral", map[string]any{"num_local_experts": 4096, "num_hidden_layers": 4096}},
		"num_hidden_layers is 100000, want 1 to 4096":                  {"gemma3_text", map[string]any{"num_hidden_layers": 100000}},
		"attn_logit_softcapping is -1":                                 {"gemma2", map[string]any{"attn_logit_softcapping": -1}},
		"attention scale (query_pre_attn_scalar)":                      {"gemma2", map[string]any{"query_pre_attn_scalar": -1}},
		`hidden_activation "gelu"`:                                     {"gemma2", map[string]any{"hidden_activation": "gelu"}},
		"mlp_bias true":                                                {"smollm3", map[string]any{"mlp_bias": true}},
	} {
		_, _, err := ParseConfig(confOf(t, tc.modelType, tc.set))
		require.ErrorIs(t, err, ErrFormat, want)
		require.ErrorContains(t, err, want)
	}
	_, _, err := ParseConfig(confOf(t, "gemma2", map[string]any{"hidden_activation": "relu", "use_bidirectional_attention": true, "rope_scaling": map[string]any{"type": "ntk"}}))
	for _, want := range []string{"relu", "use_bidirectional_attention", "ntk"} {
		require.ErrorContains(t, err, want, "every problem at once")
	}
}

// A multimodal Gemma 3 is its text model: the configuration inside, names with
// a prefix in both of their spellings, and tensors of the vision tower unread.
func TestMultimodalGemma(t *testing.T) {
	m := openFamily(t, "gemma3")
	data, err := os.ReadFile(filepath.Join(familiesDir, "gemma3", hfConfigFile))
	require.NoError(t, err)
	var text map[string]any
	require.NoError(t, json.Unmarshal(data, &text))
	delete(text, "eos_token_id")
	outer := toJSONText(t, map[string]any{"model_type": "gemma3", "text_config": text, "eos_token_id": []int{2, 7}, "vision_config": map[string]any{"hidden_size": 8}})
	for _, prefix := range []string{"language_model.model.", "model.language_model."} {
		vision := "vision_tower.patch.weight"
		if prefix != "language_model.model." {
			vision = "model." + vision
		}
		tensors := []Tensor{{Name: vision, Shape: []int{2}, Data: []float32{1, 2}}}
		for _, s := range slots(m.Config, m.Weights) {
			stored := slices.Clone(*s.data)
			if s.norm {
				for i := range stored {
					stored[i]--
				}
			}
			tensors = append(tensors, Tensor{Name: prefix + s.name[len("model."):], Shape: s.shape, Data: stored})
		}
		fsys := fstest.MapFS{hfConfigFile: {Data: outer}, hfModelFile: {Data: writeST(t, tensors, nil)}}
		got, err := OpenFS(fsys)
		require.NoError(t, err)
		require.Equal(t, m.Digest, got.Digest)
		require.Equal(t, []int32{2, 7}, got.StopIDs)
	}
	// The sizes that published files leave to the class.
	c := mustParse(t, []byte(`{"model_type":"gemma3","text_config":{"hidden_size":2560,"intermediate_size":10240,"num_hidden_layers":34,"sliding_window":1024,
		"rope_scaling":{"factor":8.0,"rope_type":"linear"}}}`))
	require.Equal(t, []any{"gemma3_text", 262208, 8, 4, 256, 131072, true}, []any{c.ModelType, c.VocabSize, c.NumAttentionHeads, c.NumKeyValueHeads, c.HeadDim, c.MaxPositionEmbeddings, c.TieWordEmbeddings})
}

// No configuration makes this package panic or allocate beyond measure.
func FuzzParseConfig(f *testing.F) {
	for _, name := range families(f) {
		data, err := os.ReadFile(filepath.Join(familiesDir, name, hfConfigFile))
		require.NoError(f, err)
		f.Add(data)
	}
	f.Add([]byte(`{"model_type":"gemma3","text_config":{}}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, _, err := ParseConfig(data)
		if err != nil {
			return
		}
		// What a valid one promises: none of these can fail or overflow.
		if n := c.NumParams(); n <= 0 {
			t.Fatalf("NumParams %d of %+v", n, c)
		}
		if n := c.ContextLimit(); n < 1 {
			t.Fatalf("ContextLimit %d of %+v", n, c)
		}
		for _, long := range []bool{false, true} {
			c.RopeScaling.Long = long
			for _, layer := range []int{0, c.NumHiddenLayers - 1} {
				for _, v := range c.Rope(layer).Inv {
					if v != v {
						t.Fatalf("rope of %+v is not a number", c)
					}
				}
			}
		}
		if c.NumHiddenLayers*max(c.Experts, 1) > 1<<12 {
			return // slow, not wrong
		}
		if got := int64(FullLayout(c).Size()); got != c.NumParams() {
			t.Fatalf("NumParams %d, layout %d of %+v", c.NumParams(), got, c)
		}
	})
}
