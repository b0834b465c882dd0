//go:build xla

package xla

// Attention over a shared prompt. N = P + G*C rows: the prompt's, then each
// block's. Prompt rows attend causally to the prompt. A block's rows attend to the
// real prompt (its first `prompt` rows) and to those rows of their own block that
// their sequence goes through: trees lie depth first, so row i sees row j where
// j <= i < until[j]. Both parts share one softmax. The prompt's keys and values
// meet the queries of all blocks in one product per key/value head. In window
// layers a row at position i sees i-window+1 to i.
//
// Shapes: KV key/value heads, R query heads per key/value head, D head size.
// Queries arrive scaled. Softmax is unnormalised: e = exp(s - max), and the row
// sum's reciprocal is applied to the result.

// attention holds the forward values that backward needs.
type attention struct {
	*layer
	layout
	sight

	q0, k0, v0     value // prompt: [KV, R*P, D], [KV, P, D] twice
	s0, e0, z0, o0 value // [KV, R*P, P] twice, 1/sum [KV, R*P], out [KV, R*P, D]
	q1             value // blocks: [KV, G*R*C, D], order G, R, C
	k1, v1         value // [KV*G, C, D]
	sa, ea, sb, eb value // against the prompt [KV, G*R*C, P], against itself [KV*G, R*C, C]
	z1, o1         value // [KV, G*R*C], [KV, G*R*C, D]
}

// byHead views member rows per key/value head, byMember per head and member.
func (a *attention) byHead(x value) value {
	return a.reshape(x, append([]int{a.s.kv, a.G * a.s.rep() * a.C}, x.dims[2:]...)...)
}
func (a *attention) byMember(x value) value {
	return a.reshape(x, append([]int{a.s.kv * a.G, a.s.rep() * a.C}, x.dims[2:]...)...)
}

// Rows [P, KV*R, D] or [P, KV, D] to heads, and heads back to [P, KV*R*D].
func (a *attention) promptQ(x value) value {
	return a.reshape(a.transpose(a.reshape(x, a.P, a.s.kv, a.s.rep(), a.s.headDim), 1, 2, 0, 3), a.s.kv, a.s.rep()*a.P, a.s.headDim)
}
func (a *attention) promptQBack(x value) value {
	return a.reshape(a.transpose(a.reshape(x, a.s.kv, a.s.rep(), a.P, a.s.headDim), 2, 0, 1, 3), a.P, a.s.qDim())
}
func (a *attention) promptK(x value) value { return a.transpose(x, 1, 0, 2) }
func (a *attention) promptKBack(x value) value {
	return a.reshape(a.transpose(x, 1, 0, 2), a.P, a.s.kvDim())
}

// Rows [G*C, ...] to heads and back.
func (a *attention) memberQ(x value) value {
	return a.reshape(a.transpose(a.reshape(x, a.G, a.C, a.s.kv, a.s.rep(), a.s.headDim), 2, 0, 3, 1, 4), a.s.kv, a.G*a.s.rep()*a.C, a.s.headDim)
}
func (a *attention) memberQBack(x value) value {
	return a.reshape(a.transpose(a.reshape(x, a.s.kv, a.G, a.s.rep(), a.C, a.s.headDim), 1, 3, 0, 2, 4), a.G*a.C, a.s.qDim())
}
func (a *attention) memberK(x value) value {
	return a.reshape(a.transpose(a.reshape(x, a.G, a.C, a.s.kv, a.s.headDim), 2, 0, 1, 3), a.s.kv*a.G, a.C, a.s.headDim)
}
func (a *attention) memberKBack(x value) value {
	return a.reshape(a.transpose(a.reshape(x, a.s.kv, a.G, a.C, a.s.headDim), 1, 2, 0, 3), a.G*a.C, a.s.kvDim())
}

// sight says which rows see each other: the prompt's real length [1], positions
// and ends of the blocks' rows [2, G*C], i32.
type sight struct{ prompt, places value }

