package grammar

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// EBNF compiles a grammar in the form of llama.cpp's GBNF, which vLLM reads
// too: lines `name ::= alternatives`, the first to run being root. An
// alternative is a sequence of "text", [a-z] or [^a-z], . for any character,
// names and (groups), each of which may be followed by *, +, ?, {m}, {m,} or
// {m,n}. Escapes are \n \t \r \\ \" \[ \] \xHH \uHHHH and \UHHHHHHHH; # begins
// a comment.
func EBNF(source string) (*Grammar, error) {
	if len(source) > maxSource {
		return nil, fmt.Errorf("%w: the grammar has %d bytes; at most %d are read", ErrGrammar, len(source), maxSource)
	}
	p := &ebnf{src: source, line: 1, named: map[string]ref{}}
	p.named["root"] = p.add("root")
	for p.space(true); p.err == nil && p.src != ""; p.space(true) {
		p.rule()
	}
	if p.err != nil {
		return nil, fmt.Errorf("%w: line %d: %w", ErrGrammar, p.line, p.err)
	}
	return p.compile()
}

type ebnf struct {
	rules
	src   string
	line  int
	named map[string]ref
	depth int
	err   error
}

func (p *ebnf) fail(format string, args ...any) {
	if p.err == nil {
		p.err = fmt.Errorf(format, args...)
	}
	p.src = ""
}

// space skips blanks and comments, and line ends too where they mean nothing.
func (p *ebnf) space(lines bool) {
	for p.src != "" {
		switch c := p.src[0]; {
		case c == '#':
			n := strings.IndexByte(p.src, '\n')
			if n < 0 {
				n = len(p.src)
			}
			p.src = p.src[n:]
		case c == ' ' || c == '\t' || lines && (c == '\n' || c == '\r'):
			if c == '\n' {
				p.line++
			}
			p.src = p.src[1:]
		default:
			return
		}
	}
}

func (p *ebnf) skip(s string) bool {
	rest, ok := strings.CutPrefix(p.src, s)
	p.src = rest
	return ok
}

func (p *ebnf) name() string {
	n := 0
	for n < len(p.src) && (p.src[n] == '-' || p.src[n] == '_' || p.src[n] >= '0' && p.src[n] <= '9' || p.src[n]|0x20 >= 'a' && p.src[n]|0x20 <= 'z') {
		n++
	}
	name := p.src[:n]
	p.src = p.src[n:]
	return name
}

func (p *ebnf) rule() {
	name := p.name()
	p.space(false)
	switch {
	case name == "":
		p.fail("expected a rule name, got %.20q", p.src)
		return
	case !p.skip("::="):
		p.fail("expected ::= after %q", name)
		return
	}
	r := p.reference(name)
	if p.bodies[r] != nil {
		p.fail("rule %q is defined twice", name)
		return
	}
	p.space(true)
	body := p.alternatives(false)
	p.space(false)
	if p.src != "" && p.src[0] != '\n' && p.src[0] != '\r' {
		p.fail("unexpected %.20q in rule %q", p.src, name)
	}
	p.bodies[r] = body
}

func (p *ebnf) reference(name string) ref {
	r, ok := p.named[name]
	if !ok {
		r = p.add(name)
		p.named[name] = r
	}
	return r
}

func (p *ebnf) alternatives(nested bool) expr {
	if p.depth++; p.depth > maxNesting {
		p.fail("nested deeper than %d", maxNesting)
	}
	defer func() { p.depth-- }()
	out := alt{p.sequence(nested)}
	for p.err == nil {
		// The bar may stand on the next line.
		saved, line := p.src, p.line
		p.space(true)
		if !p.skip("|") {
			p.src, p.line = saved, line
			return out
		}
		p.space(true)
		out = append(out, p.sequence(nested))
	}
	return out
}

func (p *ebnf) sequence(nested bool) expr {
	out := seq{}
	for p.err == nil {
		p.space(nested)
		item := p.item()
		if item == nil {
			return out
		}
		out = append(out, p.repeated(item))
	}
	return out
}

