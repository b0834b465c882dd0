package model

// Config is the architecture of a decoder: the Llama family and its relatives,
// in the names of HF's config.json where it has one. Zero values of the fields
// after EOSTokenID mean a plain Llama.
type Config struct {
	ModelType             string  `json:"model_type"`
	VocabSize             int     `json:"vocab_size"`
	HiddenSize            int     `json:"hidden_size"`
	IntermediateSize      int     `json:"intermediate_size"`
	NumHiddenLayers       int     `json:"num_hidden_layers"`
	NumAttentionHeads     int     `json:"num_attention_heads"`
	NumKeyValueHeads      int     `json:"num_key_value_heads"`
	HeadDim               int     `json:"head_dim"`
	MaxPositionEmbeddings int     `json:"max_position_embeddings"`
	RMSNormEps            float64 `json:"rms_norm_eps"`
	RopeTheta             float64 `json:"rope_theta"`
	TieWordEmbeddings     bool    `json:"tie_word_embeddings"`
	BOSTokenID            int32   `json:"bos_token_id"` // -1 = none
	EOSTokenID            int32   `json:"eos_token_id"` // -1 = none

	// HiddenAct is the gate's activation: "" or "silu", or "gelu_pytorch_tanh".
	HiddenAct string `json:"hidden_act,omitempty"`
	// QKVBias and OutputBias: the attention projections have biases (Qwen2 has
	// the first only, Llama's attention_bias both).
	QKVBias    bool `json:"qkv_bias,omitempty"`
	OutputBias bool `json:"output_bias,omitempty"`
	// QKNorm: RMSNorm over each head of q and k before rope (Qwen3, Gemma 3).
	QKNorm bool `json:"qk_norm,omitempty"`
	// SandwichNorm: attention and MLP outputs are normed before they are added
	// to the residual (Gemma 2 and 3).
	SandwichNorm bool `json:"sandwich_norm,omitempty"`
	// NormPlusOne: HF files store norm weights minus one (Gemma). Weights hold
	// the effective factor; only reading and writing files adds or subtracts 1.
	NormPlusOne bool `json:"norm_plus_one,omitempty"`
	// EmbedScale multiplies embeddings; 0 means 1. AttnScale multiplies scores;
	// 0 means 1/sqrt(head_dim).
	EmbedScale float64 `json:"embed_scale,omitempty"`
	AttnScale  float64 `json:"attn_scale,omitempty"`
	// AttnSoftcap and LogitSoftcap c turn x into c*tanh(x/c) (Gemma 2); 0 = off.
	AttnSoftcap  float64 `json:"attn_softcap,omitempty"`
	LogitSoftcap float64 `json:"logit_softcap,omitempty"`
	// SlidingWindow w: in window layers position i sees i-w+1 to i. 0 = off.
	// FullLayers marks the layers without it; nil = none, every layer has it.
	SlidingWindow int    `json:"sliding_window,omitempty"`
	FullLayers    []bool `json:"full_layers,omitempty"`
	// RotaryDim is how many leading numbers of a head are rotated; 0 = all.
	RotaryDim int `json:"rotary_dim,omitempty"`
	// LocalRopeTheta is rope's base in window layers, which then have no
	// scaling (Gemma 3); 0 = as everywhere.
	LocalRopeTheta float64 `json:"local_rope_theta,omitempty"`
	// NoRopeLayers marks layers without positions (SmolLM3); nil = none.
	NoRopeLayers []bool      `json:"no_rope_layers,omitempty"`
	RopeScaling  RopeScaling `json:"rope_scaling,omitzero"`
	// FusedProjections: files, LoRA targets and parameter layouts have qkv_proj
	// and gate_up_proj instead of five matrices (Phi-3). Weights then hold both:
	// Q, K, V alias QKV and Gate, Up alias GateUp.
	FusedProjections bool `json:"fused_projections,omitempty"`
	// Experts > 0: a mixture of experts in every layer not in DenseLayers. Each
	// token runs through ExpertsPerToken of them, weighted by the router's
	// softmax, renormalised over those when NormTopK. ExpertSize is their inner width.
	Experts         int    `json:"num_experts,omitempty"`
	ExpertsPerToken int    `json:"num_experts_per_tok,omitempty"`
	ExpertSize      int    `json:"moe_intermediate_size,omitempty"`
	NormTopK        bool   `json:"norm_topk_prob,omitempty"`
	DenseLayers     []bool `json:"dense_layers,omitempty"`
}

