package model

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
)

// ggufArchKey is the metadata key of a file's architecture, whose name is the
// prefix of the keys that describe it.
const ggufArchKey = "general.architecture"

// ggufFamily is what an architecture of GGUF means, as llama.cpp computes it.
// What depends on a tensor's presence (biases, experts, a head) is read off it.
type ggufFamily struct {
	modelType string
	permuted  bool // q's and k's rows are interleaved for rope of neighbours
	gemma     bool // sandwich norms, scaled embeddings, gelu
	qkNorm    bool
	fused     bool
	pattern   int // default of attention.sliding_window_pattern; 0 = all layers
	giant     int // number of layers of Gemma's 27B, which scales scores otherwise
}

var ggufFamilies = map[string]ggufFamily{
	"llama":    {modelType: "llama", permuted: true},
	"smollm3":  {modelType: "smollm3", permuted: true},
	"qwen2":    {modelType: "qwen2"},
	"qwen3":    {modelType: "qwen3", qkNorm: true},
	"qwen3moe": {modelType: "qwen3_moe", qkNorm: true},
	"phi3":     {modelType: "phi3", fused: true},
	"gemma2":   {modelType: "gemma2", gemma: true, pattern: 2, giant: 46},
	"gemma3":   {modelType: "gemma3_text", gemma: true, qkNorm: true, pattern: 6, giant: 62},
}

func (g *GGUF) family() ggufFamily {
	arch, _ := g.Meta[ggufArchKey].(string)
	return ggufFamilies[arch]
}

// ggufParser maps metadata to a Config, gathering every problem.
type ggufParser struct {
	g    *GGUF
	arch string
	fam  ggufFamily
	c    Config
	errs []error
}

func (p *ggufParser) refuse(format string, args ...any) {
	p.errs = append(p.errs, fmt.Errorf(format, args...))
}

const ggufRequired, ggufNone = -2, -1

// number reads a number under a whole key.
func (p *ggufParser) number(key string, fallback float64) float64 {
	switch v := p.g.Meta[key].(type) {
	case uint64:
		return float64(v)
	case int64:
		return float64(v)
	case float64:
		return v
	case nil:
		if fallback == ggufRequired {
			p.refuse("%s is missing", key)
		}
		return fallback
	default:
		p.refuse("%s is %T, want a number", key, v)
		return fallback
	}
}

// size reads a size, clamped to what Validate will refuse.
func (p *ggufParser) size(key string, fallback int) int {
	v := p.number(key, float64(fallback))
	if math.IsNaN(v) {
		return ggufNone
	}
	return int(min(max(v, ggufNone), 1<<31))
}

// own gives the whole key of the architecture's own one.
func (p *ggufParser) own(key string) string { return p.arch + "." + key }

func (p *ggufParser) has(tensor string) bool { _, ok := p.g.tensors[tensor]; return ok }

// ggufConfig maps a file's metadata to a Config.
func ggufConfig(g *GGUF) (Config, error) {
	p := ggufParser{g: g}
	p.arch, _ = g.Meta[ggufArchKey].(string)
	p.fam = ggufFamilies[p.arch]
	if p.fam.modelType == "" {
		return Config{}, fmt.Errorf("%w: gguf: %s %q is not implemented (have %v)", ErrFormat, ggufArchKey, p.arch, slices.Sorted(maps.Keys(ggufFamilies)))
	}
	p.parse()
	if len(p.errs) == 0 {
		p.rope()
		p.c.tidyLayers()
		if err := p.c.Validate(); err != nil {
			p.errs = append(p.errs, err)
		}
	}
	if err := errors.Join(p.errs...); err != nil {
		return Config{}, fmt.Errorf("%w: gguf: %w", ErrFormat, err)
	}
	return p.c, nil
}

func (p *ggufParser) parse() {
	p.c = Config{
		ModelType:             p.fam.modelType,
		HiddenSize:            p.size(p.own("embedding_length"), ggufRequired),
		IntermediateSize:      p.size(p.own("feed_forward_length"), ggufRequired),
		NumHiddenLayers:       p.size(p.own("block_count"), ggufRequired),
		NumAttentionHeads:     p.size(p.own("attention.head_count"), ggufRequired),
		MaxPositionEmbeddings: p.size(p.own("context_length"), ggufRequired),
		RMSNormEps:            p.number(p.own("attention.layer_norm_rms_epsilon"), ggufRequired),
		RopeTheta:             p.number(p.own("rope.freq_base"), 10000),
		BOSTokenID:            int32(min(p.size("tokenizer.ggml.bos_token_id", ggufNone), math.MaxInt32)),
		EOSTokenID:            int32(min(p.size("tokenizer.ggml.eos_token_id", ggufNone), math.MaxInt32)),
		QKNorm:                p.fam.qkNorm,
		FusedProjections:      p.fam.fused,
		QKVBias:               p.has("blk.0.attn_q.bias"),
		OutputBias:            p.has("blk.0.attn_output.bias"),
		TieWordEmbeddings:     !p.has("output.weight"),
	}
	c := &p.c
	c.NumKeyValueHeads = p.size(p.own("attention.head_count_kv"), max(c.NumAttentionHeads, 0))
	if c.NumAttentionHeads > 0 {
		c.HeadDim = p.size(p.own("attention.key_length"), c.HiddenSize/c.NumAttentionHeads)
	}
	if v := p.size(p.own("attention.value_length"), c.HeadDim); v != c.HeadDim {
		p.refuse("%s %d differs from the key length %d, which is not implemented", p.own("attention.value_length"), v, c.HeadDim)
	}
	if v := p.size(p.own("rope.dimension_count"), c.HeadDim); v != c.HeadDim {
		if c.RotaryDim = v; p.arch == "llama" || v < 2 {
			p.refuse("%s %d differs from the head size %d: partial rope is not implemented for %s", p.own("rope.dimension_count"), v, c.HeadDim, p.arch)
		}
	}
	emb, ok := p.g.tensors["token_embd.weight"]
	if !ok || len(emb.Shape) != 2 {
		p.refuse("tensor \"token_embd.weight\" is missing or no matrix")
	} else {
		c.VocabSize = emb.Shape[0]
	}
	for _, key := range []string{"logit_scale", "residual_scale", "embedding_scale", "attention.scale", "attention.clamp_kqv",
		"expert_shared_count", "leading_dense_block_count", "nextn_predict_layers", "rope.scaling.yarn_log_multiplier"} {
		if v := p.number(p.own(key), 0); v != 0 {
			p.refuse("%s %v is not implemented", p.own(key), v)
		}
	}
	if causal, ok := p.g.Meta[p.own("attention.causal")].(bool); ok && !causal {
		p.refuse("%s false is not implemented: this is no causal model", p.own("attention.causal"))
	}
	if c.NumHiddenLayers < 1 || c.NumHiddenLayers > maxLayers {
		p.refuse("%s is %d, want 1 to %d", p.own("block_count"), c.NumHiddenLayers, maxLayers)
		return
	}
	p.gemma()
	p.windows()
	p.experts()
	if p.arch == "smollm3" { // llama.cpp knows no other interval
		c.NoRopeLayers = make([]bool, c.NumHiddenLayers)
		for i := range c.NoRopeLayers {
			c.NoRopeLayers[i] = (i+1)%4 == 0
		}
	}
}

