package jinja

import (
	"math"
	"math/bits"
	"strings"
)

// arithmetic is Python's + - * / // % **.
func (in *interp) arithmetic(op string, a, b any) any {
	for _, v := range []any{a, b} {
		if u, ok := v.(undefined); ok {
			fail("%s is undefined", u.why)
		}
	}
	ai, af, aInt, aNum := number(a)
	bi, bf, bInt, bNum := number(b)
	if aNum && bNum {
		if aInt && bInt && op != "/" {
			return integers(op, ai, bi)
		}
		return floats(op, af, bf)
	}
	as, aStr := str(a)
	bs, bStr := str(b)
	la, aList := a.(*List)
	lb, bList := b.(*List)
	aList, bList = aList && !la.lazy, bList && !lb.lazy
	switch {
	case op == "+" && aStr && bStr:
		in.spend(len(as) + len(bs))
		return joinMarkup(a, b, as, bs)
	case op == "+" && aList && bList && la.Tuple == lb.Tuple:
		in.spend((len(la.Items) + len(lb.Items)) * 64)
		return &List{Items: append(append([]any{}, la.Items...), lb.Items...), Tuple: la.Tuple}
	case op == "*" && aStr && bInt:
		return in.repeat(as, bi)
	case op == "*" && bStr && aInt:
		return in.repeat(bs, ai)
	case op == "*" && aList && bInt:
		n := max(0, bi)
		if n > 0 && int64(len(la.Items)) > int64(in.limits.Bytes)/n/64 {
			in.spend(in.limits.Bytes + 1)
		}
		in.spend(len(la.Items) * int(n) * 64)
		out := &List{Tuple: la.Tuple}
		for range n {
			out.Items = append(out.Items, la.Items...)
		}
		return out
	case op == "%" && aStr:
		return in.percent(as, b)
	}
	fail("unsupported operand type(s) for %s: '%s' and '%s'", op, typeName(a), typeName(b))
	return nil
}

func (in *interp) repeat(s string, n int64) string {
	n = max(0, n)
	if n > 0 && int64(len(s)) > int64(in.limits.Bytes)/n {
		in.spend(in.limits.Bytes + 1)
	}
	in.spend(len(s) * int(n))
	return strings.Repeat(s, int(n))
}

func integers(op string, a, b int64) any {
	switch op {
	case "+":
		if c := a + b; (c > a) == (b > 0) {
			return c
		}
	case "-":
		if c := a - b; (c < a) == (b > 0) {
			return c
		}
	case "*":
		if c, ok := multiply(a, b); ok {
			return c
		}
	case "//", "%":
		if b == 0 {
			fail("integer division or modulo by zero")
		}
		if a == math.MinInt64 && b == -1 {
			break
		}
		q, r := a/b, a%b
		if r != 0 && (r < 0) != (b < 0) {
			q, r = q-1, r+b
		}
		if op == "%" {
			return r
		}
		return q
	case "**":
		if b < 0 {
			return floats(op, float64(a), float64(b))
		}
		c, ok := int64(1), true
		for range min(b, 64) { // beyond 64 only 0, 1 and -1 fit
			if c, ok = multiply(c, a); !ok {
				break
			}
		}
		if ok {
			if a == -1 && b > 64 && b%2 == 1 {
				c = -1
			}
			return c
		}
	}
	fail("integer overflow in %d %s %d", a, op, b)
	return nil
}

func multiply(a, b int64) (int64, bool) {
	if a == 0 || b == 0 {
		return 0, true
	}
	hi, lo := bits.Mul64(magnitude(a), magnitude(b))
	c := a * b
	return c, hi == 0 && (lo < 1<<63 || lo == 1<<63 && (a < 0) != (b < 0))
}

func magnitude(a int64) uint64 {
	if a < 0 {
		return -uint64(a)
	}
	return uint64(a)
}

func floats(op string, a, b float64) any {
	switch op {
	case "+":
		return a + b
	case "-":
		return a - b
	case "*":
		return a * b
	case "**":
		if a == 0 && b < 0 {
			fail("0.0 cannot be raised to a negative power")
		}
		return math.Pow(a, b)
	}
	if b == 0 {
		fail("division by zero")
	}
	switch op {
	case "/":
		return a / b
	case "//":
		return math.Floor(a / b)
	}
	r := math.Mod(a, b)
	if r != 0 && (r < 0) != (b < 0) {
		r += b
	}
	return r
}

