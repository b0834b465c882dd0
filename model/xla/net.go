//go:build xla

package xla

import "fmt"

// Shapes in this file: M rows of a matrix, B slots, S cache positions, T tokens
// of one row, KV key/value heads, R query heads per key/value head, D head size.

// net emits the model's layers into a program. Its weights are arguments, in
// the order of (weightBuffers).args, followed by one flat LoRA vector a layer.
type net struct {
	*emitter
	s     shape
	elem  string // f32 or bf16
	embed value
	norm  value
	head  value
	layer []netLayer
}

type netLayer struct {
	inputNorm, qkv, o, postNorm, gateUp, down value
	lora                                      [numProj]loraPair
}

// loraPair is A [rank, in] and B [out, rank] in the compute type; both are zero
// values where the projection has no adapter.
type loraPair struct{ a, b value }

func (p loraPair) on() bool { return p.a.name != "" }

// minRows is the least number of rows a product is given: XLA's CPU kernels for
// one row are several times slower, and bf16 results depend on the row count
// below it, so it is fixed.
func minRows(elem string) int {
	if elem == "bf16" {
		return 4
	}
	return 2
}

func newNet(e *emitter, s shape, elem string, lora *loraShape) *net {
	n := &net{emitter: e, s: s, elem: elem}
	n.embed = e.arg("embed", elem, s.vocab, s.hidden)
	n.norm = e.arg("norm", "f32", s.hidden)
	n.head = n.embed
	if !s.tied {
		n.head = e.arg("head", elem, s.vocab, s.hidden)
	}
	for i := range s.layers {
		a := func(name, elem string, dims ...int) value { return e.arg(fmt.Sprintf("%s_%d", name, i), elem, dims...) }
		n.layer = append(n.layer, netLayer{
			inputNorm: a("input_norm", "f32", s.hidden),
			qkv:       a("qkv", elem, s.qkvDim(), s.hidden),
			o:         a("o", elem, s.hidden, s.qDim()),
			postNorm:  a("post_norm", "f32", s.hidden),
			gateUp:    a("gate_up", elem, 2*s.inter, s.hidden),
			down:      a("down", elem, s.hidden, s.inter),
		})
	}
	if lora != nil {
		for i := range n.layer {
			flat := e.arg(fmt.Sprintf("lora_%d", i), "f32", lora.size)
			for p, part := range lora.part {
				if !part.on {
					continue
				}
				matrix := func(at, rows, cols int) value {
					return e.reshape(e.slice(flat, 0, at, at+rows*cols), rows, cols)
				}
				n.layer[i].lora[p] = loraPair{
					a: e.convert(matrix(part.a, lora.rank, part.in), elem),
					// The scale is folded into B once, outside any loop.
					b: e.convert(e.scale(matrix(part.b, part.out, lora.rank), lora.scale), elem),
				}
			}
		}
	}
	return n
}

// linear is x·wᵀ in f32, [M, sum of widths]; w is fused from the projections
// first, first+1, ... of the given widths, and their adapters are added.
func (n *net) linear(x, w value, lora [numProj]loraPair, first int, widths ...int) value {
	m := x.dims[0]
	xe := n.convert(x, n.elem)
	pad := minRows(n.elem) - m
	if pad > 0 {
		xe = n.concat(0, xe, n.constant(n.elem, 0, pad, x.dims[1]))
	}
	rows := xe.dims[0]
	y := n.dot(xe, nil, []int{1}, w, nil, []int{1})
	adapted := false
	delta := make([]value, len(widths))
	for i, width := range widths {
		if p := lora[first+i]; p.on() {
			adapted = true
			u := n.convert(n.dot(xe, nil, []int{1}, p.a, nil, []int{1}), n.elem)
			delta[i] = n.dot(u, nil, []int{1}, p.b, nil, []int{1})
		} else {
			delta[i] = n.constant("f32", 0, rows, width)
		}
	}
	if adapted {
		d := delta[0]
		if len(delta) > 1 {
			d = n.concat(1, delta...)
		}
		y = n.add(y, d)
	}
	if pad > 0 {
		y = n.slice(y, 0, 0, m)
	}
	return y
}

