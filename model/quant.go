package model

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// blockType is how an element type stores numbers: blocks of elems numbers in
// bytes bytes. encode is nil for types that are only read.
type blockType struct {
	elems, bytes int
	// decode takes whole blocks: len(src)/bytes == len(dst)/elems.
	decode func(dst []float32, src []byte)
	encode func(dst []byte, src []float32) []byte // appends whole blocks
}

// ggufTypes are the implemented types. Arithmetic is f32 with one rounding for
// each operation, as in llama.cpp's reference dequantisation.
var ggufTypes = map[string]blockType{
	"F32":    plainTypes[F32],
	"F16":    plainTypes[F16],
	"BF16":   plainTypes[BF16],
	"F64":    plainTypes[F64],
	"Q4_0":   {32, 18, dequantQ4_0, quantQ4_0},
	"Q4_1":   {32, 20, dequantQ4_1, quantQ4_1},
	"Q5_0":   {32, 22, dequantQ5_0, quantQ5_0},
	"Q5_1":   {32, 24, dequantQ5_1, quantQ5_1},
	"Q8_0":   {32, 34, dequantQ8_0, quantQ8_0},
	"Q2_K":   {superBlock, 84, dequantQ2K, nil},
	"Q3_K":   {superBlock, 110, dequantQ3K, nil},
	"Q4_K":   {superBlock, 144, dequantQ4K, nil},
	"Q5_K":   {superBlock, 176, dequantQ5K, nil},
	"Q6_K":   {superBlock, 210, dequantQ6K, nil},
	"Q8_K":   {superBlock, 292, dequantQ8K, nil},
	"IQ4_NL": {32, 18, dequantIQ4NL, nil},
	"IQ4_XS": {superBlock, 136, dequantIQ4XS, nil},
}

// ggufTypeNames are ggml's type ids, the unimplemented ones included so that
// errors and Inspect can name them.
var ggufTypeNames = map[uint32]string{
	0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1",
	10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K",
	16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS",
	24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
}

// ggufTypeID is the id of a type by name.
func ggufTypeID(name string) uint32 {
	for id, n := range ggufTypeNames {
		if n == name {
			return id
		}
	}
	panic("model: ggml type without an id: " + name)
}

// haveTypes lists, for messages, the types that are read, or those written.
func haveTypes(written bool) string {
	var out []string
	for n, t := range ggufTypes {
		if !written || t.encode != nil {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// refuseGGUF says why a type is not read, and what to do.
func refuseGGUF(name string) error {
	return fmt.Errorf("type %s is not implemented (have %s): use another quantisation of this model", name, haveTypes(false))
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
