package gobackend

import (
	"slices"

	"github.com/skein-rl/skein/model/internal/f32"
)

// moe is a mixture of experts (Shazeer et al. 2017, arXiv:1701.06538, equation
// 1, with the top-k softmax gate of Jiang et al. 2024, arXiv:2401.04088,
// section 2.1). E experts, of which a row runs through K; P = N*K pairs of a
// row and an expert.
//
// A row's experts and weights are functions of the row, and its experts'
// outputs are added in the order of the experts: the mixture keeps the
// package's invariant. There is no capacity that a batch could exceed.
type moe struct {
	router  linear // [E, H]
	experts []expert
}

// route says which rows run through which experts. Pairs are ordered by expert,
// then by row.
type route struct {
	probs  []float32 // [N, E] softmax of the router's logits
	expert []int     // [N, K] chosen, ascending
	weight []float32 // [N, K]
	place  []int     // [N, K] where the pair stands
	pairs  []pair    // [P]
	start  []int     // [E+1] where an expert's pairs start
}

// pair is one row in one expert: which row, and which of its K.
type pair struct{ row, k int }

// choose fills the route of rows x [N, H].
func (n *net) choose(ex *exec, m *moe, r *route, x []float32, rows int) {
	e, k := n.experts, n.chosen
	r.probs, r.weight = resize(r.probs, rows*e), resize(r.weight, rows*k)
	r.expert = slices.Grow(r.expert[:0], rows*k)[:rows*k]
	ex.multiply(r.probs, x, m.router, rows)
	ex.pool.Rows(rows, rowGrain(8*e), func(lo, hi int) {
		for i := lo; i < hi; i++ {
			p, w := r.probs[i*e:(i+1)*e], r.weight[i*k:(i+1)*k]
			f32.Exp(p, 1, -f32.Max(p))
			f32.Scale(p, 1/f32.Sum(p))
			for j, x := range topK(r.expert[i*k:(i+1)*k], p) {
				w[j] = p[x]
			}
			if n.normTopK {
				f32.Scale(w, 1/f32.Sum(w))
			}
		}
	})
	r.sort(e, k)
}

// sort orders the pairs by expert.
func (r *route) sort(experts, k int) {
	pairs := len(r.expert)
	r.start = slices.Grow(r.start[:0], experts+1)[:experts+1]
	clear(r.start)
	for _, x := range r.expert {
		r.start[x+1]++
	}
	for x := range experts {
		r.start[x+1] += r.start[x]
	}
	r.place = slices.Grow(r.place[:0], pairs)[:pairs]
	r.pairs = slices.Grow(r.pairs[:0], pairs)[:pairs]
	for i, x := range r.expert {
		r.place[i] = r.start[x]
		r.pairs[r.start[x]] = pair{i / k, i % k}
		r.start[x]++ // the start of the next, until the loop below
	}
	copy(r.start[1:], r.start[:experts])
	r.start[0] = 0
}

// topK writes the indexes of the len(dst) largest numbers, ascending. Of equal
// numbers the lower index counts as larger.
func topK(dst []int, p []float32) []int {
	n := 0
	for i, v := range p {
		at := n
		for at > 0 && p[dst[at-1]] < v {
			at--
		}
		if at == len(dst) {
			continue
		}
		n = min(n+1, len(dst))
		copy(dst[at+1:n], dst[at:])
		dst[at] = i
	}
	slices.Sort(dst)
	return dst
}

// gather copies rows of x [N, H] to their pairs [P, H].
func (r *route) gather(ex *exec, dst, x []float32, h int) {
	ex.pool.Rows(len(r.pairs), rowGrain(h), func(lo, hi int) {
		for i := lo; i < hi; i++ {
			copy(dst[i*h:(i+1)*h], x[r.pairs[i].row*h:])
		}
	})
}

// scatter adds up the pairs [P, H] of each row into y [N, H], by expert;
// weighted multiplies by the pair's weight.
func (r *route) scatter(ex *exec, y, x []float32, h, k, rows int, weighted bool) {
	ex.pool.Rows(rows, rowGrain(h*k), func(lo, hi int) {
		for i := lo; i < hi; i++ {
			row := y[i*h : (i+1)*h]
			clear(row)
			for j := i * k; j < (i+1)*k; j++ {
				w := float32(1)
				if weighted {
					w = r.weight[j]
				}
				from := x[r.place[j]*h:][:h]
				for c, v := range from {
					row[c] += w * v
				}
			}
		}
	})
}

// each calls f for every expert that has pairs, with the first pair and their
// number.
func (r *route) each(f func(e, first, pairs int)) {
	for e := range len(r.start) - 1 {
		if n := r.start[e+1] - r.start[e]; n > 0 {
			f(e, r.start[e], n)
		}
	}
}