// causal masks scores [KV, R*P, P] of the prompt.
func (a *attention) causal(scores value) value {
	b, t := scores.dims[0], scores.dims[2]
	i, j := a.iota("i32", 0, t, t), a.iota("i32", 1, t, t)
	return a.masked(scores, a.broadcast(a.visible(i, j), []int{2, 3}, b, a.s.rep(), t, t))
}

// place is row 0 (positions) or 1 (ends) of places, [G, C], along axes of
// [G, C, n].
func (a *attention) place(row, n int, axes ...int) value {
	x := a.reshape(a.slice(a.places, 0, row, row+1), a.G, a.C)
	return a.broadcast(x, axes, a.G, a.C, n)
}

// ownBlock masks scores [KV*G, R*C, C] of blocks against themselves.
func (a *attention) ownBlock(scores value) value {
	c := a.C
	i, j := a.iota("i32", 1, a.G, c, c), a.iota("i32", 2, a.G, c, c)
	see := a.and(a.compare("LE", j, i), a.compare("LT", i, a.place(1, c, 0, 2)))
	see = a.inWindow(see, a.place(0, c, 0, 1), a.place(0, c, 0, 2))
	return a.masked(scores, a.broadcast(see, []int{1, 3, 4}, a.s.kv, a.G, a.s.rep(), c, c))
}

// toPrompt masks scores [KV, G*R*C, P] of blocks against the prompt.
func (a *attention) toPrompt(scores value) value {
	c, p := a.C, a.P
	if a.kind.window == 0 {
		see := a.compare("LT", a.iota("i32", 0, p), a.broadcast(a.reshape(a.prompt), nil, p))
		return a.masked(scores, a.broadcast(see, []int{2}, scores.dims...))
	}
	j := a.iota("i32", 2, a.G, c, p)
	see := a.compare("LT", j, a.broadcast(a.reshape(a.prompt), nil, a.G, c, p))
	see = a.inWindow(see, a.place(0, p, 0, 1), j)
	return a.masked(scores, a.broadcast(see, []int{1, 3, 4}, a.s.kv, a.G, a.s.rep(), c, p))
}

// visible says whether position i sees position j in this layer.
func (y *layer) visible(i, j value) value { return y.inWindow(y.compare("LE", j, i), i, j) }

// inWindow narrows what is seen to the layer's window behind position i.
func (y *layer) inWindow(see, i, j value) value {
	if w := y.kind.window; w > 0 {
		see = y.and(see, y.compare("LT", y.sub(i, j), y.constant("i32", float64(w), i.dims...)))
	}
	return see
}

// masked hides scores; the mask has as many elements, in the same order.
func (n *net) masked(scores, see value) value {
	return n.choose(n.reshape(see, scores.dims...), scores, n.constant("f32", -1e30, scores.dims...))
}

func (a *attention) rowMax(x value) value { return a.reduce(x, "maximum", 2) }
func (a *attention) rowSum(x value) value { return a.reduce(x, "add", 2) }

// minus and times apply a value per row, [B, T], to [B, T, ...].
func (a *attention) minus(x, row value) value { return a.sub(x, a.spread(row, x.dims[2])) }
func (a *attention) times(x, row value) value { return a.mul(x, a.spread(row, x.dims[2])) }

func (a *attention) reciprocal(x value) value { return a.div(a.constant("f32", 1, x.dims...), x) }

// softmaxOf exponentiates in f32 and rounds to the compute type, so that sums
// and products see the same numbers.
func (a *attention) softmaxOf(scores, top value) value {
	return a.low(a.exp(a.minus(scores, top)))
}

func (a *attention) f32(x value) value { return a.convert(x, "f32") }

