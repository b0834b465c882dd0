package tool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
)

// Calculator is the built-in arithmetic tool under the given name. It takes
// {"expr": "..."} and answers with a plain decimal number; see Evaluate.
func Calculator(name string) Tool {
	return Tool{
		Spec: Spec{
			Name:        name,
			Description: "evaluate arithmetic",
			Parameters:  json.RawMessage(`{"type":"object","properties":{"expr":{"type":"string"}},"required":["expr"]}`),
		},
		Func: func(_ context.Context, args json.RawMessage) (string, error) {
			var in struct {
				Expr string `json:"expr"`
			}
			if err := json.Unmarshal(args, &in); err != nil {
				return "", err
			}
			v, err := Evaluate(in.Expr)
			if err != nil {
				return "", err
			}
			return FormatNumber(v), nil
		},
	}
}

// Bounds of Evaluate: work is linear in the input and the stack is small.
const (
	maxExprBytes = 512
	maxExprDepth = 32
)

// Evaluate computes an arithmetic expression: + - * / % **, parentheses, and
// decimal numbers with an optional exponent. Precedence and meaning are
// Python's: ** binds tighter than a sign on its left and is right-associative;
// % takes the sign of its right side. Arithmetic is float64. Errors name the
// position: syntax, division by zero, a result that is not a finite number, an
// expression over 512 bytes or 32 levels.
func Evaluate(expr string) (float64, error) {
	if len(expr) > maxExprBytes {
		return 0, fmt.Errorf("expression is %d bytes; the limit is %d", len(expr), maxExprBytes)
	}
	p := &exprParser{in: expr}
	v, err := p.sum(0)
	if err != nil {
		return 0, err
	}
	if c := p.peek(); c != 0 {
		if c == '^' {
			return 0, fmt.Errorf("unexpected '^' at %d; a power is **", p.pos+1)
		}
		return 0, p.unexpected()
	}
	return v, nil
}

// FormatNumber prints the shortest decimal of v rounded to 12 significant
// digits, without an exponent, so that 0.1+0.2 reads 0.3.
func FormatNumber(v float64) string {
	r, err := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 12, 64), 64)
	if err != nil || (v == math.Trunc(v) && math.Abs(v) < 1<<53) {
		r = v
	}
	if r == 0 {
		return "0" // never "-0"
	}
	return strconv.FormatFloat(r, 'f', -1, 64)
}

type exprParser struct {
	in  string
	pos int
}

// peek skips blanks and returns the next byte, 0 at the end.
func (p *exprParser) peek() byte {
	for p.pos < len(p.in) && (p.in[p.pos] == ' ' || p.in[p.pos] == '\t') {
		p.pos++
	}
	if p.pos == len(p.in) {
		return 0
	}
	return p.in[p.pos]
}

func (p *exprParser) unexpected() error {
	if p.peek() == 0 {
		return errors.New("unexpected end of expression")
	}
	r := []rune(p.in[p.pos:])[0]
	return fmt.Errorf("unexpected %q at %d", r, p.pos+1)
}

// sum = product { ("+" | "-") product }
func (p *exprParser) sum(depth int) (float64, error) {
	if depth > maxExprDepth {
		return 0, fmt.Errorf("nested deeper than %d levels", maxExprDepth)
	}
	v, err := p.product(depth)
	for err == nil {
		op := p.peek()
		if op != '+' && op != '-' {
			return v, nil
		}
		p.pos++
		var w float64
		if w, err = p.product(depth); err != nil {
			break
		}
		if op == '-' {
			w = -w
		}
		v, err = finite(v + w)
	}
	return 0, err
}

// product = signed { ("*" | "/" | "%") signed }
func (p *exprParser) product(depth int) (float64, error) {
	v, err := p.signed(depth)
	for err == nil {
		op := p.peek()
		if op != '*' && op != '/' && op != '%' {
			return v, nil
		}
		at := p.pos
		p.pos++
		var w float64
		if w, err = p.signed(depth); err != nil {
			break
		}
		if op != '*' && w == 0 {
			return 0, fmt.Errorf("division by zero at %d", at+1)
		}
		switch op {
		case '*':
			v, err = finite(v * w)
		case '/':
			v, err = finite(v / w)
		case '%':
			m := math.Mod(v, w)
			if m != 0 && (m < 0) != (w < 0) {
				m += w
			}
			v, err = finite(m)
		}
	}
	return 0, err
}

// signed = { "+" | "-" } power
func (p *exprParser) signed(depth int) (float64, error) {
	neg := false
	for c := p.peek(); c == '+' || c == '-'; c = p.peek() {
		neg = neg != (c == '-')
		p.pos++
	}
	v, err := p.power(depth)
	if neg {
		v = -v
	}
	return v, err
}

// power = atom [ "**" signed ]
func (p *exprParser) power(depth int) (float64, error) {
	if depth > maxExprDepth {
		return 0, fmt.Errorf("nested deeper than %d levels", maxExprDepth)
	}
	v, err := p.atom(depth)
	if err != nil {
		return 0, err
	}
	if p.peek() != '*' || p.pos+1 >= len(p.in) || p.in[p.pos+1] != '*' {
		return v, nil
	}
	at := p.pos
	p.pos += 2
	w, err := p.signed(depth + 1)
	if err != nil {
		return 0, err
	}
	if v == 0 && w < 0 {
		return 0, fmt.Errorf("division by zero at %d", at+1)
	}
	return finite(math.Pow(v, w))
}

// atom = number | "(" sum ")"
func (p *exprParser) atom(depth int) (float64, error) {
	c := p.peek()
	if c == '(' {
		p.pos++
		v, err := p.sum(depth + 1)
		if err != nil {
			return 0, err
		}
		if p.peek() != ')' {
			return 0, p.unexpected()
		}
		p.pos++
		return v, nil
	}
	start := p.pos
	digits := func() (n int) {
		for p.pos < len(p.in) && p.in[p.pos] >= '0' && p.in[p.pos] <= '9' {
			p.pos++
			n++
		}
		return n
	}
	n := digits()
	if p.pos < len(p.in) && p.in[p.pos] == '.' {
		p.pos++
		n += digits()
	}
	if n == 0 {
		p.pos = start
		return 0, p.unexpected()
	}
	if p.pos < len(p.in) && (p.in[p.pos] == 'e' || p.in[p.pos] == 'E') {
		p.pos++
		if p.pos < len(p.in) && (p.in[p.pos] == '+' || p.in[p.pos] == '-') {
			p.pos++
		}
		if digits() == 0 {
			return 0, p.unexpected()
		}
	}
	v, err := strconv.ParseFloat(p.in[start:p.pos], 64)
	if err != nil {
		return 0, fmt.Errorf("number %s is out of range", p.in[start:p.pos])
	}
	return v, nil
}

func finite(v float64) (float64, error) {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return 0, errors.New("result is not a finite number")
	}
	return v, nil
}
