//go:build xla

package xla

import (
	"github.com/gomlx/go-xla/pkg/pjrt"

	"github.com/skein-rl/skein/model"
)

// LoRA dropout in a training program: model.MaskKeys and model.MaskBits as
// operations on ui32, so that masks are those of the pure-Go backend.

// masks are the dropout of a program's rows; nil means none.
type masks struct {
	model.Dropout
	lo, hi value // [M] ui32, halves of the rows' keys
	site   value // ui32, of the layer's first projection
}

// maskArgs declares lo and hi [M] i32 and site i32.
func (e *emitter) maskArgs(d model.Dropout, rows int) *masks {
	if d.Rate == 0 {
		return nil
	}
	return &masks{
		Dropout: d,
		lo:      e.bitcast(e.arg("key_lo", "i32", rows), "ui32"),
		hi:      e.bitcast(e.arg("key_hi", "i32", rows), "ui32"),
		site:    e.bitcast(e.arg("site", "i32"), "ui32"),
	}
}

// ints are constants of 32 bits.
func (n *net) ints(x uint32, dims ...int) value { return n.constant("ui32", float64(x), dims...) }

// folded is x ^ x>>by.
func (n *net) folded(x value, by uint32) value {
	return n.binary("xor", x, n.binary("shift_right_logical", x, n.ints(by, x.dims...)))
}

func (n *net) mixed(x value) value {
	x = n.mul(n.folded(x, 16), n.ints(0x7feb352d, x.dims...))
	x = n.mul(n.folded(x, 15), n.ints(0x846ca68b, x.dims...))
	return n.folded(x, 16)
}

// dropped is x [M, in] with what a projection's adapter drops dropped; of a
// gradient it is the same.
func (n *net) dropped(x value, projection string) value {
	k := n.masks
	if k == nil {
		return x
	}
	m, in := x.dims[0], x.dims[1]
	site := n.broadcast(n.add(k.site, n.ints(model.DropoutSite(0, projection))), nil, m)
	a := n.mixed(n.binary("xor", k.lo, n.mul(site, n.ints(0x9e3779b1, m))))
	b := n.mixed(n.add(k.hi, n.mul(site, n.ints(0x85ebca6b, m))))
	bits := n.add(n.mul(n.iota("ui32", 1, m, in), n.ints(0x9e3779b1, m, in)), n.spread(a, in))
	bits = n.add(n.folded(n.mul(n.folded(bits, 16), n.ints(0x7feb352d, m, in)), 15), n.spread(b, in))
	bits = n.folded(n.mul(bits, n.ints(0x846ca68b, m, in)), 16)
	stays := n.compare("GE", bits, n.ints(k.Threshold(), m, in))
	y := n.scale(n.convert(x, "f32"), float64(k.Scale()))
	return n.convert(n.choose(stays, y, n.constant("f32", 0, m, in)), x.elem)
}

// putKeys moves a batch's row keys to a device, for maskArgs.
func (d *device) putKeys(keys []uint64) ([]*pjrt.Buffer, error) {
	lo, hi := make([]int32, len(keys)), make([]int32, len(keys))
	for i, k := range keys {
		lo[i], hi[i] = int32(uint32(k)), int32(uint32(k>>32))
	}
	a, err := d.putI32(lo, len(lo))
	if err != nil {
		return nil, err
	}
	b, err := d.putI32(hi, len(hi))
	if err != nil {
		free(a)
		return nil, err
	}
	return []*pjrt.Buffer{a, b}, nil
}
