package gobackend

import (
	"github.com/skein-rl/skein/model/internal/f32"
)

// backwardScratch is the working memory of a backward pass.
type backwardScratch struct {
	exec
	dx            []float32 // [N, H] gradient of the residual stream
	dact          []float32 // [N, F]
	dgu           []float32 // [N, 2F]
	dxn           []float32 // [N, H] gradient of a normed input
	datt          []float32 // [N, Q]
	dqkv          []float32 // [N, Q+2KV]
	prompts       []float32 // [P, 2KV] for each part of a group: gradients of its prompt
	inv           []float32 // [N]
	dqk           []float32 // [N, Q+KV] gradient of normed q and k
	dout, dbranch []float32 // [N, H] gradients after and before a branch's norm
	dw            []float32 // [N, chosen] gradient of a mixture's weights
	dlogits       []float32 // [N, E] gradient of a router's logits
	du            []float32 // [N, adapter width]
	dxd           []float32 // [N, in] gradient of an adapter's input after dropout
	tmp           []float32 // operands of the small adapter products
	small         []float32 // dB^T [R, out]
}

// backwardLayer turns bs.dx from the gradient of the layer's output into that
// of its input, and adds the parameters' gradients to g. a holds the layer's
// activations.
func (n *net) backwardLayer(bs *backwardScratch, b *batch, l int, ad *lora, a *acts, angles []float32, g *gradients) {
	rows, w, gl := len(b.tokens), &n.layers[l], g.layer(l)
	bs.dact, bs.dgu = resize(bs.dact, rows*n.mlp), resize(bs.dgu, rows*2*n.mlp)
	bs.dxn, bs.datt, bs.dqkv = resize(bs.dxn, rows*n.hidden), resize(bs.datt, rows*n.q), resize(bs.dqkv, rows*n.qkv)

	dy := n.branch(bs, a.m, w.mlpNorm, rows, gl.mlpNorm)
	if w.moe != nil {
		n.mixBackward(bs, w.moe, a, dy, bs.dxn, rows, gl)
	} else {
		bs.projectBackward(bs.dact, dy, a.act, w.dense.down, ad.at(l, fusedDown), mask{b.drop, l}, rows, gl.down, g)
		n.gate.backward(&bs.exec, bs.dgu, bs.dact, a.gu, w.dense.inner(), rows)
		bs.projectBackward(bs.dxn, bs.dgu, a.xn2, w.dense.gateUp, ad.at(l, fusedGateUp), mask{b.drop, l}, rows, gl.gateUp, g)
	}
	bs.rmsNormBackward(bs.dx, bs.dxn, a.x1, a.inv2, w.postNorm, rows, gl.postNorm)

	dy = n.branch(bs, a.o, w.attnNorm, rows, gl.attnNorm)
	bs.projectBackward(bs.datt, dy, a.att, w.o, ad.at(l, fusedO), mask{b.drop, l}, rows, gl.o, g)
	n.attendGroupsBackward(bs, b, w.window, a, bs.datt, bs.dqkv)
	n.positionsBackward(bs, l, a, angles, rows, gl)
	bs.projectBackward(bs.dxn, bs.dqkv, a.xn, w.qkv, ad.at(l, fusedQKV), mask{b.drop, l}, rows, gl.qkv, g)
	bs.rmsNormBackward(bs.dx, bs.dxn, a.x, a.inv1, w.inNorm, rows, gl.inNorm)
}

// branch is the gradient of what attention or MLP adds to the residual, before
// its norm (nil = none): the norm's input was y.
func (n *net) branch(bs *backwardScratch, y, norm []float32, rows int, dw []float32) []float32 {
	if norm == nil {
		return bs.dx
	}
	bs.dout, bs.dbranch = resize(bs.dout, rows*n.hidden), zeroed(bs.dbranch, rows*n.hidden)
	bs.inv = resize(bs.inv, rows)
	for i := range rows {
		bs.inv[i] = rmsScale(y[i*n.hidden:(i+1)*n.hidden], n.eps)
	}
	copy(bs.dout, bs.dx)
	bs.rmsNormBackward(bs.dbranch, bs.dout, y, bs.inv, norm, rows, dw)
	return bs.dbranch
}

// positionsBackward turns bs.dqkv into the gradient of the projection's output.
func (n *net) positionsBackward(bs *backwardScratch, l int, a *acts, angles []float32, rows int, gl *layerGradients) {
	rope, heads, d := n.layers[l].rope, n.heads+n.kvHeads, n.headDim
	rowsDo := func(f func(i int, row []float32)) {
		bs.pool.Rows(rows, rowGrain(n.qkv), func(lo, hi int) {
			for i := lo; i < hi; i++ {
				f(i, bs.dqkv[i*n.qkv:][:heads*d])
			}
		})
	}
	if rope != nil {
		rowsDo(func(i int, row []float32) { rope.rotate(row, angles[i*n.ropes.width+rope.at:], heads, d, true) })
	}
	if !n.qkNorm {
		return
	}
	if gl.qNorm != nil {
		for i := range rows * heads {
			dw := gl.qNorm
			if i%heads >= n.heads {
				dw = gl.kNorm
			}
			dy := bs.dqkv[i/heads*n.qkv+i%heads*d:]
			for j := range dw {
				dw[j] += dy[j] * a.qk[i*d+j] * a.qkInv[i]
			}
		}
	}
	bs.dqk = resize(bs.dqk, rows*heads*d)
	rowsDo(func(i int, row []float32) {
		dy := bs.dqk[i*heads*d:][:heads*d]
		copy(dy, row)
		clear(row)
		for h := range heads {
			lo, hi := h*d, (h+1)*d
			rmsGradient(row[lo:hi], dy[lo:hi], a.qk[i*heads*d:][lo:hi], n.headNorm(l, h), a.qkInv[i*heads+h])
		}
	})
}

