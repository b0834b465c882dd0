package gobackend

import (
	"github.com/skein-rl/skein/model/internal/f32"
)

// exec is where a computation runs: its goroutines and its scratch memory. It
// belongs to one goroutine.
type exec struct {
	pool *f32.Pool
	meet *meeting  // with passes that go on at the same time; nil: alone
	at   spot      // in the pass; kept while meet is set
	u    []float32 // [N, adapter width]
	xd   []float32 // [N, in] an adapter's input after dropout
	a    []float32 // a part's A as B operand
	y    []float32 // [N, H]
	xg   []float32 // [N*chosen, H] rows of a mixture's experts

	panels []float32 // a weight, or rows of it, as B operand
}

// acts are the activations of one layer for N rows.
type acts struct {
	x    []float32 // [N, H] input
	inv1 []float32 // [N] reciprocal RMS of x
	xn   []float32 // [N, H] normed input
	qkv  []float32 // [N, Q+2KV] after norms and rope
	att  []float32 // [N, Q]
	x1   []float32 // [N, H] after attention
	inv2 []float32 // [N]
	xn2  []float32 // [N, H]
	gu   []float32 // [N, 2F] gate, up; of a mixture [N*chosen, 2F], by expert
	act  []float32 // [N, F] or [N*chosen, F]
	lse  []float32 // [N, heads] log-sum-exp of the attention scores (training)

	qk    []float32 // [N, Q+KV] before the norms of q and k
	qkInv []float32 // [N, heads+kvHeads]
	o, m  []float32 // [N, H] outputs of attention and MLP before their norms (sandwich)
	route route     // of a mixture
}

// resize returns a slice of n floats, reusing s; its content is undefined.
func resize(s []float32, n int) []float32 {
	if cap(s) < n {
		return make([]float32, n)
	}
	return s[:n]
}

func (a *acts) resize(d dims, n int) {
	a.x = resize(a.x, n*d.hidden)
	a.inv1 = resize(a.inv1, n)
	a.xn = resize(a.xn, n*d.hidden)
	a.qkv = resize(a.qkv, n*d.qkv)
	a.att = resize(a.att, n*d.q)
	a.x1 = resize(a.x1, n*d.hidden)
	a.inv2 = resize(a.inv2, n)
	a.xn2 = resize(a.xn2, n*d.hidden)
	a.gu = resize(a.gu, n*2*d.mlp)
	a.act = resize(a.act, n*d.mlp)
	if d.qkNorm {
		a.qk = resize(a.qk, n*(d.q+d.kv))
		a.qkInv = resize(a.qkInv, n*(d.heads+d.kvHeads))
	}
	if d.sandwich {
		a.o, a.m = resize(a.o, n*d.hidden), resize(a.m, n*d.hidden)
	}
}

// rowGrain is the least number of rows worth a goroutine in elementwise loops
// of the given width.
func rowGrain(width int) int { return 1 + 1<<14/max(width, 1) }

// embedRows gathers token embeddings into x [N, H].
func (n *net) embedRows(ex *exec, x []float32, tokens []int32) {
	h := n.hidden
	ex.pool.Rows(len(tokens), rowGrain(h), func(lo, hi int) {
		for i := lo; i < hi; i++ {
			row := x[i*h : (i+1)*h]
			n.embed.w.Row(row, int(tokens[i]))
			if n.embedScale != 1 {
				f32.Scale(row, n.embedScale)
			}
		}
	})
}

// multiply computes y = xW^T + bias.
func (ex *exec) multiply(y, x []float32, lin linear, rows int) {
	ex.compute(times(x, lin, y, rows))
	if lin.bias == nil {
		return
	}
	ex.pool.Rows(rows, rowGrain(lin.out), func(lo, hi int) {
		for i := lo; i < hi; i++ {
			f32.Add(y[i*lin.out:(i+1)*lin.out], lin.bias)
		}
	})
}

// project is multiply plus each share's adapter, B(scale*Ax), of a layer's
// fused projection.
func (ex *exec) project(y, x []float32, lin linear, shares []share, l, fused, rows int) {
	ex.multiply(y, x, lin, rows)
	for _, s := range shares {
		ad := s.ad.at(l, fused)
		if ad == nil {
			continue
		}
		out := y[s.row*lin.out:]
		u := ex.down(x[s.row*lin.in:], ad, mask{s.drop, l}, s.rows)
		for _, p := range ad.parts {
			f32.Gemm(ex.pool, s.rows, p.out, p.rank, f32.A{Data: u[p.col:], RowStride: ad.width, ColStride: 1},
				f32.Packed(p.b, p.rank), out[p.at:], lin.out, true)
		}
	}
}

