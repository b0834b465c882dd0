package jinja

import (
	"fmt"
	"slices"
)

const (
	maxSource  = 4 << 20 // bytes of a template
	maxNesting = 200     // of expressions and of blocks
)

// parser reads tokens by Jinja's grammar. Failures are panics of syntaxError,
// caught in Compile.
type parser struct {
	tokens []token
	pos    int
	depth  int
	names  map[string]bool // variables mentioned
	loops  int
}

type syntaxError struct{ error }

// Template is a compiled template. Safe for concurrent use.
type Template struct {
	body  []node
	names map[string]bool
}

// Compile parses a template.
func Compile(source string) (t *Template, err error) {
	if len(source) > maxSource {
		return nil, fmt.Errorf("the template has %d bytes; at most %d are read", len(source), maxSource)
	}
	tokens, err := lex(source)
	if err != nil {
		return nil, err
	}
	p := &parser{tokens: tokens, names: map[string]bool{}}
	defer func() {
		if r := recover(); r != nil {
			s, ok := r.(syntaxError)
			if !ok {
				panic(r)
			}
			err = s.error
		}
	}()
	body, _ := p.statements()
	return &Template{body: body, names: p.names}, nil
}

// Mentions reports whether the template reads a variable of this name.
func (t *Template) Mentions(name string) bool { return t.names[name] }

func (p *parser) fail(format string, args ...any) {
	panic(syntaxError{fmt.Errorf("line %d: %w", p.peek().line, fmt.Errorf(format, args...))})
}

func (p *parser) peek() token { return p.tokens[p.pos] }

func (p *parser) next() token {
	t := p.tokens[p.pos]
	if t.kind != 0 {
		p.pos++
	}
	return t
}

func (p *parser) is(kind byte, text string) bool {
	t := p.peek()
	return t.kind == kind && t.text == text
}

func (p *parser) skip(kind byte, text string) bool {
	if p.is(kind, text) {
		p.pos++
		return true
	}
	return false
}

func (p *parser) expect(kind byte, text string) {
	if !p.skip(kind, text) {
		p.fail("expected %s, got %s", describe(token{kind: kind, text: text}), describe(p.peek()))
	}
}

func (p *parser) name() string {
	if p.peek().kind != 'n' {
		p.fail("expected a name, got %s", describe(p.peek()))
	}
	return p.next().text
}

func describe(t token) string {
	switch t.kind {
	case 0:
		return "the end of the template"
	case '}':
		return "}}"
	case '/':
		return "%}"
	case 't':
		return "text"
	}
	return fmt.Sprintf("%q", t.text)
}

// deeper guards the recursion; call the result when leaving.
func (p *parser) deeper() func() {
	if p.depth++; p.depth > maxNesting {
		p.fail("nested deeper than %d", maxNesting)
	}
	return func() { p.depth-- }
}

// statements parses up to a tag that starts with one of the words in ends,
// which it takes, or to the end of the template when there are none.
func (p *parser) statements(ends ...string) (body []node, end string) {
	defer p.deeper()()
	for {
		t := p.next()
		switch t.kind {
		case 0:
			if len(ends) > 0 {
				p.fail("the template ends before %v", ends)
			}
			return body, ""
		case 't':
			body = append(body, node{t.line, textNode{t.text}})
		case '{':
			e := p.tuple(true)
			p.expect('}', "")
			body = append(body, node{t.line, outputNode{e}})
		case '%':
			word := p.name()
			if slices.Contains(ends, word) {
				return body, word
			}
			if s := p.statement(word); s != nil {
				body = append(body, node{t.line, s})
			}
		}
	}
}

func (p *parser) statement(word string) any {
	switch word {
	case "if":
		return p.ifStatement()
	case "for":
		return p.forStatement()
	case "set":
		return p.setStatement()
	case "macro":
		m := macroNode{name: p.name()}
		p.signature(&m)
		p.macroBody(&m, "endmacro")
		return m
	case "call":
		return p.callStatement()
	case "filter":
		f := filterNode{filter: p.filters(nil, true)}
		p.expect('/', "")
		f.body = p.block("endfilter")
		return f
	case "with":
		return p.withStatement()
	case "generation":
		p.expect('/', "")
		return scopeNode{p.block("endgeneration")}
	case "break", "continue":
		if p.loops == 0 {
			p.fail("%s outside a loop", word)
		}
		p.expect('/', "")
		if word == "break" {
			return breakNode{}
		}
		return continNode{}
	case "include", "import", "from", "extends", "block":
		p.fail("%s is refused: a chat template stands alone and reads no other file", word)
	}
	p.fail("unknown tag %q", word)
	return nil
}

