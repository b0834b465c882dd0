package grammar

import (
	"fmt"
	"unicode/utf8"
)

// class is a set of bytes.
type class [4]uint64

func (c *class) add(lo, hi byte) {
	for b := int(lo); b <= int(hi); b++ {
		c[b>>6] |= 1 << (b & 63)
	}
}

func (c *class) has(b byte) bool { return c[b>>6]>>(b&63)&1 == 1 }

type opcode uint8

const (
	opByte   opcode = iota // take a byte of class, go on at next
	opSplit                // go on at any of outs
	opCall                 // run rule, then go on at next
	opRet                  // return to the caller
	opLoop                 // run body again, or go on at next
	opObject               // run one more of outs, or go on at next
)

// state is one instruction of the automaton.
type state struct {
	op       opcode
	class    class
	next     int32
	outs     []int32
	rule     int32
	body     int32
	min, max int64
	required uint64 // opObject: properties that must be there
	extra    int32  // opObject: entry for further properties, first and later; -1
	extraSep int32
	seps     []int32 // opObject: outs with the separator before them
}

// Grammar is a compiled grammar: a pushdown automaton over bytes.
type Grammar struct {
	states []state
	starts []int32 // of the rules; rule 0 is the root
}

const retState = 0

// builder turns expressions into states, back to front.
type builder struct {
	g     *Grammar
	depth int
	err   error
}

// compile checks the rules, of which number 0 is the root, and builds the
// automaton.
func (r *rules) compile() (*Grammar, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	b := &builder{g: &Grammar{states: []state{{op: opRet}}}}
	for _, body := range r.bodies {
		b.g.starts = append(b.g.starts, b.emit(body, retState))
		if b.err != nil {
			return nil, fmt.Errorf("%w: %w", ErrGrammar, b.err)
		}
	}
	return b.g, nil
}

func (b *builder) add(s state) int32 {
	if len(b.g.states) >= maxStates {
		if b.err == nil {
			b.err = fmt.Errorf("it needs more than %d states; make it smaller", maxStates)
		}
		return retState
	}
	b.g.states = append(b.g.states, s)
	return int32(len(b.g.states) - 1)
}

// emit builds e so that it goes on at next, and gives its first state.
func (b *builder) emit(e expr, next int32) int32 {
	if b.err != nil {
		return retState
	}
	if b.depth++; b.depth > maxNesting {
		b.err = fmt.Errorf("it is nested deeper than %d", maxNesting)
		return retState
	}
	defer func() { b.depth-- }()
	switch e := e.(type) {
	case literal:
		for i := len(e) - 1; i >= 0; i-- {
			next = b.byteRange(e[i], e[i], next)
		}
		return next
	case runes:
		return b.runes(e, next)
	case seq:
		for i := len(e) - 1; i >= 0; i-- {
			next = b.emit(e[i], next)
		}
		return next
	case alt:
		if len(e) == 1 {
			return b.emit(e[0], next)
		}
		var outs []int32
		for _, x := range e {
			outs = append(outs, b.emit(x, next))
		}
		return b.add(state{op: opSplit, outs: outs})
	case rep:
		switch {
		case e.max == 0:
			return next
		case e.min == 1 && e.max == 1:
			return b.emit(e.of, next)
		case e.min == 0 && e.max == 1:
			return b.add(state{op: opSplit, outs: []int32{b.emit(e.of, next), next}})
		}
		return b.add(state{op: opLoop, body: b.emit(e.of, retState), next: next, min: int64(e.min), max: int64(e.max)})
	case ref:
		return b.add(state{op: opCall, rule: int32(e), next: next})
	case object:
		return b.object(e, next)
	case freeText:
		return b.freeText(e, next)
	}
	b.err = fmt.Errorf("unexpected expression %T", e)
	return retState
}

func (b *builder) byteRange(lo, hi byte, next int32) int32 {
	s := state{op: opByte, next: next}
	s.class.add(lo, hi)
	return b.add(s)
}

