package model

import (
	"encoding/binary"
	"fmt"
	"math"
)

// DType is a safetensors element type, spelled as in the file. Only the three
// that hold model weights are implemented.
type DType string

// The element types that this package reads and writes.
const (
	F32  DType = "F32"
	F16  DType = "F16"
	BF16 DType = "BF16"
)

// size is the number of bytes of an element, 0 when the type is not
// implemented.
func (d DType) size() int {
	switch d {
	case F32:
		return 4
	case F16, BF16:
		return 2
	}
	return 0
}

// decode converts little-endian elements to f32. len(src) ==
// len(dst)*d.size().
func (d DType) decode(dst []float32, src []byte) error {
	switch d {
	case F32:
		for i := range dst {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
		}
	case BF16:
		for i := range dst {
			dst[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(src[2*i:])) << 16)
		}
	case F16:
		for i := range dst {
			dst[i] = halfToFloat(binary.LittleEndian.Uint16(src[2*i:]))
		}
	default:
		return fmt.Errorf("dtype %q is not implemented (have F32, F16, BF16)", d)
	}
	return nil
}

// encode appends the elements, rounded to nearest even, in little endian.
func (d DType) encode(dst []byte, src []float32) ([]byte, error) {
	switch d {
	case F32:
		for _, v := range src {
			dst = binary.LittleEndian.AppendUint32(dst, math.Float32bits(v))
		}
	case BF16:
		for _, v := range src {
			dst = binary.LittleEndian.AppendUint16(dst, floatToBF16(v))
		}
	case F16:
		for _, v := range src {
			dst = binary.LittleEndian.AppendUint16(dst, floatToHalf(v))
		}
	default:
		return nil, fmt.Errorf("dtype %q is not implemented (have F32, F16, BF16)", d)
	}
	return dst, nil
}

// halfToFloat widens an IEEE 754 binary16 value; exact.
func halfToFloat(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	exp := uint32(h>>10) & 0x1f
	frac := uint32(h & 0x3ff)
	switch exp {
	case 0: // zero and subnormals: frac * 2^-24
		v := float32(frac) * (1.0 / (1 << 24))
		return math.Float32frombits(math.Float32bits(v) | sign)
	case 0x1f:
		return math.Float32frombits(sign | 0x7f800000 | frac<<13)
	}
	return math.Float32frombits(sign | (exp+112)<<23 | frac<<13)
}

// floatToHalf rounds to nearest even; overflow becomes infinity.
func floatToHalf(f float32) uint16 {
	b := math.Float32bits(f)
	sign := uint16(b>>16) & 0x8000
	b &= 0x7fffffff
	switch {
	case b > 0x7f800000:
		return sign | 0x7e00
	case b >= 0x477ff000: // rounds to 65536 or more
		return sign | 0x7c00
	case b < 0x38800000: // subnormal half: the unit is 2^-24
		m := math.RoundToEven(float64(math.Float32frombits(b)) * (1 << 24))
		return sign | uint16(m)
	}
	b += 0xfff + (b>>13)&1
	return sign | uint16((b-(112<<23))>>13)
}

// floatToBF16 rounds to nearest even, keeping NaN a NaN.
func floatToBF16(f float32) uint16 {
	b := math.Float32bits(f)
	if b&0x7fffffff > 0x7f800000 {
		return uint16(b>>16) | 0x40
	}
	return uint16((b + 0x7fff + (b>>16)&1) >> 16)
}
