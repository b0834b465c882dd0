//go:build xla

package xla

import (
	"slices"

	"github.com/skein-rl/skein/model"
)

// shape is the architecture under short names. Layers differ by kind only.
type shape struct {
	vocab, hidden, inter, layers int
	heads, kv, headDim           int
	eps                          float64
	tied                         bool

	gelu, qkvBias, oBias, qkNorm, sandwich bool

	embedScale, scoreScale float64
	attnCap, logitCap      float64 // 0 = off

	experts, topK, expertSize int
	normTopK                  bool

	kinds []layerKind       // of each layer
	ropes []model.RopeTable // the distinct ones
	proj  []projection      // in the order of a layer's flat LoRA vector
}

// layerKind is what may differ between the layers of a model; layers of one kind
// share their training programs.
type layerKind struct {
	window int // positions seen, one's own included; 0 = all
	rope   int // index in shape.ropes; -1 = no positions
	moe    bool
}

// projection is a matrix that LoRA adapts: columns lo to lo+out of the result of
// a layer's fused matrix.
type projection struct {
	name, matrix string
	lo, out, in  int
}

func shapeOf(c model.Config) shape {
	s := shape{
		vocab: c.VocabSize, hidden: c.HiddenSize, inter: c.IntermediateSize, layers: c.NumHiddenLayers,
		heads: c.NumAttentionHeads, kv: c.NumKeyValueHeads, headDim: c.HeadDim,
		eps: c.RMSNormEps, tied: c.TieWordEmbeddings,
		gelu: c.HiddenAct == "gelu_pytorch_tanh", qkvBias: c.QKVBias, oBias: c.OutputBias, qkNorm: c.QKNorm, sandwich: c.SandwichNorm,
		embedScale: c.EmbedScale, scoreScale: c.ScoreScale(), attnCap: c.AttnSoftcap, logitCap: c.LogitSoftcap,
		experts: c.Experts, topK: c.ExpertsPerToken, expertSize: c.ExpertSize, normTopK: c.NormTopK,
	}
	if s.embedScale == 0 {
		s.embedScale = 1
	}
	for l := range s.layers {
		s.kinds = append(s.kinds, layerKind{c.Window(l), s.ropeIndex(c.Rope(l)), c.MoE(l)})
	}
	places := map[string]projection{
		"q_proj":       {"", "qkv", 0, s.qDim(), s.hidden},
		"k_proj":       {"", "qkv", s.qDim(), s.kvDim(), s.hidden},
		"v_proj":       {"", "qkv", s.qDim() + s.kvDim(), s.kvDim(), s.hidden},
		"qkv_proj":     {"", "qkv", 0, s.qkvDim(), s.hidden},
		"o_proj":       {"", "o", 0, s.hidden, s.qDim()},
		"gate_proj":    {"", "gate_up", 0, s.inter, s.hidden},
		"up_proj":      {"", "gate_up", s.inter, s.inter, s.hidden},
		"gate_up_proj": {"", "gate_up", 0, 2 * s.inter, s.hidden},
		"down_proj":    {"", "down", 0, s.hidden, s.inter},
	}
	for _, name := range c.Projections() {
		p := places[name]
		p.name = name
		s.proj = append(s.proj, p)
	}
	return s
}

// ropeIndex finds or adds a table.
func (s *shape) ropeIndex(t model.RopeTable) int {
	if len(t.Inv) == 0 {
		return -1
	}
	for i, have := range s.ropes {
		if have.Scale == t.Scale && slices.Equal(have.Inv, t.Inv) {
			return i
		}
	}
	s.ropes = append(s.ropes, t)
	return len(s.ropes) - 1
}

func (s shape) qDim() int   { return s.heads * s.headDim }
func (s shape) kvDim() int  { return s.kv * s.headDim }
func (s shape) qkvDim() int { return s.qDim() + 2*s.kvDim() }
func (s shape) rep() int    { return s.heads / s.kv }

// width is the inner width of a layer's MLP: all experts side by side in a
// mixture.
func (s shape) width(k layerKind) int {
	if k.moe {
		return s.experts * s.expertSize
	}
	return s.inter
}

// tensor is one base tensor of a layer on the device: in the compute type, or in
// f32 (vectors and the router).
type tensor struct {
	name string
	low  bool
	dims []int
}

// tensors lists a layer's base tensors in the order programs take them.
func (s shape) tensors(k layerKind) []tensor {
	w := s.width(k)
	out := []tensor{
		{"input_norm", false, []int{s.hidden}},
		{"qkv", true, []int{s.qkvDim(), s.hidden}},
		{"o", true, []int{s.hidden, s.qDim()}},
		{"post_norm", false, []int{s.hidden}},
		{"gate_up", true, []int{2 * w, s.hidden}},
		{"down", true, []int{s.hidden, w}},
	}
	add := func(on bool, name string, dims ...int) {
		if on {
			out = append(out, tensor{name, false, dims})
		}
	}
	add(s.qkvBias, "qkv_bias", s.qkvDim())
	add(s.oBias, "o_bias", s.hidden)
	add(s.qkNorm, "q_norm", s.headDim)
	add(s.qkNorm, "k_norm", s.headDim)
	add(s.sandwich, "attn_out_norm", s.hidden)
	add(s.sandwich, "mlp_out_norm", s.hidden)
	add(k.moe, "router", s.experts, s.hidden)
	return out
}

// bucket is the smallest size that holds n; beyond the last it goes on in steps
// of a quarter of the last.
func bucket(n int, sizes []int) int {
	for _, s := range sizes {
		if n <= s {
			return s
		}
	}
	step := max(1, sizes[len(sizes)-1]/4)
	return (n + step - 1) / step * step
}
