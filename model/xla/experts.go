//go:build xla

package xla

// A mixture of experts as one wide MLP: the experts' gate, up and down matrices
// stand side by side, and the activations of each expert are multiplied by its
// router weight, zero for those not chosen. Every expert is computed for every
// row: exact, differentiable, one product instead of many small ones, and
// experts/experts-per-token times the arithmetic of a sparse kernel. It suits
// small counts.

// router is the choice of experts, [M, E] each.
type router struct {
	prob   value // softmax of the logits
	chosen value // i1: among the topK likeliest; of equals the lower index
	weight value // 0 where not chosen
}

// route scores the experts for rows h [M, hidden] f32.
func (y *layer) route(h value) router {
	e := y.s.experts
	z := y.matABt(h, y.w["router"])
	m := z.dims[0]
	p := y.exp(y.sub(z, y.spread(y.reduce(z, "maximum", 1), e)))
	r := router{prob: y.div(p, y.spread(y.reduce(p, "add", 1), e))}

	mine, other := y.spread(z, e), y.broadcast(z, []int{0, 2}, m, e, e)
	tie := y.and(y.compare("EQ", other, mine), y.compare("LT", y.iota("i32", 2, m, e, e), y.iota("i32", 1, m, e, e)))
	ahead := y.reduce(y.convert(y.binary("or", y.compare("GT", other, mine), tie), "i32"), "add", 2)
	r.chosen = y.compare("LT", ahead, y.constant("i32", float64(y.s.topK), m, e))
	r.weight = y.choose(r.chosen, r.prob, y.constant("f32", 0, m, e))
	if y.s.normTopK {
		r.weight = y.div(r.weight, y.spread(y.reduce(r.weight, "add", 1), e))
	}
	return r
}

// routeBack is the gradient of the rows that route scored, given that of the
// weights. With a renormalised choice the weights are the softmax over the
// chosen: dz = w∘(dw - Σ w·dw); else, u being dw where chosen, dz = p∘(u - Σ p·u).
func (y *layer) routeBack(r router, dw value) value {
	e := y.s.experts
	p := r.prob
	if y.s.normTopK {
		p = r.weight
	} else {
		dw = y.choose(r.chosen, dw, y.constant("f32", 0, dw.dims...))
	}
	dz := y.mul(p, y.sub(dw, y.spread(y.reduce(y.mul(p, dw), "add", 1), e)))
	return y.matAB(dz, y.w["router"])
}

// perExpert repeats [M, E] over each expert's activations: [M, E*I].
func (y *layer) perExpert(x value) value {
	return y.reshape(y.spread(x, y.s.expertSize), x.dims[0], y.s.experts*y.s.expertSize)
}

// sumExpert is its transpose.
func (y *layer) sumExpert(x value) value {
	return y.reduce(y.reshape(x, x.dims[0], y.s.experts, y.s.expertSize), "add", 2)
}