// Weights are the dequantised f32 base tensors, row-major [out, in] as stored
// by HF. Rope is the half-split (HF) convention: GGUF's interleaved q and k
// rows are permuted back when read. Norm weights are effective factors (see
// Config.NormPlusOne).
//
// Those of an opened model stay in its files, until Load: then only Norm is set
// and Layers are empty, and Layer, EmbedRows and HeadRows read what is asked for
// each time. They work alike on weights in memory, and may be called at the same
// time.
type Weights struct {
	Embed  []float32 // [vocab, hidden]
	Layers []LayerWeights
	Norm   []float32 // [hidden]
	Head   []float32 // [vocab, hidden]; aliases Embed when tied

	stored *stored // nil: in memory
}

// LayerWeights are one decoder layer's tensors; those that the architecture
// does not have are nil.
type LayerWeights struct {
	InputNorm           []float32 // [hidden]
	Q                   []float32 // [heads*headDim, hidden]
	K, V                []float32 // [kvHeads*headDim, hidden]
	O                   []float32 // [hidden, heads*headDim]
	QBias, KBias, VBias []float32 // [heads*headDim], [kvHeads*headDim] twice
	OBias               []float32 // [hidden]
	QNorm, KNorm        []float32 // [headDim]
	AttnOutNorm         []float32 // [hidden], SandwichNorm: after attention
	PostNorm            []float32 // [hidden], before the MLP
	Gate, Up            []float32 // [intermediate, hidden]
	Down                []float32 // [hidden, intermediate]
	MLPOutNorm          []float32 // [hidden], SandwichNorm: after the MLP
	QKV, GateUp         []float32 // FusedProjections: what Q, K, V and Gate, Up alias
	Router              []float32 // [experts, hidden]
	Experts             []ExpertWeights
}

// ExpertWeights are one expert's MLP.
type ExpertWeights struct {
	Gate, Up []float32 // [expertSize, hidden]
	Down     []float32 // [hidden, expertSize]
}

// Model is a loaded base: weights, tokenizer and chat template, with the
// digest that adapters and checkpoints are bound to.
type Model struct {
	Name      string
	Config    Config
	Weights   *Weights
	Tokenizer *Tokenizer
	Template  *ChatTemplate
	// StopIDs end a generation: every end-of-sequence id that the model's files
	// name (config.json, generation_config.json or GGUF metadata).
	StopIDs []int32
	Digest  string // "blake3:<hex>" over config and tensors as loaded
}

// Projections are the usual projection names, in the order they stand in a
// layer's flat LoRA vector. What a model has is for Config.Projections to say.
var Projections = []string{"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}

// LoRAConfig is a LoRA adapter's shape (Hu et al. 2021, arXiv:2106.09685):
// y = Wx + scale * B(Ax), scale = alpha/r, or alpha/sqrt(r) for rsLoRA, with
// each module's own r and alpha; see LoRAModules.
type LoRAConfig struct {
	Rank    int      `yaml:"rank" json:"r"`
	Alpha   float64  `yaml:"alpha" json:"lora_alpha"`
	RSLoRA  bool     `yaml:"rslora" json:"use_rslora"`
	Targets []string `yaml:"targets" json:"target_modules"` // of Config.Projections, or AllLinear alone
	// RankPattern and AlphaPattern give modules a rank and an alpha of their own.
	RankPattern  Pattern[int]     `yaml:"rank_pattern,omitempty" json:"rank_pattern,omitempty"`
	AlphaPattern Pattern[float64] `yaml:"alpha_pattern,omitempty" json:"alpha_pattern,omitempty"`
}

// Adapter is what a training makes of a base: a LoRA adapter, one flat f32 vector
// in the order of LoRAModules, or, when Full, all weights in the order of
// FullLayout, which take the base's place.
type Adapter struct {
	LoRA       LoRAConfig // zero when Full
	Full       bool
	BaseDigest string
	Params     []float32
	// Score is a value head's weights [hidden] (TrainerConfig.Value); nil = none.
	// Decoders don't read it.
	Score []float32
	// BF16: Params and Score are bfloat16 numbers, and Encode writes them so, in
	// half the bytes (Adapter.RoundBF16).
	BF16 bool
}