// rmsNorm (Zhang and Sennrich 2019, arXiv:1910.07467, equation 4): [M, hidden].
func (n *net) rmsNorm(x, w value) value {
	m, h := x.dims[0], x.dims[1]
	mean := n.scale(n.reduce(n.mul(x, x), "add", 1), 1/float64(h))
	r := n.unary("rsqrt", n.add(mean, n.constant("f32", n.s.eps, m)))
	return n.mul(n.mul(x, n.broadcast(r, []int{0}, m, h)), n.broadcast(w, []int{1}, m, h))
}

// ropeTables are cos and sin [M, D/2] of positions [M] i32.
func (n *net) ropeTables(pos value) (cos, sin value) {
	m, half := pos.dims[0], n.s.headDim/2
	angle := n.mul(n.broadcast(n.convert(pos, "f32"), []int{0}, m, half), n.broadcast(n.vector(n.s.ropeInv()), []int{1}, m, half))
	return n.unary("cosine", angle), n.unary("sine", angle)
}

// rotate applies rotary embedding to x [M, heads, D].
func (n *net) rotate(x, cos, sin value) value {
	m, h, half := x.dims[0], x.dims[1], n.s.headDim/2
	c, s := n.broadcast(cos, []int{0, 2}, m, h, half), n.broadcast(sin, []int{0, 2}, m, h, half)
	a, b := n.slice(x, 2, 0, half), n.slice(x, 2, half, 2*half)
	return n.concat(2, n.sub(n.mul(a, c), n.mul(b, s)), n.add(n.mul(b, c), n.mul(a, s)))
}

// qkv gives the rotated, scaled queries [M, heads, D] and the keys and values
// [M, KV, D], in the compute type.
func (n *net) qkv(l int, x, cos, sin value) (q, k, v value) {
	w, s, m := n.layer[l], n.s, x.dims[0]
	y := n.linear(n.rmsNorm(x, w.inputNorm), w.qkv, w.lora, projQ, s.qDim(), s.kvDim(), s.kvDim())
	part := func(lo, heads int) value {
		return n.reshape(n.slice(y, 1, lo, lo+heads*s.headDim), m, heads, s.headDim)
	}
	q = n.scale(n.rotate(part(0, s.heads), cos, sin), s.qScale())
	k = n.rotate(part(s.qDim(), s.kv), cos, sin)
	v = part(s.qDim()+s.kvDim(), s.kv)
	return n.convert(q, n.elem), n.convert(k, n.elem), n.convert(v, n.elem)
}

// finish is the part of a layer after attention: x [M, hidden], o [M, heads*D].
func (n *net) finish(l int, x, o value) value {
	w, s := n.layer[l], n.s
	x = n.add(x, n.linear(o, w.o, w.lora, projO, s.hidden))
	gu := n.linear(n.rmsNorm(x, w.postNorm), w.gateUp, w.lora, projGate, s.inter, s.inter)
	g, u := n.slice(gu, 1, 0, s.inter), n.slice(gu, 1, s.inter, 2*s.inter)
	act := n.mul(n.mul(g, n.unary("logistic", g)), u) // SwiGLU
	return n.add(x, n.linear(act, w.down, w.lora, projDown, s.hidden))
}

// softmaxAV is attention over masked scores: [.., Q, S] scores in f32, mask of
// the same shape, values [batch.., S, D] with nb batch axes. Result [.., Q, D].
func (n *net) softmaxAV(scores, mask, v value, nb int) value {
	last := len(scores.dims) - 1
	keep := make([]int, last)
	for i := range keep {
		keep[i] = i
	}
	scores = n.choose(mask, scores, n.constant("f32", -1e30, scores.dims...))
	top := n.reduce(scores, "maximum", last)
	p := n.exp(n.sub(scores, n.broadcast(top, keep, scores.dims...)))
	sum := n.reduce(p, "add", last)
	o := n.dot(n.convert(p, n.elem), keep[:nb], []int{last}, v, keep[:nb], []int{nb})
	return n.div(o, n.broadcast(sum, keep, o.dims...))
}

// logits are those of hidden rows x [M, hidden], in f32.
func (n *net) logits(x value) value {
	return n.linear(n.rmsNorm(x, n.norm), n.head, [numProj]loraPair{}, 0, n.s.vocab)
}
