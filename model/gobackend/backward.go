package gobackend

import (
	"github.com/skein-rl/skein/model/internal/f32"
)

// backwardScratch is the working memory of a backward pass.
type backwardScratch struct {
	exec
	dx     []float32 // [N, H] gradient of the residual stream
	dact   []float32 // [N, F]
	dgu    []float32 // [N, 2F]
	dxn    []float32 // [N, H] gradient of a normed input
	datt   []float32 // [N, Q]
	dqkv   []float32 // [N, Q+2KV]
	panels []float32 // a weight as B operand [out, in]
	du     []float32 // [N, adapter width]
	tmp    []float32 // operands of the small adapter products
	small  []float32 // dB^T [R, out]
}

// backwardLayer turns bs.dx from the gradient of the layer's output into that
// of its input, and adds the parameters' gradients to g. a holds the layer's
// activations.
func (n *net) backwardLayer(bs *backwardScratch, b *batch, l int, ad *lora, a *acts, angles []float32, g *gradients) {
	rows, w, gl := len(b.tokens), &n.layers[l], g.layer(l)
	bs.dact, bs.dgu = resize(bs.dact, rows*n.inter), resize(bs.dgu, rows*2*n.inter)
	bs.dxn, bs.datt, bs.dqkv = resize(bs.dxn, rows*n.hidden), resize(bs.datt, rows*n.q), resize(bs.dqkv, rows*n.qkv)

	bs.projectBackward(bs.dact, bs.dx, a.act, w.down, ad.at(l, fusedDown), ad, rows, gl.down, g)
	siluMulBackward(&bs.exec, bs.dgu, bs.dact, a.gu, n.inter, rows)
	bs.projectBackward(bs.dxn, bs.dgu, a.xn2, w.gateUp, ad.at(l, fusedGateUp), ad, rows, gl.gateUp, g)
	bs.rmsNormBackward(bs.dx, bs.dxn, a.x1, a.inv2, w.postNorm, rows, gl.postNorm)

	bs.projectBackward(bs.datt, bs.dx, a.att, w.o, ad.at(l, fusedO), ad, rows, gl.o, g)
	n.attendGroupsBackward(&bs.exec, b, a, bs.datt, bs.dqkv)
	n.rotate(&bs.exec, bs.dqkv, angles, rows, true)
	bs.projectBackward(bs.dxn, bs.dqkv, a.xn, w.qkv, ad.at(l, fusedQKV), ad, rows, gl.qkv, g)
	bs.rmsNormBackward(bs.dx, bs.dxn, a.x, a.inv1, w.inNorm, rows, gl.inNorm)
}

// projectBackward is the backward of project: dx = dy W + scale (dy B) A, and
// adds to the gradients dW = dy^T x (when dw is not nil), dA = du^T x with
// du = scale dy B, and dB = dy^T u with u = scale A x.
func (bs *backwardScratch) projectBackward(dx, dy, x []float32, lin linear, part *loraLinear, ad *lora, rows int, dw []float32, g *gradients) {
	bs.panels = resize(bs.panels, f32.PackedLen(lin.out, lin.in))
	f32.Transpose(bs.pool, bs.panels, lin.w, lin.in, lin.out)
	f32.Gemm(bs.pool, rows, lin.in, lin.out, f32.A{Data: dy, RowStride: lin.out, ColStride: 1}, f32.Packed(bs.panels, lin.out), dx, lin.in, false)
	if dw != nil {
		bs.outer(dw, dy, lin.out, lin.out, x, lin.in, rows)
	}
	if part == nil {
		return
	}
	rank, width := ad.rank, part.width
	u := bs.down(x, part, ad.scale, rows)
	bs.du = resize(bs.du, rows*width)
	for i, p := range part.parts {
		// du = scale dy B, B [out, R] as B operand.
		bs.tmp = resize(bs.tmp, f32.PackedLen(p.out, rank))
		f32.PackN(bs.pool, bs.tmp, p.bRaw, p.out, rank, rank)
		f32.Gemm(bs.pool, rows, rank, p.out, f32.A{Data: dy[p.at:], RowStride: lin.out, ColStride: 1}, f32.Packed(bs.tmp, p.out), bs.du[i*rank:], width, false)
		// dB^T = u^T dy.
		bs.small = zeroed(bs.small, rank*p.out)
		bs.outerStrided(bs.small, u[i*rank:], rank, width, dy[p.at:], p.out, lin.out, rows)
		addTransposed(g.flat[p.bOff:p.bOff+p.out*rank], bs.small, p.out, rank)
	}
	f32.Scale(bs.du, ad.scale)
	for i, p := range part.parts {
		bs.outer(g.flat[p.aOff:p.aOff+rank*part.in], bs.du[i*rank:], rank, width, x, part.in, rows)
		bs.tmp = resize(bs.tmp, f32.PackedLen(rank, part.in))
		f32.PackN(bs.pool, bs.tmp, p.aRaw, rank, part.in, part.in)
		f32.Gemm(bs.pool, rows, part.in, rank, f32.A{Data: bs.du[i*rank:], RowStride: width, ColStride: 1}, f32.Packed(bs.tmp, rank), dx, part.in, true)
	}
}

