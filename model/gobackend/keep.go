package gobackend

import (
	"slices"

	"github.com/skein-rl/skein/model/internal/f32"
)

// What a trainer keeps of a forward pass. Every layer keeps its input. Of as many
// of the last layers as Options.ActivationBytes allows, all is kept that costs a
// product to compute again: normed inputs and gated activations are not. It lies
// outside Go's heap, whose collector would else let as much garbage gather.

// keptNumbers is how many numbers of one row such a layer keeps besides its input.
func (d dims) keptNumbers() int {
	n := d.qkv + d.q + d.hidden + 2*d.mlp + d.heads + 2 // qkv, att, x1, gu, lse, inv1, inv2
	if d.qkNorm {
		n += d.q + d.kv + d.heads + d.kvHeads
	}
	if d.sandwich {
		n += 2 * d.hidden
	}
	return n
}

// smallRoom is how many numbers the heap may hold as well.
const smallRoom = 1 << 20

// forget gives the room back.
func (t *trainer) forget() {
	clear(t.kept)
	if t.memory != nil {
		t.memory.Free()
	}
	t.memory, t.room = nil, nil
}

// keep makes room for the layers' activations of a batch.
func (t *trainer) keep(rows int) {
	d := t.net.dims
	// Backward begins with the last layers: what is kept of them is used first.
	fit := max(0, t.b.opts.ActivationBytes) / (4*int64(rows)*int64(d.keptNumbers()) + 1)
	t.keepFrom = max(0, d.layers-int(min(fit, int64(d.layers))))
	need := d.layers*rows*d.hidden + (d.layers-t.keepFrom)*rows*d.keptNumbers()
	if need > len(t.room) {
		t.forget()
		if need > smallRoom {
			t.memory = f32.NewMemory()
		}
		t.room = t.memory.Floats(need)
	}
	room := t.room
	take := func(n int) []float32 {
		out := room[: n*rows : n*rows]
		room = room[n*rows:]
		return out
	}
	t.spare.x = nil // it may be a kept layer's
	t.spare.resize(d, rows)
	t.kept = slices.Grow(t.kept[:0], d.layers)[:d.layers]
	for l := range t.kept {
		if l < t.keepFrom {
			t.kept[l] = acts{x: take(d.hidden)}
			continue
		}
		a := acts{x: take(d.hidden), inv1: take(1), qkv: take(d.qkv), att: take(d.q), x1: take(d.hidden), inv2: take(1), gu: take(2 * d.mlp), lse: take(d.heads),
			xn: t.spare.xn, xn2: t.spare.xn2, act: t.spare.act, route: t.kept[l].route}
		if d.qkNorm {
			a.qk, a.qkInv = take(d.q+d.kv), take(d.heads+d.kvHeads)
		}
		if d.sandwich {
			a.o, a.m = take(d.hidden), take(d.hidden)
		}
		t.kept[l] = a
	}
}

// refill computes what layer l did not keep, from what it did.
func (n *net) refill(ex *exec, l int, a *acts, rows int) {
	w, h := &n.layers[l], n.hidden
	ex.pool.Rows(rows, rowGrain(h), func(lo, hi int) {
		for i := lo; i < hi; i++ {
			f32.NormMul(a.xn[i*h:(i+1)*h], a.x[i*h:(i+1)*h], a.inv1[i], w.inNorm)
			f32.NormMul(a.xn2[i*h:(i+1)*h], a.x1[i*h:(i+1)*h], a.inv2[i], w.postNorm)
		}
	})
	if w.moe != nil {
		n.gate.forward(ex, a.act, a.gu, w.moe.experts[0].inner(), rows*n.chosen)
		return
	}
	n.gate.forward(ex, a.act, a.gu, w.dense.inner(), rows)
}
