package model

import (
	"errors"
	"fmt"
	"maps"
	"slices"
)

// ggufConfig maps llama.* metadata to a Config.
func ggufConfig(g *GGUF) (Config, error) {
	arch, _ := g.Meta["general.architecture"].(string)
	if arch != "llama" {
		return Config{}, fmt.Errorf("%w: gguf: general.architecture %q is not implemented (have llama)", ErrFormat, arch)
	}
	const required, none = -2, -1
	var errs []error
	number := func(key string, fallback float64) float64 {
		switch v := g.Meta[key].(type) {
		case uint64:
			return float64(v)
		case int64:
			return float64(v)
		case float64:
			return v
		case nil:
			if fallback == required {
				errs = append(errs, fmt.Errorf("%s is missing", key))
			}
			return fallback
		default:
			errs = append(errs, fmt.Errorf("%s is %T, want a number", key, v))
			return fallback
		}
	}
	size := func(key string, fallback int) int { return int(min(max(number(key, float64(fallback)), none), 1<<31)) }
	c := Config{
		ModelType:             "llama",
		HiddenSize:            size("llama.embedding_length", required),
		IntermediateSize:      size("llama.feed_forward_length", required),
		NumHiddenLayers:       size("llama.block_count", required),
		NumAttentionHeads:     size("llama.attention.head_count", required),
		MaxPositionEmbeddings: size("llama.context_length", required),
		RMSNormEps:            number("llama.attention.layer_norm_rms_epsilon", required),
		RopeTheta:             number("llama.rope.freq_base", 10000),
		BOSTokenID:            int32(size("tokenizer.ggml.bos_token_id", none)),
		EOSTokenID:            int32(size("tokenizer.ggml.eos_token_id", none)),
	}
	c.NumKeyValueHeads = size("llama.attention.head_count_kv", max(c.NumAttentionHeads, 0))
	if c.NumAttentionHeads > 0 {
		c.HeadDim = size("llama.attention.key_length", c.HiddenSize/c.NumAttentionHeads)
	}
	if v := size("llama.attention.value_length", c.HeadDim); v != c.HeadDim {
		errs = append(errs, fmt.Errorf("llama.attention.value_length %d differs from the key length %d, which is not implemented", v, c.HeadDim))
	}
	if v := size("llama.rope.dimension_count", c.HeadDim); v != c.HeadDim {
		errs = append(errs, fmt.Errorf("llama.rope.dimension_count %d differs from the head size %d: partial rope is not implemented", v, c.HeadDim))
	}
	if s, ok := g.Meta["llama.rope.scaling.type"].(string); ok && s != "" && s != "none" {
		errs = append(errs, fmt.Errorf("llama.rope.scaling.type %q is not implemented (have none)", s))
	}
	if n := size("llama.expert_count", 0); n > 0 {
		errs = append(errs, fmt.Errorf("llama.expert_count %d: mixtures of experts are not implemented", n))
	}
	emb, ok := g.tensors["token_embd.weight"]
	if !ok || len(emb.Shape) != 2 {
		errs = append(errs, fmt.Errorf("tensor \"token_embd.weight\" is missing or no matrix"))
	} else {
		c.VocabSize = emb.Shape[0]
	}
	_, hasHead := g.tensors["output.weight"]
	c.TieWordEmbeddings = !hasHead
	if len(errs) == 0 {
		if err := c.Validate(); err != nil {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return Config{}, fmt.Errorf("%w: gguf: %w", ErrFormat, err)
	}
	return c, nil
}

// ggufWeights dequantises every base tensor and refuses files that hold others.
func ggufWeights(g *GGUF, c Config) (*Weights, error) {
	w := &Weights{Layers: make([]LayerWeights, c.NumHiddenLayers)}
	used := map[string]bool{}
	for _, s := range slots(c, w) {
		name := s.gguf
		// The tensor's own size bounds the allocation, not the metadata's.
		if t, ok := g.tensors[name]; !ok || !slices.Equal(t.Shape, s.shape) {
			return nil, g.ReadF32(name, s.shape, nil)
		}
		*s.data = make([]float32, shapeLen(s.shape))
		if err := g.ReadF32(name, s.shape, *s.data); err != nil {
			return nil, err
		}
		used[name] = true
	}
	for i := range w.Layers {
		l := &w.Layers[i]
		unpermute(l.Q, c.NumAttentionHeads, c.HeadDim, c.HiddenSize)
		unpermute(l.K, c.NumKeyValueHeads, c.HeadDim, c.HiddenSize)
	}
	w.alias(c)
	for _, name := range slices.Sorted(maps.Keys(g.tensors)) {
		if !used[name] {
			return nil, fmt.Errorf("%w: gguf: tensor %q is not part of a plain llama of %d layers (rope scaling factors, biases or experts are not implemented)", ErrFormat, name, c.NumHiddenLayers)
		}
	}
	return w, nil
}

// unpermute turns llama.cpp's interleaved rope rows into HF's halves, in place:
// within a head, HF row half*(d/2)+i is GGUF row 2*i+half.
func unpermute(m []float32, heads, headDim, cols int) {
	tmp := make([]float32, headDim*cols)
	for h := range heads {
		head := m[h*headDim*cols : (h+1)*headDim*cols]
		copy(tmp, head)
		for half := range 2 {
			for i := range headDim / 2 {
				to, from := half*headDim/2+i, 2*i+half
				copy(head[to*cols:(to+1)*cols], tmp[from*cols:(from+1)*cols])
			}
		}
	}
}

// ggufStops gathers the end-of-sequence ids that the metadata names.
func ggufStops(g *GGUF) []int32 {
	var out []int32
	for _, key := range []string{"eos_token_id", "eot_token_id", "eom_token_id"} {
		if v, ok := g.Meta["tokenizer.ggml."+key].(uint64); ok && v < 1<<31 && !slices.Contains(out, int32(v)) {
			out = append(out, int32(v))
		}
	}
	return out
}
