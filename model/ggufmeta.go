package model

import (
	"fmt"
	"slices"
)

// ggufArchitecture is the name of a model's architecture among ggufFamilies, ""
// when it has none.
func ggufArchitecture(c Config) string {
	switch c.ModelType {
	case "llama", "mistral", "mixtral":
		return "llama"
	case "gemma3":
		return "gemma3"
	}
	for arch, f := range ggufFamilies {
		if f.modelType == c.ModelType {
			return arch
		}
	}
	return ""
}

// ggufMeta is the metadata that describes a configuration; notes tell where
// llama.cpp computes otherwise.
func ggufMeta(c Config, name string) (meta map[string]any, notes []string, err error) {
	arch := ggufArchitecture(c)
	if arch == "" {
		return nil, nil, fmt.Errorf("model: save gguf: model_type %q has no architecture in GGUF that Skein writes: keep it as safetensors", c.ModelType)
	}
	meta = map[string]any{ggufArchKey: arch, "general.type": "model"}
	if name != "" {
		meta["general.name"] = name
	}
	size := func(key string, n int) { meta[arch+"."+key] = uint32(n) }
	number := func(key string, f float64) { meta[arch+"."+key] = float32(f) }
	size("vocab_size", c.VocabSize)
	size("context_length", c.MaxPositionEmbeddings)
	size("embedding_length", c.HiddenSize)
	size("block_count", c.NumHiddenLayers)
	size("feed_forward_length", c.IntermediateSize)
	size("attention.head_count", c.NumAttentionHeads)
	size("attention.head_count_kv", c.NumKeyValueHeads)
	size("attention.key_length", c.HeadDim)
	size("attention.value_length", c.HeadDim)
	number("attention.layer_norm_rms_epsilon", c.RMSNormEps)
	size("rope.dimension_count", c.Rotary())
	number("rope.freq_base", c.RopeTheta)
	if c.LocalRopeTheta > 0 {
		number("rope.freq_base_swa", c.LocalRopeTheta)
	}
	if c.SlidingWindow > 0 {
		size("attention.sliding_window", c.SlidingWindow)
		windows := make([]bool, c.NumHiddenLayers)
		for i := range windows {
			windows[i] = c.Window(i) > 0
		}
		meta[arch+".attention.sliding_window_pattern"] = windows
		if arch != "gemma2" && arch != "gemma3" {
			notes = append(notes, fmt.Sprintf("llama.cpp uses no sliding window for %s: it attends beyond the %d tokens of this model's", arch, c.SlidingWindow))
		}
	}
	if c.RopeScaling.Type == "dynamic" {
		notes = append(notes, fmt.Sprintf("dynamic rope scaling is not in GGUF: readers don't stretch beyond %d positions", c.RopeScaling.OriginalMaxPositions))
	}
	if c.AttnSoftcap > 0 {
		number("attn_logit_softcapping", c.AttnSoftcap)
	}
	if c.LogitSoftcap > 0 {
		number("final_logit_softcapping", c.LogitSoftcap)
	}
	if c.Experts > 0 {
		size("expert_count", c.Experts)
		size("expert_used_count", c.ExpertsPerToken)
		size("expert_feed_forward_length", c.ExpertSize)
	}
	if slices.Contains(c.DenseLayers, true) {
		notes = append(notes, fmt.Sprintf("llama.cpp wants experts in every layer of %s, this model has layers without: it will not load the file", arch))
	}
	ggufRopeMeta(c, arch, meta)
	for key, id := range map[string]int32{"bos": c.BOSTokenID, "eos": c.EOSTokenID} {
		if id >= 0 {
			meta["tokenizer.ggml."+key+"_token_id"] = uint32(id)
		}
	}
	return meta, notes, nil
}

// ggufRopeMeta adds the keys of rope's scaling; llama3's and longrope's factors
// are tensors, see ggufFactors.
func ggufRopeMeta(c Config, arch string, meta map[string]any) {
	s, pre := c.RopeScaling, arch+".rope.scaling."
	switch s.Type {
	case "linear":
		meta[pre+"type"], meta[pre+"factor"] = "linear", float32(s.Factor)
	case "yarn":
		meta[pre+"type"], meta[pre+"factor"] = "yarn", float32(s.Factor)
		meta[pre+"original_context_length"] = uint32(s.OriginalMaxPositions)
		if s.BetaFast > 0 {
			meta[pre+"yarn_beta_fast"] = float32(s.BetaFast)
		}
		if s.BetaSlow > 0 {
			meta[pre+"yarn_beta_slow"] = float32(s.BetaSlow)
		}
		if s.AttentionFactor > 0 || s.MScale != 0 {
			meta[pre+"yarn_attn_factor"] = c.Rope(0).Scale
		}
	case "longrope":
		meta[pre+"original_context_length"] = uint32(s.OriginalMaxPositions)
		meta[pre+"attn_factor"] = c.Rope(0).Scale
	}
}

// ggufFactors are the tensors that divide rope's frequencies.
func ggufFactors(c Config) []GGUFTensor {
	tensor := func(i int, factors []float32) GGUFTensor {
		return GGUFTensor{Name: ggufRopeTensors[i], Shape: []int{len(factors)}, Type: "F32", Data: [][]float32{factors}}
	}
	switch s := c.RopeScaling; s.Type {
	case "llama3":
		plain := c
		plain.RopeScaling = RopeScaling{}
		was, is := plain.Rope(0).Inv, c.Rope(0).Inv
		factors := make([]float32, len(is))
		for i := range is {
			factors[i] = was[i] / is[i]
		}
		return []GGUFTensor{tensor(0, factors)}
	case "longrope":
		return []GGUFTensor{tensor(1, toF32(s.ShortFactor)), tensor(2, toF32(s.LongFactor))}
	}
	return nil
}

func toF32(in []float64) []float32 {
	out := make([]float32, len(in))
	for i, v := range in {
		out[i] = float32(v)
	}
	return out
}