// down computes u = scale*Ax [N, width], with dropout on each part's x.
func (ex *exec) down(x []float32, ad *loraLinear, drop mask, rows int) []float32 {
	ex.u = resize(ex.u, rows*ad.width)
	if drop.rows != nil {
		ex.xd = resize(ex.xd, rows*ad.in)
		for _, p := range ad.parts {
			drop.apply(ex.pool, ex.xd, x, p.name, ad.in, false)
			ex.a = resize(ex.a, f32.PackedLen(ad.in, p.rank))
			f32.PackT(ex.pool, ex.a, p.aRaw, p.rank, ad.in, ad.in)
			f32.Gemm(ex.pool, rows, p.rank, ad.in, f32.A{Data: ex.xd, RowStride: ad.in, ColStride: 1}, f32.Packed(ex.a, ad.in), ex.u[p.col:], ad.width, false)
		}
		ad.scale(ex.u, rows)
		return ex.u
	}
	f32.Gemm(ex.pool, rows, ad.width, ad.in, f32.A{Data: x, RowStride: ad.in, ColStride: 1}, f32.Packed(ad.a, ad.in), ex.u, ad.width, false)
	ad.scale(ex.u, rows)
	return ex.u
}

// rmsNorm computes y = x/rms(x)*w and, unless inv is nil, the reciprocal roots.
func (ex *exec) rmsNorm(y, inv, x, w []float32, eps float32, rows int) {
	h := len(w)
	ex.pool.Rows(rows, rowGrain(h), func(lo, hi int) {
		for i := lo; i < hi; i++ {
			xi, yi := x[i*h:(i+1)*h], y[i*h:(i+1)*h]
			r := rmsScale(xi, eps)
			if inv != nil {
				inv[i] = r
			}
			f32.NormMul(yi, xi, r, w)
		}
	})
}

// headNorm is the norm of a head of q or k, nil for none.
func (n *net) headNorm(l, head int) []float32 {
	if head < n.heads {
		return n.layers[l].qNorm
	}
	return n.layers[l].kNorm
}

// positions norms the query and key heads of a.qkv where the model does, and
// applies the layer's rope; angles is [N, ropes.width].
func (n *net) positions(ex *exec, l int, a *acts, angles []float32, rows int) {
	rope, heads, d := n.layers[l].rope, n.heads+n.kvHeads, n.headDim
	ex.pool.Rows(rows, rowGrain(n.qkv), func(lo, hi int) {
		for i := lo; i < hi; i++ {
			row := a.qkv[i*n.qkv:][:heads*d]
			if n.qkNorm {
				copy(a.qk[i*heads*d:], row)
				for h := range heads {
					x := row[h*d : (h+1)*d]
					r := rmsScale(x, n.eps)
					a.qkInv[i*heads+h] = r
					for j, w := range n.headNorm(l, h) {
						x[j] = x[j] * r * w
					}
				}
			}
			if rope != nil {
				rope.rotate(row, angles[i*n.ropes.width+rope.at:], heads, d, false)
			}
		}
	})
}

// qkvRows computes normed inputs, queries, keys and values of layer l from a.x.
func (n *net) qkvRows(ex *exec, l int, shares []share, a *acts, angles []float32, rows int) {
	w := &n.layers[l]
	ex.rmsNorm(a.xn, a.inv1, a.x, w.inNorm, n.eps, rows)
	ex.project(a.qkv, a.xn, w.qkv, shares, l, fusedQKV, rows)
	n.positions(ex, l, a, angles, rows)
}

// midRows computes the residual after attention and the gated activations, all
// that a backward pass needs, from a.x and a.att.
func (n *net) midRows(ex *exec, l int, shares []share, a *acts, rows int) {
	w := &n.layers[l]
	if w.attnNorm == nil {
		ex.project(a.x1, a.att, w.o, shares, l, fusedO, rows)
	} else {
		ex.project(a.o, a.att, w.o, shares, l, fusedO, rows)
		ex.rmsNorm(a.x1, nil, a.o, w.attnNorm, n.eps, rows)
	}
	ex.pool.Rows(rows*n.hidden, 1<<14, func(lo, hi int) { f32.Add(a.x1[lo:hi], a.x[lo:hi]) })
	ex.rmsNorm(a.xn2, a.inv2, a.x1, w.postNorm, n.eps, rows)
	if w.moe != nil {
		n.expertRows(ex, w.moe, a, rows)
	} else {
		ex.project(a.gu, a.xn2, w.dense.gateUp, shares, l, fusedGateUp, rows)
		n.gate.forward(ex, a.act, a.gu, w.dense.inner(), rows)
	}
	if w.mlpNorm != nil {
		n.mlpRows(ex, l, shares, a, a.m, rows)
	}
}

// mlpRows computes the MLP's output y [N, H] from its activations.
func (n *net) mlpRows(ex *exec, l int, shares []share, a *acts, y []float32, rows int) {
	w := &n.layers[l]
	if w.moe != nil {
		n.mixRows(ex, w.moe, a, y, rows)
		return
	}
	ex.project(y, a.act, w.dense.down, shares, l, fusedDown, rows)
}

// outRows computes the layer's output into out [N, H], which may be a.x, after
// midRows.
func (n *net) outRows(ex *exec, l int, shares []share, a *acts, out []float32, rows int) {
	ex.y = resize(ex.y, rows*n.hidden)
	if norm := n.layers[l].mlpNorm; norm != nil {
		ex.rmsNorm(ex.y, nil, a.m, norm, n.eps, rows)
	} else {
		n.mlpRows(ex, l, shares, a, ex.y, rows)
	}
	ex.pool.Rows(rows*n.hidden, 1<<14, func(lo, hi int) {
		copy(out[lo:hi], a.x1[lo:hi])
		f32.Add(out[lo:hi], ex.y[lo:hi])
	})
}
