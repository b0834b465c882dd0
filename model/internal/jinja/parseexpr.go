package jinja

import (
	"slices"
	"strconv"
	"strings"
)

// expression parses with the conditional form.
func (p *parser) expression() expr {
	defer p.deeper()()
	e := p.or()
	for p.skip('n', "if") {
		t := ternary{yes: e, cond: p.or()}
		if p.skip('n', "else") {
			t.no = p.expression()
		}
		e = t
	}
	return e
}

// tuple parses an expression, or several with commas. ternaries says whether
// the conditional form is allowed (not so in a for's iterable, where "if"
// starts the filter).
func (p *parser) tuple(ternaries bool) expr {
	one := p.or
	if ternaries {
		one = p.expression
	}
	first := one()
	if !p.is('o', ",") {
		return first
	}
	items := []expr{first}
	for p.skip('o', ",") {
		if k := p.peek(); k.kind == '}' || k.kind == '/' || p.is('o', ")") {
			break
		}
		items = append(items, one())
	}
	return listExpr{items: items, tuple: true}
}

func (p *parser) or() expr {
	defer p.deeper()()
	e := p.and()
	for p.skip('n', "or") {
		e = binary{"or", e, p.and()}
	}
	return e
}

func (p *parser) and() expr {
	e := p.not()
	for p.skip('n', "and") {
		e = binary{"and", e, p.not()}
	}
	return e
}

func (p *parser) not() expr {
	if p.skip('n', "not") {
		defer p.deeper()()
		return unary{"not", p.not()}
	}
	return p.comparison()
}

func (p *parser) comparison() expr {
	c := compare{first: p.sum()}
	for {
		op := ""
		switch t := p.peek(); {
		case t.kind == 'o' && slices.Contains([]string{"==", "!=", ">", ">=", "<", "<="}, t.text):
			op = t.text
		case p.is('n', "in"):
			op = "in"
		case p.is('n', "not") && p.pos+1 < len(p.tokens) && p.tokens[p.pos+1].kind == 'n' && p.tokens[p.pos+1].text == "in":
			p.next()
			op = "not in"
		}
		if op == "" {
			break
		}
		p.next()
		c.ops = append(c.ops, op)
		c.rest = append(c.rest, p.sum())
	}
	if c.ops == nil {
		return c.first
	}
	return c
}

func (p *parser) operators(ops []string, operand func() expr) expr {
	e := operand()
	for p.peek().kind == 'o' && slices.Contains(ops, p.peek().text) {
		e = binary{p.next().text, e, operand()}
	}
	return e
}

func (p *parser) sum() expr { return p.operators([]string{"+", "-"}, p.concat) }

func (p *parser) concat() expr {
	parts := []expr{p.product()}
	for p.skip('o', "~") {
		parts = append(parts, p.product())
	}
	if len(parts) == 1 {
		return parts[0]
	}
	return concat{parts}
}

func (p *parser) product() expr {
	return p.operators([]string{"*", "/", "//", "%"}, func() expr {
		return p.operators([]string{"**"}, func() expr { return p.unary(true) })
	})
}

func (p *parser) unary(filters bool) expr {
	defer p.deeper()()
	var e expr
	switch {
	case p.skip('o', "-"):
		e = unary{"-", p.unary(false)}
	case p.skip('o', "+"):
		e = unary{"+", p.unary(false)}
	default:
		e = p.primary()
	}
	e = p.postfix(e)
	if filters {
		e = p.afterwards(e)
	}
	return e
}

func (p *parser) primary() expr {
	t := p.next()
	switch t.kind {
	case 'n':
		switch t.text {
		case "true", "True":
			return constant{true}
		case "false", "False":
			return constant{false}
		case "none", "None":
			return constant{nil}
		}
		p.names[t.text] = true
		return name{t.text}
	case 's':
		for p.peek().kind == 's' {
			t.text += p.next().text
		}
		return constant{t.text}
	case 'i':
		n, err := strconv.ParseInt(strings.TrimLeft(t.text[:len(t.text)-1], "0")+t.text[len(t.text)-1:], 10, 64)
		if err != nil {
			n, err = strconv.ParseInt(t.text, 0, 64)
		}
		if err != nil {
			p.fail("integer %s does not fit 64 bits", t.text)
		}
		return constant{n}
	case 'f':
		f, err := strconv.ParseFloat(t.text, 64)
		if err != nil {
			p.fail("number %s: %v", t.text, err)
		}
		return constant{f}
	case 'o':
		switch t.text {
		case "(":
			if p.skip('o', ")") {
				return listExpr{tuple: true}
			}
			e := p.tuple(true)
			p.expect('o', ")")
			return e
		case "[":
			var l listExpr
			for !p.skip('o', "]") {
				if len(l.items) > 0 {
					p.expect('o', ",")
					if p.skip('o', "]") {
						break
					}
				}
				l.items = append(l.items, p.expression())
			}
			return l
		case "{":
			var d dictExpr
			for !p.skip('o', "}") {
				if len(d.keys) > 0 {
					p.expect('o', ",")
					if p.skip('o', "}") {
						break
					}
				}
				d.keys = append(d.keys, p.expression())
				p.expect('o', ":")
				d.values = append(d.values, p.expression())
			}
			return d
		}
	}
	p.pos--
	p.fail("unexpected %s", describe(t))
	return nil
}

