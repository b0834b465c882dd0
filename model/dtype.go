package model

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"unsafe"
)

// DType is a safetensors element type, spelled as in the file.
type DType string

// The element types that this package reads. F64 is rounded to f32 and not
// written.
const (
	F32  DType = "F32"
	F16  DType = "F16"
	BF16 DType = "BF16"
	F64  DType = "F64"
)

// plainTypes are the types of one number a block.
var plainTypes = map[DType]blockType{
	F32:  {1, 4, decodeF32, encodeF32},
	F16:  {1, 2, decodeF16, encodeF16},
	BF16: {1, 2, decodeBF16, encodeBF16},
	F64:  {1, 8, decodeF64, nil},
}

// size is the number of bytes of an element, 0 when the type is not
// implemented.
func (d DType) size() int { return plainTypes[d].bytes }

// refuse says why a type is not read, and what to do.
func (d DType) refuse() error {
	kind, remedy := "is not known", "convert the file"
	switch {
	case strings.HasPrefix(string(d), "F8_"), strings.HasPrefix(string(d), "F4"), strings.HasPrefix(string(d), "F6_"):
		kind, remedy = "is a quantisation whose scales lie in other tensors, which is not implemented", "use the model's BF16 or GGUF files"
	case d == "BOOL", strings.HasPrefix(string(d), "I"), strings.HasPrefix(string(d), "U"):
		kind, remedy = "holds integers, not weights (packed AWQ, GPTQ or bitsandbytes files are not implemented)", "use the model's BF16 or GGUF files"
	}
	return fmt.Errorf("dtype %s %s (have F32, F16, BF16, F64): %s", d, kind, remedy)
}

// encode appends the elements, rounded to nearest even, in little endian.
func (d DType) encode(dst []byte, src []float32) ([]byte, error) {
	t := plainTypes[d]
	if t.encode == nil {
		return nil, fmt.Errorf("dtype %q is not written (have F32, F16, BF16)", d)
	}
	return t.encode(dst, src), nil
}

// littleEndian: numbers lie in memory as files store them.
var littleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

// floatBytes is the memory of f, for copying whole; only where littleEndian.
func floatBytes(f []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(f))), 4*len(f))
}

func decodeF32(dst []float32, src []byte) {
	if littleEndian {
		copy(floatBytes(dst), src)
		return
	}
	for i := range dst {
		dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
	}
}

func encodeF32(dst []byte, src []float32) []byte {
	if littleEndian {
		return append(dst, floatBytes(src)...)
	}
	for _, v := range src {
		dst = binary.LittleEndian.AppendUint32(dst, math.Float32bits(v))
	}
	return dst
}

func decodeBF16(dst []float32, src []byte) {
	for ; len(dst) >= 8 && len(src) >= 16; dst, src = dst[8:], src[16:] {
		d, s := (*[8]float32)(dst), (*[16]byte)(src)
		for i := range d {
			d[i] = math.Float32frombits(uint32(s[2*i])<<16 | uint32(s[2*i+1])<<24)
		}
	}
	for i := range dst {
		dst[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(src[2*i:])) << 16)
	}
}

func encodeBF16(dst []byte, src []float32) []byte {
	for _, v := range src {
		dst = binary.LittleEndian.AppendUint16(dst, floatToBF16(v))
	}
	return dst
}

func decodeF16(dst []float32, src []byte) {
	for ; len(dst) >= 8 && len(src) >= 16; dst, src = dst[8:], src[16:] {
		d, s := (*[8]float32)(dst), (*[16]byte)(src)
		for i := range d {
			h := uint32(s[2*i]) | uint32(s[2*i+1])<<8
			if e := h & 0x7c00; e == 0 || e == 0x7c00 {
				d[i] = halfToFloat(uint16(h))
			} else {
				d[i] = math.Float32frombits(h&0x8000<<16 | (h&0x7fff<<13 + 112<<23))
			}
		}
	}
	for i := range dst {
		dst[i] = halfToFloat(binary.LittleEndian.Uint16(src[2*i:]))
	}
}

func encodeF16(dst []byte, src []float32) []byte {
	for _, v := range src {
		dst = binary.LittleEndian.AppendUint16(dst, floatToHalf(v))
	}
	return dst
}

func decodeF64(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = float32(math.Float64frombits(binary.LittleEndian.Uint64(src[8*i:])))
	}
}

// halfAt is the f16 at the start of b.
func halfAt(b []byte) float32 { return halfToFloat(binary.LittleEndian.Uint16(b)) }

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
