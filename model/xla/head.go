//go:build xla

package xla

// The language-model head on a chunk of M rows, as StableHLO so that products
// of bf16 operands give f32 logits. V is the vocabulary padded to blocks.

// headChunk picks the rows of a chunk for n remaining ones: a large one unless it
// would be mostly padding. Chunks shrink as the vocabulary grows, so that a
// [rows, V] array stays near the device's budget.
func (b *backend) headChunk(n int) int {
	large := b.dev.limits.headRows
	for large > 32 && large*paddedVocab(b.shape.vocab) > b.dev.limits.headNumbers {
		large /= 2
	}
	if small := max(16, large/4); n <= 3*small {
		return small
	}
	return large
}

// headNet is the part forward and backward share.
type headNet struct {
	*sampler
	net           *net
	norm          norm  // the final norm of h
	logits        value // [M,V], capped
	y, e          value // [M,V]: (logits-max)/T and its exponential
	sum, logSum   value // [M]
	logp, entropy value // [M]
	hit           value // [M,V] i1: the target's column
}

// headKind is what a head program gives beside logprobs and entropies.
type headKind struct{ mean, sumSq bool }

// newHead declares h [M, hidden] f32, norm, head, target [M] i32 and inv f32
// (1/temperature), and computes logprobs and entropies.
func newHead(em *emitter, s shape, elem string, m int) (*headNet, value) {
	n := &headNet{sampler: &sampler{emitter: em, vocab: s.vocab}, net: &net{emitter: em, s: s, elem: elem}}
	x, w, head := em.arg("h", "f32", m, s.hidden), em.arg("norm", "f32", s.hidden), em.arg("head", elem, s.vocab, s.hidden)
	target, invT := em.arg("target", "i32", m), em.arg("inv", "f32")
	n.norm = n.net.rmsNorm(x, w)
	logits := n.net.capped(em.matABt(n.net.low(n.norm.out), head), s.logitCap)
	n.logits = logits
	v := paddedVocab(s.vocab)
	if pad := v - s.vocab; pad > 0 {
		logits = em.concat(1, logits, em.constant("f32", -1e30, m, pad))
	}
	top := n.over(logits, "maximum")
	n.y = em.mul(em.sub(logits, n.spread(top, v)), em.broadcast(invT, nil, m, v))
	n.e = em.exp(n.y)
	n.sum = n.over(n.e, "add")
	n.logSum = em.unary("log", n.sum)
	zero := em.constant("f32", 0, m, v)
	n.hit = em.compare("EQ", em.iota("i32", 1, m, v), n.spread(target, v))
	n.logp = em.sub(n.over(em.choose(n.hit, n.y, zero), "add"), n.logSum)
	// H = log Σe - Σ e·y / Σe
	n.entropy = em.sub(n.logSum, em.div(n.over(em.mul(n.e, n.y), "add"), n.sum))
	return n, head
}

// emitHead gives logp [M] and entropy [M], then what kind names: the mean of
// log p over the vocabulary [M], log Σp² [M].
func emitHead(kind headKind) func(*emitter, shape, string, int) []value {
	return func(em *emitter, s shape, elem string, m int) []value {
		n, _ := newHead(em, s, elem, m)
		out := []value{n.logp, n.entropy}
		if kind.mean {
			y := em.choose(n.columns(), n.y, em.constant("f32", 0, n.y.dims...))
			out = append(out, em.sub(em.scale(n.over(y, "add"), 1/float64(s.vocab)), n.logSum))
		}
		if kind.sumSq {
			squares := em.unary("log", n.over(em.mul(n.e, n.e), "add"))
			out = append(out, em.sub(squares, em.scale(n.logSum, 2)))
		}
		return out
	}
}

// columns marks the vocabulary's columns.
func (n *headNet) columns() value {
	return n.compare("LT", n.iota("i32", 1, n.y.dims...), n.constant("i32", float64(n.vocab), n.y.dims...))
}

// emitHeadBack gives the gradient of h [M, hidden] for the loss gradients a [M]
// of the logprobs and b [M] of the entropies (two more arguments) and with mean
// c [M] of the means of log p (one more). With p = softmax(y):
// d logp/dy_j = 1[j=target] - p_j, dH/dy_j = -p_j (log p_j + H), and
// d mean/dy_j = 1/V - p_j.
func emitHeadBack(mean bool) func(*emitter, shape, string, int) []value {
	return func(em *emitter, s shape, elem string, m int) []value { return headBack(em, s, elem, m, mean) }
}

func headBack(em *emitter, s shape, elem string, m int, mean bool) []value {
	n, head := newHead(em, s, elem, m)
	a, b := em.arg("dlogp", "f32", m), em.arg("dentropy", "f32", m)
	v := paddedVocab(s.vocab)
	logp := em.sub(n.y, n.spread(n.logSum, v))
	p := em.div(n.e, n.spread(n.sum, v))
	q := em.mul(p, em.add(n.spread(a, v), em.mul(n.spread(b, v), em.add(logp, n.spread(n.entropy, v)))))
	dy := em.sub(em.choose(n.hit, n.spread(a, v), em.constant("f32", 0, m, v)), q)
	if mean {
		c := n.spread(em.arg("dmean", "f32", m), v)
		dy = em.add(dy, em.mul(c, em.sub(em.constant("f32", 1/float64(s.vocab), m, v), p)))
	}
	invT := em.args[4]
	dlogits := em.mul(dy, em.broadcast(invT, nil, m, v))
	if v > s.vocab {
		dlogits = em.slice(dlogits, 1, 0, s.vocab)
	}
	dlogits = n.net.low(n.net.cappedBack(n.logits, dlogits, s.logitCap))
	return []value{n.net.normBack(n.norm, em.matAB(dlogits, head))}
}