var htmlEscapes = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "'", "&#39;", `"`, "&#34;")

func joinMarkup(a, b any, as, bs string) any {
	_, am := a.(markup)
	_, bm := b.(markup)
	switch {
	case !am && !bm:
		return as + bs
	case !am:
		as = htmlEscapes.Replace(as)
	case !bm:
		bs = htmlEscapes.Replace(bs)
	}
	return markup(as + bs)
}

// attr is jinja's getattr: the attribute, else the item.
func (in *interp) attr(v any, n string) any {
	if m := in.method(v, n); m != nil {
		return m
	}
	return in.lookup(v, n)
}

// item is jinja's getitem: the item, else the attribute.
func (in *interp) item(v, key any) any {
	if u, ok := v.(undefined); ok {
		fail("%s is undefined", u.why)
	}
	switch c := v.(type) {
	case *Dict:
		if e, ok := c.get(key); ok {
			return e
		}
	case *List:
		if i, _, isInt, ok := number(key); ok && isInt && !c.lazy {
			if i < 0 {
				i += int64(len(c.Items))
			}
			if i >= 0 && i < int64(len(c.Items)) {
				return c.Items[i]
			}
			return undefined{"the list has no element " + text(key)}
		}
	case string, markup:
		if i, _, isInt, ok := number(key); ok && isInt {
			s, _ := str(c)
			in.spend(len(s))
			r := []rune(s)
			if i < 0 {
				i += int64(len(r))
			}
			if i >= 0 && i < int64(len(r)) {
				return string(r[i])
			}
			return undefined{"the string has no character " + text(key)}
		}
	}
	if n, ok := str(key); ok {
		if m := in.method(v, n); m != nil {
			return m
		}
		return in.lookup(v, n)
	}
	return undefined{"the " + typeName(v) + " object has no element " + in.text(key)}
}

func (in *interp) lookup(v any, n string) any {
	switch c := v.(type) {
	case undefined:
		fail("%s is undefined", c.why)
	case *Dict:
		if e, ok := c.Get(n); ok {
			return e
		}
	case *namespace:
		if e, ok := c.attrs.Get(n); ok {
			return e
		}
	case *loopVar:
		return c.attr(n)
	}
	return undefined{quote(typeName(v)+" object") + " has no attribute " + quote(n) + "; it"}
}

func (in *interp) slice(e slice, s *scope) any {
	of := in.eval(e.of, s)
	if u, ok := of.(undefined); ok {
		fail("%s is undefined", u.why)
	}
	bound := func(x expr) (int64, bool) {
		if x == nil {
			return 0, false
		}
		v := in.eval(x, s)
		if v == nil {
			return 0, false
		}
		i, _, isInt, ok := number(v)
		if !ok || !isInt {
			fail("slice indices must be integers or None")
		}
		return i, true
	}
	var runes []rune
	var n int
	list, isList := of.(*List)
	text, isText := str(of)
	isList = isList && !list.lazy
	switch {
	case isList:
		n = len(list.Items)
	case isText:
		runes = []rune(text)
		n = len(runes)
	default:
		return undefined{"the " + typeName(of) + " object cannot be sliced; it"}
	}
	from, hasFrom := bound(e.from)
	to, hasTo := bound(e.to)
	step, hasStep := bound(e.step)
	if !hasStep {
		step = 1
	}
	if step == 0 {
		fail("slice step cannot be zero")
	}
	in.spend(n * 4)
	low, high := int64(0), int64(n)
	if step < 0 {
		low, high = -1, int64(n)-1
	}
	clamp := func(i int64) int64 {
		if i < 0 {
			i += int64(n)
		}
		return max(low, min(high, i))
	}
	switch {
	case hasFrom:
		from = clamp(from)
	case step > 0:
		from = low
	default:
		from = high
	}
	switch {
	case hasTo:
		to = clamp(to)
	case step > 0:
		to = high
	default:
		to = low
	}
	out := &List{}
	var b strings.Builder
	for i := from; step > 0 && i < to || step < 0 && i > to; {
		if isList {
			out.Items = append(out.Items, list.Items[i])
		} else {
			b.WriteRune(runes[i])
		}
		if step > int64(n) || step < -int64(n) {
			break
		}
		i += step
	}
	if isList {
		out.Tuple = list.Tuple
		return out
	}
	return b.String()
}
