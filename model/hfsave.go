package model

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strings"
)

// hfConfigJSON is c as config.json, in spellings that transformers 4 and 5 both
// read. What HF's class for the model_type can't say is refused, by field:
// GGUF files may hold such models. Opening for long contexts is no part of it.
func hfConfigJSON(c Config, dtype DType) (map[string]any, error) {
	fam, ok := hfFamilies[c.ModelType]
	if !ok {
		return nil, fmt.Errorf("model: save: model_type %q has no configuration class that Skein writes", c.ModelType)
	}
	act := c.HiddenAct
	if act == "" {
		act = "silu"
	}
	conf := map[string]any{
		"architectures": []string{fam.class}, "model_type": c.ModelType, "hidden_act": act, "torch_dtype": torchNames[dtype],
		"vocab_size": c.VocabSize, "hidden_size": c.HiddenSize, "intermediate_size": c.IntermediateSize,
		"num_hidden_layers": c.NumHiddenLayers, "num_attention_heads": c.NumAttentionHeads,
		"num_key_value_heads": c.NumKeyValueHeads, "head_dim": c.HeadDim,
		"max_position_embeddings": c.MaxPositionEmbeddings, "rms_norm_eps": hfFloat(c.RMSNormEps), "rope_theta": hfFloat(c.RopeTheta),
		"tie_word_embeddings": c.TieWordEmbeddings,
		// Some classes have defaults that lie outside a small vocabulary.
		"bos_token_id": nil, "eos_token_id": nil, "pad_token_id": nil,
	}
	if c.BOSTokenID >= 0 {
		conf["bos_token_id"] = c.BOSTokenID
	}
	if c.EOSTokenID >= 0 {
		conf["eos_token_id"] = c.EOSTokenID
	}
	if fam.biases {
		conf["attention_bias"] = c.OutputBias
	}
	if scaling := c.RopeScaling.hf(); scaling != nil {
		conf["rope_scaling"] = scaling
	}
	c.hfFamilyFields(conf)
	return conf, c.checkHF(conf)
}

// hfFamilyFields adds what the model_type's class spells its own way.
func (c Config) hfFamilyFields(conf map[string]any) {
	var window any // null: no layer has one
	if c.SlidingWindow > 0 {
		window = c.SlidingWindow
	}
	switch c.ModelType {
	case "llama":
		conf["mlp_bias"] = false
	case "mistral":
		conf["sliding_window"] = window
	case "mixtral":
		conf["sliding_window"] = window
		conf["num_local_experts"], conf["num_experts_per_tok"] = c.Experts, c.ExpertsPerToken
	case "smollm3":
		conf["mlp_bias"] = false
		conf["use_sliding_window"], conf["sliding_window"], conf["layer_types"] = c.SlidingWindow > 0, window, c.layerTypes()
		rope := make([]int, c.NumHiddenLayers)
		for i := range rope {
			if len(c.Rope(i).Inv) > 0 {
				rope[i] = 1
			}
		}
		conf["no_rope_layers"] = rope
	case "qwen2", "qwen3":
		conf["use_sliding_window"], conf["sliding_window"], conf["layer_types"] = c.SlidingWindow > 0, window, c.layerTypes()
		first := 0
		for first < c.NumHiddenLayers && c.Window(first) == 0 {
			first++
		}
		conf["max_window_layers"] = first
	case "qwen3_moe":
		conf["use_sliding_window"], conf["sliding_window"] = c.SlidingWindow > 0, window
		conf["num_experts"], conf["num_experts_per_tok"], conf["moe_intermediate_size"] = c.Experts, c.ExpertsPerToken, c.ExpertSize
		conf["norm_topk_prob"], conf["decoder_sparse_step"] = c.NormTopK, 1
		dense := []int{}
		for i := range c.NumHiddenLayers {
			if !c.MoE(i) {
				dense = append(dense, i)
			}
		}
		conf["mlp_only_layers"] = dense
	case "phi3":
		delete(conf, "head_dim") // hidden_size / heads in this class
		conf["sliding_window"] = window
		conf["partial_rotary_factor"] = hfFloat(float64(c.Rotary()) / float64(c.HeadDim))
		conf["original_max_position_embeddings"] = c.MaxPositionEmbeddings
		if c.RopeScaling.OriginalMaxPositions > 0 {
			conf["original_max_position_embeddings"] = c.RopeScaling.OriginalMaxPositions
		}
	case "gemma2", "gemma3_text":
		conf["hidden_activation"] = conf["hidden_act"]
		// The class makes masks of it even where no layer wants one.
		conf["sliding_window"], conf["layer_types"] = c.SlidingWindow, c.layerTypes()
		if c.SlidingWindow == 0 {
			conf["sliding_window"] = c.MaxPositionEmbeddings
		}
		conf["query_pre_attn_scalar"] = int(math.Round(math.Pow(c.ScoreScale(), -2)))
		conf["attn_logit_softcapping"], conf["final_logit_softcapping"] = orNull(c.AttnSoftcap), orNull(c.LogitSoftcap)
		if c.ModelType == "gemma3_text" {
			conf["rope_local_base_freq"] = hfFloat(c.LocalRopeTheta)
		}
	}
}

