package model

import (
	"fmt"
	"strconv"
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

// projections lists a layer's adaptable matrices. Experts and routers are not
// adapted.
func (c Config) projections() []projection {
	switch {
	case c.FusedProjections:
		return fusedProjections
	case c.Experts > 0:
		return plainProjections[:4]
	}
	return plainProjections
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

// slot is a base tensor: its HF name, shape, and place in Weights.
type slot struct {
	name  string
	shape []int
	data  *[]float32
}

// slots lists every base tensor of w in FullLayout's order. w must have its
// Layers allocated.
func slots(c Config, w *Weights) []slot {
	out := []slot{{"model.embed_tokens.weight", []int{c.VocabSize, c.HiddenSize}, &w.Embed}}
	for i := range w.Layers {
		l := &w.Layers[i]
		pre := "model.layers." + strconv.Itoa(i) + "."
		out = append(out, slot{pre + "input_layernorm.weight", []int{c.HiddenSize}, &l.InputNorm})
		for _, p := range c.projections() {
			if p.name == "gate_proj" {
				out = append(out, slot{pre + "post_attention_layernorm.weight", []int{c.HiddenSize}, &l.PostNorm})
			}
			out = append(out, slot{pre + p.block + "." + p.name + ".weight", []int{p.out(c), p.in(c)}, p.weight(l)})
		}
	}
	out = append(out, slot{"model.norm.weight", []int{c.HiddenSize}, &w.Norm})
	if !c.TieWordEmbeddings {
		out = append(out, slot{"lm_head.weight", []int{c.VocabSize, c.HiddenSize}, &w.Head})
	}
	return out
}

// FullLayout is the order of all base weights in one flat vector, under their
// HF names: the embedding; for each layer input norm, q, k, v, o, post norm,
// gate, up, down; the final norm; the head unless tied. It is the parameter
// vector of full fine-tuning.
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

// Flatten copies the weights into one vector in FullLayout's order.
func (w *Weights) Flatten(c Config) ([]float32, error) {
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
	if c.TieWordEmbeddings {
		w.Head = w.Embed
	}
	return w, nil
}
