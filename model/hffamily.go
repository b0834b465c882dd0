package model

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
)

// hfConfig is config.json as written; absent fields are nil.
type hfConfig struct {
	ModelType    string   `json:"model_type"`
	VocabSize    *int     `json:"vocab_size"`
	HiddenSize   int      `json:"hidden_size"`
	Intermediate int      `json:"intermediate_size"`
	Layers       int      `json:"num_hidden_layers"`
	Heads        *int     `json:"num_attention_heads"`
	KVHeads      *int     `json:"num_key_value_heads"`
	HeadDim      *int     `json:"head_dim"`
	MaxPos       *int     `json:"max_position_embeddings"`
	OriginalMax  *int     `json:"original_max_position_embeddings"`
	Eps          *float64 `json:"rms_norm_eps"`
	Tie          *bool    `json:"tie_word_embeddings"`

	Theta       *float64        `json:"rope_theta"`
	LocalTheta  *float64        `json:"rope_local_base_freq"`
	RopeScaling json.RawMessage `json:"rope_scaling"`
	RopeParams  json.RawMessage `json:"rope_parameters"`
	PartialRope *float64        `json:"partial_rotary_factor"`

	BOS json.RawMessage `json:"bos_token_id"`
	EOS json.RawMessage `json:"eos_token_id"`

	HiddenAct        *string  `json:"hidden_act"`
	HiddenActivation *string  `json:"hidden_activation"` // Gemma's name
	AttnBias         bool     `json:"attention_bias"`
	MLPBias          bool     `json:"mlp_bias"`
	QueryPreAttn     *float64 `json:"query_pre_attn_scalar"`
	AttnSoftcap      *float64 `json:"attn_logit_softcapping"`
	LogitSoftcap     *float64 `json:"final_logit_softcapping"`
	Bidirectional    bool     `json:"use_bidirectional_attention"`

	Sliding       *int     `json:"sliding_window"`
	UseSliding    bool     `json:"use_sliding_window"`
	MaxWindow     *int     `json:"max_window_layers"`
	Pattern       *int     `json:"sliding_window_pattern"`
	LayerTypes    []string `json:"layer_types"`
	NoRope        []int    `json:"no_rope_layers"`
	NoRopeEvery   *int     `json:"no_rope_layer_interval"`
	LocalExperts  *int     `json:"num_local_experts"`
	Experts       *int     `json:"num_experts"`
	ExpertsPerTok *int     `json:"num_experts_per_tok"`
	ExpertSize    *int     `json:"moe_intermediate_size"`
	NormTopK      bool     `json:"norm_topk_prob"`
	SparseStep    *int     `json:"decoder_sparse_step"`
	DenseLayers   []int    `json:"mlp_only_layers"`

	Quantization json.RawMessage `json:"quantization_config"`
	TextConfig   json.RawMessage `json:"text_config"`

	set map[string]json.RawMessage // which fields the file has, null or not
}

// has reports whether a field stands in the file, be it null.
func (h *hfConfig) has(name string) bool { _, ok := h.set[name]; return ok }

func readHFConfig(data []byte) (*hfConfig, error) {
	h := &hfConfig{}
	if err := json.Unmarshal(data, h); err != nil {
		return nil, err
	}
	if h.ModelType == "gemma3" && !isNull(h.TextConfig) {
		outer := h
		h = &hfConfig{}
		data = outer.TextConfig
		if err := json.Unmarshal(data, h); err != nil {
			return nil, fmt.Errorf("text_config: %w", err)
		}
		if h.ModelType == "" {
			h.ModelType = "gemma3_text"
		}
		// The whole model's fields stand outside.
		if isNull(h.BOS) {
			h.BOS = outer.BOS
		}
		if isNull(h.EOS) {
			h.EOS = outer.EOS
		}
		if h.Tie == nil {
			h.Tie = outer.Tie
		}
		if isNull(h.Quantization) {
			h.Quantization = outer.Quantization
		}
	}
	return h, json.Unmarshal(data, &h.set)
}

// hfFamily is what a model_type's configuration class takes for absent fields,
// and what its architecture adds to a plain Llama.
type hfFamily struct {
	class   string // architectures entry of config.json
	vocab   int    // 0 = must be given
	heads   int    // 0 = must be given
	kvHeads int    // 0 = as many as heads
	headDim int    // 0 = hidden_size / heads
	maxPos  int
	eps     float64
	theta   float64
	tied    bool
	gemma   bool // norms minus one, sandwich norms, scaled embeddings, gelu
	biases  bool // has attention_bias, for q, k, v and o
	qkNorm  bool
	extra   func(*hfParser) // the rest
}