func orNull(v float64) any {
	if v == 0 {
		return nil
	}
	return hfFloat(v)
}

// hfFloat is written with a decimal point or exponent: transformers checks that
// a field is a float, and 2 is none to Python.
type hfFloat float64

// MarshalJSON writes the shortest form that reads back the same.
func (f hfFloat) MarshalJSON() ([]byte, error) {
	data, err := json.Marshal(float64(f))
	if err == nil && !bytes.ContainsAny(data, ".e") {
		data = append(data, ".0"...)
	}
	return data, err
}

// layerTypes is HF's layer_types.
func (c Config) layerTypes() []string {
	out := make([]string, c.NumHiddenLayers)
	for i := range out {
		out[i] = "full_attention"
		if c.Window(i) > 0 {
			out[i] = "sliding_attention"
		}
	}
	return out
}

// hf is the dictionary of rope_scaling; nil when there is no scaling.
func (s RopeScaling) hf() map[string]any {
	if s.Type == "" {
		return nil
	}
	out := map[string]any{"rope_type": s.Type}
	for key, v := range map[string]float64{
		"factor": s.Factor, "low_freq_factor": s.LowFreqFactor, "high_freq_factor": s.HighFreqFactor, "beta_fast": s.BetaFast,
		"beta_slow": s.BetaSlow, "mscale": s.MScale, "mscale_all_dim": s.MScaleAllDim, "attention_factor": s.AttentionFactor,
	} {
		if v != 0 {
			out[key] = hfFloat(v)
		}
	}
	if s.Type != "dynamic" && s.OriginalMaxPositions > 0 {
		out["original_max_position_embeddings"] = s.OriginalMaxPositions
	}
	if s.NoTruncate {
		out["truncate"] = false
	}
	if s.Type == "longrope" {
		out["short_factor"], out["long_factor"] = s.ShortFactor, s.LongFactor // ints do here
	}
	return out
}

// checkHF reads the file back: it must describe the same model.
func (c Config) checkHF(conf map[string]any) error {
	data, err := json.Marshal(conf)
	if err != nil {
		return fmt.Errorf("model: save: %w", err)
	}
	back, _, err := ParseConfig(data)
	if err != nil {
		return fmt.Errorf("model: save: config.json can't say what this model is: %w", err)
	}
	c.RopeScaling.Long = false
	a, b := reflect.ValueOf(c), reflect.ValueOf(back)
	for i := range a.NumField() {
		if !reflect.DeepEqual(a.Field(i).Interface(), b.Field(i).Interface()) {
			name, _, _ := strings.Cut(a.Type().Field(i).Tag.Get("json"), ",")
			return fmt.Errorf("model: save: a config.json of model_type %q can't say %s %v (readers would take %v)", c.ModelType, name, a.Field(i), b.Field(i))
		}
	}
	return nil
}
