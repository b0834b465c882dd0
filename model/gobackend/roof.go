package gobackend

import (
	"time"

	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/model/internal/f32"
)

// Roof measures what a machine gives this package's kernels at most, in about
// 0.2 s: bytes read from memory per second, and floating-point operations per
// second (2 per multiply-add) of a product that lies in cache. Decoding cannot be
// faster than both allow (Williams et al. 2009, doi:10.1145/1498765.1498785).
func Roof(threads int) (bytesPerSecond, flopsPerSecond float64) {
	pool, release := f32.NewPool(threads).Crew()
	defer release()
	const n = 32 << 20 // 128 MB: more than caches hold
	mem := f32.NewMemory()
	defer mem.Free()
	x := mem.Floats(n)
	pool.Rows(n, 1<<16, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			x[i] = 1
		}
	})
	read := fastest(func() {
		pool.For(pool.Threads(), func(t int) { f32.Sum(x[t*(n/pool.Threads()):][:n/pool.Threads()]) })
	})
	const k, columns = 512, 256
	rows := 96 * pool.Threads()
	a, b, c := x[:rows*k], f32.Packed(x[rows*k:][:f32.PackedLen(k, columns)], k), x[n/2:]
	const times = 8
	product := fastest(func() {
		for range times {
			f32.Gemm(pool, rows, columns, k, f32.A{Data: a, RowStride: k, ColStride: 1}, b, c, columns, false)
		}
	})
	return 4 * n / read.Seconds(), 2 * times * float64(rows) * k * columns / product.Seconds()
}

// fastest is the shortest of several runs.
func fastest(f func()) time.Duration {
	best := time.Duration(1<<63 - 1)
	for range 10 {
		start := time.Now()
		f()
		best = min(best, time.Since(start))
	}
	return best
}

// StepCost is what one decoding step of so many rows, each with so many positions
// cached and no prefix shared, has to read and to compute: weights once, caches
// once; adapters and activations are left out. It is 0, 0 for another backend.
func StepCost(b model.Backend, rows, positions int) (bytes, flops float64) {
	own, ok := b.(*backend)
	if !ok {
		return 0, 0
	}
	n := own.net
	cached := float64(rows) * float64(positions) * float64(n.dims.layers)
	bytes = float64(n.bytes()) + 4*cached*float64(n.kvHeads*(n.headDim+n.hdPad))
	weights := n.head.out * n.head.in
	for i := range n.layers {
		weights += n.layers[i].used(n.chosen)
	}
	return bytes, 2*float64(rows)*float64(weights) + 4*cached*float64(n.q)
}

// used is how many weights of a layer a token meets.
func (l *layer) used(chosen int) (count int) {
	if l.moe == nil {
		l.linears(func(m linear) { count += m.out * m.in })
		return count
	}
	e := l.moe.experts[0]
	for _, m := range []linear{l.qkv, l.o, l.moe.router} {
		count += m.out * m.in
	}
	return count + chosen*(e.gateUp.out*e.gateUp.in+e.down.out*e.down.in)
}
