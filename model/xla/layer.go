//go:build xla

package xla

import "math"

// A decoder layer on flat rows, the same for the decoder and the trainer; they
// differ in the attention between its two halves. The residual stream, norms and
// gradients are f32; operands of products are in the compute type.

// layer is one layer's weights inside a program.
type layer struct {
	*net
	kind layerKind
	w    map[string]value
	lora []adapted
}

// newLayer declares a layer's base tensors.
func (n *net) newLayer(k layerKind, prefix string) *layer {
	y := &layer{net: n, kind: k, w: map[string]value{}}
	for _, t := range n.s.tensors(k) {
		elem := "f32"
		if t.low {
			elem = n.elem
		}
		y.w[t.name] = n.arg(prefix+t.name, elem, t.dims...)
	}
	return y
}

// rope picks the layer's table.
func (y *layer) rope(all []rotary) rotary {
	if y.kind.rope < 0 {
		return rotary{}
	}
	return all[y.kind.rope]
}

func (y *layer) adapters(matrix string) (out []adapted) {
	for _, p := range y.lora {
		if p.matrix == matrix {
			out = append(out, p)
		}
	}
	return out
}

// linear applies one of the layer's matrices: x [M, in] to [M, out], f32.
func (y *layer) linear(matrix string, x value) value {
	return y.affine(x, y.w[matrix], y.w[matrix+"_bias"], y.adapters(matrix))
}

// before is a layer up to attention.
type before struct {
	norm1   norm
	h       value // its output in the compute type
	qn, kn  norm  // of the heads, with qkNorm
	q, k, v value // queries [M, KV*R, D], rotated and scaled; keys and values [M, KV, D]
}

func (y *layer) before(x value, r rotary) before {
	s, m := y.s, x.dims[0]
	b := before{norm1: y.rmsNorm(x, y.w["input_norm"])}
	b.h = y.low(b.norm1.out)
	all := y.linear("qkv", b.h)
	part := func(lo, heads int) value {
		return y.reshape(y.slice(all, 1, lo, lo+heads*s.headDim), m, heads, s.headDim)
	}
	q, k, v := part(0, s.heads), part(s.qDim(), s.kv), part(s.qDim()+s.kvDim(), s.kv)
	if s.qkNorm {
		b.qn, b.kn = y.rmsNorm(q, y.w["q_norm"]), y.rmsNorm(k, y.w["k_norm"])
		q, k = b.qn.out, b.kn.out
	}
	b.q = y.low(y.scale(y.rotate(q, r, false), s.scoreScale))
	b.k, b.v = y.low(y.rotate(k, r, false)), y.low(v)
	return b
}

// after is a layer from attention's output on.
type after struct {
	o            value // in the compute type
	attnOut      norm  // with sandwich
	norm2        norm
	h            value // its output in the compute type
	gate, up     value
	slope, inner value // d act(gate)/d gate, and act(gate)·up
	router       router
	act          value // what down gets, in the compute type
	mlpOut       norm  // with sandwich
	out          value
}

func (y *layer) after(x, o value) after {
	s, w := y.s, y.s.width(y.kind)
	a := after{o: y.low(o)}
	d := y.linear("o", a.o)
	if s.sandwich {
		a.attnOut = y.rmsNorm(d, y.w["attn_out_norm"])
		d = a.attnOut.out
	}
	x = y.add(x, d)
	a.norm2 = y.rmsNorm(x, y.w["post_norm"])
	a.h = y.low(a.norm2.out)
	both := y.linear("gate_up", a.h)
	a.gate, a.up = y.slice(both, 1, 0, w), y.slice(both, 1, w, 2*w)
	var g value
	g, a.slope = y.activation(a.gate)
	a.inner = y.mul(g, a.up)
	act := a.inner
	if y.kind.moe {
		a.router = y.route(a.norm2.out)
		act = y.mul(act, y.perExpert(a.router.weight))
	}
	a.act = y.low(act)
	d = y.linear("down", a.act)
	if s.sandwich {
		a.mlpOut = y.rmsNorm(d, y.w["mlp_out_norm"])
		d = a.mlpOut.out
	}
	a.out = y.add(x, d)
	return a
}

// activation is act(g) and its derivative: SiLU, or GELU in its tanh form
// (Hendrycks and Gimpel 2016, arXiv:1606.08415).
func (y *layer) activation(g value) (act, slope value) {
	one := y.constant("f32", 1, g.dims...)
	if !y.s.gelu {
		// d/dg g·σ(g) = σ(g)(1 + g(1-σ(g)))
		sig := y.unary("logistic", g)
		return y.mul(g, sig), y.mul(sig, y.add(one, y.mul(g, y.sub(one, sig))))
	}
	// t = tanh(c(g + a·g³)): g(1+t)/2, derivative (1+t)/2 + g/2·(1-t²)·c(1+3a·g²)
	const a = 0.044715
	c := math.Sqrt(2 / math.Pi)
	g2 := y.mul(g, g)
	t := y.unary("tanh", y.scale(y.mul(g, y.add(one, y.scale(g2, a))), c))
	half := y.scale(y.add(one, t), 0.5)
	inner := y.scale(y.add(one, y.scale(g2, 3*a)), c)
	return y.mul(g, half), y.add(half, y.mul(y.scale(g, 0.5), y.mul(y.sub(one, y.mul(t, t)), inner)))
}

// forward runs attention in between; attend gets queries, keys and values.
func (y *layer) forward(x value, r rotary, attend func(q, k, v value) value) value {
	b := y.before(x, r)
	return y.after(x, attend(b.q, b.k, b.v)).out
}