// outer adds y^T x to dst [m, in]: y [rows, m] with row stride ldy, x [rows, in].
func (ex *exec) outer(dst, y []float32, m, ldy int, x []float32, in, rows int) {
	ex.outerStrided(dst, y, m, ldy, x, in, in, rows)
}

// outerStrided is outer for x with row stride ldx.
func (ex *exec) outerStrided(dst, y []float32, m, ldy int, x []float32, in, ldx, rows int) {
	ex.y = resize(ex.y, f32.PackedLen(rows, in))
	f32.PackN(ex.pool, ex.y, x, rows, in, ldx)
	f32.Gemm(ex.pool, m, in, rows, f32.A{Data: y, RowStride: 1, ColStride: ldy}, f32.Packed(ex.y, rows), dst, in, true)
}

// addTransposed adds src [R, out] transposed to dst [out, R].
func addTransposed(dst, src []float32, out, rank int) {
	for o := range out {
		row := dst[o*rank : (o+1)*rank]
		for r := range row {
			row[r] += src[r*out+o]
		}
	}
}

// siluMulBackward: with s = sigmoid(gate), dgate = dact up s (1 + gate (1-s)),
// dup = dact gate s.
func siluMulBackward(ex *exec, dgu, dact, gu []float32, inter, rows int) {
	ex.pool.Rows(rows, rowGrain(4*inter), func(lo, hi int) {
		for i := lo; i < hi; i++ {
			gate, up := gu[2*i*inter:(2*i+1)*inter], gu[(2*i+1)*inter:(2*i+2)*inter]
			dg, du := dgu[2*i*inter:(2*i+1)*inter], dgu[(2*i+1)*inter:(2*i+2)*inter]
			da := dact[i*inter : (i+1)*inter]
			copy(dg, gate)
			f32.Exp(dg, -1, 0)
			for j, v := range gate {
				s := 1 / (1 + dg[j])
				du[j] = da[j] * v * s
				dg[j] = da[j] * up[j] * s * (1 + v*(1-s))
			}
		}
	})
}

// rmsNormBackward adds to dx the gradient through y = x r w, r = 1/rms(x):
// r (dy w) - x r^3/H dot(dy w, x); and to dw (when not nil) sum dy x r.
func (ex *exec) rmsNormBackward(dx, dy, x, inv, w []float32, rows int, dw []float32) {
	h := len(w)
	if dw != nil {
		for i := range rows {
			dyi, xi, r := dy[i*h:(i+1)*h], x[i*h:(i+1)*h], inv[i]
			for j, v := range dyi {
				dw[j] += v * xi[j] * r
			}
		}
	}
	ex.pool.Rows(rows, rowGrain(2*h), func(lo, hi int) {
		for i := lo; i < hi; i++ {
			dyi, xi, dxi, r := dy[i*h:(i+1)*h], x[i*h:(i+1)*h], dx[i*h:(i+1)*h], inv[i]
			var dot float32
			for j, v := range dyi {
				dyi[j] = v * w[j]
			}
			dot = f32.Dot(dyi, xi)
			c := r * r * r * dot / float32(h)
			for j, v := range dyi {
				dxi[j] += r*v - c*xi[j]
			}
		}
	})
}
