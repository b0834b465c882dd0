package model

import (
	"encoding/binary"
	"math"
)

// The formats of 32 numbers with one scale d (f16), of which some add a minimum
// m (f16). Byte i of the nibbles holds number i in its low and number i+16 in
// its high half; bit i of the four bytes qh is the fifth bit of number i.
//
//	Q4_0  d       nibbles      x = d*(q-8)
//	Q4_1  d m     nibbles      x = d*q + m
//	Q5_0  d   qh  nibbles      x = d*(q-16)
//	Q5_1  d m qh  nibbles      x = d*q + m
//	Q8_0  d       signed bytes x = d*q

func dequantQ4_0(dst []float32, src []byte) {
	for ; len(dst) >= 32; dst, src = dst[32:], src[18:] {
		b, out := (*[18]byte)(src), (*[32]float32)(dst)
		d := halfAt(b[:])
		for i, q := range b[2:] {
			out[i] = d * float32(int(q&15)-8)
			out[i+16] = d * float32(int(q>>4)-8)
		}
	}
}

func dequantQ4_1(dst []float32, src []byte) {
	for ; len(dst) >= 32; dst, src = dst[32:], src[20:] {
		b, out := (*[20]byte)(src), (*[32]float32)(dst)
		d, m := halfAt(b[:]), halfAt(b[2:])
		for i, q := range b[4:] {
			// The conversion forbids fusing the product with the sum.
			out[i] = float32(d*float32(int(q&15))) + m
			out[i+16] = float32(d*float32(int(q>>4))) + m
		}
	}
}

func dequantQ5_0(dst []float32, src []byte) {
	for ; len(dst) >= 32; dst, src = dst[32:], src[22:] {
		b, out := (*[22]byte)(src), (*[32]float32)(dst)
		d, qh := halfAt(b[:]), binary.LittleEndian.Uint32(b[2:])
		for i, q := range b[6:] {
			out[i] = d * float32(int(uint32(q&15)|qh>>i&1<<4)-16)
			out[i+16] = d * float32(int(uint32(q>>4)|qh>>(i+16)&1<<4)-16)
		}
	}
}

func dequantQ5_1(dst []float32, src []byte) {
	for ; len(dst) >= 32; dst, src = dst[32:], src[24:] {
		b, out := (*[24]byte)(src), (*[32]float32)(dst)
		d, m, qh := halfAt(b[:]), halfAt(b[2:]), binary.LittleEndian.Uint32(b[4:])
		for i, q := range b[8:] {
			out[i] = float32(d*float32(int(uint32(q&15)|qh>>i&1<<4))) + m
			out[i+16] = float32(d*float32(int(uint32(q>>4)|qh>>(i+16)&1<<4))) + m
		}
	}
}

func dequantQ8_0(dst []float32, src []byte) {
	for ; len(dst) >= 32; dst, src = dst[32:], src[34:] {
		b, out := (*[34]byte)(src), (*[32]float32)(dst)
		d := halfAt(b[:])
		for i, q := range b[2:] {
			out[i] = d * float32(int8(q))
		}
	}
}

// Quantisers follow llama.cpp's reference (quantize_row_*_ref): f32 arithmetic
// with a rounding after each operation, numbers rounded against the inverse of
// the unrounded scale.

// signedScale is -x/half for the number x of largest magnitude, so that x
// itself becomes the smallest code; the first of equals counts.
func signedScale(x []float32, half float32) (d, inverse float32) {
	var most, at float32
	for _, v := range x {
		if a := float32(math.Abs(float64(v))); a > most {
			most, at = a, v
		}
	}
	d = at / -half
	if d != 0 {
		inverse = 1 / d
	}
	return d, inverse
}

// rangeScale spreads the codes 0 to levels over [min, max].
func rangeScale(x []float32, levels float32) (d, inverse, low float32) {
	low, high := x[0], x[0]
	for _, v := range x {
		low, high = min(low, v), max(high, v)
	}
	d = (high - low) / levels
	if d != 0 {
		inverse = 1 / d
	}
	return d, inverse, low
}

// code rounds a non-negative value, half upwards, to at most limit.
func code(v float32, limit uint32) uint32 {
	if !(v > 0) {
		return 0
	}
	return min(uint32(v), limit)
}

func appendHalf(dst []byte, f float32) []byte {
	return binary.LittleEndian.AppendUint16(dst, floatToHalf(f))
}

// appendCodes appends 32 codes: the fifth bits first when there are any.
func appendCodes(dst []byte, q *[32]uint32, five bool) []byte {
	if five {
		var qh uint32
		for i, c := range q {
			qh |= c >> 4 << i
		}
		dst = binary.LittleEndian.AppendUint32(dst, qh)
	}
	for i := range 16 {
		dst = append(dst, byte(q[i]&15|q[i+16]&15<<4))
	}
	return dst
}

func quantSigned(dst []byte, src []float32, half float32, five bool) []byte {
	for ; len(src) >= 32; src = src[32:] {
		x := src[:32]
		d, inv := signedScale(x, half)
		var q [32]uint32
		for i, v := range x {
			q[i] = code(float32(v*inv)+(half+0.5), uint32(2*half-1))
		}
		dst = appendCodes(appendHalf(dst, d), &q, five)
	}
	return dst
}

func quantRange(dst []byte, src []float32, levels float32, five bool) []byte {
	for ; len(src) >= 32; src = src[32:] {
		x := src[:32]
		d, inv, low := rangeScale(x, levels)
		var q [32]uint32
		for i, v := range x {
			q[i] = code(float32((v-low)*inv)+0.5, uint32(levels))
		}
		dst = appendCodes(appendHalf(appendHalf(dst, d), low), &q, five)
	}
	return dst
}

func quantQ4_0(dst []byte, src []float32) []byte { return quantSigned(dst, src, 8, false) }
func quantQ5_0(dst []byte, src []float32) []byte { return quantSigned(dst, src, 16, true) }
func quantQ4_1(dst []byte, src []float32) []byte { return quantRange(dst, src, 15, false) }
func quantQ5_1(dst []byte, src []float32) []byte { return quantRange(dst, src, 31, true) }

func quantQ8_0(dst []byte, src []float32) []byte {
	for ; len(src) >= 32; src = src[32:] {
		x := src[:32]
		var most float32
		for _, v := range x {
			most = max(most, float32(math.Abs(float64(v))))
		}
		d := most / 127
		var inv float32
		if d != 0 {
			inv = 1 / d
		}
		dst = appendHalf(dst, d)
		for _, v := range x {
			dst = append(dst, byte(int8(math.Round(float64(v*inv)))))
		}
	}
	return dst
}