// expertRows routes a.xn2 and computes the experts' gated activations.
func (n *net) expertRows(ex *exec, m *moe, a *acts, rows int) {
	n.choose(ex, m, &a.route, a.xn2, rows)
	h, f := n.hidden, m.experts[0].inner()
	ex.xg = resize(ex.xg, rows*n.chosen*h)
	a.route.gather(ex, ex.xg, a.xn2, h)
	a.route.each(func(e, first, pairs int) {
		ex.multiply(a.gu[first*2*f:], ex.xg[first*h:], m.experts[e].gateUp, pairs)
	})
	n.gate.forward(ex, a.act, a.gu, f, rows*n.chosen)
}

// mixRows computes the weighted sum of the experts' outputs into y [N, H].
func (n *net) mixRows(ex *exec, m *moe, a *acts, y []float32, rows int) {
	h, f := n.hidden, m.experts[0].inner()
	ex.xg = resize(ex.xg, rows*n.chosen*h)
	a.route.each(func(e, first, pairs int) {
		ex.multiply(ex.xg[first*h:], a.act[first*f:], m.experts[e].down, pairs)
	})
	a.route.scatter(ex, y, ex.xg, h, n.chosen, rows, true)
}

// mixBackward computes dx2 [N, H], the gradient of the mixture's input, from
// that of its output dy [N, H]. With t = dy W_down, a pair of weight w has
// dact = w t and dw = t . act; through the router's softmax p, whose chosen
// part is renormalised when normTopK,
//
//	dp = (dw - sum w dw) / sum p   or   dp = dw,    dlogits = p (dp - sum p dp)
func (n *net) mixBackward(bs *backwardScratch, m *moe, a *acts, dy, dx2 []float32, rows int, g *layerGradients) {
	h, f, k, e := n.hidden, m.experts[0].inner(), n.chosen, n.experts
	r := &a.route
	pairs := rows * k
	dact, dgu := bs.dact[:pairs*f], bs.dgu[:pairs*2*f]
	bs.xg = resize(bs.xg, pairs*h)
	r.gather(&bs.exec, bs.xg, dy, h)
	r.each(func(x, first, pairs int) {
		bs.multiplyT(dact[first*f:], bs.xg[first*h:], m.experts[x].down, pairs)
	})
	bs.dw = resize(bs.dw, pairs)
	bs.pool.Rows(pairs, rowGrain(f), func(lo, hi int) {
		for i := lo; i < hi; i++ {
			p := r.pairs[i]
			at := p.row*k + p.k
			t := dact[i*f : (i+1)*f]
			bs.dw[at] = f32.Dot(t, a.act[i*f:(i+1)*f])
			f32.Scale(t, r.weight[at])
			if g.experts != nil { // dW_down wants w dy
				f32.Scale(bs.xg[i*h:(i+1)*h], r.weight[at])
			}
		}
	})
	if g.experts != nil {
		r.each(func(x, first, pairs int) {
			bs.weightGradient(g.experts[x].down, bs.xg[first*h:], h, a.act[first*f:], f, pairs)
		})
	}
	n.gate.backward(&bs.exec, dgu, dact, a.gu, f, pairs)
	if g.experts != nil {
		r.gather(&bs.exec, bs.xg, a.xn2, h)
		r.each(func(x, first, pairs int) {
			bs.weightGradient(g.experts[x].gateUp, dgu[first*2*f:], 2*f, bs.xg[first*h:], h, pairs)
		})
	}
	r.each(func(x, first, pairs int) {
		bs.multiplyT(bs.xg[first*h:], dgu[first*2*f:], m.experts[x].gateUp, pairs)
	})
	r.scatter(&bs.exec, dx2, bs.xg, h, k, rows, false)

	bs.dlogits = zeroed(bs.dlogits, rows*e)
	for i := range rows {
		n.routerGradient(bs.dlogits[i*e:(i+1)*e], r, bs.dw, i)
	}
	bs.y = resize(bs.y, rows*h)
	bs.multiplyT(bs.y, bs.dlogits, m.router, rows)
	f32.Add(dx2[:rows*h], bs.y)
	bs.weightGradient(g.router, bs.dlogits, e, a.xn2, h, rows)
}

// routerGradient writes row i's dlogits [E], zero before, from the gradients dw
// of its weights.
func (n *net) routerGradient(dlogits []float32, r *route, dw []float32, i int) {
	k, p := n.chosen, r.probs[i*n.experts:(i+1)*n.experts]
	chosen, w, dw := r.expert[i*k:(i+1)*k], r.weight[i*k:(i+1)*k], dw[i*k:(i+1)*k]
	sum, mean := float32(1), float32(0)
	if n.normTopK {
		sum, mean = 0, f32.Dot(w, dw)
		for _, x := range chosen {
			sum += p[x]
		}
	}
	var inner float32
	for j, x := range chosen {
		dlogits[x] = (dw[j] - mean) / sum
		inner += p[x] * dlogits[x]
	}
	for x := range dlogits {
		dlogits[x] = p[x] * (dlogits[x] - inner)
	}
}
