package model

// Config is the architecture of a Llama-family decoder, in the names of HF's
// config.json.
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
}

// Weights are the dequantised f32 base tensors, row-major [out, in] as stored
// by HF. Rope is the half-split (HF) convention: GGUF's interleaved q and k
// rows are permuted back at load.
type Weights struct {
	Embed  []float32 // [vocab, hidden]
	Layers []LayerWeights
	Norm   []float32 // [hidden]
	Head   []float32 // [vocab, hidden]; aliases Embed when tied
}

// LayerWeights are one decoder layer's tensors.
type LayerWeights struct {
	InputNorm []float32 // [hidden]
	Q         []float32 // [heads*headDim, hidden]
	K, V      []float32 // [kvHeads*headDim, hidden]
	O         []float32 // [hidden, heads*headDim]
	PostNorm  []float32 // [hidden]
	Gate, Up  []float32 // [intermediate, hidden]
	Down      []float32 // [hidden, intermediate]
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

// Projection names, in the order they stand in a layer's flat LoRA vector.
var Projections = []string{"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}

// LoRAConfig is a LoRA adapter's shape (Hu et al. 2021, arXiv:2106.09685):
// y = Wx + scale * B(Ax), scale = alpha/r, or alpha/sqrt(r) for rsLoRA.
type LoRAConfig struct {
	Rank    int      `yaml:"rank" json:"r"`
	Alpha   float64  `yaml:"alpha" json:"lora_alpha"`
	RSLoRA  bool     `yaml:"rslora" json:"use_rslora"`
	Targets []string `yaml:"targets" json:"target_modules"` // subset of Projections
}

// Adapter is a LoRA adapter: one flat f32 vector in the order of
// LoRALayout(config, lora): layer by layer, projection by projection (order of
// Projections), A [r, in] then B [out, r].
type Adapter struct {
	LoRA       LoRAConfig
	BaseDigest string
	Params     []float32
}
