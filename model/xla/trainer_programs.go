//go:build xla

package xla

import (
	"fmt"

	"github.com/skein-rl/skein/model"
)

// The trainer's programs, compiled on first use: per layout and kind of layer,
// the head per chunk size.

// embed: embedding, ids [N], pos [N] -> x [N, hidden], then cosines and sines of
// each rope table.
func (t *trainer) embed(l layout) (*program, error) {
	s, rows := t.b.shape, l.rows()
	return t.b.stablehlo(fmt.Sprintf("embed rows=%d", rows), func(e *emitter) []value {
		n := &net{emitter: e, s: s, elem: t.b.dev.elem}
		n.embed = e.arg("embed", n.elem, s.vocab, s.hidden)
		ids, pos := e.arg("ids", "i32", rows), e.arg("pos", "i32", rows)
		out := []value{n.embedded(ids)}
		for _, r := range n.rotaries(pos) {
			out = append(out, r.cos, r.sin)
		}
		return out
	})
}

// layerInputs declares what layers read besides x: which rows see each other, the
// LoRA vector, with dropout its keys and site, cosines and sines if the kind has
// positions, weights.
func (t *trainer) layerInputs(e *emitter, l layout, i int, d model.Dropout) (y *layer, r rotary, see sight) {
	n := &net{emitter: e, s: t.b.shape, elem: t.b.dev.elem}
	k, lora := n.s.kinds[i], t.lora[i]
	see = sight{e.arg("prompt", "i32", 1), e.arg("places", "i32", 2, l.G*l.C)}
	flat := e.arg("lora", "f32", lora.size)
	n.masks = e.maskArgs(d, l.rows())
	if k.rope >= 0 {
		half := len(n.s.ropes[k.rope].Inv)
		r = rotary{e.arg("cos", "f32", l.rows(), half), e.arg("sin", "f32", l.rows(), half)}
	}
	y = n.newLayer(k, "")
	y.lora = e.slicedLoRA(flat, lora, n.elem)
	return y, r, see
}

// layerKey names a program of layer i: layers that differ in nothing but numbers
// share it.
func (t *trainer) layerKey(which string, l layout, i int, d model.Dropout) string {
	return fmt.Sprintf("layer %s %v %+v %v dropout=%v", which, l, t.b.shape.kinds[i], t.lora[i], d.Rate)
}

// layerForward: x, layer i's inputs -> x.
func (t *trainer) layerForward(l layout, i int, d model.Dropout) (*program, error) {
	return t.b.stablehlo(t.layerKey("forward", l, i, d), func(e *emitter) []value {
		x := e.arg("x", "f32", l.rows(), t.b.shape.hidden)
		y, r, see := t.layerInputs(e, l, i, d)
		return []value{y.forward(x, r, func(q, k, v value) value {
			o, _ := y.attend(l, q, k, v, see)
			return o
		})}
	})
}

// layerBackward: x, d, layer i's inputs -> dx, the LoRA vector's gradient.
func (t *trainer) layerBackward(l layout, i int, drop model.Dropout) (*program, error) {
	return t.b.stablehlo(t.layerKey("backward", l, i, drop), func(e *emitter) []value {
		x, d := e.arg("x", "f32", l.rows(), t.b.shape.hidden), e.arg("d", "f32", l.rows(), t.b.shape.hidden)
		y, r, see := t.layerInputs(e, l, i, drop)
		dx, flat := y.backward(x, d, r, see, l, t.lora[i])
		return []value{dx, flat}
	})
}

// gather: x [N, hidden], rows [m] -> the rows.
func (t *trainer) gather(n, m int) (*program, error) {
	return t.b.stablehlo(fmt.Sprintf("gather %d of %d rows", m, n), func(e *emitter) []value {
		return []value{e.rows(e.arg("x", "f32", n, t.b.shape.hidden), e.arg("rows", "i32", m))}
	})
}

// scatter: dx [N, hidden], rows [m], d [m, hidden] -> dx with d added to its
// rows; several members share the prompt's last row.
func (t *trainer) scatter(n, m int) (*program, error) {
	h := t.b.shape.hidden
	return t.b.stablehlo(fmt.Sprintf("scatter %d of %d rows", m, n), func(e *emitter) []value {
		return []value{e.addRows(e.arg("dx", "f32", n, h), e.arg("rows", "i32", m), e.arg("d", "f32", m, h))}
	})
}

// headKind is what the trainer's configuration asks of the head.
func (t *trainer) headKind() headKind {
	return headKind{mean: t.cfg.MeanLogProb, sumSq: t.cfg.LogSumSq}
}

// head returns a head program of a chunk size.
func (t *trainer) head(name string, m int, emit func(*emitter, shape, string, int) []value) (*program, error) {
	return t.b.stablehlo(fmt.Sprintf("%s rows=%d", name, m), func(e *emitter) []value {
		return emit(e, t.b.shape, t.b.dev.elem, m)
	})
}
