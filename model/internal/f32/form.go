package f32

import (
	"math"
	"slices"
)

// Form is how the numbers of a right operand lie in memory. The smaller forms
// cut what a product reads; micro-kernels widen them to float32, so results are
// those of the float32 numbers bit for bit.
type Form int

// The forms. A panel row of BF16 is 16 little-endian words, word j holding
// column j in its low half and column 16+j in its high half; Full and F16 store
// the 32 columns in order. Q8 and Q4 are blocks, see blocks.go.
const (
	Full Form = iota
	BF16      // upper half of a float32
	F16       // IEEE 754 binary16
	Q8        // scale*q, 8.5 bits: what GGUF's Q8_0 holds
	Q4        // scale*q + offset, 5 bits: what GGUF's Q4_0 and Q4_1 hold
)

// String is the form's usual name: f32, bf16, f16, q8 or q4.
func (f Form) String() string { return [...]string{"f32", "bf16", "f16", "q8", "q4"}[f] }

// ExactForm is the smallest form that holds every number of every part [*, k]
// exactly. Block forms are for machines with micro-kernels for them.
func ExactForm(p *Pool, k int, parts ...[]float32) Form {
	f := Q4
	for _, x := range parts {
		f = f.next(p, k, x)
	}
	return f
}

// bySize are the forms, the smallest first.
var bySize = [...]Form{Q4, Q8, BF16, F16, Full}

// next is the first form from f on, by size, that holds x [*, k] exactly.
func (f Form) next(p *Pool, k int, x []float32) Form {
	for _, g := range bySize[slices.Index(bySize[:], f):] {
		if g >= Q8 && (!blockKernels() || k%blockLen != 0) {
			continue
		}
		if g == Full || exact(p, g, x) {
			return g
		}
	}
	return Full
}

func exact(p *Pool, f Form, x []float32) bool {
	if f >= Q8 {
		return exactBlocks(p, f, x)
	}
	const block = 1 << 16
	bad := make([]bool, (len(x)+block-1)/block)
	p.For(len(bad), func(i int) {
		for _, v := range x[i*block : min(len(x), (i+1)*block)] {
			if widen(f, narrow(f, v)) != math.Float32bits(v) {
				bad[i] = true
				return
			}
		}
	})
	for _, b := range bad {
		if b {
			return false
		}
	}
	return true
}

// narrow keeps the leading bits of v; widen(narrow(v)) is v when v is exact.
func narrow(f Form, v float32) uint16 {
	b := math.Float32bits(v)
	if f == BF16 {
		return uint16(b >> 16)
	}
	sign, b := uint16(b>>16)&0x8000, b&0x7fffffff
	switch e := int(b >> 23); {
	case e >= 143: // 65536 and more, infinity, NaN: not weights
		return sign | 0x7c00
	case e >= 113:
		return sign | uint16((b-112<<23)>>13)
	case e >= 103: // subnormal: the unit is 2^-24
		return sign | uint16((b&0x7fffff|0x800000)>>(126-e))
	}
	return sign
}

// widen gives the float32 bits of a 16-bit number.
func widen(f Form, h uint16) uint32 {
	if f == BF16 {
		return uint32(h) << 16
	}
	sign, e, frac := uint32(h&0x8000)<<16, uint32(h>>10)&0x1f, uint32(h)&0x3ff
	switch e {
	case 0:
		return sign | math.Float32bits(float32(frac)*(1.0/(1<<24)))
	case 0x1f:
		return sign | 0x7f800000 | frac<<13
	}
	return sign | (e+112)<<23 | frac<<13
}

// place is where column j of a panel row stands in a 16-bit row.
func (f Form) place(j int) int {
	if f == BF16 {
		return 2*(j%(PanelWidth/2)) + j/(PanelWidth/2)
	}
	return j
}
