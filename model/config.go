package model

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
)

// ParseConfig reads HF's config.json of the families in hffamily.go: the older
// spellings (rope_theta, rope_scaling, sliding_window_pattern, ...) and those of
// transformers 5 (rope_parameters, layer_types). Absent fields take the defaults
// of the family's configuration class. A multimodal "gemma3" is read as its
// text_config. It returns the configuration and every end-of-sequence id (the
// file may list several; Config keeps the first). Anything that would change the
// computation in a way this package doesn't implement is an error naming the
// field; all of them are reported at once.
func ParseConfig(data []byte) (Config, []int32, error) {
	raw, err := readHFConfig(data)
	if err != nil {
		return Config{}, nil, fmt.Errorf("%w: config.json: %w", ErrFormat, err)
	}
	p := hfParser{raw: raw}
	p.parse()
	bos, err := tokenIDs(raw.BOS)
	if err != nil {
		p.refuse("bos_token_id: %v", err)
	}
	eos, err := tokenIDs(raw.EOS)
	if err != nil {
		p.refuse("eos_token_id: %v", err)
	}
	c := p.c
	c.BOSTokenID, c.EOSTokenID = -1, -1
	if len(bos) > 0 {
		c.BOSTokenID = bos[0]
	}
	if len(eos) > 0 {
		c.EOSTokenID = eos[0]
	}
	if err := c.Validate(); err != nil {
		p.errs = append(p.errs, err)
	}
	if err := errors.Join(p.errs...); err != nil {
		return Config{}, nil, fmt.Errorf("%w: config.json: %w", ErrFormat, err)
	}
	return c, eos, nil
}

// The greatest sizes that a configuration may name, far beyond any model. They
// keep every product of sizes within an int64, and what is allocated before a
// tensor's own shape has been compared within tens of megabytes.
const (
	maxLayers       = 1 << 12
	maxExperts      = 1 << 12
	maxLayerExperts = 1 << 17 // layers times experts
)

// Validate reports every impossible size, by field and value.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	size := func(name string, value, least, most int) {
		if value < least || value > most {
			bad("%s is %d, want %d to %d", name, value, least, most)
		}
	}
	size("vocab_size", c.VocabSize, 1, 1<<24)
	size("hidden_size", c.HiddenSize, 1, 1<<20)
	size("intermediate_size", c.IntermediateSize, 1, 1<<22)
	size("num_hidden_layers", c.NumHiddenLayers, 1, maxLayers)
	size("num_attention_heads", c.NumAttentionHeads, 1, 1<<14)
	size("num_key_value_heads", c.NumKeyValueHeads, 1, 1<<14)
	size("head_dim", c.HeadDim, 1, 1<<12)
	size("max_position_embeddings", c.MaxPositionEmbeddings, 1, 1<<28)
	if c.NumKeyValueHeads > 0 && c.NumAttentionHeads%c.NumKeyValueHeads != 0 {
		bad("num_attention_heads %d is not a multiple of num_key_value_heads %d", c.NumAttentionHeads, c.NumKeyValueHeads)
	}
	if c.HeadDim%2 != 0 {
		bad("head_dim %d is odd: rope needs pairs", c.HeadDim)
	}
	if c.RotaryDim != 0 && (c.RotaryDim < 2 || c.RotaryDim > c.HeadDim || c.RotaryDim%2 != 0) {
		bad("partial_rotary_factor rotates %d numbers of a head of %d, want an even number from 2", c.RotaryDim, c.HeadDim)
	}
	positive := func(name string, v float64) {
		if !(v > 0) || math.IsInf(v, 0) {
			bad("%s is %v, want > 0", name, v)
		}
	}
	positive("rms_norm_eps", c.RMSNormEps)
	positive("rope_theta", c.RopeTheta)
	for _, f := range []struct {
		name  string
		value float64
	}{
		{"rope_local_base_freq", c.LocalRopeTheta}, {"embedding scale", c.EmbedScale}, {"attention scale (query_pre_attn_scalar)", c.AttnScale},
		{"attn_logit_softcapping", c.AttnSoftcap}, {"final_logit_softcapping", c.LogitSoftcap},
	} {
		if f.value != 0 { // zero is the documented default
			positive(f.name, f.value)
		}
	}
	size("sliding_window", c.SlidingWindow, 0, 1<<28)
	for _, f := range []struct {
		name string
		list []bool
	}{{"layer_types", c.FullLayers}, {"no_rope_layers", c.NoRopeLayers}, {"mlp_only_layers", c.DenseLayers}} {
		if f.list != nil && len(f.list) != c.NumHiddenLayers {
			bad("%s speaks of %d layers, num_hidden_layers is %d", f.name, len(f.list), c.NumHiddenLayers)
		}
	}
	switch c.HiddenAct {
	case "", "silu", "gelu_pytorch_tanh":
	default:
		bad("hidden_act %q is not implemented (have silu, gelu_pytorch_tanh)", c.HiddenAct)
	}
	size("num_experts", c.Experts, 0, maxExperts)
	if c.Experts > 0 {
		size("num_experts_per_tok", c.ExpertsPerToken, 1, c.Experts)
		size("moe_intermediate_size", c.ExpertSize, 1, 1<<22)
		if c.NumHiddenLayers > 0 && c.Experts > maxLayerExperts/c.NumHiddenLayers {
			bad("num_hidden_layers %d times num_experts %d is above %d", c.NumHiddenLayers, c.Experts, maxLayerExperts)
		}
		if c.FusedProjections {
			bad("num_experts %d with fused projections is not implemented", c.Experts)
		}
	}
	if c.FusedProjections && c.QKVBias {
		bad("attention_bias with fused projections is not implemented")
	}
	errs = append(errs, c.RopeScaling.validate(c)...)
	return errors.Join(errs...)
}

// NumParams is the number of base weights; a tied head counts once.
func (c Config) NumParams() int64 {
	h, i, d := int64(c.HiddenSize), int64(c.IntermediateSize), int64(c.HeadDim)
	q, kv := int64(c.NumAttentionHeads)*d, int64(c.NumKeyValueHeads)*d
	layer := 2*h + 2*q*h + 2*kv*h
	if c.QKVBias {
		layer += q + 2*kv
	}
	if c.OutputBias {
		layer += h
	}
	if c.QKNorm {
		layer += 2 * d
	}
	if c.SandwichNorm {
		layer += 2 * h
	}
	n := int64(c.VocabSize)*h + h + int64(c.NumHiddenLayers)*layer
	moe := c.moeLayers()
	n += int64(c.NumHiddenLayers-moe) * 3 * h * i
	n += int64(moe) * int64(c.Experts) * (h + 3*h*int64(c.ExpertSize))
	if !c.TieWordEmbeddings {
		n += int64(c.VocabSize) * h
	}
	return n
}

// moeLayers counts the layers that are mixtures of experts.
func (c Config) moeLayers() int {
	n := 0
	for i := range c.NumHiddenLayers {
		if c.MoE(i) {
			n++
		}
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
