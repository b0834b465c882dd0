package model

import "encoding/binary"

// iq4Values are the sixteen levels of the IQ4 formats, denser around zero.
var iq4Values = [16]float32{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}

// dequantIQ4NL: like Q4_0, with the code's level in place of q-8.
func dequantIQ4NL(dst []float32, src []byte) {
	for ; len(dst) >= 32; dst, src = dst[32:], src[18:] {
		b, out := (*[18]byte)(src), (*[32]float32)(dst)
		d := halfAt(b[:])
		for i, q := range b[2:] {
			out[i] = d * iq4Values[q&15]
			out[i+16] = d * iq4Values[q>>4]
		}
	}
}

// dequantIQ4XS: d (f16), upper bit pairs of eight scales in two bytes, their
// low nibbles in four, then for each group of 32 the nibbles as in IQ4_NL;
// x = d*(s-32)*level.
func dequantIQ4XS(dst []float32, src []byte) {
	for ; len(dst) >= superBlock; dst, src = dst[superBlock:], src[136:] {
		b := (*[136]byte)(src)
		d, upper := halfAt(b[:]), binary.LittleEndian.Uint16(b[2:])
		for g := range 8 {
			s := b[4+g/2]>>(g%2*4)&15 | byte(upper>>(2*g)&3<<4)
			dl := d * float32(int(s)-32)
			codes, out := (*[16]byte)(b[8+16*g:]), (*[32]float32)(dst[32*g:])
			for i, q := range codes {
				out[i] = dl * iq4Values[q&15]
				out[i+16] = dl * iq4Values[q>>4]
			}
		}
	}
}
