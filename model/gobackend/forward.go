package gobackend

import (
	"math"

	"github.com/skein-rl/skein/model/internal/f32"
)

// exec is where a computation runs: its goroutines and its scratch memory. It
// belongs to one goroutine.
type exec struct {
	pool *f32.Pool
	u    []float32 // [N, adapter width]
	y    []float32 // [N, H]
}

// acts are the activations of one layer for N rows.
type acts struct {
	x    []float32 // [N, H] input
	inv1 []float32 // [N] reciprocal RMS of x
	xn   []float32 // [N, H] normed input
	qkv  []float32 // [N, Q+2KV] after rope
	att  []float32 // [N, Q]
	x1   []float32 // [N, H] after attention
	inv2 []float32 // [N]
	xn2  []float32 // [N, H]
	gu   []float32 // [N, 2F] gate, up
	act  []float32 // [N, F]
	lse  []float32 // [N, heads] log-sum-exp of the attention scores (training)
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
	a.gu = resize(a.gu, n*2*d.inter)
	a.act = resize(a.act, n*d.inter)
}

// bytesPerRow is the size of acts for one row, lse included.
func (d dims) bytesPerRow() int64 {
	return 4 * int64(4*d.hidden+d.qkv+d.q+3*d.inter+2+d.heads)
}

// rowGrain is the least number of rows worth a goroutine in elementwise loops
// of the given width.
func rowGrain(width int) int { return 1 + 1<<14/max(width, 1) }

// embedRows gathers token embeddings into x [N, H].
func (n *net) embedRows(ex *exec, x []float32, tokens []int32) {
	h := n.hidden
	ex.pool.Rows(len(tokens), rowGrain(h), func(lo, hi int) {
		for i := lo; i < hi; i++ {
			copy(x[i*h:(i+1)*h], n.embed[int(tokens[i])*h:])
		}
	})
}

// project computes y = xW^T + B(scale*Ax), columns [0, out) of y; ad may be
// nil.
func (ex *exec) project(y []float32, x []float32, lin linear, ad *loraLinear, scale float32, rows int) {
	in := f32.A{Data: x, RowStride: lin.in, ColStride: 1}
	f32.Gemm(ex.pool, rows, lin.out, lin.in, in, lin.panels(), y, lin.out, false)
	if ad == nil {
		return
	}
	u := ex.down(x, ad, scale, rows)
	rank := ad.width / len(ad.parts)
	for i, p := range ad.parts {
		f32.Gemm(ex.pool, rows, p.out, rank, f32.A{Data: u[i*rank:], RowStride: ad.width, ColStride: 1},
			f32.Packed(p.b, rank), y[p.at:], lin.out, true)
	}
}

// down computes u = scale*Ax [N, width].
func (ex *exec) down(x []float32, ad *loraLinear, scale float32, rows int) []float32 {
	ex.u = resize(ex.u, rows*ad.width)
	f32.Gemm(ex.pool, rows, ad.width, ad.in, f32.A{Data: x, RowStride: ad.in, ColStride: 1}, f32.Packed(ad.a, ad.in), ex.u, ad.width, false)
	f32.Scale(ex.u, scale)
	return ex.u
}

// rmsNorm computes y = x/rms(x)*w (Zhang & Sennrich 2019, arXiv:1910.07467,
// equation 4, with eps under the root) and the reciprocal roots.
func (ex *exec) rmsNorm(y, inv, x, w []float32, eps float32, rows int) {
	h := len(w)
	ex.pool.Rows(rows, rowGrain(h), func(lo, hi int) {
		for i := lo; i < hi; i++ {
			xi, yi := x[i*h:(i+1)*h], y[i*h:(i+1)*h]
			square := f32.Dot(xi, xi)
			if square > math.MaxFloat32 {
				square = float32(math.NaN()) // an overflow must not pass as a row of zeros
			}
			r := 1 / float32(math.Sqrt(float64(square/float32(h)+eps)))
			inv[i] = r
			for j, v := range xi {
				yi[j] = v * r * w[j]
			}
		}
	})
}

// rotate applies rope to the query and key heads of qkv [N, Q+2KV]; angles is
// [N, D].
func (n *net) rotate(ex *exec, qkv, angles []float32, rows int, inverse bool) {
	ex.pool.Rows(rows, rowGrain(n.qkv), func(lo, hi int) {
		for i := lo; i < hi; i++ {
			row, ang := qkv[i*n.qkv:], angles[i*n.headDim:(i+1)*n.headDim]
			for h := range n.heads + n.kvHeads {
				n.rope.apply(row[h*n.headDim:(h+1)*n.headDim], ang, inverse)
			}
		}
	})
}

// siluMul computes act = silu(gate)*up; gu is [N, 2F], act [N, F].
func siluMul(ex *exec, act, gu []float32, inter, rows int) {
	ex.pool.Rows(rows, rowGrain(4*inter), func(lo, hi int) {
		for i := lo; i < hi; i++ {
			a := act[i*inter : (i+1)*inter]
			gate, up := gu[2*i*inter:(2*i+1)*inter], gu[(2*i+1)*inter:(2*i+2)*inter]
			copy(a, gate)
			f32.Exp(a, -1, 0)
			for j, g := range gate {
				a[j] = g / (1 + a[j]) * up[j]
			}
		}
	})
}

// qkvRows computes normed inputs and rotated projections of layer l from a.x.
func (n *net) qkvRows(ex *exec, l int, ad *lora, a *acts, angles []float32, rows int) {
	w := &n.layers[l]
	ex.rmsNorm(a.xn, a.inv1, a.x, w.inNorm, n.eps, rows)
	ex.project(a.qkv, a.xn, w.qkv, ad.at(l, fusedQKV), ad.scaling(), rows)
	n.rotate(ex, a.qkv, angles, rows, false)
}

// midRows computes the residual after attention and the gated activations, all
// that a backward pass needs, from a.x and a.att.
func (n *net) midRows(ex *exec, l int, ad *lora, a *acts, rows int) {
	w := &n.layers[l]
	ex.project(a.x1, a.att, w.o, ad.at(l, fusedO), ad.scaling(), rows)
	f32.Add(a.x1, a.x)
	ex.rmsNorm(a.xn2, a.inv2, a.x1, w.postNorm, n.eps, rows)
	ex.project(a.gu, a.xn2, w.gateUp, ad.at(l, fusedGateUp), ad.scaling(), rows)
	siluMul(ex, a.act, a.gu, n.inter, rows)
}

// outRows computes the layer's output into out [N, H], which may be a.x.
func (n *net) outRows(ex *exec, l int, ad *lora, a *acts, out []float32, rows int) {
	ex.y = resize(ex.y, rows*n.hidden)
	ex.project(ex.y, a.act, n.layers[l].down, ad.at(l, fusedDown), ad.scaling(), rows)
	ex.pool.Rows(rows*n.hidden, 1<<14, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			out[i] = a.x1[i] + ex.y[i]
		}
	})
}
