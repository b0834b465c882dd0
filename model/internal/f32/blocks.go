package f32

import (
	"encoding/binary"
	"math"
)

// Block forms keep weights as quantised files do: 32 consecutive numbers of a
// row of W share a scale d, and in Q4 an offset m, both binary16. The numbers
// are d*q (q a signed byte) or d*q + m (q 0 to 15). d*q needs at most 19 bits,
// so it is exact and only the addition rounds, fused or not.
//
// A panel holds for each 32 of the contracted index, little-endian:
//
//	Q8: 32 scales, one per column | 32 times 32 bytes, one per column
//	Q4: 32 scales | 32 offsets | 32 times 16 bytes, byte j: column j low, column 16+j high
//
// The scales are not given but found again in the float32 numbers, and used
// only where every number comes out exactly. Only the sign of a zero may be
// lost, which a product that starts from +0 never shows.

const blockLen = 32

// blockBytes is the size of a block of 32 columns.
func (f Form) blockBytes() int {
	if f == Q8 {
		return 64 + blockLen*PanelWidth
	}
	return 128 + blockLen*PanelWidth/2
}

// quant is a block of one column.
type quant struct {
	d, m uint16 // binary16
	q    [blockLen]uint8
}

func half16(h uint16) float32 { return math.Float32frombits(widen(F16, h)) }

// nearest16 rounds to a binary16 number, to nearest; 0 when out of range.
func nearest16(x float64) uint16 {
	v := float32(x)
	h := narrow(F16, v)
	if h&0x7c00 == 0x7c00 {
		return 0
	}
	if up := h + 1; up&0x7c00 != 0x7c00 && math.Abs(float64(half16(up))-x) < math.Abs(float64(half16(h))-x) {
		return up
	}
	return h
}

// find looks for scale, offset and q of 32 numbers; false when there are none.
func (b *quant) find(f Form, v []float32) bool {
	lo, hi := v[0], v[0]
	for _, x := range v {
		lo, hi = min(lo, x), max(hi, x)
	}
	far := float64(hi)
	if -lo > hi {
		far = float64(lo)
	}
	if f == Q8 {
		// llama.cpp: d = max|x|/127, so that some q is 127 or -127.
		return b.fit(f, v, nearest16(math.Abs(far)/127), 0)
	}
	// Q4_1: the least number has q = 0, the largest 15. Q4_0: d*(q-8), the number
	// farthest from zero has q = 0.
	return b.fit(f, v, nearest16((float64(hi)-float64(lo))/15), narrow(F16, lo)) ||
		b.fit(f, v, nearest16(-far/8), narrow(F16, float32(far)))
}

// fit sets b to a scale and an offset when they give every number.
func (b *quant) fit(f Form, v []float32, d, m uint16) bool {
	scale, offset := half16(d), half16(m)
	inv := float32(0)
	if scale != 0 {
		inv = 1 / scale
	}
	b.d, b.m = d, m
	for i, x := range v {
		q := int(math.RoundToEven(float64((x - offset) * inv)))
		if f == Q8 && (q < -128 || q > 127) || f == Q4 && (q < 0 || q > 15) {
			return false
		}
		b.q[i] = uint8(q)
		if b.value(f, i) != x {
			return false
		}
	}
	return true
}

// value is number i of the block, as the micro-kernels compute it.
func (b *quant) value(f Form, i int) float32 {
	if f == Q8 {
		return half16(b.d) * float32(int8(b.q[i]))
	}
	product := half16(b.d) * float32(b.q[i]) // exact
	return product + half16(b.m)
}

func exactBlocks(p *Pool, f Form, x []float32) bool {
	const grain = 1 << 10
	n := len(x) / blockLen
	bad := make([]bool, (n+grain-1)/grain)
	p.For(len(bad), func(i int) {
		var b quant
		for j := i * grain; j < min(n, (i+1)*grain); j++ {
			if !b.find(f, x[j*blockLen:(j+1)*blockLen]) {
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

// write stores a column's block into a block of a panel.
func (b *quant) write(f Form, dst []byte, column int) {
	binary.LittleEndian.PutUint16(dst[2*column:], b.d)
	if f == Q8 {
		for i, q := range b.q {
			dst[64+i*PanelWidth+column] = q
		}
		return
	}
	binary.LittleEndian.PutUint16(dst[64+2*column:], b.m)
	at, shift := 128+column%16, uint(column/16*4)
	for i, q := range b.q {
		p := &dst[at+i*PanelWidth/2]
		*p = *p&^(15<<shift) | q<<shift
	}
}

// read is the inverse of write.
func (b *quant) read(f Form, src []byte, column int) {
	b.d = binary.LittleEndian.Uint16(src[2*column:])
	if f == Q8 {
		for i := range b.q {
			b.q[i] = src[64+i*PanelWidth+column]
		}
		return
	}
	b.m = binary.LittleEndian.Uint16(src[64+2*column:])
	at, shift := 128+column%16, uint(column/16*4)
	for i := range b.q {
		b.q[i] = src[at+i*PanelWidth/2] >> shift & 15
	}
}
