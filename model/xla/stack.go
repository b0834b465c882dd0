//go:build xla

package xla

import (
	"errors"
	"fmt"

	"github.com/gomlx/go-xla/pkg/pjrt"
	"github.com/skein-rl/skein/model"
)

// The adapters of a decoder stand on the device as one stack: for each layer and
// adapted projection A [K, in] and B [out, K] in the compute type, the ranks of
// all places side by side (K = places x rank) and B scaled. One product gives
// every adapter's part of every row, and a row keeps the columns of its own
// place, so that it computes the same whatever else is resident or in the batch.
// Narrower adapters are padded with zeros to the stack's rank, and lack targets
// of the union as zeros; the stack only grows, so adapters of shapes seen before
// swap in without compiling.

// rankSizes are the ranks stacks are made for.
var rankSizes = []int{8, 16, 32, 64, 128, 256}

// stackShape is what of a stack decides a program: the padded layout of one
// place, the same in every layer (unscaled: B is scaled before; every part has
// the stack's rank), and the number of places.
type stackShape struct {
	places, rank int
	loraShape
}

func (st *stackShape) String() string {
	if st == nil {
		return "base"
	}
	return fmt.Sprintf("%d places, %v", st.places, st.loraShape)
}

// columns is K.
func (st *stackShape) columns() int { return st.places * st.rank }

// args declares a layer's part of the stack: A and B of each projection.
func (st *stackShape) args(e *emitter, elem, prefix string) []adapted {
	var out []adapted
	for _, p := range st.parts {
		out = append(out, adapted{p,
			e.arg(prefix+p.name+"_a", elem, st.columns(), p.in),
			e.arg(prefix+p.name+"_b", elem, p.out, st.columns())})
	}
	return out
}

// own marks the columns of each row's place [M] i32, of which 0 has none.
func (st *stackShape) own(n *net, place value) {
	if st == nil {
		return
	}
	m := place.dims[0]
	at := n.add(n.iota("i32", 1, m, st.places, st.rank), n.constant("i32", 1, m, st.places, st.rank))
	n.mine = n.reshape(n.compare("EQ", at, n.spread(place, st.places, st.rank)), m, st.columns())
}

// emitPlace puts one layer of an adapter at a place: place i32 (from 0), flat
// f32 [size], the layer's stack, which is updated in place.
func emitPlace(e *emitter, st *stackShape, elem string) []value {
	place, flat := e.arg("place", "i32"), e.arg("flat", "f32", st.size)
	zero := e.constant("i32", 0)
	at := e.mul(place, e.constant("i32", float64(st.rank)))
	one := st.loraShape
	var out []value
	for i, p := range e.slicedLoRA(flat, one, elem) {
		for j, old := range []value{
			e.arg(fmt.Sprintf("a_%d", i), elem, st.columns(), p.in),
			e.arg(fmt.Sprintf("b_%d", i), elem, p.out, st.columns()),
		} {
			e.alias[len(e.args)-2+j] = len(out)
			if j == 0 {
				out = append(out, e.dynamicUpdate(old, p.aw, at, zero))
			} else {
				out = append(out, e.dynamicUpdate(old, p.bw, zero, at))
			}
		}
	}
	return out
}

// emitGrow copies one layer of a stack into a larger one: the old A and B of
// each projection.
func emitGrow(e *emitter, from, to *stackShape, elem string) []value {
	old := map[string]adapted{}
	for _, p := range from.args(e, elem, "") {
		old[p.name] = p
	}
	var out []value
	for _, p := range to.parts {
		a, b := e.constant(elem, 0, to.columns(), p.in), e.constant(elem, 0, p.out, to.columns())
		if o, ok := old[p.name]; ok {
			a = e.reshape(e.pad(e.reshape(o.aw, from.places, from.rank, p.in), 1, to.rank), to.columns(), p.in)
			b = e.reshape(e.pad(e.reshape(o.bw, p.out, from.places, from.rank), 2, to.rank), p.out, to.columns())
		}
		out = append(out, a, b)
	}
	return out
}

// stack is a decoder's resident adapters.
type stack struct {
	b      *backend
	places int
	filled []bool
	shape  *stackShape    // nil until an adapter was set
	bufs   []*pjrt.Buffer // layer by layer, A and B of each projection
	broken error          // a failed call left no stack
}

// layer are a layer's buffers.
func (k *stack) layer(l int) []*pjrt.Buffer {
	n := 2 * len(k.shape.parts)
	return k.bufs[l*n : (l+1)*n]
}

// has says whether a row may use a place.
func (k *stack) has(place int) error {
	switch {
	case place < 0 || place > k.places:
		return fmt.Errorf("adapter %d: the decoder has places 1 to %d (0 is the base)", place, k.places)
	case place > 0 && !k.filled[place-1]:
		return fmt.Errorf("adapter %d: the place is empty; set an adapter there first", place)
	}
	return nil
}