// block parses the body of a statement whose end takes nothing.
func (p *parser) block(end string) []node {
	body, _ := p.statements(end)
	p.expect('/', "")
	return body
}

func (p *parser) ifStatement() any {
	n := ifNode{cond: p.tuple(false)}
	p.expect('/', "")
	var end string
	n.body, end = p.statements("elif", "else", "endif")
	switch end {
	case "elif":
		defer p.deeper()()
		n.els = []node{{p.peek().line, p.ifStatement()}}
		return n
	case "else":
		p.expect('/', "")
		n.els, _ = p.statements("endif")
	}
	p.expect('/', "")
	return n
}

func (p *parser) forStatement() any {
	n := forNode{target: p.target(false)}
	p.expect('n', "in")
	n.iter = p.tuple(false)
	if p.skip('n', "if") {
		n.cond = p.expression()
	}
	n.recursive = p.skip('n', "recursive")
	p.expect('/', "")
	p.loops++
	var end string
	n.body, end = p.statements("endfor", "else")
	p.loops--
	if end == "else" {
		p.expect('/', "")
		n.els, _ = p.statements("endfor")
	}
	p.expect('/', "")
	return n
}

func (p *parser) setStatement() any {
	n := setNode{target: p.target(true)}
	if p.skip('o', "=") {
		n.value = p.tuple(true)
		p.expect('/', "")
		return n
	}
	if p.is('o', "|") {
		n.filter = p.filters(nil, false)
	}
	p.expect('/', "")
	n.body = p.block("endset")
	return n
}

// target parses what is assigned to: a name, a namespace's attribute, or a
// tuple of those.
func (p *parser) target(attributes bool) expr {
	defer p.deeper()()
	var items []expr
	for {
		switch {
		case p.skip('o', "("):
			items = append(items, p.target(attributes))
			p.expect('o', ")")
		default:
			n := p.name()
			if slices.Contains([]string{"true", "false", "none", "True", "False", "None"}, n) {
				p.fail("can't assign to %q", n)
			}
			if attributes && p.skip('o', ".") {
				items = append(items, attr{name{n}, p.name()})
			} else {
				items = append(items, name{n})
			}
		}
		if !p.skip('o', ",") {
			if len(items) == 1 {
				return items[0]
			}
			break
		}
		if k := p.peek(); k.kind != 'n' && !p.is('o', "(") || k.text == "in" {
			break
		}
	}
	return listExpr{items: items, tuple: true}
}

// signature parses the parameters of a macro.
func (p *parser) signature(m *macroNode) {
	p.expect('o', "(")
	for !p.skip('o', ")") {
		if len(m.params) > 0 {
			p.expect('o', ",")
			if p.skip('o', ")") {
				return
			}
		}
		m.params = append(m.params, p.name())
		if p.skip('o', "=") {
			m.defaults = append(m.defaults, p.expression())
		} else if len(m.defaults) > 0 {
			p.fail("a parameter without default follows one with")
		}
	}
}

func (p *parser) macroBody(m *macroNode, end string) {
	p.expect('/', "")
	outer, loops := p.names, p.loops
	p.names, p.loops = map[string]bool{}, 0
	m.body = p.block(end)
	m.catch = catchAll{p.names["varargs"], p.names["kwargs"], p.names["caller"]}
	for n := range p.names {
		outer[n] = true
	}
	p.names, p.loops = outer, loops
}

func (p *parser) callStatement() any {
	n := callNode{macro: macroNode{name: "caller"}}
	if p.is('o', "(") {
		p.signature(&n.macro)
	}
	n.call = p.expression()
	if _, ok := n.call.(call); !ok {
		p.fail("call needs a call")
	}
	p.macroBody(&n.macro, "endcall")
	return n
}

func (p *parser) withStatement() any {
	var n withNode
	for p.peek().kind != '/' {
		if len(n.targets) > 0 {
			p.expect('o', ",")
		}
		n.targets = append(n.targets, name{p.name()})
		p.expect('o', "=")
		n.values = append(n.values, p.expression())
	}
	p.expect('/', "")
	n.body = p.block("endwith")
	return n
}
