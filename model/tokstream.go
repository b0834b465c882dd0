package model

import (
	"strings"
	"unicode/utf8"
)

// DecodeStream decodes ids as they arrive. The texts it returns, together with
// Flush's, are exactly Decode of all ids, and none of them ends inside a
// character. A run of byte-fallback tokens is held until it ends: as in the
// reference, one bad byte in it makes U+FFFD of all its bytes. Not safe for
// concurrent use.
type DecodeStream struct {
	t       *Tokenizer
	started bool
	held    []byte // bytes that may lack the rest of a character, or a run of byte tokens
	out     []byte
	starts  []int // by strip: how many more may go at the start, -1 = past it
	tail    []byte
}

// NewStream starts a stream. With ids after which it continues (a prompt), it
// gives the text that follows theirs: for SentencePiece-like tokenizers the
// space of a first token is then kept.
func (t *Tokenizer) NewStream(after ...int32) *DecodeStream {
	s := &DecodeStream{t: t}
	for _, p := range t.dec.strip {
		s.starts = append(s.starts, p.start)
	}
	if len(after) > 0 {
		s.Push(after...)
		s.Flush()
		s.started = true
		for i := range s.starts {
			s.starts[i] = -1
		}
	}
	return s
}

// Push gives the text that ids complete, possibly none. Ids without a token
// give nothing.
func (s *DecodeStream) Push(ids ...int32) string {
	s.out = s.out[:0]
	for _, id := range ids {
		if !s.t.has(id) {
			continue
		}
		p := s.t.pieces[id]
		if !s.started {
			s.started = true
			if first, ok := s.t.firstPieces[id]; ok {
				p = first
			}
		}
		switch {
		case s.t.dec.byteLevel, p.isByte:
			s.held = append(s.held, p.text...)
		default:
			s.endRun()
			s.out = append(s.out, p.text...)
		}
	}
	if s.t.dec.byteLevel {
		out, rest := appendUTF8(s.out, s.held, false)
		s.out, s.held = out, append(s.held[:0], rest...)
	}
	return s.strip(false)
}

// Flush gives what is still held: an incomplete character at the end, or a run
// of byte tokens.
func (s *DecodeStream) Flush() string {
	s.out = s.out[:0]
	if s.t.dec.byteLevel {
		s.out, _ = appendUTF8(s.out, s.held, true)
		s.held = s.held[:0]
	} else {
		s.endRun()
	}
	return s.strip(true)
}

// endRun decodes a run of byte tokens.
func (s *DecodeStream) endRun() {
	if len(s.held) == 0 {
		return
	}
	if utf8.Valid(s.held) {
		s.out = append(s.out, s.held...)
	} else {
		for range s.held {
			s.out = append(s.out, "\uFFFD"...)
		}
	}
	s.held = s.held[:0]
}

// strip takes from out what the decoder strips from the ends of the text.
func (s *DecodeStream) strip(final bool) string {
	if len(s.t.dec.strip) == 0 {
		return string(s.out)
	}
	text := string(s.tail) + string(s.out)
	s.tail = s.tail[:0]
	// Every step strips the text as the steps before it left it.
	hold := 0
	for i, p := range s.t.dec.strip {
		c := string(p.char)
		for s.starts[i] > 0 && strings.HasPrefix(text, c) {
			text = text[len(c):]
			s.starts[i]--
		}
		if text != "" {
			s.starts[i] = -1
		}
		if final {
			for n := p.stop; n > 0 && strings.HasSuffix(text, c); n-- {
				text = text[:len(text)-len(c)]
			}
		}
		hold += p.stop
	}
	if !final && hold > 0 {
		// Keep the characters at the end that may yet be stripped.
		cut := len(text)
		for n := hold; n > 0 && cut > 0; n-- {
			r, w := utf8.DecodeLastRuneInString(text[:cut])
			if !s.strips(r) {
				break
			}
			cut -= w
		}
		s.tail = append(s.tail, text[cut:]...)
		text = text[:cut]
	}
	return text
}

func (s *DecodeStream) strips(r rune) bool {
	for _, p := range s.t.dec.strip {
		if p.char == r {
			return true
		}
	}
	return false
}

// Decode gives the text of ids, special tokens included. Bytes that form no
// character become U+FFFD; ids without a token give nothing.
func (t *Tokenizer) Decode(ids []int32) string {
	if t.dec.byteLevel && len(t.dec.strip) == 0 && len(t.firstPieces) == 0 {
		var b []byte
		for _, id := range ids {
			if t.has(id) {
				b = append(b, t.pieces[id].text...)
			}
		}
		if utf8.Valid(b) {
			return string(b)
		}
		out, _ := appendUTF8(make([]byte, 0, len(b)), b, true)
		return string(out)
	}
	s := t.NewStream()
	out := s.Push(ids...)
	return out + s.Flush()
}
