//go:build xla

package xla

import (
	"github.com/gomlx/gomlx/pkg/core/dtypes"
	. "github.com/gomlx/gomlx/pkg/core/graph"
)

// A decoder layer on flat rows [N, hidden], forward and backward. The residual
// stream, norms and gradients are f32; operands of products are in dt. Only the
// input and the LoRA vector have gradients.

// layer is one layer's inputs inside a graph.
type layer struct {
	layout
	s    shape
	dt   dtypes.DType
	lora *loraShape

	cos, sin                                  *Node // [N, D/2]
	prompt                                    *Node // [1] i32
	inputNorm, qkv, o, postNorm, gateUp, down *Node
	adapter                                   [numProj]adapterNodes
}

// adapterNodes are A [rank, in] and B*scale [out, rank], in dt.
type adapterNodes struct{ a, b *Node }

// layerParams declares what newLayer reads: cos, sin, prompt, weights, adapter.
func layerParams(l layout, s shape, dt dtypes.DType, lora *loraShape) []param {
	n, half := l.rows(), s.headDim/2
	w := func(dims ...int) param { return param{dt, dims} }
	return []param{
		f32Param(n, half), f32Param(n, half), i32Param(1),
		f32Param(s.hidden), w(s.qkvDim(), s.hidden), w(s.hidden, s.qDim()),
		f32Param(s.hidden), w(2*s.inter, s.hidden), w(s.hidden, s.inter),
		f32Param(lora.size),
	}
}

func newLayer(l layout, s shape, dt dtypes.DType, lora *loraShape, in []*Node) *layer {
	y := &layer{layout: l, s: s, dt: dt, lora: lora,
		cos: in[0], sin: in[1], prompt: in[2],
		inputNorm: in[3], qkv: in[4], o: in[5], postNorm: in[6], gateUp: in[7], down: in[8]}
	flat := in[9]
	for p, part := range lora.part {
		if !part.on {
			continue
		}
		a := Reshape(cut(flat, 0, part.a, part.b), lora.rank, part.in)
		b := Reshape(cut(flat, 0, part.b, part.b+part.out*lora.rank), part.out, lora.rank)
		y.adapter[p] = adapterNodes{y.low(a), y.low(MulScalar(b, lora.scale))}
	}
	return y
}

func (y *layer) low(x *Node) *Node { return ConvertDType(x, y.dt) }

// linear is x·wᵀ, cut into parts of the given widths with the adapters of
// projections first, first+1, ... added. x is in dt, parts are f32.
func (y *layer) linear(x, w *Node, first int, widths ...int) []*Node {
	all := matABt(x, w)
	out := make([]*Node, len(widths))
	at := 0
	for i, width := range widths {
		out[i] = cut(all, 1, at, at+width)
		at += width
		if ad := y.adapter[first+i]; ad.a != nil {
			out[i] = Add(out[i], matABt(y.low(matABt(x, ad.a)), ad.b))
		}
	}
	return out
}

// linearBack gives dx f32 from the parts' gradients, and stores the adapters'.
func (y *layer) linearBack(x, w *Node, first int, d []*Node, grads *[numProj]adapterNodes) *Node {
	whole := d[0]
	if len(d) > 1 {
		whole = Concatenate(d, 1)
	}
	dx := matAB(y.low(whole), w)
	for i := range d {
		ad := y.adapter[first+i]
		if ad.a == nil {
			continue
		}
		di, u := y.low(d[i]), y.low(matABt(x, ad.a))
		du := y.low(matAB(di, ad.b))
		grads[first+i] = adapterNodes{matAtB(du, x), MulScalar(matAtB(di, u), y.lora.scale)}
		dx = Add(dx, matAB(du, ad.a))
	}
	return dx
}

// norm is RMS normalisation with what its backward needs.
type norm struct{ unit, inv, w, out *Node }

func rmsNorm(x, w *Node, eps float64) norm {
	inv := Rsqrt(AddScalar(ReduceAndKeep(Square(x), ReduceMean, -1), eps))
	unit := Mul(x, inv)
	return norm{unit, inv, w, Mul(unit, ExpandLeftToRank(w, x.Rank()))}
}

