//go:build xla

package xla

// The backward of a training layer. Only its input and its LoRA vector have
// gradients.

// gradient is an adapted projection's A and B.
type gradient struct{ a, b value }

// linearBack gives the gradient of x from that of linear(matrix, x), and stores
// the adapters'.
func (y *layer) linearBack(matrix string, x, d value, grads map[string]gradient) value {
	d = y.low(d)
	dx := y.matAB(d, y.w[matrix])
	for _, p := range y.adapters(matrix) {
		x := y.dropped(x, p.name)
		di, u := y.slice(d, 1, p.lo, p.lo+p.out), y.low(y.matABt(x, p.aw))
		du := y.low(y.matAB(di, p.bw))
		grads[p.name] = gradient{y.matAtB(du, x), y.scale(y.matAtB(di, u), p.scale)}
		dx = y.add(dx, y.dropped(y.matAB(du, p.aw), p.name))
	}
	return dx
}

// backward recomputes the layer from its input x [N, hidden] and gives the
// gradients of x and of the flat LoRA vector, f32, from that of its output.
func (y *layer) backward(x, d value, r rotary, see sight, l layout, lora loraShape) (dx, flat value) {
	s, n := y.s, x.dims[0]
	grads := map[string]gradient{}
	b := y.before(x, r)
	o, attn := y.attend(l, b.q, b.k, b.v, see)
	a := y.after(x, o)

	dm := d
	if s.sandwich {
		dm = y.normBack(a.mlpOut, dm)
	}
	dact := y.linearBack("down", a.act, dm, grads)
	var dh value
	if y.kind.moe {
		dh = y.routeBack(a.router, y.sumExpert(y.mul(dact, a.inner)))
		dact = y.mul(dact, y.perExpert(a.router.weight))
	}
	g, _ := y.activation(a.gate)
	dgate, dup := y.mul(y.mul(dact, a.up), a.slope), y.mul(dact, g)
	dm = y.linearBack("gate_up", a.h, y.concat(1, dgate, dup), grads)
	if y.kind.moe {
		dm = y.add(dm, dh)
	}
	d = y.add(d, y.normBack(a.norm2, dm))

	do := d
	if s.sandwich {
		do = y.normBack(a.attnOut, do)
	}
	do = y.linearBack("o", a.o, do, grads)
	dq, dk, dv := attn.back(do)
	heads := func(x value, h int) value { return y.reshape(x, n, h, s.headDim) }
	dq = y.rotate(y.scale(heads(dq, s.heads), s.scoreScale), r, true)
	dk = y.rotate(heads(dk, s.kv), r, true)
	if s.qkNorm {
		dq, dk = y.normBack(b.qn, dq), y.normBack(b.kn, dk)
	}
	all := y.concat(1, y.reshape(dq, n, s.qDim()), y.reshape(dk, n, s.kvDim()), y.reshape(dv, n, s.kvDim()))
	d = y.add(d, y.normBack(b.norm1, y.linearBack("qkv", b.h, all, grads)))

	var parts []value
	for _, p := range lora.parts {
		g := grads[p.name]
		parts = append(parts, y.reshape(g.a, count(g.a.dims)), y.reshape(g.b, count(g.b.dims)))
	}
	return d, y.concat(0, parts...)
}
