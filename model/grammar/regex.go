package grammar

import (
	"fmt"
	"regexp/syntax"
	"slices"
	"unicode"
	"unicode/utf8"
)

// Regex compiles a regular expression (Go's syntax, Perl's classes) that the
// whole text must match. Look-around, back-references and word boundaries are
// no regular grammar or not supported, and are refused.
func Regex(pattern string) (*Grammar, error) {
	var r rules
	root := r.add("root")
	tree, err := parseRegex(pattern)
	if err != nil {
		return nil, fmt.Errorf("%w: regular expression %q: %w", ErrGrammar, pattern, err)
	}
	x := regex{char: func(c runes) expr { return c }}
	e, err := x.whole(tree, nil)
	if err != nil {
		return nil, fmt.Errorf("%w: regular expression %q: %w", ErrGrammar, pattern, err)
	}
	r.bodies[root] = e
	return r.compile()
}

// Choice allows exactly the given texts.
func Choice(texts ...string) (*Grammar, error) {
	if len(texts) == 0 {
		return nil, fmt.Errorf("%w: choice of no texts", ErrGrammar)
	}
	var r rules
	root := r.add("root")
	r.bodies[root] = oneText(slices.Clone(texts))
	return r.compile()
}

func parseRegex(pattern string) (*syntax.Regexp, error) {
	if len(pattern) > maxSource/16 {
		return nil, fmt.Errorf("it has %d bytes; at most %d are read", len(pattern), maxSource/16)
	}
	return syntax.Parse(pattern, syntax.Perl)
}

// pattern compiles a JSON Schema pattern: it may match anywhere, unless it is
// anchored, and its characters are spelled as a JSON string spells them.
func (j *jsonRules) pattern(p string) (expr, error) {
	tree, err := parseRegex(p)
	if err != nil {
		return nil, err
	}
	x := regex{char: j.spelled}
	return x.whole(tree, rep{j.char(), 0, unlimited})
}

// spelled is one of the characters c inside a JSON string.
func (j *jsonRules) spelled(c runes) expr {
	out := alt{c.and(plain)}
	for r := rune(0); r < 0x80; r++ {
		if r >= 0x20 && r != '"' && r != '\\' {
			continue
		}
		if len(c.and(runes{{r, r}})) > 0 {
			s := quoted(string(r))[0]
			out = append(out, literal(s[1:len(s)-1]))
		}
	}
	return out
}

// regex turns a syntax tree into an expression.
type regex struct {
	char  func(runes) expr
	depth int
}

// whole handles the anchors; around is what may surround an unanchored match,
// nil when the match is anchored anyway.
func (x *regex) whole(t *syntax.Regexp, around expr) (expr, error) {
	switch {
	case t.Op == syntax.OpAlternate:
		var out alt
		for _, s := range t.Sub {
			e, err := x.whole(s, around)
			if err != nil {
				return nil, err
			}
			out = append(out, e)
		}
		return out, nil
	case t.Op == syntax.OpCapture:
		return x.whole(t.Sub[0], around)
	}
	parts := []*syntax.Regexp{t}
	if t.Op == syntax.OpConcat {
		parts = t.Sub
	}
	begin, end := around, around
	if len(parts) > 0 && (parts[0].Op == syntax.OpBeginText || parts[0].Op == syntax.OpBeginLine) {
		begin, parts = nil, parts[1:]
	}
	if n := len(parts); n > 0 && (parts[n-1].Op == syntax.OpEndText || parts[n-1].Op == syntax.OpEndLine) {
		end, parts = nil, parts[:n-1]
	}
	var out seq
	if begin != nil {
		out = append(out, begin)
	}
	for _, p := range parts {
		e, err := x.part(p)
		if err != nil {
			return nil, err
		}
		out = append(out, e)
	}
	if end != nil {
		out = append(out, end)
	}
	return out, nil
}

func (x *regex) part(t *syntax.Regexp) (expr, error) {
	if x.depth++; x.depth > maxNesting {
		return nil, fmt.Errorf("it is nested deeper than %d", maxNesting)
	}
	defer func() { x.depth-- }()
	many := func(min, max int) (expr, error) {
		e, err := x.part(t.Sub[0])
		return rep{e, min, max}, err
	}
	switch t.Op {
	case syntax.OpEmptyMatch:
		return literal(""), nil
	case syntax.OpNoMatch:
		return alt{}, nil
	case syntax.OpLiteral:
		var out seq
		for _, r := range t.Rune {
			c := runes{{r, r}}
			if t.Flags&syntax.FoldCase != 0 {
				for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
					c = append(c, runeRange{f, f})
				}
			}
			out = append(out, x.char(c))
		}
		return out, nil
	case syntax.OpCharClass:
		var c runes
		for i := 0; i < len(t.Rune); i += 2 {
			c = append(c, runeRange{t.Rune[i], t.Rune[i+1]})
		}
		return x.char(c), nil
	case syntax.OpAnyChar:
		return x.char(runes{{0, utf8.MaxRune}}), nil
	case syntax.OpAnyCharNotNL: // as ECMAScript's dot
		return x.char(runes{{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}.negate()), nil
	case syntax.OpCapture:
		return x.part(t.Sub[0])
	case syntax.OpStar:
		return many(0, unlimited)
	case syntax.OpPlus:
		return many(1, unlimited)
	case syntax.OpQuest:
		return many(0, 1)
	case syntax.OpRepeat:
		return many(t.Min, t.Max)
	case syntax.OpConcat:
		var out seq
		for _, s := range t.Sub {
			e, err := x.part(s)
			if err != nil {
				return nil, err
			}
			out = append(out, e)
		}
		return out, nil
	case syntax.OpAlternate:
		var out alt
		for _, s := range t.Sub {
			e, err := x.part(s)
			if err != nil {
				return nil, err
			}
			out = append(out, e)
		}
		return out, nil
	}
	return nil, fmt.Errorf("%v is not supported inside an expression", t)
}
