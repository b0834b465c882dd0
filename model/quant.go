package model

import (
	"encoding/binary"
	"strconv"
)

// ggufType is how a GGUF element type stores numbers: blocks of elems numbers
// in bytes bytes.
type ggufType struct {
	elems, bytes int
	decode       func(dst []float32, src []byte)
}

// ggufTypes are the implemented types. Arithmetic is f32 with one rounding for
// each operation, as in llama.cpp's reference dequantisation.
var ggufTypes = map[string]ggufType{
	"F32":  {1, 4, func(dst []float32, src []byte) { _ = F32.decode(dst, src) }},
	"F16":  {1, 2, func(dst []float32, src []byte) { _ = F16.decode(dst, src) }},
	"BF16": {1, 2, func(dst []float32, src []byte) { _ = BF16.decode(dst, src) }},
	"Q4_0": {32, 18, dequantQ4_0},
	"Q4_1": {32, 20, dequantQ4_1},
	"Q8_0": {32, 34, dequantQ8_0},
}

// ggufTypeNames are ggml's type ids, the unimplemented ones included so that
// errors and Inspect can name them.
var ggufTypeNames = map[uint32]string{
	0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1",
	10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K",
	16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS",
	24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
}

// dequantQ4_0: a block is scale d (f16) and 16 bytes; low nibbles are numbers
// 0-15, high nibbles 16-31; x = d*(q-8).
func dequantQ4_0(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[32:], src[18:] {
		d := halfToFloat(binary.LittleEndian.Uint16(src))
		for i, b := range src[2:18] {
			dst[i] = d * float32(int(b&15)-8)
			dst[i+16] = d * float32(int(b>>4)-8)
		}
	}
}

// dequantQ4_1: scale d and minimum m (f16), then nibbles as in Q4_0; x = d*q+m.
func dequantQ4_1(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[32:], src[20:] {
		d := halfToFloat(binary.LittleEndian.Uint16(src))
		m := halfToFloat(binary.LittleEndian.Uint16(src[2:]))
		for i, b := range src[4:20] {
			// The conversion forbids fusing the product with the sum.
			dst[i] = float32(d*float32(b&15)) + m
			dst[i+16] = float32(d*float32(b>>4)) + m
		}
	}
}

// dequantQ8_0: scale d (f16), then 32 signed bytes; x = d*q.
func dequantQ8_0(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[32:], src[34:] {
		d := halfToFloat(binary.LittleEndian.Uint16(src))
		for i := range 32 {
			dst[i] = d * float32(int8(src[2+i]))
		}
	}
}

// shortest widens an f32 to the f64 with the same shortest decimal, so that
// 1e-5 stored as f32 reads as 1e-5 and not as 9.999999747378752e-06.
func shortest(f float32) float64 {
	v, err := strconv.ParseFloat(strconv.FormatFloat(float64(f), 'g', -1, 32), 64)
	if err != nil {
		return float64(f) // infinities and NaN
	}
	return v
}