// set puts an adapter's flat vector at a place.
func (k *stack) set(place int, params []float32, ls loraShapes) error {
	if k.broken != nil {
		return fmt.Errorf("xla: the adapters were lost in an earlier call; make a new decoder: %w", k.broken)
	}
	if err := k.reserve(ls); err != nil {
		return err
	}
	st := k.shape
	p, err := k.b.stablehlo(fmt.Sprintf("place adapter %v", st), func(e *emitter) []value { return emitPlace(e, st, k.b.dev.elem) })
	if err != nil {
		return err
	}
	at, err := k.b.dev.putI32([]int32{int32(place - 1)})
	if err != nil {
		return err
	}
	defer free(at)
	k.filled[place-1] = false
	flat := make([]float32, st.size)
	err = ls.each(params, func(layer int, own []float32) error {
		padInto(flat, *st, own, ls[layer])
		buf, err := k.b.dev.putF32(flat, st.size)
		if err != nil {
			return err
		}
		out, err := k.b.dev.run(p, append([]*pjrt.Buffer{at, buf}, k.layer(layer)...))
		free(buf)
		if err != nil {
			k.broken = err
			return err
		}
		copy(k.layer(layer), out)
		return nil
	})
	k.filled[place-1] = err == nil
	return err
}

// padInto lays a layer's vector out in the stack's shape, B scaled.
func padInto(flat []float32, st stackShape, params []float32, l loraShape) {
	clear(flat)
	for _, to := range st.parts {
		for _, from := range l.parts {
			if from.name != to.name {
				continue
			}
			copy(flat[to.a:], params[from.a:from.b])
			for o := range from.out {
				for r := range from.rank {
					flat[to.b+o*st.rank+r] = params[from.b+o*from.rank+r] * float32(from.scale)
				}
			}
		}
	}
}

// reserve makes the stack hold adapters of a shape.
func (k *stack) reserve(ls loraShapes) error {
	have := k.shape
	on := map[string]bool{}
	rank := 0
	for _, l := range ls {
		for _, p := range l.parts {
			on[p.name] = true
			rank = max(rank, bucket(p.rank, rankSizes))
		}
	}
	if have != nil {
		rank = max(rank, have.rank)
		for _, p := range have.parts {
			on[p.name] = true
		}
	}
	want := &stackShape{k.places, rank, k.b.shape.layOut(func(name string) (int, float64) {
		if on[name] {
			return rank, 1
		}
		return 0, 0
	})}
	if have != nil && have.size == want.size && len(have.parts) == len(want.parts) && have.rank == want.rank {
		return nil
	}
	if have == nil {
		var bufs []*pjrt.Buffer
		for range k.b.shape.layers {
			for _, p := range want.parts {
				for _, dims := range [][]int{{want.columns(), p.in}, {p.out, want.columns()}} {
					buf, err := k.b.dev.zeros(dims...)
					if err != nil {
						free(bufs...)
						return fmt.Errorf("xla: allocate %d adapters of rank %d: %w", k.places, rank, err)
					}
					bufs = append(bufs, buf)
				}
			}
		}
		k.shape, k.bufs = want, bufs
		return nil
	}
	p, err := k.b.stablehlo(fmt.Sprintf("grow adapters %v to %v", have, want), func(e *emitter) []value { return emitGrow(e, have, want, k.b.dev.elem) })
	if err != nil {
		return err
	}
	var bufs []*pjrt.Buffer
	for layer := range k.b.shape.layers {
		out, err := k.b.dev.run(p, k.layer(layer))
		if err != nil {
			free(bufs...)
			return err
		}
		bufs = append(bufs, out...)
	}
	free(k.bufs...)
	k.shape, k.bufs = want, bufs
	return nil
}

// SetAdapter puts an adapter at a place, or empties it (nil).
func (d *decoder) SetAdapter(place int, a *model.Adapter) error {
	if d.closed {
		return errClosed
	}
	if place < 1 || place > d.stack.places {
		return fmt.Errorf("xla: set adapter at place %d: the decoder has places 1 to %d", place, d.stack.places)
	}
	if a == nil {
		d.stack.filled[place-1] = false
		return nil
	}
	if a.Full {
		return errors.New("xla: set adapter: it holds all weights, which this backend takes as a model only: use the go backend, or merge it (skein model merge) and open the result")
	}
	m := d.b.model
	if err := a.Check(m.Config); err != nil {
		return fmt.Errorf("xla: set adapter: %w", err)
	}
	if m.Digest != "" {
		if err := a.CheckBase(m.Digest); err != nil {
			return fmt.Errorf("xla: set adapter: %w", err)
		}
	}
	l, err := d.b.shape.loraShapes(m.Config, a.LoRA)
	if err != nil {
		return err
	}
	return d.stack.set(place, a.Params, l)
}
