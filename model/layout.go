package model

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// projection says where one linear projection stands in a layer.
type projection struct {
	name    string // q_proj
	block   string // self_attn or mlp
	out, in func(Config) int
	weight  func(*LayerWeights) *[]float32
}

func qDim(c Config) int  { return c.NumAttentionHeads * c.HeadDim }
func kvDim(c Config) int { return c.NumKeyValueHeads * c.HeadDim }
func hid(c Config) int   { return c.HiddenSize }
func inter(c Config) int { return c.IntermediateSize }

// plainProjections is in the order of Projections.
var plainProjections = []projection{
	{"q_proj", "self_attn", qDim, hid, func(l *LayerWeights) *[]float32 { return &l.Q }},
	{"k_proj", "self_attn", kvDim, hid, func(l *LayerWeights) *[]float32 { return &l.K }},
	{"v_proj", "self_attn", kvDim, hid, func(l *LayerWeights) *[]float32 { return &l.V }},
	{"o_proj", "self_attn", hid, qDim, func(l *LayerWeights) *[]float32 { return &l.O }},
	{"gate_proj", "mlp", inter, hid, func(l *LayerWeights) *[]float32 { return &l.Gate }},
	{"up_proj", "mlp", inter, hid, func(l *LayerWeights) *[]float32 { return &l.Up }},
	{"down_proj", "mlp", hid, inter, func(l *LayerWeights) *[]float32 { return &l.Down }},
}

// fusedProjections are Phi-3's.
var fusedProjections = []projection{
	{"qkv_proj", "self_attn", func(c Config) int { return qDim(c) + 2*kvDim(c) }, hid, func(l *LayerWeights) *[]float32 { return &l.QKV }},
	plainProjections[3],
	{"gate_up_proj", "mlp", func(c Config) int { return 2 * inter(c) }, hid, func(l *LayerWeights) *[]float32 { return &l.GateUp }},
	plainProjections[6],
}

// attention and mlp list a dense layer's matrices.
func (c Config) attention() []projection {
	if c.FusedProjections {
		return fusedProjections[:2]
	}
	return plainProjections[:4]
}

func (c Config) mlp() []projection {
	if c.FusedProjections {
		return fusedProjections[2:]
	}
	return plainProjections[4:]
}

// projections lists the matrices that every layer has and LoRA can adapt.
// Experts, routers and the dense layers among mixtures are not adapted.
func (c Config) projections() []projection {
	if c.Experts > 0 {
		return c.attention()
	}
	return slices.Concat(c.attention(), c.mlp())
}

// Projections names the matrices of this architecture that LoRA can adapt, in
// the order they stand in a layer's flat vector.
func (c Config) Projections() []string {
	var out []string
	for _, p := range c.projections() {
		out = append(out, p.name)
	}
	return out
}

// ProjectionShape gives the [out, in] shape of a projection by name.
func ProjectionShape(c Config, name string) (out, in int, err error) {
	for _, p := range c.projections() {
		if p.name == name {
			return p.out(c), p.in(c), nil
		}
	}
	return 0, 0, fmt.Errorf("model: unknown projection %q (this model has %v)", name, c.Projections())
}

// slot is a base tensor: its HF name, its name in GGUF, shape, and place in
// Weights.
type slot struct {
	name  string
	gguf  string
	shape []int
	data  *[]float32
	// norm: an RMSNorm's factor, see Config.NormPlusOne.
	norm bool
	// expert and experts: in GGUF the tensor is the expert-th of so many in one.
	expert, experts int
	// ropeHeads: rows of that many heads, which GGUF's llama permutes.
	ropeHeads int
}

