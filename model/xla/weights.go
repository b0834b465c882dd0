//go:build xla

package xla

import (
	"fmt"

	"github.com/gomlx/go-xla/pkg/pjrt"
	"github.com/skein-rl/skein/model"
)

// weightBuffers are the base weights on the devices, shared by every decoder and
// trainer of a backend. Each unit (embedding, head, a layer) is on every device
// or, sharded, on the one that held the fewest bytes when it was loaded.
type weightBuffers struct {
	devs        []*device
	norm        []*pjrt.Buffer // per device
	embed, head *unit          // the same when tied
	layers      []*unit        // tensors [out, in] as stored, fused as shape.tensors says
}

// unit is a set of tensors that are used together.
type unit struct {
	on    [][]*pjrt.Buffer // per device; nil where it is not kept
	owner int              // a device that has it
	bytes int
}

func (w *weightBuffers) units() []*unit {
	out := append([]*unit{w.embed}, w.layers...)
	if w.head != w.embed {
		out = append(out, w.head)
	}
	return out
}

func (w *weightBuffers) free() {
	free(w.norm...)
	for _, u := range w.units() {
		for _, bufs := range u.on {
			free(bufs...)
		}
	}
}

// kept is how many bytes of units each device holds.
func (w *weightBuffers) kept() []int {
	out := make([]int, len(w.devs))
	for _, u := range w.units() {
		for i, bufs := range u.on {
			if bufs != nil {
				out[i] += u.bytes
			}
		}
	}
	return out
}

// take gives a unit's tensors on a device, copied from its owner when it is not
// kept there; done frees the copy.
func (w *weightBuffers) take(d *device, u *unit) (bufs []*pjrt.Buffer, done func(), err error) {
	if bufs = u.on[d.index]; bufs != nil {
		return bufs, func() {}, nil
	}
	for _, b := range u.on[u.owner] {
		c, err := b.CopyToDevice(d.at)
		if err != nil {
			free(bufs...)
			return nil, nil, fmt.Errorf("xla: copy weights from device %d to %d: %w", u.owner, d.index, err)
		}
		bufs = append(bufs, c)
	}
	return bufs, func() { free(bufs...) }, nil
}

// whole gives the model on one device, in the order newNet declares it.
func (w *weightBuffers) whole(d *device) (args []*pjrt.Buffer, done func(), err error) {
	var undo []func()
	done = func() {
		for _, f := range undo {
			f()
		}
	}
	add := func(u *unit) {
		if err != nil {
			return
		}
		var bufs []*pjrt.Buffer
		var f func()
		if bufs, f, err = w.take(d, u); err == nil {
			args, undo = append(args, bufs...), append(undo, f)
		}
	}
	add(w.embed)
	args = append(args, w.norm[d.index])
	if w.head != w.embed {
		add(w.head)
	}
	for _, l := range w.layers {
		add(l)
	}
	if err != nil {
		done()
		return nil, nil, err
	}
	return args, done, nil
}

// loader puts units on devices.
type loader struct {
	devs   []*device
	shard  bool
	filled []int // bytes on each device
}

// part is one tensor on its way to the devices.
type part struct {
	name string
	low  bool // in the compute type
	data []float32
	dims []int
}

// fewest is the device that the next sharded unit goes to.
func (l *loader) fewest() int {
	at := 0
	for i, n := range l.filled {
		if n < l.filled[at] {
			at = i
		}
	}
	return at
}

// add puts one tensor on a unit's devices.
func (l *loader) add(u *unit, p part) error {
	if len(p.data) != count(p.dims) {
		return fmt.Errorf("xla: weight %s has %d numbers, %v expected", p.name, len(p.data), p.dims)
	}
	for i, d := range l.devs {
		if l.shard && i != u.owner {
			continue
		}
		put, elem := d.putF32, "f32"
		if p.low {
			put, elem = d.putElem, d.elem
		}
		b, err := put(p.data, p.dims...)
		if err != nil {
			return fmt.Errorf("xla: weight %s: %w", p.name, err)
		}
		u.on[i] = append(u.on[i], b)
		size := len(p.data) * elemSize(elem)
		l.filled[i] += size
		if i == u.owner {
			u.bytes += size
		}
	}
	return nil
}

func (l *loader) unit() *unit {
	u := &unit{on: make([][]*pjrt.Buffer, len(l.devs))}
	if l.shard {
		u.owner = l.fewest()
	}
	return u
}