// object builds the loop over properties in any order: the frame's count is the
// set of those seen, bit 63 standing for further ones.
func (b *builder) object(o object, next int32) int32 {
	s := state{op: opObject, next: b.emit(seq{o.open, literal("}")}, next), extra: -1, extraSep: -1}
	for i, p := range o.props {
		s.outs = append(s.outs, b.emit(seq{o.open, p.entry}, retState))
		s.seps = append(s.seps, b.emit(seq{o.next, p.entry}, retState))
		if p.required {
			s.required |= 1 << i
		}
	}
	if o.extra != nil {
		s.extra = b.emit(seq{o.open, o.extra}, retState)
		s.extraSep = b.emit(seq{o.next, o.extra}, retState)
	}
	return b.byteRange('{', '{', b.add(s))
}

// freeText builds the automaton of Knuth, Morris and Pratt for the mark: state
// k has seen its first k bytes. Text is UTF-8 as far as its bytes go.
func (b *builder) freeText(t freeText, next int32) int32 {
	mark := t.mark
	fail := make([]int, len(mark)+1)
	for i, k := 1, 0; i < len(mark); i++ {
		for k > 0 && mark[i] != mark[k] {
			k = fail[k]
		}
		if mark[i] == mark[k] {
			k++
		}
		fail[i+1] = k
	}
	splits := make([]int32, max(1, len(mark)))
	for k := range splits {
		splits[k] = b.add(state{op: opSplit})
	}
	if b.err != nil {
		return retState
	}
	for k := range splits {
		classes := map[int32]*class{}
		for c := range 256 {
			to := k
			for to > 0 && (to == len(mark) || mark[to] != byte(c)) {
				to = fail[to]
			}
			if to < len(mark) && mark[to] == byte(c) {
				to++
			}
			target := next
			if len(mark) == 0 {
				target = splits[0]
			} else if to < len(mark) {
				target = splits[to]
			} else if !t.withMark {
				continue
			}
			if to == len(mark) && len(mark) > 0 {
				target = next
			}
			if classes[target] == nil {
				classes[target] = &class{}
			}
			classes[target].add(byte(c), byte(c))
		}
		var outs []int32
		for target, c := range classes {
			outs = append(outs, b.add(state{op: opByte, class: *c, next: target}))
		}
		if !t.withMark {
			outs = append(outs, next)
		}
		b.g.states[splits[k]].outs = outs
	}
	return splits[0]
}

// runes builds one character as its UTF-8 bytes.
func (b *builder) runes(r runes, next int32) int32 {
	var outs []int32
	var ascii class
	none := true
	for _, x := range r {
		lo := x.lo
		if lo < 0x80 {
			ascii.add(byte(lo), byte(min(x.hi, 0x7f)))
			none = false
			lo = 0x80
		}
		for _, part := range []runeRange{{0x80, 0x7ff}, {0x800, 0xd7ff}, {0xe000, 0xffff}, {0x10000, utf8.MaxRune}} {
			if from, to := max(lo, part.lo), min(x.hi, part.hi); from <= to {
				outs = b.utf8(from, to, next, outs)
			}
		}
	}
	if !none {
		outs = append(outs, b.add(state{op: opByte, class: ascii, next: next}))
	}
	if len(outs) == 1 {
		return outs[0]
	}
	return b.add(state{op: opSplit, outs: outs})
}

// utf8 adds byte sequences for the characters lo to hi, which have one length.
func (b *builder) utf8(lo, hi rune, next int32, outs []int32) []int32 {
	n := utf8.RuneLen(lo)
	for i := 1; i < n; i++ { // split until the last i bytes run their full range
		m := rune(1)<<(6*i) - 1
		if lo&^m != hi&^m {
			if lo&m != 0 {
				outs = b.utf8(lo, lo|m, next, outs)
				return b.utf8(lo|m+1, hi, next, outs)
			}
			if hi&m != m {
				outs = b.utf8(lo, hi&^m-1, next, outs)
				return b.utf8(hi&^m, hi, next, outs)
			}
		}
	}
	var x, y [4]byte
	utf8.EncodeRune(x[:], lo)
	utf8.EncodeRune(y[:], hi)
	for i := n - 1; i >= 0; i-- {
		next = b.byteRange(x[i], y[i], next)
	}
	return append(outs, next)
}