// slots lists every base tensor of w in FullLayout's order. w must have its
// Layers allocated; those of experts are allocated here when they are not.
func slots(c Config, w *Weights) []slot {
	out := []slot{{name: "model.embed_tokens.weight", gguf: "token_embd.weight", shape: []int{c.VocabSize, c.HiddenSize}, data: &w.Embed}}
	for i := range w.Layers {
		out = c.layerSlots(out, i, &w.Layers[i])
	}
	out = append(out, slot{name: "model.norm.weight", gguf: "output_norm.weight", shape: []int{c.HiddenSize}, data: &w.Norm, norm: true})
	if !c.TieWordEmbeddings {
		out = append(out, slot{name: "lm_head.weight", gguf: "output.weight", shape: []int{c.VocabSize, c.HiddenSize}, data: &w.Head})
	}
	return out
}

// ggufParts maps projections to GGUF's names.
var ggufParts = map[string]string{
	"q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output", "qkv_proj": "attn_qkv",
	"gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down", "gate_up_proj": "ffn_up",
}

// layerSlots appends one layer's.
func (c Config) layerSlots(out []slot, layer int, l *LayerWeights) []slot {
	pre, gguf := "model.layers."+strconv.Itoa(layer)+".", "blk."+strconv.Itoa(layer)+"."
	norm := func(name, ggufName string, size int, data *[]float32) {
		out = append(out, slot{name: pre + name + ".weight", gguf: gguf + ggufName + ".weight", shape: []int{size}, data: data, norm: true})
	}
	matrix := func(p projection) {
		s := slot{name: pre + p.block + "." + p.name + ".weight", gguf: gguf + ggufParts[p.name] + ".weight", shape: []int{p.out(c), p.in(c)}, data: p.weight(l)}
		bias := s
		switch p.name {
		case "q_proj":
			s.ropeHeads, bias.data = c.NumAttentionHeads, &l.QBias
		case "k_proj":
			s.ropeHeads, bias.data = c.NumKeyValueHeads, &l.KBias
		case "v_proj":
			bias.data = &l.VBias
		case "o_proj":
			bias.data = &l.OBias
		}
		out = append(out, s)
		if p.block == "self_attn" && (c.OutputBias && p.name == "o_proj" || c.QKVBias && p.name != "o_proj") {
			bias.name, bias.gguf = strings.TrimSuffix(s.name, "weight")+"bias", strings.TrimSuffix(s.gguf, "weight")+"bias"
			bias.shape, bias.ropeHeads = s.shape[:1], s.ropeHeads
			out = append(out, bias)
		}
	}
	norm("input_layernorm", "attn_norm", c.HiddenSize, &l.InputNorm)
	for _, p := range c.attention() {
		matrix(p)
	}
	if c.QKNorm {
		norm("self_attn.q_norm", "attn_q_norm", c.HeadDim, &l.QNorm)
		norm("self_attn.k_norm", "attn_k_norm", c.HeadDim, &l.KNorm)
	}
	if c.SandwichNorm {
		norm("post_attention_layernorm", "post_attention_norm", c.HiddenSize, &l.AttnOutNorm)
		norm("pre_feedforward_layernorm", "ffn_norm", c.HiddenSize, &l.PostNorm)
	} else {
		norm("post_attention_layernorm", "ffn_norm", c.HiddenSize, &l.PostNorm)
	}
	if c.MoE(layer) {
		out = c.expertSlots(out, pre, gguf, l)
	} else {
		for _, p := range c.mlp() {
			matrix(p)
		}
	}
	if c.SandwichNorm {
		norm("post_feedforward_layernorm", "post_ffw_norm", c.HiddenSize, &l.MLPOutNorm)
	}
	return out
}