// gemma sets what Gemma's architectures have in common; norms in GGUF are
// effective factors, but the model is still one whose HF files subtract 1.
func (p *ggufParser) gemma() {
	if !p.fam.gemma {
		return
	}
	c := &p.c
	c.HiddenAct, c.SandwichNorm, c.NormPlusOne = "gelu_pytorch_tanh", true, true
	c.EmbedScale = math.Sqrt(float64(max(c.HiddenSize, 1)))
	width := c.HeadDim
	if c.NumHiddenLayers == p.fam.giant && c.NumAttentionHeads > 0 {
		width = c.HiddenSize / c.NumAttentionHeads
	}
	c.AttnScale = 1 / math.Sqrt(float64(max(width, 1)))
	if p.arch == "gemma2" {
		c.AttnSoftcap = p.number(p.own("attn_logit_softcapping"), 50)
		c.LogitSoftcap = p.number(p.own("final_logit_softcapping"), 30)
	} else {
		c.LogitSoftcap = p.number(p.own("final_logit_softcapping"), 0)
		c.LocalRopeTheta = p.number(p.own("rope.freq_base_swa"), 10000)
	}
}

// windows reads the sliding window and which layers have it: a pattern n (the
// last of every n layers is full) or one flag a layer.
func (p *ggufParser) windows() {
	c, key := &p.c, p.own("attention.sliding_window_pattern")
	fallback := 0
	if p.arch == "gemma2" {
		fallback = 4096
	}
	if c.SlidingWindow = p.size(p.own("attention.sliding_window"), fallback); c.SlidingWindow == 0 {
		return
	}
	if p.arch == "llama" {
		c.ModelType = "mistral"
	}
	full := make([]bool, c.NumHiddenLayers)
	if flags, ok := p.g.Meta[key].([]bool); ok {
		if len(flags) < len(full) {
			p.refuse("%s has %d entries, the model %d layers", key, len(flags), len(full))
			return
		}
		for i := range full {
			full[i] = !flags[i]
		}
	} else if n := p.size(key, p.fam.pattern); n > 0 {
		for i := range full {
			full[i] = (i+1)%n == 0
		}
	}
	if !slices.Contains(full, false) {
		c.SlidingWindow = 0
		return
	}
	c.FullLayers = full
}

func (p *ggufParser) experts() {
	c := &p.c
	c.Experts = p.size(p.own("expert_count"), 0)
	if c.Experts == 0 {
		if p.arch == "qwen3moe" {
			p.refuse("%s is missing or 0", p.own("expert_count"))
		}
		return
	}
	if p.arch != "qwen3moe" && p.arch != "llama" {
		p.refuse("%s %d is not implemented for %s", p.own("expert_count"), c.Experts, p.arch)
	}
	const softmax = 1
	if v := p.size(p.own("expert_gating_func"), softmax); v != softmax && v != 0 {
		p.refuse("%s %d is not implemented (have %d, softmax)", p.own("expert_gating_func"), v, softmax)
	}
	if v := p.number(p.own("expert_weights_scale"), 1); v != 1 && v != 0 {
		p.refuse("%s %v is not implemented", p.own("expert_weights_scale"), v)
	}
	c.ExpertsPerToken = p.size(p.own("expert_used_count"), ggufRequired)
	c.ExpertSize = p.size(p.own("expert_feed_forward_length"), c.IntermediateSize)
	c.NormTopK = true // llama.cpp always renormalises for these two
	if p.arch == "llama" {
		c.ModelType = "mixtral"
		return
	}
	c.DenseLayers = make([]bool, c.NumHiddenLayers)
	for i := range c.DenseLayers {
		c.DenseLayers[i] = !p.has(fmt.Sprintf("blk.%d.ffn_gate_inp.weight", i))
	}
}