func (n norm) back(d *Node) *Node {
	du := Mul(d, ExpandLeftToRank(n.w, d.Rank()))
	return Mul(n.inv, Sub(du, Mul(n.unit, ReduceAndKeep(Mul(du, n.unit), ReduceMean, -1))))
}

// rotate applies rotary embedding to x [N, heads*D]; with sin negated it is its
// own transpose.
func (y *layer) rotate(x, sin *Node, heads int) *Node {
	n, half := x.Shape().Dim(0), y.s.headDim/2
	x = Reshape(x, n, heads, 2*half)
	cos, sin := InsertAxes(y.cos, 1), InsertAxes(sin, 1)
	a, b := cut(x, 2, 0, half), cut(x, 2, half, 2*half)
	return Reshape(Concatenate([]*Node{Sub(Mul(a, cos), Mul(b, sin)), Add(Mul(b, cos), Mul(a, sin))}, 2), n, heads*2*half)
}

// trace is the forward pass of a layer.
type trace struct {
	norm1, norm2 norm
	h1, h2       *Node // norms' outputs in dt
	attn         *attention
	o            *Node // attention's output in dt
	gate, up     *Node
	act          *Node // in dt
	out          *Node
}

func (y *layer) forward(x *Node) trace {
	s := y.s
	var t trace
	t.norm1 = rmsNorm(x, y.inputNorm, s.eps)
	t.h1 = y.low(t.norm1.out)
	qkv := y.linear(t.h1, y.qkv, projQ, s.qDim(), s.kvDim(), s.kvDim())
	q := MulScalar(y.rotate(qkv[0], y.sin, s.heads), s.qScale())
	k := y.rotate(qkv[1], y.sin, s.kv)
	var o *Node
	o, t.attn = attend(y.layout, s, y.low(q), y.low(k), y.low(qkv[2]), y.prompt)
	t.o = y.low(o)
	x = Add(x, y.linear(t.o, y.o, projO, s.hidden)[0])
	t.norm2 = rmsNorm(x, y.postNorm, s.eps)
	t.h2 = y.low(t.norm2.out)
	gu := y.linear(t.h2, y.gateUp, projGate, s.inter, s.inter)
	t.gate, t.up = gu[0], gu[1]
	t.act = y.low(Mul(Mul(t.gate, Sigmoid(t.gate)), t.up))
	t.out = Add(x, y.linear(t.act, y.down, projDown, s.hidden)[0])
	return t
}

// backward recomputes the layer from its input and gives the gradients of the
// input [N, hidden] and of the flat LoRA vector, f32.
func (y *layer) backward(x, d *Node) (dx, flat *Node) {
	s, t := y.s, y.forward(x)
	var grads [numProj]adapterNodes
	dact := y.linearBack(t.act, y.down, projDown, []*Node{d}, &grads)
	sig := Sigmoid(t.gate)
	dup := Mul(dact, Mul(t.gate, sig))
	// d/dg g·σ(g) = σ(g)(1 + g(1-σ(g)))
	dgate := Mul(Mul(dact, t.up), Mul(sig, OnePlus(Mul(t.gate, OneMinus(sig)))))
	d = Add(d, t.norm2.back(y.linearBack(t.h2, y.gateUp, projGate, []*Node{dgate, dup}, &grads)))
	do := y.linearBack(t.o, y.o, projO, []*Node{d}, &grads)
	dq, dk, dv := t.attn.back(do)
	minus := Neg(y.sin)
	dq = y.rotate(MulScalar(dq, s.qScale()), minus, s.heads)
	dk = y.rotate(dk, minus, s.kv)
	d = Add(d, t.norm1.back(y.linearBack(t.h1, y.qkv, projQ, []*Node{dq, dk, dv}, &grads)))
	var parts []*Node
	for _, g := range grads {
		if g.a != nil {
			parts = append(parts, Reshape(g.a, -1), Reshape(g.b, -1))
		}
	}
	return d, Concatenate(parts, 0)
}
