package grammar

import (
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"
)

// ErrGrammar marks a grammar, schema or expression that is refused.
var ErrGrammar = errors.New("grammar")

const (
	maxStates  = 1 << 18
	maxNesting = 200     // of expressions
	maxSource  = 1 << 20 // bytes of a schema or grammar
	unlimited  = -1
)

// expr is a part of a rule: one of the types below.
type expr any

type (
	literal string
	runes   []runeRange // one character of these
	seq     []expr
	alt     []expr // none: nothing matches
	rep     struct {
		of       expr
		min, max int // max may be unlimited
	}
	ref    int // of a rule
	object struct {
		props      []property
		extra      expr // one more property, key and value; nil = none
		open, next expr // after { and between properties
	}
	// freeText is text in which mark does not occur; withMark also takes the
	// mark at its end.
	freeText struct {
		mark     string
		withMark bool
	}
)

type property struct {
	entry    expr // key, colon and value
	required bool
}

type runeRange struct{ lo, hi rune }

func opt(e expr) expr { return rep{e, 0, 1} }

// rules are numbered expressions; a number may be used before it is set.
type rules struct {
	bodies []expr
	names  []string
}

func (r *rules) add(name string) ref {
	r.bodies = append(r.bodies, nil)
	r.names = append(r.names, name)
	return ref(len(r.bodies) - 1)
}

// check refuses grammars that never end or recurse before they take a byte.
func (r *rules) check() error {
	for i, b := range r.bodies {
		if b == nil {
			return fmt.Errorf("%w: rule %q is used and not defined", ErrGrammar, r.names[i])
		}
	}
	ends, empty := make([]bool, len(r.bodies)), make([]bool, len(r.bodies))
	for changed := true; changed; {
		changed = false
		for i, b := range r.bodies {
			if !ends[i] && productive(b, ends) {
				ends[i], changed = true, true
			}
			if !empty[i] && nullable(b, empty) {
				empty[i], changed = true, true
			}
		}
	}
	state := make([]uint8, len(r.bodies)) // 1 = on the path, 2 = done
	type step struct {
		rule int
		next []int
	}
	for i := range r.bodies {
		if !ends[i] {
			return fmt.Errorf("%w: %q can never be complete: it needs itself, or nothing matches it", ErrGrammar, r.names[i])
		}
		if state[i] != 0 {
			continue
		}
		path := []step{{i, firsts(r.bodies[i], empty)}}
		state[i] = 1
		for len(path) > 0 {
			top := &path[len(path)-1]
			if len(top.next) == 0 {
				state[top.rule] = 2
				path = path[:len(path)-1]
				continue
			}
			n := top.next[0]
			top.next = top.next[1:]
			switch state[n] {
			case 0:
				state[n] = 1
				path = append(path, step{n, firsts(r.bodies[n], empty)})
			case 1:
				return fmt.Errorf("%w: %q begins with itself (left recursion); write the repetition with * or after what comes first", ErrGrammar, r.names[n])
			}
		}
	}
	for i, b := range r.bodies {
		if err := checkLoops(b, empty); err != nil {
			return fmt.Errorf("%w: %q: %w", ErrGrammar, r.names[i], err)
		}
	}
	return nil
}

func productive(e expr, ends []bool) bool {
	switch e := e.(type) {
	case runes:
		return len(e) > 0
	case seq:
		return !slices.ContainsFunc(e, func(x expr) bool { return !productive(x, ends) })
	case alt:
		return slices.ContainsFunc(e, func(x expr) bool { return productive(x, ends) })
	case rep:
		return e.min == 0 || productive(e.of, ends)
	case ref:
		return ends[e]
	case object:
		return !slices.ContainsFunc(e.props, func(p property) bool { return p.required && !productive(p.entry, ends) })
	}
	return true
}

func nullable(e expr, empty []bool) bool {
	switch e := e.(type) {
	case literal:
		return e == ""
	case seq:
		return !slices.ContainsFunc(e, func(x expr) bool { return !nullable(x, empty) })
	case alt:
		return slices.ContainsFunc(e, func(x expr) bool { return nullable(x, empty) })
	case rep:
		return e.min == 0 || nullable(e.of, empty)
	case ref:
		return empty[e]
	case freeText:
		return !e.withMark
	}
	return false
}

// firsts lists the rules that e may call before it takes a byte.
func firsts(e expr, empty []bool) []int {
	switch e := e.(type) {
	case seq:
		var out []int
		for _, x := range e {
			out = append(out, firsts(x, empty)...)
			if !nullable(x, empty) {
				break
			}
		}
		return out
	case alt:
		var out []int
		for _, x := range e {
			out = append(out, firsts(x, empty)...)
		}
		return out
	case rep:
		if e.max != 0 {
			return firsts(e.of, empty)
		}
	case ref:
		return []int{int(e)}
	}
	return nil // an object starts with a brace
}

// checkLoops refuses a bounded repetition of what may be empty: its count would
// not be known.
func checkLoops(e expr, empty []bool) error {
	var inner []expr
	switch e := e.(type) {
	case seq:
		inner = e
	case alt:
		inner = e
	case rep:
		if e.max != unlimited && e.max > 1 && nullable(e.of, empty) {
			return fmt.Errorf("an item that may be empty is repeated %d to %d times; let the item take at least one character", e.min, e.max)
		}
		inner = []expr{e.of}
	case object:
		for _, p := range e.props {
			inner = append(inner, p.entry)
		}
		inner = append(inner, e.extra)
	}
	for _, x := range inner {
		if err := checkLoops(x, empty); err != nil {
			return err
		}
	}
	return nil
}

// negate gives all characters not in r. Surrogates are no characters.
func (r runes) negate() runes {
	var out runes
	at := rune(0)
	for _, x := range r.sorted() {
		if x.lo > at {
			out = append(out, runeRange{at, x.lo - 1})
		}
		at = max(at, x.hi+1)
	}
	if at <= utf8.MaxRune {
		out = append(out, runeRange{at, utf8.MaxRune})
	}
	return out
}

func (r runes) sorted() runes {
	r = slices.Clone(r)
	slices.SortFunc(r, func(a, b runeRange) int { return int(a.lo) - int(b.lo) })
	return r
}

// and keeps what both hold.
func (r runes) and(s runes) runes {
	var out runes
	for _, a := range r {
		for _, b := range s {
			if lo, hi := max(a.lo, b.lo), min(a.hi, b.hi); lo <= hi {
				out = append(out, runeRange{lo, hi})
			}
		}
	}
	return out
}