func (p *parser) postfix(e expr) expr {
	for {
		switch {
		case p.skip('o', "."):
			if t := p.peek(); t.kind == 'i' {
				n, _ := strconv.ParseInt(p.next().text, 10, 64)
				e = item{e, constant{n}}
				continue
			}
			e = attr{e, p.name()}
		case p.skip('o', "["):
			e = p.subscript(e)
		case p.is('o', "("):
			e = call{fn: e, args: p.arguments()}
		default:
			return e
		}
	}
}

func (p *parser) subscript(of expr) expr {
	var parts [3]expr
	n, sliced := 0, false
	for !p.is('o', "]") {
		if p.skip('o', ":") {
			sliced = true
			if n++; n > 2 {
				p.fail("a slice has at most three parts")
			}
			continue
		}
		if parts[n] != nil {
			p.fail("expected ], got %s", describe(p.peek()))
		}
		parts[n] = p.expression()
	}
	p.expect('o', "]")
	switch {
	case sliced:
		return slice{of, parts[0], parts[1], parts[2]}
	case parts[0] == nil:
		p.fail("expected an index")
	}
	return item{of, parts[0]}
}

func (p *parser) arguments() (a arguments) {
	p.expect('o', "(")
	for first := true; !p.skip('o', ")"); first = false {
		if !first {
			p.expect('o', ",")
			if p.skip('o', ")") {
				break
			}
		}
		switch {
		case p.skip('o', "*"):
			a.star = p.expression()
		case p.skip('o', "**"):
			a.double = p.expression()
		case p.peek().kind == 'n' && p.tokens[p.pos+1].kind == 'o' && p.tokens[p.pos+1].text == "=":
			n := p.name()
			p.next()
			a.kw = append(a.kw, namedExpr{n, p.expression()})
		default:
			if len(a.kw) > 0 || a.star != nil || a.double != nil {
				p.fail("a positional argument follows a named one")
			}
			a.args = append(a.args, p.expression())
		}
	}
	return a
}

// afterwards parses the filters, tests and calls after a primary.
func (p *parser) afterwards(e expr) expr {
	for {
		switch {
		case p.is('o', "|"):
			e = p.filters(e, false)
		case p.skip('n', "is"):
			e = p.test(e)
		case p.is('o', "("):
			e = call{fn: e, args: p.arguments()}
		default:
			return e
		}
	}
}

// filters parses a chain; bare says that the first has no bar before it.
func (p *parser) filters(e expr, bare bool) expr {
	for bare || p.skip('o', "|") {
		bare = false
		f := filter{of: e, name: p.dotted()}
		if p.is('o', "(") {
			f.args = p.arguments()
		}
		e = f
	}
	return e
}

func (p *parser) dotted() string {
	n := p.name()
	for p.skip('o', ".") {
		n += "." + p.name()
	}
	return n
}

func (p *parser) test(e expr) expr {
	t := test{of: e, not: p.skip('n', "not")}
	t.name = p.dotted()
	k := p.peek()
	switch {
	case p.is('o', "("):
		t.args = p.arguments()
	case k.kind == 's' || k.kind == 'i' || k.kind == 'f' || p.is('o', "[") || p.is('o', "{"),
		k.kind == 'n' && !slices.Contains([]string{"else", "or", "and"}, k.text):
		if p.is('n', "is") {
			p.fail("tests cannot be chained")
		}
		if k.kind == 'n' && slices.Contains([]string{"if", "recursive", "in", "not"}, k.text) {
			break
		}
		t.args.args = []expr{p.postfix(p.primary())}
	}
	return t
}