// multiplyT computes dx = dy W, the backward of multiply.
func (bs *backwardScratch) multiplyT(dx, dy []float32, lin linear, rows int) {
	bs.compute(product{
		lin: lin, back: true, n: lin.out, rows: rows,
		x: f32.A{Data: dy, RowStride: lin.out, ColStride: 1}, y: dx, stride: lin.in,
	})
}

// weightGradient adds dy^T x to the matrices of a fused projection and the sum
// of dy's rows to its biases; dy has row stride ldy.
func (ex *exec) weightGradient(parts []gradPart, dy []float32, ldy int, x []float32, in, rows int) {
	if len(parts) == 0 {
		return
	}
	ex.y = resize(ex.y, f32.PackedLen(rows, in))
	f32.PackN(ex.pool, ex.y, x, rows, in, in)
	for _, p := range parts {
		if p.bias == nil {
			f32.Gemm(ex.pool, p.out, in, rows, f32.A{Data: dy[p.at:], RowStride: 1, ColStride: ldy}, f32.Packed(ex.y, rows), p.w, in, true)
			continue
		}
		for i := range rows {
			f32.Add(p.bias, dy[i*ldy+p.at:][:p.out])
		}
	}
}

// projectBackward is the backward of project: dx = dy W + scale (dy B) A, and
// adds to the gradients dW = dy^T x (in full training), dA = du^T x with
// du = scale dy B, and dB = dy^T u with u = scale A x.
func (bs *backwardScratch) projectBackward(dx, dy, x []float32, lin linear, ad *loraLinear, drop mask, rows int, dw []gradPart, g *gradients) {
	bs.multiplyT(dx, dy, lin, rows)
	bs.weightGradient(dw, dy, lin.out, x, lin.in, rows)
	if ad == nil {
		return
	}
	u := bs.down(x, ad, drop, rows)
	bs.du = resize(bs.du, rows*ad.width)
	for _, p := range ad.parts {
		// du = scale dy B, B [out, R] as B operand.
		bs.tmp = resize(bs.tmp, f32.PackedLen(p.out, p.rank))
		f32.PackN(bs.pool, bs.tmp, p.bRaw, p.out, p.rank, p.rank)
		f32.Gemm(bs.pool, rows, p.rank, p.out, f32.A{Data: dy[p.at:], RowStride: lin.out, ColStride: 1}, f32.Packed(bs.tmp, p.out), bs.du[p.col:], ad.width, false)
		// dB^T = u^T dy.
		bs.small = zeroed(bs.small, p.rank*p.out)
		bs.outerStrided(bs.small, u[p.col:], p.rank, ad.width, dy[p.at:], p.out, lin.out, rows)
		addTransposed(g.flat[p.bOff:p.bOff+p.out*p.rank], bs.small, p.out, p.rank)
	}
	ad.scale(bs.du, rows)
	for _, p := range ad.parts {
		x, into := x, dx
		if drop.rows != nil { // A saw each part's own x
			bs.dxd = resize(bs.dxd, rows*ad.in)
			drop.apply(bs.pool, bs.xd, x, p.name, ad.in, false)
			x, into = bs.xd, bs.dxd
		}
		bs.outer(g.flat[p.aOff:p.aOff+p.rank*ad.in], bs.du[p.col:], p.rank, ad.width, x, ad.in, rows)
		bs.tmp = resize(bs.tmp, f32.PackedLen(p.rank, ad.in))
		f32.PackN(bs.pool, bs.tmp, p.aRaw, p.rank, ad.in, ad.in)
		f32.Gemm(bs.pool, rows, ad.in, p.rank, f32.A{Data: bs.du[p.col:], RowStride: ad.width, ColStride: 1}, f32.Packed(bs.tmp, p.rank), into, ad.in, drop.rows == nil)
		if drop.rows != nil {
			drop.apply(bs.pool, dx, into, p.name, ad.in, true)
		}
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
			rmsGradient(dx[i*h:(i+1)*h], dy[i*h:(i+1)*h], x[i*h:(i+1)*h], w, inv[i])
		}
	})
}

// rmsGradient is rmsNormBackward's one row. It overwrites dy by dy w.
func rmsGradient(dx, dy, x, w []float32, r float32) {
	for j, v := range dy {
		dy[j] = v * w[j]
	}
	c := r * r * r * f32.Dot(dy, x) / float32(len(x))
	for j, v := range dy {
		dx[j] += r*v - c*x[j]
	}
}
