package model

import "unicode/utf8"

// Byte-level BPE (Radford et al. 2019, section 2.2) writes every byte as one
// printable rune: printable Latin-1 as itself, the other 68 bytes as U+0100 and
// up, in byte order.
var (
	byteToRune [256]rune
	runeToByte [512]int16 // -1 = not of the alphabet
)

func init() {
	for r := range runeToByte {
		runeToByte[r] = -1
	}
	next := rune(256)
	for b := range 256 {
		r := rune(b)
		printable := '!' <= r && r <= '~' || 0xa1 <= r && r <= 0xac || 0xae <= r && r <= 0xff
		if !printable {
			r = next
			next++
		}
		byteToRune[b] = r
		runeToByte[r] = int16(b)
	}
}

// byteLevel writes bytes in the printable alphabet.
func byteLevel(b []byte) string {
	out := make([]rune, len(b))
	for i, c := range b {
		out[i] = byteToRune[c]
	}
	return string(out)
}

// rawBytes reads the printable alphabet; ok is false when a rune is not of it.
func rawBytes(s string) (b []byte, ok bool) {
	b = make([]byte, 0, len(s))
	for _, r := range s {
		if int(r) >= len(runeToByte) || runeToByte[r] < 0 {
			return nil, false
		}
		b = append(b, byte(runeToByte[r]))
	}
	return b, true
}

// appendUTF8 appends src to dst as valid UTF-8, each maximal invalid part
// becoming one U+FFFD (the WHATWG rule, which Rust and Python follow). An
// incomplete character at the end is left in rest, or replaced when final.
func appendUTF8(dst, src []byte, final bool) (out, rest []byte) {
	for len(src) > 0 {
		r, n := utf8.DecodeRune(src)
		if r != utf8.RuneError || n > 1 {
			dst = append(dst, src[:n]...)
			src = src[n:]
			continue
		}
		if !utf8.FullRune(src) {
			if !final {
				return dst, src
			}
			n = len(src)
		} else {
			// Take the longest proper prefix of a character.
			for n < len(src) && !utf8.FullRune(src[:n+1]) {
				n++
			}
		}
		dst = append(dst, "\uFFFD"...)
		src = src[n:]
	}
	return dst, nil
}