// expertSlots appends the router and every expert's gate, up and down.
func (c Config) expertSlots(out []slot, pre, gguf string, l *LayerWeights) []slot {
	block, gate, up, down := "mlp", "gate_proj", "up_proj", "down_proj"
	if c.ModelType == "mixtral" {
		block, gate, up, down = "block_sparse_moe", "w1", "w3", "w2"
	}
	out = append(out, slot{name: pre + block + ".gate.weight", gguf: gguf + "ffn_gate_inp.weight", shape: []int{c.Experts, c.HiddenSize}, data: &l.Router})
	if len(l.Experts) != c.Experts {
		l.Experts = make([]ExpertWeights, c.Experts)
	}
	for e := range l.Experts {
		x := &l.Experts[e]
		add := func(name, ggufName string, rows, cols int, data *[]float32) {
			out = append(out, slot{
				name: pre + block + ".experts." + strconv.Itoa(e) + "." + name + ".weight", gguf: gguf + ggufName + ".weight",
				shape: []int{rows, cols}, data: data, expert: e, experts: c.Experts,
			})
		}
		add(gate, "ffn_gate_exps", c.ExpertSize, c.HiddenSize, &x.Gate)
		add(up, "ffn_up_exps", c.ExpertSize, c.HiddenSize, &x.Up)
		add(down, "ffn_down_exps", c.HiddenSize, c.ExpertSize, &x.Down)
	}
	return out
}

// alias sets what is not stored by itself: a tied head, and the parts of fused
// projections.
func (w *Weights) alias(c Config) {
	if c.TieWordEmbeddings {
		w.Head = w.Embed
	}
	for i := range w.Layers {
		w.Layers[i].alias(c)
	}
}

func (l *LayerWeights) alias(c Config) {
	if !c.FusedProjections {
		return
	}
	q, kv, mid := qDim(c)*c.HiddenSize, kvDim(c)*c.HiddenSize, c.IntermediateSize*c.HiddenSize
	l.Q, l.K, l.V = l.QKV[:q:q], l.QKV[q:q+kv:q+kv], l.QKV[q+kv:]
	l.Gate, l.Up = l.GateUp[:mid:mid], l.GateUp[mid:]
}

// FullLayout is the order of all base weights in one flat vector, under their
// HF names: the embedding; for each layer input norm, q, k, v, o (or fused qkv
// and o; each followed by its bias), q and k norms, norm of attention's output,
// norm before the MLP, gate, up, down (or fused gate_up and down; or router and
// for each expert gate, up, down), norm of the MLP's output; the final norm; the
// head unless tied. It is the parameter vector of full fine-tuning.
func FullLayout(c Config) Layout {
	w := Weights{Layers: make([]LayerWeights, c.NumHiddenLayers)}
	var out Layout
	at := 0
	for _, s := range slots(c, &w) {
		p := Param{Name: s.name, Shape: s.shape, Offset: at}
		at += p.Len()
		out = append(out, p)
	}
	return out
}

// Flatten copies the weights, or reads them, into one vector in FullLayout's
// order.
func (w *Weights) Flatten(c Config) ([]float32, error) {
	if s := w.stored; s != nil {
		out := make([]float32, FullLayout(s.c).Size())
		return out, s.use(func() error { return s.flatten(out) })
	}
	if len(w.Layers) != c.NumHiddenLayers {
		return nil, fmt.Errorf("model: flatten: weights have %d layers, configuration %d", len(w.Layers), c.NumHiddenLayers)
	}
	out := make([]float32, 0, FullLayout(c).Size())
	for _, s := range slots(c, w) {
		if len(*s.data) != shapeLen(s.shape) {
			return nil, fmt.Errorf("model: flatten: tensor %q has %d elements, shape %v wants %d", s.name, len(*s.data), s.shape, shapeLen(s.shape))
		}
		out = append(out, *s.data...)
	}
	return out, nil
}

// UnflattenWeights gives the weights inside a flat vector of FullLayout's
// order. They alias flat: a change of either is seen by the other.
func UnflattenWeights(c Config, flat []float32) (*Weights, error) {
	if want := FullLayout(c).Size(); len(flat) != want {
		return nil, fmt.Errorf("model: unflatten: vector has %d elements, the configuration wants %d", len(flat), want)
	}
	w := &Weights{Layers: make([]LayerWeights, c.NumHiddenLayers)}
	at := 0
	for _, s := range slots(c, w) {
		n := shapeLen(s.shape)
		*s.data = flat[at : at+n : at+n]
		at += n
	}
	w.alias(c)
	return w, nil
}
