package model

import (
	"encoding/json"
	"errors"
	"fmt"
)

// ParseConfig reads HF's config.json: both the older top-level rope_theta and
// the newer rope_parameters form. Absent fields take LlamaConfig's defaults.
// It returns the configuration and every end-of-sequence id (the file may list
// several; Config keeps the first). Anything that would change the computation
// in a way this package doesn't implement (biases, rope scaling, another
// activation, sliding windows, another architecture) is an error naming the
// field.
func ParseConfig(data []byte) (Config, []int32, error) {
	var raw struct {
		Config
		HeadDim      *int            `json:"head_dim"`
		KVHeads      *int            `json:"num_key_value_heads"`
		MaxPos       *int            `json:"max_position_embeddings"`
		Eps          *float64        `json:"rms_norm_eps"`
		Theta        *float64        `json:"rope_theta"`
		BOS          json.RawMessage `json:"bos_token_id"`
		EOS          json.RawMessage `json:"eos_token_id"`
		HiddenAct    string          `json:"hidden_act"`
		AttnBias     bool            `json:"attention_bias"`
		MLPBias      bool            `json:"mlp_bias"`
		RopeScaling  json.RawMessage `json:"rope_scaling"`
		RopeParams   json.RawMessage `json:"rope_parameters"`
		Sliding      *int            `json:"sliding_window"`
		PartialRope  *float64        `json:"partial_rotary_factor"`
		Quantization json.RawMessage `json:"quantization_config"`
	}
	if err := json.Unmarshal(data, &raw); err != nil {
		return Config{}, nil, fmt.Errorf("%w: config.json: %v", ErrFormat, err)
	}
	c := raw.Config
	c.NumKeyValueHeads = or(raw.KVHeads, c.NumAttentionHeads)
	c.MaxPositionEmbeddings = or(raw.MaxPos, 2048)
	c.RMSNormEps = or(raw.Eps, 1e-6)
	c.RopeTheta = or(raw.Theta, 10000)
	if raw.HeadDim != nil {
		c.HeadDim = *raw.HeadDim
	} else if c.NumAttentionHeads > 0 {
		c.HeadDim = c.HiddenSize / c.NumAttentionHeads
	}
	var errs []error
	refuse := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	switch c.ModelType {
	case "llama", "mistral":
	default:
		refuse("model_type %q is not implemented (have llama, mistral)", c.ModelType)
	}
	if raw.HiddenAct != "" && raw.HiddenAct != "silu" {
		refuse("hidden_act %q is not implemented (have silu)", raw.HiddenAct)
	}
	if raw.AttnBias {
		refuse("attention_bias true is not implemented")
	}
	if raw.MLPBias {
		refuse("mlp_bias true is not implemented")
	}
	if raw.PartialRope != nil && *raw.PartialRope != 1 {
		refuse("partial_rotary_factor %v is not implemented (have 1)", *raw.PartialRope)
	}
	if raw.Sliding != nil && *raw.Sliding > 0 && *raw.Sliding < c.MaxPositionEmbeddings {
		refuse("sliding_window %d below max_position_embeddings %d is not implemented", *raw.Sliding, c.MaxPositionEmbeddings)
	}
	if !isNull(raw.Quantization) {
		refuse("quantization_config is not implemented for safetensors: load unquantised weights or a GGUF file")
	}
	for _, f := range []struct {
		name string
		raw  json.RawMessage
	}{{"rope_scaling", raw.RopeScaling}, {"rope_parameters", raw.RopeParams}} {
		if isNull(f.raw) {
			continue
		}
		var p struct {
			Theta *float64 `json:"rope_theta"`
			Type  string   `json:"rope_type"`
			Old   string   `json:"type"`
		}
		if err := json.Unmarshal(f.raw, &p); err != nil {
			refuse("%s: %v", f.name, err)
			continue
		}
		if p.Type == "" {
			p.Type = p.Old
		}
		if p.Type != "" && p.Type != "default" {
			refuse("%s type %q is not implemented (have default)", f.name, p.Type)
		}
		if p.Theta != nil {
			c.RopeTheta = *p.Theta
		}
	}
	bos, err := tokenIDs(raw.BOS)
	if err != nil {
		refuse("bos_token_id: %v", err)
	}
	eos, err := tokenIDs(raw.EOS)
	if err != nil {
		refuse("eos_token_id: %v", err)
	}
	c.BOSTokenID, c.EOSTokenID = -1, -1
	if len(bos) > 0 {
		c.BOSTokenID = bos[0]
	}
	if len(eos) > 0 {
		c.EOSTokenID = eos[0]
	}
	if err := c.Validate(); err != nil {
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return Config{}, nil, fmt.Errorf("%w: config.json: %w", ErrFormat, err)
	}
	return c, eos, nil
}

// Validate reports every impossible size, by field and value.
func (c Config) Validate() error {
	var errs []error
	for _, f := range []struct {
		name  string
		value int
	}{
		{"vocab_size", c.VocabSize}, {"hidden_size", c.HiddenSize}, {"intermediate_size", c.IntermediateSize},
		{"num_hidden_layers", c.NumHiddenLayers}, {"num_attention_heads", c.NumAttentionHeads},
		{"num_key_value_heads", c.NumKeyValueHeads}, {"head_dim", c.HeadDim},
		{"max_position_embeddings", c.MaxPositionEmbeddings},
	} {
		// 1<<24 keeps every product of two sizes far from overflow.
		if f.value < 1 || f.value > 1<<24 {
			errs = append(errs, fmt.Errorf("%s is %d, want 1 to %d", f.name, f.value, 1<<24))
		}
	}
	if c.NumKeyValueHeads > 0 && c.NumAttentionHeads%c.NumKeyValueHeads != 0 {
		errs = append(errs, fmt.Errorf("num_attention_heads %d is not a multiple of num_key_value_heads %d", c.NumAttentionHeads, c.NumKeyValueHeads))
	}
	if c.HeadDim%2 != 0 {
		errs = append(errs, fmt.Errorf("head_dim %d is odd: rope needs pairs", c.HeadDim))
	}
	if !(c.RMSNormEps > 0) {
		errs = append(errs, fmt.Errorf("rms_norm_eps is %v, want > 0", c.RMSNormEps))
	}
	if !(c.RopeTheta > 0) {
		errs = append(errs, fmt.Errorf("rope_theta is %v, want > 0", c.RopeTheta))
	}
	return errors.Join(errs...)
}

// NumParams is the number of base weights; a tied head counts once.
func (c Config) NumParams() int64 {
	h, i, d := int64(c.HiddenSize), int64(c.IntermediateSize), int64(c.HeadDim)
	q, kv := int64(c.NumAttentionHeads)*d, int64(c.NumKeyValueHeads)*d
	n := int64(c.VocabSize)*h + h + int64(c.NumHiddenLayers)*(2*h+2*q*h+2*kv*h+3*h*i)
	if !c.TieWordEmbeddings {
		n += int64(c.VocabSize) * h
	}
	return n
}

func or[T any](p *T, fallback T) T {
	if p != nil {
		return *p
	}
	return fallback
}

func isNull(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }

// tokenIDs reads an id, a list of ids, or null.
func tokenIDs(raw json.RawMessage) ([]int32, error) {
	if isNull(raw) {
		return nil, nil
	}
	var one int32
	if err := json.Unmarshal(raw, &one); err == nil {
		return []int32{one}, nil
	}
	var many []int32
	if err := json.Unmarshal(raw, &many); err != nil {
		return nil, fmt.Errorf("%s is neither a token id nor a list of them", raw)
	}
	return many, nil
}