// attend computes attention of q [N, heads, D], k and v [N, KV, D], given in the
// compute type. The result [N, heads*D] is f32.
func (y *layer) attend(l layout, q, k, v value, see sight) (value, *attention) {
	a := &attention{layer: y, layout: l, sight: see}
	n, c := l.rows(), y.s.attnCap
	a.q0, a.k0, a.v0 = a.promptQ(a.slice(q, 0, 0, l.P)), a.promptK(a.slice(k, 0, 0, l.P)), a.promptK(a.slice(v, 0, 0, l.P))
	a.s0 = a.capped(a.batchABt(a.q0, a.k0), c)
	s0 := a.causal(a.s0)
	a.e0 = a.softmaxOf(s0, a.rowMax(s0))
	a.z0 = a.reciprocal(a.rowSum(a.f32(a.e0)))
	a.o0 = a.times(a.batchAB(a.e0, a.v0), a.z0)

	a.q1, a.k1, a.v1 = a.memberQ(a.slice(q, 0, l.P, n)), a.memberK(a.slice(k, 0, l.P, n)), a.memberK(a.slice(v, 0, l.P, n))
	a.sa = a.capped(a.batchABt(a.q1, a.k0), c)
	a.sb = a.capped(a.batchABt(a.byMember(a.q1), a.k1), c)
	sa, sb := a.toPrompt(a.sa), a.ownBlock(a.sb)
	top := a.binary("maximum", a.rowMax(sa), a.byHead(a.rowMax(sb)))
	a.ea, a.eb = a.softmaxOf(sa, top), a.softmaxOf(sb, a.byMember(top))
	a.z1 = a.reciprocal(a.add(a.rowSum(a.f32(a.ea)), a.byHead(a.rowSum(a.f32(a.eb)))))
	a.o1 = a.times(a.add(a.batchAB(a.ea, a.v0), a.byHead(a.batchAB(a.eb, a.v1))), a.z1)
	return a.concat(0, a.promptQBack(a.o0), a.memberQBack(a.o1)), a
}

// back gives the gradients of q, k and v, f32, from that of the result. With
// P = e/z and O = P·V: dV = Pᵀ·dO, dS = P∘(dO·Vᵀ - rowsum(dO∘O)), dQ = dS·K,
// dK = dSᵀ·Q; dS passes the cap on its way.
func (a *attention) back(do value) (dq, dk, dv value) {
	n := a.rows()
	ds := func(e, dp, rows, scores value) value {
		return a.low(a.cappedBack(scores, a.mul(a.f32(e), a.minus(dp, rows)), a.s.attnCap))
	}
	d0 := a.times(a.promptQ(a.slice(do, 0, 0, a.P)), a.z0) // dO/z
	d0c := a.low(d0)
	ds0 := ds(a.e0, a.batchABt(d0c, a.v0), a.rowSum(a.mul(d0, a.o0)), a.s0)
	dv0, dq0, dk0 := a.batchAtB(a.e0, d0c), a.batchAB(ds0, a.k0), a.batchAtB(ds0, a.q0)

	d1 := a.times(a.memberQ(a.slice(do, 0, a.P, n)), a.z1)
	d1c := a.low(d1)
	r1 := a.rowSum(a.mul(d1, a.o1))
	dsa := ds(a.ea, a.batchABt(d1c, a.v0), r1, a.sa)
	dsb := ds(a.eb, a.batchABt(a.byMember(d1c), a.v1), a.byMember(r1), a.sb)
	dv0 = a.add(dv0, a.batchAtB(a.ea, d1c))
	dk0 = a.add(dk0, a.batchAtB(dsa, a.q1))
	dv1, dk1 := a.batchAtB(a.eb, a.byMember(d1c)), a.batchAtB(dsb, a.byMember(a.q1))
	dq1 := a.add(a.batchAB(dsa, a.k0), a.byHead(a.batchAB(dsb, a.k1)))

	return a.concat(0, a.promptQBack(dq0), a.memberQBack(dq1)),
		a.concat(0, a.promptKBack(dk0), a.memberKBack(dk1)),
		a.concat(0, a.promptKBack(dv0), a.memberKBack(dv1))
}
