//go:build xla

package xla

import "fmt"

// Shapes in this file and in layer.go: M rows of a matrix, KV key/value heads,
// R query heads per key/value head, D head size, K columns of stacked adapters.

// net emits a model's parts into a program.
type net struct {
	*emitter
	s    shape
	elem string // f32 or bf16: of weights and of the operands of products

	embed, norm, head value
	layers            []*layer

	// mine [M,K] i1 marks, per row, the columns of stacked adapters that are its
	// own; unset where every row has the one adapter there is.
	mine value
	// masks are the dropout of a training program.
	masks *masks
}

// minRows is the least number of rows a product is given: XLA's CPU kernels for
// one row are several times slower, and bf16 results depend on the row count
// below it, so it is fixed.
func minRows(elem string) int {
	if elem == "bf16" {
		return 4
	}
	return 2
}

// newNet declares the whole model's weights, in the order of
// (weightBuffers).whole, then the adapters' of a stack (nil: the base).
func newNet(e *emitter, s shape, elem string, st *stackShape) *net {
	n := &net{emitter: e, s: s, elem: elem}
	n.embed = e.arg("embed", elem, s.vocab, s.hidden)
	n.norm = e.arg("norm", "f32", s.hidden)
	n.head = n.embed
	if !s.tied {
		n.head = e.arg("head", elem, s.vocab, s.hidden)
	}
	for i, k := range s.kinds {
		n.layers = append(n.layers, n.newLayer(k, fmt.Sprintf("l%d_", i)))
	}
	if st != nil {
		for i, y := range n.layers {
			y.lora = st.args(e, elem, fmt.Sprintf("l%d_", i))
		}
	}
	return n
}

func (n *net) low(x value) value { return n.convert(x, n.elem) }

// affine is x·wᵀ + bias in f32 [M, out], the adapters of its columns added. bias
// may be unset.
func (n *net) affine(x, w, bias value, lora []adapted) value {
	m, out := x.dims[0], w.dims[0]
	rows := max(m, minRows(n.elem))
	x = n.pad(n.low(x), 0, rows)
	y := n.matABt(x, w)
	if len(lora) > 0 {
		y = n.add(y, n.delta(x, lora, out))
	}
	if bias.name != "" {
		y = n.add(y, n.broadcast(bias, []int{1}, rows, out))
	}
	if rows > m {
		y = n.slice(y, 0, 0, m)
	}
	return y
}

// delta is what adapters add, [M, out]; zeros where no projection is adapted.
func (n *net) delta(x value, lora []adapted, out int) value {
	m, at := x.dims[0], 0
	var cols []value
	gap := func(to int) {
		if to > at {
			cols = append(cols, n.constant("f32", 0, m, to-at))
		}
	}
	for _, p := range lora {
		gap(p.lo)
		u := n.matABt(n.dropped(x, p.name), p.aw)
		if n.mine.name != "" {
			u = n.choose(n.pad(n.mine, 0, m), u, n.constant("f32", 0, u.dims...))
		}
		cols = append(cols, n.matABt(n.low(u), p.bw))
		at = p.lo + p.out
	}
	gap(out)
	if len(cols) == 1 {
		return cols[0]
	}
	return n.concat(1, cols...)
}

// norm is RMS normalisation over the last axis (Zhang and Sennrich 2019,
// arXiv:1910.07467, equation 4), with what its backward needs.
type norm struct {
	unit, inv value // x/rms, and 1/rms spread
	w, out    value
}

func (n *net) rmsNorm(x, w value) norm {
	last := len(x.dims) - 1
	h := x.dims[last]
	mean := n.scale(n.reduce(n.mul(x, x), "add", last), 1/float64(h))
	r := n.unary("rsqrt", n.add(mean, n.constant("f32", n.s.eps, mean.dims...)))
	o := norm{inv: n.spread(r, h), w: n.broadcast(w, []int{last}, x.dims...)}
	o.unit = n.mul(x, o.inv)
	o.out = n.mul(o.unit, o.w)
	return o
}

// normBack is the gradient of a norm's input.
func (n *net) normBack(o norm, d value) value {
	last := len(d.dims) - 1
	h := d.dims[last]
	du := n.mul(d, o.w)
	mean := n.scale(n.reduce(n.mul(du, o.unit), "add", last), 1/float64(h))
	return n.mul(o.inv, n.sub(du, n.mul(o.unit, n.spread(mean, h))))
}

// rotary are the cosines and sines [M, rotary/2] of one table; unset where the
// layer has no positions.
type rotary struct{ cos, sin value }

// rotaries are the tables of positions [M] i32 (Su et al. 2021,
// arXiv:2104.09864, section 3.2.2), one for each of shape.ropes.
func (n *net) rotaries(pos value) []rotary {
	m := pos.dims[0]
	var out []rotary
	for _, t := range n.s.ropes {
		half := len(t.Inv)
		angle := n.mul(n.spread(n.convert(pos, "f32"), half), n.broadcast(n.vector(t.Inv), []int{1}, m, half))
		r := rotary{n.unary("cosine", angle), n.unary("sine", angle)}
		if t.Scale != 1 {
			r = rotary{n.scale(r.cos, float64(t.Scale)), n.scale(r.sin, float64(t.Scale))}
		}
		out = append(out, r)
	}
	return out
}

// rotate turns x [M, heads, D] in half-split form; numbers past the rotary ones
// stay. back gives the transpose.
func (n *net) rotate(x value, r rotary, back bool) value {
	if r.cos.name == "" {
		return x
	}
	m, h, d, half := x.dims[0], x.dims[1], x.dims[2], r.cos.dims[1]
	sin := r.sin
	if back {
		sin = n.unary("negate", sin)
	}
	c, s := n.broadcast(r.cos, []int{0, 2}, m, h, half), n.broadcast(sin, []int{0, 2}, m, h, half)
	a, b := n.slice(x, 2, 0, half), n.slice(x, 2, half, 2*half)
	parts := []value{n.sub(n.mul(a, c), n.mul(b, s)), n.add(n.mul(b, c), n.mul(a, s))}
	if d > 2*half {
		parts = append(parts, n.slice(x, 2, 2*half, d))
	}
	return n.concat(2, parts...)
}

// capped is c·tanh(x/c); c = 0 leaves x.
func (n *net) capped(x value, c float64) value {
	if c == 0 {
		return x
	}
	return n.scale(n.unary("tanh", n.scale(x, 1/c)), c)
}

// cappedBack is the gradient of x, given capped(x) and the gradient of that.
func (n *net) cappedBack(y, d value, c float64) value {
	if c == 0 {
		return d
	}
	t := n.scale(y, 1/c)
	return n.mul(d, n.sub(n.constant("f32", 1, t.dims...), n.mul(t, t)))
}

// embedded are rows of the embedding, f32.
func (n *net) embedded(ids value) value {
	x := n.convert(n.rows(n.embed, ids), "f32")
	if n.s.embedScale != 1 {
		x = n.scale(x, float64(float32(n.s.embedScale)))
	}
	return x
}

// logits are those of hidden rows x [M, hidden], in f32.
func (n *net) logits(x value) value {
	return n.capped(n.affine(n.rmsNorm(x, n.norm).out, n.head, value{}, nil), n.s.logitCap)
}