// loadWeights has one table or layer at a time in host memory when w is in
// files.
func loadWeights(devs []*device, s shape, w *model.Weights, shard bool) (_ *weightBuffers, err error) {
	if w == nil || len(w.Layers) != s.layers {
		return nil, fmt.Errorf("xla: the model has no weights for its %d layers", s.layers)
	}
	if len(w.Norm) != s.hidden {
		return nil, fmt.Errorf("xla: weight norm has %d numbers, %d expected", len(w.Norm), s.hidden)
	}
	load := &loader{devs: devs, shard: shard, filled: make([]int, len(devs))}
	out := &weightBuffers{devs: devs, embed: load.unit()}
	out.head = out.embed
	defer func() {
		if err != nil {
			out.free()
		}
	}()
	var rows []float32
	table := func(u *unit, name string, read func(lo, hi int, buf []float32) ([]float32, error)) error {
		if rows, err = read(0, s.vocab, rows); err != nil {
			return fmt.Errorf("xla: weight %s: %w", name, err)
		}
		return load.add(u, part{name, true, rows, []int{s.vocab, s.hidden}})
	}
	if err := table(out.embed, "embed", w.EmbedRows); err != nil {
		return nil, err
	}
	var f fuser
	var buf model.LayerWeights
	for i := range w.Layers {
		layer, err := w.Layer(i, &buf)
		if err != nil {
			return nil, fmt.Errorf("xla: %w", err)
		}
		u := load.unit()
		out.layers = append(out.layers, u)
		for _, t := range s.tensors(s.kinds[i]) {
			name := fmt.Sprintf("layers.%d.%s", i, t.name)
			data, err := f.tensor(t.name, layer, s, s.kinds[i])
			if err != nil {
				return nil, fmt.Errorf("xla: weight %s: %w", name, err)
			}
			if err := load.add(u, part{name, t.low, data, t.dims}); err != nil {
				return nil, err
			}
		}
	}
	if !s.tied {
		out.head = load.unit()
		if err := table(out.head, "head", w.HeadRows); err != nil {
			return nil, err
		}
	}
	for _, d := range devs {
		b, err := d.putF32(w.Norm, s.hidden)
		if err != nil {
			return nil, fmt.Errorf("xla: weight norm: %w", err)
		}
		out.norm = append(out.norm, b)
	}
	return out, nil
}

// fuser joins matrices in one buffer that it uses again.
type fuser struct{ buf []float32 }

func (f *fuser) join(parts ...[]float32) []float32 {
	f.buf = f.buf[:0]
	for _, p := range parts {
		f.buf = append(f.buf, p...)
	}
	return f.buf
}

// tensor gives the numbers of one of shape.tensors.
func (f *fuser) tensor(name string, l *model.LayerWeights, s shape, k layerKind) ([]float32, error) {
	switch name {
	case "input_norm":
		return l.InputNorm, nil
	case "qkv":
		return f.join(l.Q, l.K, l.V), nil
	case "qkv_bias":
		return f.join(l.QBias, l.KBias, l.VBias), nil
	case "o":
		return l.O, nil
	case "o_bias":
		return l.OBias, nil
	case "q_norm":
		return l.QNorm, nil
	case "k_norm":
		return l.KNorm, nil
	case "attn_out_norm":
		return l.AttnOutNorm, nil
	case "post_norm":
		return l.PostNorm, nil
	case "mlp_out_norm":
		return l.MLPOutNorm, nil
	case "router":
		return l.Router, nil
	}
	if k.moe {
		return f.experts(name, l.Experts, s)
	}
	if name == "down" {
		return l.Down, nil
	}
	return f.join(l.Gate, l.Up), nil
}

// experts lays experts out side by side: all gates, all ups, and down with the
// experts' inputs in a row.
func (f *fuser) experts(name string, experts []model.ExpertWeights, s shape) ([]float32, error) {
	if len(experts) != s.experts {
		return nil, fmt.Errorf("%d experts, the configuration has %d", len(experts), s.experts)
	}
	n := s.expertSize * s.hidden
	for i, e := range experts {
		if len(e.Gate) != n || len(e.Up) != n || len(e.Down) != n {
			return nil, fmt.Errorf("expert %d has %d, %d and %d numbers in gate, up and down, %d expected", i, len(e.Gate), len(e.Up), len(e.Down), n)
		}
	}
	f.buf = f.buf[:0]
	if name == "down" {
		for row := range s.hidden {
			for _, e := range experts {
				f.buf = append(f.buf, e.Down[row*s.expertSize:(row+1)*s.expertSize]...)
			}
		}
		return f.buf, nil
	}
	for _, e := range experts {
		f.buf = append(f.buf, e.Gate...)
	}
	for _, e := range experts {
		f.buf = append(f.buf, e.Up...)
	}
	return f.buf, nil
}
