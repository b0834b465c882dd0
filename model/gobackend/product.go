package gobackend

import (
	"github.com/skein-rl/skein/model/internal/f32"
)

// product is y = x W^T, or y = x W with rows [lo, lo+n) of W where back is set;
// with add it is added to y.
type product struct {
	lin    linear
	back   bool
	lo, n  int
	x      f32.A
	y      []float32
	stride int // of y's rows
	add    bool
	rows   int
}

// k is the width of x, out that of y.
func (p product) k() int {
	if p.back {
		return p.n
	}
	return p.lin.in
}

func (p product) out() int {
	if p.back {
		return p.lin.in
	}
	return p.lin.out
}

// like says whether two products can be computed as one.
func (p product) like(o product) bool {
	return p.back == o.back && p.lo == o.lo && p.n == o.n && p.add == o.add && p.lin.w.Same(o.lin.w)
}

// times is the product y = x W^T of row-major x and y.
func times(x []float32, lin linear, y []float32, rows int) product {
	return product{lin: lin, x: f32.A{Data: x, RowStride: lin.in, ColStride: 1}, y: y, stride: lin.out, rows: rows}
}

func (p product) compute(ex *exec) {
	b := p.lin.w.B()
	if p.back {
		ex.panels = resize(ex.panels, f32.PackedLen(p.n, p.lin.in))
		p.lin.w.Transpose(ex.pool, ex.panels, p.lo, p.n)
		b = f32.Packed(ex.panels, p.n)
	}
	f32.Gemm(ex.pool, p.rows, p.out(), p.k(), p.x, b, p.y, p.stride, p.add)
}