var hfFamilies = map[string]hfFamily{
	"llama":       {class: "LlamaForCausalLM", maxPos: 2048, eps: 1e-6, theta: 1e4, biases: true, extra: (*hfParser).noWindow},
	"mistral":     {class: "MistralForCausalLM", kvHeads: 8, maxPos: 131072, eps: 1e-6, theta: 1e4, extra: (*hfParser).mistral},
	"smollm3":     {class: "SmolLM3ForCausalLM", kvHeads: 4, maxPos: 32768, eps: 1e-6, theta: 2e6, tied: true, biases: true, extra: (*hfParser).smolLM3},
	"qwen2":       {class: "Qwen2ForCausalLM", kvHeads: 32, maxPos: 32768, eps: 1e-6, theta: 1e4, extra: (*hfParser).qwen2},
	"qwen3":       {class: "Qwen3ForCausalLM", kvHeads: 32, headDim: 128, maxPos: 32768, eps: 1e-6, theta: 1e4, biases: true, qkNorm: true, extra: (*hfParser).qwen3},
	"qwen3_moe":   {class: "Qwen3MoeForCausalLM", kvHeads: 4, maxPos: 32768, eps: 1e-6, theta: 1e4, biases: true, qkNorm: true, extra: (*hfParser).qwen3MoE},
	"phi3":        {class: "Phi3ForCausalLM", maxPos: 4096, eps: 1e-5, theta: 1e4, extra: (*hfParser).phi3},
	"gemma2":      {class: "Gemma2ForCausalLM", kvHeads: 4, headDim: 256, maxPos: 8192, eps: 1e-6, theta: 1e4, tied: true, gemma: true, biases: true, extra: (*hfParser).gemma2},
	"gemma3_text": {class: "Gemma3ForCausalLM", vocab: 262208, heads: 8, kvHeads: 4, headDim: 256, maxPos: 131072, eps: 1e-6, theta: 1e6, tied: true, gemma: true, biases: true, qkNorm: true, extra: (*hfParser).gemma3},
	"mixtral":     {class: "MixtralForCausalLM", kvHeads: 8, maxPos: 131072, eps: 1e-5, theta: 1e6, extra: (*hfParser).mixtral},
}

// hfParser turns a hfConfig into a Config, gathering every problem.
type hfParser struct {
	raw  *hfConfig
	fam  hfFamily
	c    Config
	errs []error
}

func (p *hfParser) refuse(format string, args ...any) {
	p.errs = append(p.errs, fmt.Errorf(format, args...))
}

func (p *hfParser) parse() {
	h := p.raw
	fam, ok := hfFamilies[h.ModelType]
	if !ok {
		p.refuse("model_type %q is not implemented (have %v)", h.ModelType, slices.Sorted(maps.Keys(hfFamilies)))
		fam = hfFamilies["llama"]
		fam.extra = func(*hfParser) {}
	}
	p.fam = fam
	p.c = Config{
		ModelType: h.ModelType, VocabSize: or(h.VocabSize, fam.vocab), HiddenSize: h.HiddenSize, IntermediateSize: h.Intermediate,
		NumHiddenLayers: h.Layers, NumAttentionHeads: or(h.Heads, fam.heads),
		MaxPositionEmbeddings: or(h.MaxPos, fam.maxPos), RMSNormEps: or(h.Eps, fam.eps), TieWordEmbeddings: or(h.Tie, fam.tied),
		QKNorm: fam.qkNorm,
	}
	c := &p.c
	switch {
	case h.KVHeads != nil:
		c.NumKeyValueHeads = *h.KVHeads
	case h.has("num_key_value_heads") || fam.kvHeads == 0: // null, too, means as many
		c.NumKeyValueHeads = c.NumAttentionHeads
	default:
		c.NumKeyValueHeads = fam.kvHeads
	}
	switch {
	case h.HeadDim != nil:
		c.HeadDim = *h.HeadDim
	case fam.headDim > 0 && !h.has("head_dim"):
		c.HeadDim = fam.headDim
	case c.NumAttentionHeads > 0:
		c.HeadDim = c.HiddenSize / c.NumAttentionHeads
	}
	p.activation()
	if h.AttnBias {
		if !fam.biases {
			p.refuse("attention_bias true is not implemented for model_type %q", c.ModelType)
		}
		c.QKVBias, c.OutputBias = true, true
	}
	if h.MLPBias {
		p.refuse("mlp_bias true is not implemented")
	}
	if h.Bidirectional {
		p.refuse("use_bidirectional_attention true is not implemented: this is no causal model")
	}
	if !isNull(h.Quantization) {
		p.refuse("quantization_config is not implemented for safetensors: load unquantised weights or a GGUF file")
	}
	if fam.gemma {
		c.NormPlusOne, c.SandwichNorm = true, true
		c.EmbedScale = math.Sqrt(float64(max(c.HiddenSize, 1)))
		c.AttnScale = 1 / math.Sqrt(or(h.QueryPreAttn, 256))
	}
	p.rope()
	fam.extra(p)
	p.c.tidyLayers()
}

// activation reads hidden_act, or what Gemma calls hidden_activation.
func (p *hfParser) activation() {
	name, field, act := "silu", "hidden_act", p.raw.HiddenAct
	if p.fam.gemma {
		name, field, act = "gelu_pytorch_tanh", "hidden_activation", p.raw.HiddenActivation
	}
	name = or(act, name)
	switch name {
	case "silu":
		name = "" // what a plain Llama has
	case "gelu_pytorch_tanh":
	default:
		p.refuse("%s %q is not implemented (have silu, gelu_pytorch_tanh)", field, name)
		name = ""
	}
	p.c.HiddenAct = name
}
