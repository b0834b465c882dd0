package gobackend

import (
	"math"

	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/model/internal/f32"
)

// dims are the sizes and constants of a model, spelled out once.
type dims struct {
	layers, vocab, hidden   int
	heads, kvHeads, headDim int
	group                   int // query heads per key/value head
	q, kv, qkv              int // widths of q, of k or v, and of the fused projection
	hdPad                   int // headDim padded to a panel
	mlp                     int // widest MLP of a layer, of all of a token's experts together
	experts, chosen         int // experts of a mixture layer, and how many a token runs through
	normTopK                bool
	qkNorm, sandwich        bool
	gate                    gate
	eps                     float32
	embedScale              float32
	scale                   float32 // on attention scores
	attnCap, logitCap       float32 // soft caps, 0 = none
}

func newDims(c model.Config) dims {
	d := dims{
		layers: c.NumHiddenLayers, vocab: c.VocabSize, hidden: c.HiddenSize,
		heads: c.NumAttentionHeads, kvHeads: c.NumKeyValueHeads, headDim: c.HeadDim,
		experts: c.Experts, chosen: c.ExpertsPerToken, normTopK: c.NormTopK,
		qkNorm: c.QKNorm, sandwich: c.SandwichNorm, gate: gate{gelu: c.HiddenAct == "gelu_pytorch_tanh"},
		eps: float32(c.RMSNormEps), embedScale: 1, scale: float32(c.ScoreScale()),
		attnCap: float32(c.AttnSoftcap), logitCap: float32(c.LogitSoftcap),
	}
	if c.EmbedScale > 0 {
		d.embedScale = float32(c.EmbedScale)
	}
	d.group = d.heads / d.kvHeads
	d.q, d.kv = d.heads*d.headDim, d.kvHeads*d.headDim
	d.qkv = d.q + 2*d.kv
	d.hdPad = f32.Pad(d.headDim)
	for l := range d.layers {
		if c.MoE(l) {
			d.mlp = max(d.mlp, c.ExpertsPerToken*c.ExpertSize)
		} else {
			d.mlp = max(d.mlp, c.IntermediateSize)
		}
	}
	return d
}

// net holds weights in the form the kernels want. It is read-only after
// newNet.
type net struct {
	dims
	embed  linear    // [V, H]
	norm   []float32 // [H]
	layers []layer
	head   linear // [V, H]; embed when tied
	ropes  ropes
}

// layer is one decoder layer: projections that share an input are fused. Norms
// that the model does not have are nil.
type layer struct {
	inNorm, postNorm  []float32 // [H] before attention and before the MLP
	attnNorm, mlpNorm []float32 // [H] after them (sandwich)
	qNorm, kNorm      []float32 // [D]
	qkv               linear    // q, k, v
	o                 linear
	dense             expert // the MLP, unless moe
	moe               *moe
	rope              *rope
	window            int // positions a query sees, 0 = all
}

// expert is a gated MLP.
type expert struct {
	gateUp, down linear // gate, up
}

// inner is its width F.
func (e *expert) inner() int { return e.down.in }

// linear is a projection y = Wx + bias, W [out, in].
type linear struct {
	out, in int
	w       f32.Matrix
	bias    []float32 // [out] or nil
}

// linears visits every matrix but the head.
func (n *net) linears(f func(linear)) {
	for i := range n.layers {
		n.layers[i].linears(f)
	}
}

// linears visits every matrix of a layer.
func (l *layer) linears(f func(linear)) {
	f(l.qkv)
	f(l.o)
	if l.moe == nil {
		f(l.dense.gateUp)
		f(l.dense.down)
		return
	}
	f(l.moe.router)
	for _, e := range l.moe.experts {
		f(e.gateUp)
		f(e.down)
	}
}

// bytes is the size of the packed weights.
func (n *net) bytes() int64 {
	total := n.head.w.Bytes()
	n.linears(func(l linear) { total += l.w.Bytes() })
	return total
}

// rmsScale is 1/rms(x) with eps under the root (Zhang & Sennrich 2019,
// arXiv:1910.07467, equation 4).
func rmsScale(x []float32, eps float32) float32 {
	square := f32.Dot(x, x)
	if square > math.MaxFloat32 {
		square = float32(math.NaN()) // an overflow must not pass as a row of zeros
	}
	return 1 / float32(math.Sqrt(float64(square/float32(len(x))+eps)))
}
