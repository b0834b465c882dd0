package model

import (
	"encoding/binary"
	"math"
)

// superBlock is how many numbers a block of the k-quants holds, in groups of 16
// or 32 with a quantised scale each.
const superBlock = 256

// dequantQ2K: 16 bytes of scales (low nibble) and minima (high nibble) for
// groups of 16, 64 bytes of 2-bit codes, d and dmin (f16); x = d*s*q - dmin*m.
// Of each 32 code bytes, bits 0-1 are numbers 0-31, bits 2-3 numbers 32-63, ...
func dequantQ2K(dst []float32, src []byte) {
	for ; len(dst) >= superBlock; dst, src = dst[superBlock:], src[84:] {
		b := (*[84]byte)(src)
		d, dmin := halfAt(b[80:]), halfAt(b[82:])
		for g := range 16 { // group of 16: half g/8, bits 2*(g/2%4), bytes 16*(g%2)
			s := b[g]
			dl, ml := d*float32(int(s&15)), dmin*float32(int(s>>4))
			codes := (*[16]byte)(b[16+32*(g/8)+16*(g%2):])
			out, shift := (*[16]float32)(dst[16*g:]), g/2%4*2
			for i, q := range codes {
				out[i] = float32(dl*float32(int(q>>shift&3))) - ml
			}
		}
	}
}

// dequantQ3K: 32 bytes of third bits, 64 bytes of 2-bit codes laid out as in
// Q2_K, 12 bytes of 6-bit scales, d (f16); x = d*(s-32)*(q-4), where the code's
// third bit set means no -4.
func dequantQ3K(dst []float32, src []byte) {
	for ; len(dst) >= superBlock; dst, src = dst[superBlock:], src[110:] {
		b := (*[110]byte)(src)
		d := halfAt(b[108:])
		for g := range 16 {
			low := b[96+g%8] >> (g / 8 * 4) & 15
			high := b[104+g%4] >> (g / 4 * 2) & 3
			dl := d * float32(int(low|high<<4)-32)
			codes := (*[16]byte)(b[32+32*(g/8)+16*(g%2):])
			third := (*[16]byte)(b[16*(g%2):])
			out, shift, bit := (*[16]float32)(dst[16*g:]), g/2%4*2, g/2
			for i, q := range codes {
				out[i] = dl * float32(int(q>>shift&3)-int(^third[i]>>bit&1)<<2)
			}
		}
	}
}

// scaleMin unpacks scale and minimum of group j of Q4_K and Q5_K: 6 bits each
// in 12 bytes.
func scaleMin(b *[12]byte, j int) (scale, low float32) {
	if j < 4 {
		return float32(int(b[j] & 63)), float32(int(b[j+4] & 63))
	}
	return float32(int(b[j+4]&15 | b[j-4]>>6<<4)), float32(int(b[j+4]>>4 | b[j]>>6<<4))
}

// dequantQ4K: d, dmin (f16), 12 bytes of scales and minima, 128 bytes of
// nibbles: of each 32, the low ones are a group of 32 numbers and the high ones
// the next; x = d*s*q - dmin*m.
func dequantQ4K(dst []float32, src []byte) {
	for ; len(dst) >= superBlock; dst, src = dst[superBlock:], src[144:] {
		b := (*[144]byte)(src)
		d, dmin := halfAt(b[:]), halfAt(b[2:])
		for p := range 4 {
			s0, m0 := scaleMin((*[12]byte)(b[4:]), 2*p)
			s1, m1 := scaleMin((*[12]byte)(b[4:]), 2*p+1)
			s0, m0, s1, m1 = d*s0, dmin*m0, d*s1, dmin*m1
			codes, out := (*[32]byte)(b[16+32*p:]), (*[64]float32)(dst[64*p:])
			for i, q := range codes {
				out[i] = float32(s0*float32(int(q&15))) - m0
				out[i+32] = float32(s1*float32(int(q>>4))) - m1
			}
		}
	}
}

// dequantQ5K is Q4_K with a fifth bit: bit j of 32 more bytes, before the
// nibbles, belongs to group j.
func dequantQ5K(dst []float32, src []byte) {
	for ; len(dst) >= superBlock; dst, src = dst[superBlock:], src[176:] {
		b := (*[176]byte)(src)
		d, dmin := halfAt(b[:]), halfAt(b[2:])
		fifth := (*[32]byte)(b[16:])
		for p := range 4 {
			s0, m0 := scaleMin((*[12]byte)(b[4:]), 2*p)
			s1, m1 := scaleMin((*[12]byte)(b[4:]), 2*p+1)
			s0, m0, s1, m1 = d*s0, dmin*m0, d*s1, dmin*m1
			codes, out := (*[32]byte)(b[48+32*p:]), (*[64]float32)(dst[64*p:])
			for i, q := range codes {
				h := fifth[i] >> (2 * p)
				out[i] = float32(s0*float32(int(q&15|h&1<<4))) - m0
				out[i+32] = float32(s1*float32(int(q>>4|h>>1&1<<4))) - m1
			}
		}
	}
}

// dequantQ6K: 128 bytes of low nibbles, 64 bytes of upper bit pairs, 16 signed
// scales for groups of 16, d (f16); x = d*s*(q-32). Each half of 128 numbers
// takes 64 nibble bytes (32 for numbers 0-31 and 64-95, 32 for 32-63 and
// 96-127) and 32 bytes of pairs.
func dequantQ6K(dst []float32, src []byte) {
	for ; len(dst) >= superBlock; dst, src = dst[superBlock:], src[210:] {
		b := (*[210]byte)(src)
		d := halfAt(b[208:])
		for g := range 16 {
			scale := d * float32(int8(b[192+g]))
			half, quarter, side := g/8, g/2%4, g%2
			low := (*[16]byte)(b[64*half+32*(quarter%2)+16*side:])
			high := (*[16]byte)(b[128+32*half+16*side:])
			out, lowShift, highShift := (*[16]float32)(dst[16*g:]), quarter/2*4, 2*quarter
			for i, q := range low {
				out[i] = scale * float32(int(q>>lowShift&15|high[i]>>highShift&3<<4)-32)
			}
		}
	}
}

// dequantQ8K: d (f32), 256 signed bytes, and 16 sums that only dot products
// use; x = d*q.
func dequantQ8K(dst []float32, src []byte) {
	for ; len(dst) >= superBlock; dst, src = dst[superBlock:], src[292:] {
		b, out := (*[292]byte)(src), (*[superBlock]float32)(dst)
		d := math.Float32frombits(binary.LittleEndian.Uint32(b[:]))
		for i, q := range b[4:260] {
			out[i] = d * float32(int8(q))
		}
	}
}