// item parses one element; nil when none follows.
func (p *ebnf) item() expr {
	switch {
	case p.skip(`"`):
		var b strings.Builder
		for p.err == nil {
			if p.skip(`"`) {
				return literal(b.String())
			}
			if r, raw := p.character(); raw {
				b.WriteByte(byte(r))
			} else {
				b.WriteRune(r)
			}
		}
	case p.skip("["):
		return p.class()
	case p.skip("("):
		p.space(true)
		e := p.alternatives(true)
		p.space(true)
		if p.err == nil && !p.skip(")") {
			p.fail("a group is not closed")
		}
		return e
	case p.skip("."):
		return runes{{0, utf8.MaxRune}}
	default:
		if n := p.name(); n != "" {
			return p.reference(n)
		}
	}
	return nil
}

func (p *ebnf) class() expr {
	negated := p.skip("^")
	var out runes
	for p.err == nil && !p.skip("]") {
		lo, _ := p.character()
		hi := lo
		if strings.HasPrefix(p.src, "-") && !strings.HasPrefix(p.src, "-]") {
			p.src = p.src[1:]
			hi, _ = p.character()
		}
		if hi < lo {
			p.fail("the range %q to %q is empty", lo, hi)
		}
		out = append(out, runeRange{lo, hi})
	}
	if negated {
		out = out.negate()
	}
	return out
}

// character takes one character or escape; raw says that it is a byte (\xHH
// from 80 on, in a text).
func (p *ebnf) character() (r rune, raw bool) {
	if p.src == "" || p.src[0] == '\n' {
		p.fail("a text or class is not closed")
		return 0, false
	}
	r, n := utf8.DecodeRuneInString(p.src)
	p.src = p.src[n:]
	if r != '\\' {
		return r, false
	}
	if p.src == "" {
		p.fail("the grammar ends in an escape")
		return 0, false
	}
	c := p.src[0]
	p.src = p.src[1:]
	digits := map[byte]int{'x': 2, 'u': 4, 'U': 8}[c]
	if digits == 0 {
		if plain, ok := map[byte]rune{'n': '\n', 't': '\t', 'r': '\r', '\\': '\\', '"': '"', '[': '[', ']': ']', '-': '-', '^': '^'}[c]; ok {
			return plain, false
		}
		p.fail("unknown escape \\%c", c)
		return 0, false
	}
	v, err := strconv.ParseUint(p.src[:min(len(p.src), digits)], 16, 32)
	if err != nil || len(p.src) < digits || v > utf8.MaxRune || v >= 0xd800 && v < 0xe000 {
		p.fail("escape \\%c needs %d hexadecimal digits of a character", c, digits)
		return 0, false
	}
	p.src = p.src[digits:]
	return rune(v), c == 'x' && v >= 0x80
}

func (p *ebnf) repeated(e expr) expr {
	for p.err == nil {
		switch {
		case p.skip("*"):
			e = rep{e, 0, unlimited}
		case p.skip("+"):
			e = rep{e, 1, unlimited}
		case p.skip("?"):
			e = rep{e, 0, 1}
		case p.skip("{"):
			body, rest, ok := strings.Cut(p.src, "}")
			if !ok {
				p.fail("a repetition is not closed")
				return e
			}
			p.src = rest
			low, high, ranged := strings.Cut(body, ",")
			lo, err := strconv.ParseUint(strings.TrimSpace(low), 10, 31)
			hi := lo
			if err == nil && ranged && strings.TrimSpace(high) != "" {
				hi, err = strconv.ParseUint(strings.TrimSpace(high), 10, 31)
			}
			if err != nil || hi < lo {
				p.fail("repetition {%s}; write {m}, {m,} or {m,n} with m up to n", body)
				return e
			}
			most := int(hi)
			if ranged && strings.TrimSpace(high) == "" {
				most = unlimited
			}
			e = rep{e, int(lo), most}
		default:
			return e
		}
	}
	return e
}
