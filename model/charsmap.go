package model

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// charsmap is SentencePiece's precompiled normalization: a double-array trie
// (Darts-clone) from a key's bytes to an offset in a block of zero-terminated
// replacements.
//
//	u32 little endian: size of the trie in bytes
//	trie: u32 units
//	replacements: each ends with a zero byte
type charsmap struct {
	trie    []uint32
	text    []byte
	longest int // bytes of the longest replacement, at least 1
}

const (
	maxCharsmapBytes = 64 << 20
	maxReplacement   = 1024 // bytes; Unicode's longest has 33
)

func parseCharsmap(data []byte) (*charsmap, error) {
	if len(data) < 4 || len(data) > maxCharsmapBytes {
		return nil, fmt.Errorf("precompiled_charsmap has %d bytes, want 4 to %d", len(data), maxCharsmapBytes)
	}
	n := binary.LittleEndian.Uint32(data)
	if n%4 != 0 || uint64(n) > uint64(len(data)-4) {
		return nil, fmt.Errorf("precompiled_charsmap: trie of %d bytes in %d", n, len(data)-4)
	}
	if n == 0 {
		return nil, errors.New("precompiled_charsmap: the trie is empty")
	}
	m := &charsmap{trie: make([]uint32, n/4), text: data[4+n:]}
	m.longest = 1
	for part := range bytes.SplitSeq(m.text, []byte{0}) {
		m.longest = max(m.longest, len(part))
	}
	if m.longest > maxReplacement {
		return nil, fmt.Errorf("precompiled_charsmap: a replacement of %d bytes, want at most %d", m.longest, maxReplacement)
	}
	for i := range m.trie {
		m.trie[i] = binary.LittleEndian.Uint32(data[4+4*i:])
	}
	return m, nil
}

// lookup gives the replacement of the shortest key that s begins with.
func (m *charsmap) lookup(s string) (string, bool) {
	offset := func(u uint32) uint32 { return (u >> 10) << ((u & (1 << 9)) >> 6) }
	pos := offset(m.trie[0])
	for i := range len(s) {
		c := uint32(s[i])
		pos ^= c
		if c == 0 || uint64(pos) >= uint64(len(m.trie)) {
			return "", false
		}
		u := m.trie[pos]
		if u&(1<<31|0xff) != c {
			return "", false
		}
		pos ^= offset(u)
		if (u>>8)&1 == 1 { // a key ends here
			if uint64(pos) >= uint64(len(m.trie)) {
				return "", false
			}
			at := uint64(m.trie[pos] & (1<<31 - 1))
			if at > uint64(len(m.text)) {
				return "", false
			}
			to := m.text[at:]
			if end := bytes.IndexByte(to, 0); end >= 0 {
				to = to[:end]
			}
			return string(to), true
		}
	}
	return "", false
}

// apply normalises as the tokenizers library does: a grapheme cluster of fewer
// than six bytes is looked up as a whole, and replaced as a whole when only its
// beginning is a key; otherwise each code point is.
func (m *charsmap) apply(s string) string {
	var b strings.Builder
	b.Grow(len(s))
	for len(s) > 0 {
		n := graphemeLen(s)
		g := s[:n]
		s = s[n:]
		if n < 6 {
			if to, ok := m.lookup(g); ok {
				b.WriteString(to)
				continue
			}
		}
		for len(g) > 0 {
			_, n := utf8.DecodeRuneInString(g)
			if to, ok := m.lookup(g[:n]); ok {
				b.WriteString(to)
			} else {
				b.WriteString(g[:n])
			}
			g = g[n:]
		}
	}
	return strings.ToValidUTF8(b.String(), "\uFFFD")
}

// graphemeLen is the length of the extended grapheme cluster (UAX #29) that s
// begins with, where it has fewer than six bytes, as far as Go's tables carry;
// longer clusters, of which every code point is looked up alone, may come in
// parts of at least six bytes or of one code point.
func graphemeLen(s string) int {
	r, n := utf8.DecodeRuneInString(s)
	if r == '\r' {
		if strings.HasPrefix(s[n:], "\n") {
			return n + 1
		}
		return n
	}
	if r == '\n' || graphemeControl(r) {
		return n
	}
	for graphemePrepend(r) && n < len(s) {
		next, w := utf8.DecodeRuneInString(s[n:])
		if next == '\r' || next == '\n' || graphemeControl(next) {
			return n
		}
		r = next
		n += w
	}
	pictograph := r == '©' || r == '®' // the only short ones
	joined := false
	for n < len(s) {
		next, w := utf8.DecodeRuneInString(s[n:])
		if !graphemeExtend(next) && !(joined && pictograph && next >= 0x203C && unicode.Is(unicode.So, next)) {
			break
		}
		joined = next == 0x200D
		n += w
	}
	return n
}

func graphemeControl(r rune) bool {
	if r < 0x300 {
		return r < 0x20 || r >= 0x7f && r < 0xa0 || r == 0xad
	}
	return r != 0x200C && r != 0x200D && !graphemePrepend(r) && !unicode.Is(unicode.M, r) &&
		(unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp) && (r < 0xE0020 || r > 0xE007F) || 0xE0000 <= r && r <= 0xE0FFF && !unicode.Is(unicode.Mn, r) && (r < 0xE0020 || r > 0xE007F) ||
			0xFFF0 <= r && r <= 0xFFF8)
}

func graphemePrepend(r rune) bool {
	return r >= 0x600 && (unicode.Is(unicode.Prepended_Concatenation_Mark, r) || r == 0xD4E)
}

// graphemeExtend reports Extend, ZWJ and SpacingMark.
func graphemeExtend(r rune) bool {
	if r < 0x300 {
		return false
	}
	switch r {
	case 0x200D, 0xE33, 0xEB3:
		return true
	case 0x102B, 0x102C, 0x1038, 0x1062, 0x1063, 0x1064, 0x1067, 0x1068, 0x1069, 0x106A, 0x106B, 0x106C, 0x106D,
		0x1083, 0x1087, 0x1088, 0x1089, 0x108A, 0x108B, 0x108C, 0x108F, 0x109A, 0x109B, 0x109C, 0x1A61, 0x1A63, 0x1A64, 0xAA7B, 0xAA7D:
		return false // spacing marks that begin a cluster
	}
	return unicode.In(r, unicode.M, unicode.Other_Grapheme_Extend) || 0x1F3FB <= r && r <= 0x1F3FF || 0xE0020 <= r && r <= 0xE007F
}
