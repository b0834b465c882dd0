package gobackend

import (
	"slices"

	"github.com/skein-rl/skein/model/internal/f32"
)

// What a trainer keeps of a forward pass. Every layer keeps its input. As far as
// Options.ActivationBytes go, layers also keep what attention gave, which saves
// most time for its size, and of what is left as many layers as fit keep all that
// costs a product to compute again: normed inputs and gated activations do not.
// Backward begins with the last layers, so those keep first. All of it lies outside
// Go's heap, whose collector would else let as much garbage gather.

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
	t.kept, t.spare, t.head.logits = nil, acts{}, nil
	t.bs.dx, t.bs.dxn, t.bs.dact, t.bs.dgu, t.bs.datt, t.bs.dqkv = nil, nil, nil, nil, nil, nil
	if t.memory != nil {
		t.memory.Free()
	}
	t.memory, t.room = nil, nil
}

// keep makes room for a batch: the layers' activations, those of the layer in hand
// and their gradients, a block of logits.
func (t *trainer) keep(rows, scored int) {
	d := t.net.dims
	fit := int(max(0, t.b.opts.ActivationBytes) / (4*int64(rows) + 1)) // numbers of a row
	attended := min(d.layers, fit/(d.q+d.heads))
	kept := 0
	if attended == d.layers {
		kept = min(d.layers, (fit-d.layers*(d.q+d.heads))/(d.keptNumbers()-d.q-d.heads))
	}
	t.attendFrom, t.keepFrom = d.layers-attended, d.layers-kept
	logits := min(scored, headRows) * d.vocab
	need := rows*(d.layers*d.hidden+(attended-kept)*(d.q+d.heads)+kept*d.keptNumbers()+d.scratchNumbers()) + logits
	if need > len(t.room) {
		t.forget()
		if need > smallRoom {
			t.memory = f32.NewMemory()
		}
		t.room = t.memory.Floats(need)
	}
	room := t.room
	take := func(n int) []float32 {
		out := room[:n:n]
		room = room[n:]
		return out
	}
	of := func(width int) []float32 { return take(rows * width) }
	t.head.logits = take(logits)
	t.spare = d.acts(of, acts{xn: of(d.hidden), xn2: of(d.hidden), act: of(d.mlp), route: t.spare.route})
	bs := &t.bs
	bs.dx, bs.dxn, bs.dact, bs.dgu, bs.datt, bs.dqkv = of(d.hidden), of(d.hidden), of(d.mlp), of(2*d.mlp), of(d.q), of(d.qkv)
	t.kept = slices.Grow(t.kept[:0], d.layers)[:d.layers]
	for l := range t.kept {
		x, route := of(d.hidden), t.kept[l].route
		if l < t.keepFrom {
			t.kept[l] = acts{x: x}
			if l >= t.attendFrom {
				t.kept[l].att, t.kept[l].lse = of(d.q), of(d.heads)
			}
			continue
		}
		t.kept[l] = d.acts(of, acts{x: x, xn: t.spare.xn, xn2: t.spare.xn2, act: t.spare.act, route: route})
	}
}

// lean is the activations of a layer that does not keep all of them.
func (t *trainer) lean(l int) *acts {
	t.spare.route = t.current.route // its memory
	a := t.spare
	if a.x = t.kept[l].x; l >= t.attendFrom {
		a.att, a.lse = t.kept[l].att, t.kept[l].lse
	}
	t.current = a
	return &t.current
}

// acts adds to a what a layer keeps besides its input.
func (d dims) acts(of func(width int) []float32, a acts) acts {
	a.inv1, a.qkv, a.att, a.x1, a.inv2, a.gu, a.lse = of(1), of(d.qkv), of(d.q), of(d.hidden), of(1), of(2*d.mlp), of(d.heads)
	if d.qkNorm {
		a.qk, a.qkInv = of(d.q+d.kv), of(d.heads+d.kvHeads)
	}
	if d.sandwich {
		a.o, a.m = of(d.hidden), of(d.hidden)
	}
	return a
}

// scratchNumbers is how many numbers of one row the layer in hand needs.
func (d dims) scratchNumbers() int {
	return d.keptNumbers() + 2*d.hidden + d.mlp + // spare
		2*d.hidden + 3*d.mlp + d.q + d.qkv // dx, dxn, dact, dgu, datt, dqkv
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
