package jinja

import (
	"math"
	"strings"
)

func (in *interp) eval(e expr, s *scope) any {
	in.enter()
	defer in.leave()
	switch e := e.(type) {
	case constant:
		return e.value
	case name:
		return s.lookup(e.name)
	case listExpr:
		l := &List{Tuple: e.tuple, Items: make([]any, len(e.items))}
		for i, x := range e.items {
			l.Items[i] = in.eval(x, s)
		}
		return l
	case dictExpr:
		d := NewDict()
		for i, k := range e.keys {
			key := in.eval(k, s)
			d.set(key, in.eval(e.values[i], s))
		}
		return d
	case attr:
		return in.attr(in.eval(e.of, s), e.name)
	case item:
		of := in.eval(e.of, s)
		return in.item(of, in.eval(e.key, s))
	case slice:
		return in.slice(e, s)
	case call:
		return in.call(e, s)
	case filter:
		return in.filter(e, s, nil)
	case test:
		v := in.eval(e.of, s)
		args, kw := in.args(e.args, s)
		return in.test(e.name, v, args, kw) != e.not
	case unary:
		v := in.eval(e.of, s)
		if e.op == "not" {
			return !truth(v)
		}
		return negate(e.op, v)
	case binary:
		left := in.eval(e.left, s)
		if e.op == "and" || e.op == "or" {
			if truth(left) == (e.op == "or") {
				return left
			}
			return in.eval(e.right, s)
		}
		return in.arithmetic(e.op, left, in.eval(e.right, s))
	case concat:
		var b strings.Builder
		for _, p := range e.parts {
			in.write(&b, in.text(in.eval(p, s)))
		}
		return b.String()
	case compare:
		left := in.eval(e.first, s)
		for i, op := range e.ops {
			right := in.eval(e.rest[i], s)
			if !in.holdsTrue(op, left, right) {
				return false
			}
			left = right
		}
		return true
	case ternary:
		if truth(in.eval(e.cond, s)) {
			return in.eval(e.yes, s)
		}
		if e.no == nil {
			return undefined{"the inline if-expression evaluated to false and no else section was defined"}
		}
		return in.eval(e.no, s)
	}
	fail("unexpected expression %T", e)
	return nil
}

func (in *interp) holdsTrue(op string, a, b any) bool {
	switch op {
	case "==":
		return in.equal(a, b)
	case "!=":
		return !in.equal(a, b)
	case "in":
		return in.contains(b, a)
	case "not in":
		return !in.contains(b, a)
	}
	c := in.compare(a, b)
	switch op {
	case "<":
		return c == -1
	case "<=":
		return c == -1 || c == 0
	case ">":
		return c == 1
	}
	return c == 1 || c == 0
}

func (in *interp) args(a arguments, s *scope) (args []any, kw kwargs) {
	for _, e := range a.args {
		args = append(args, in.eval(e, s))
	}
	if a.star != nil {
		args = append(args, in.iterate(in.eval(a.star, s))...)
	}
	for _, k := range a.kw {
		kw = append(kw, kwarg{k.name, in.eval(k.value, s)})
	}
	if a.double != nil {
		d, ok := in.eval(a.double, s).(*Dict)
		if !ok {
			fail("argument after ** must be a mapping")
		}
		for _, k := range d.keys {
			v, _ := d.get(k)
			kw = append(kw, kwarg{text(k), v})
		}
	}
	return args, kw
}

func (in *interp) call(c call, s *scope, extra ...kwarg) any {
	fn := in.eval(c.fn, s)
	args, kw := in.args(c.args, s)
	kw = append(kw, extra...)
	switch f := fn.(type) {
	case *function:
		return f.call(in, args, kw)
	case *loopVar:
		if f.again == nil || len(args) != 1 {
			fail("the loop is not recursive, or was not called with one value")
		}
		return f.again(args[0])
	case undefined:
		fail("%s is undefined", f.why)
	}
	fail("'%s' object is not callable", typeName(fn))
	return nil
}

func negate(op string, v any) any {
	i, f, isInt, ok := number(v)
	switch {
	case !ok:
		if u, is := v.(undefined); is {
			fail("%s is undefined", u.why)
		}
		fail("bad operand type for unary %s: '%s'", op, typeName(v))
	case op == "+" && isInt:
		return i
	case op == "+":
		return f
	case isInt:
		if i == math.MinInt64 {
			fail("integer overflow")
		}
		return -i
	}
	return -f
}
