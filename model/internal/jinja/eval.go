package jinja

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
)

// Limits bounds one rendering.
type Limits struct {
	Steps int // nodes evaluated, and 64 bytes of string work each
	Bytes int // of the output, and of any one string
	Depth int // of calls and nested values
}

// DefaultLimits lets through a conversation of a few megabytes and ends a
// runaway template within a second or two.
func DefaultLimits() Limits { return Limits{Steps: 8 << 20, Bytes: 64 << 20, Depth: 1000} }

// ErrLimit marks a rendering that took more than its limits.
var ErrLimit = errors.New("jinja: the template takes too much")

// Render runs the template. now is what strftime_now reads.
func (t *Template) Render(vars *Dict, now func() time.Time, limits Limits) (out string, err error) {
	defer catch(&err)
	in := &interp{limits: limits, now: now}
	top := &scope{vars: map[string]any{}}
	for _, k := range vars.keys {
		v, _ := vars.get(k)
		top.vars[k.(string)] = v
	}
	var b strings.Builder
	in.exec(t.body, top, &b)
	return b.String(), nil
}

func catch(err *error) {
	if r := recover(); r != nil {
		e, ok := r.(renderError)
		if !ok {
			panic(r)
		}
		*err = e.error
	}
}

// interp is the state of one rendering.
type interp struct {
	limits Limits
	now    func() time.Time
	steps  int
	depth  int
}

// spend counts work on n bytes.
func (in *interp) spend(n int) {
	if n > in.limits.Bytes {
		panic(renderError{fmt.Errorf("%w: a string of %d bytes; at most %d are made", ErrLimit, n, in.limits.Bytes)})
	}
	if in.steps += 1 + n/64; in.steps > in.limits.Steps {
		panic(renderError{fmt.Errorf("%w: more than %d steps", ErrLimit, in.limits.Steps)})
	}
}

func (in *interp) enter() {
	in.spend(0)
	if in.depth++; in.depth > in.limits.Depth {
		panic(renderError{fmt.Errorf("%w: calls or values nested deeper than %d", ErrLimit, in.limits.Depth)})
	}
}

func (in *interp) leave() { in.depth-- }

func (in *interp) write(b *strings.Builder, s string) {
	if b.Len()+len(s) > in.limits.Bytes {
		panic(renderError{fmt.Errorf("%w: more than %d bytes of output", ErrLimit, in.limits.Bytes)})
	}
	in.spend(len(s))
	b.WriteString(s)
}

// scopeBytes is what a turn of a loop counts for.
const scopeBytes = 256

// scope holds the variables of a template, macro, loop turn or block.
type scope struct {
	vars   map[string]any
	parent *scope
}

func (s *scope) inner() *scope { return &scope{vars: map[string]any{}, parent: s} }

func (s *scope) lookup(n string) any {
	for at := s; at != nil; at = at.parent {
		if v, ok := at.vars[n]; ok {
			return v
		}
	}
	if f, ok := globals[n]; ok {
		return f
	}
	return undefined{quote(n)}
}

// flow is how a body ended.
type flow uint8

const (
	goesOn flow = iota
	breaks
	continues
)

func (in *interp) exec(body []node, s *scope, b *strings.Builder) flow {
	in.enter()
	defer in.leave()
	for i := range body {
		if f := in.statement(&body[i], s, b); f != goesOn {
			return f
		}
	}
	return goesOn
}

// located adds the line to a failure that has none.
type located struct{ error }

func (e located) Unwrap() error { return e.error }

func (in *interp) statement(n *node, s *scope, b *strings.Builder) flow {
	in.spend(0)
	defer func() {
		if r := recover(); r != nil {
			if e, ok := r.(renderError); ok {
				var has located
				if !errors.As(e.error, &has) {
					r = renderError{located{fmt.Errorf("line %d: %w", n.line, e.error)}}
				}
			}
			panic(r)
		}
	}()
	switch st := n.stmt.(type) {
	case textNode:
		in.write(b, st.text)
	case outputNode:
		in.write(b, in.text(in.eval(st.value, s)))
	case ifNode:
		if truth(in.eval(st.cond, s)) {
			return in.exec(st.body, s, b)
		}
		return in.exec(st.els, s, b)
	case forNode:
		in.loop(&st, in.eval(st.iter, s), s, b, 0)
	case setNode:
		if st.value != nil {
			in.assign(st.target, in.eval(st.value, s), s)
			break
		}
		in.assign(st.target, in.capture(st.body, s.inner(), st.filter), s)
	case macroNode:
		s.vars[st.name] = in.macro(&st, s)
	case callNode:
		c := st.call.(call)
		caller := in.macro(&st.macro, s)
		in.write(b, in.text(in.call(c, s, kwarg{"caller", caller})))
	case filterNode:
		in.write(b, in.text(in.capture(st.body, s.inner(), st.filter)))
	case withNode:
		w := s.inner()
		for i, v := range st.values {
			w.vars[st.targets[i].(name).name] = in.eval(v, s)
		}
		return in.exec(st.body, w, b)
	case scopeNode:
		return in.exec(st.body, s.inner(), b)
	case breakNode:
		return breaks
	case continNode:
		return continues
	}
	return goesOn
}

// capture renders a body into a value, through the filters when there are any.
func (in *interp) capture(body []node, s *scope, filters expr) any {
	var inner strings.Builder
	in.exec(body, s, &inner)
	if filters == nil {
		return inner.String()
	}
	return in.filter(filters.(filter), s, inner.String())
}

// text is what printing a value gives.
func (in *interp) text(v any) string {
	if s, ok := str(v); ok {
		return s
	}
	in.weigh(v)
	return text(v)
}

// weigh counts the parts of a value before something walks it without counting.
func (in *interp) weigh(v any) {
	in.enter()
	defer in.leave()
	switch v := v.(type) {
	case *List:
		for _, e := range v.Items {
			in.weigh(e)
		}
	case *Dict:
		for _, e := range v.data {
			in.weigh(e)
		}
	case *namespace:
		in.weigh(v.attrs)
	case string:
		in.spend(len(v))
	}
}

func (in *interp) assign(target expr, v any, s *scope) {
	switch t := target.(type) {
	case name:
		s.vars[t.name] = v
	case attr:
		ns, ok := in.eval(t.of, s).(*namespace)
		if !ok {
			fail("cannot assign attribute on non-namespace object")
		}
		if strings.HasPrefix(t.name, "_") {
			fail("a namespace takes no attribute that begins with an underscore: %s", t.name)
		}
		if in.holds(v, ns) {
			fail("a namespace cannot hold itself")
		}
		ns.attrs.set(t.name, v)
	case listExpr:
		values := in.iterate(v)
		if len(values) != len(t.items) {
			fail("%d values to unpack into %d names", len(values), len(t.items))
		}
		for i, e := range t.items {
			in.assign(e, values[i], s)
		}
	}
}

// holds reports whether v contains ns, which would make a cycle.
func (in *interp) holds(v any, ns *namespace) bool {
	in.enter()
	defer in.leave()
	switch v := v.(type) {
	case *namespace:
		return v == ns || in.holds(v.attrs, ns)
	case *List:
		for _, e := range v.Items {
			if _, plain := str(e); !plain && in.holds(e, ns) {
				return true
			}
		}
	case *Dict:
		for _, e := range v.data {
			if _, plain := str(e); !plain && in.holds(e, ns) {
				return true
			}
		}
	}
	return false
}

// loopVar is the variable loop.
type loopVar struct {
	items   []any
	at      int
	depth   int
	changed any
	again   func(items any) any // recursive loops
}

func (in *interp) loop(n *forNode, over any, s *scope, b *strings.Builder, depth int) {
	in.enter()
	defer in.leave()
	items := in.iterate(over)
	if n.cond != nil {
		var kept []any
		for _, e := range items {
			in.spend(scopeBytes)
			c := s.inner()
			in.assign(n.target, e, c)
			if truth(in.eval(n.cond, c)) {
				kept = append(kept, e)
			}
		}
		items = kept
	}
	l := &loopVar{items: items, depth: depth, changed: undefined{}}
	if n.recursive {
		l.again = func(items any) any {
			var inner strings.Builder
			in.loop(n, items, s, &inner, depth+1)
			return inner.String()
		}
	}
	for i, e := range items {
		l.at = i
		in.spend(scopeBytes)
		turn := s.inner()
		turn.vars["loop"] = l
		in.assign(n.target, e, turn)
		if in.exec(n.body, turn, b) == breaks {
			break
		}
	}
	if len(items) == 0 {
		in.exec(n.els, s.inner(), b)
	}
}

func (l *loopVar) attr(n string) any {
	size := len(l.items)
	at := func(i int) any {
		if i < 0 || i >= size {
			return undefined{"there is no such item"}
		}
		return l.items[i]
	}
	switch n {
	case "index":
		return int64(l.at + 1)
	case "index0":
		return int64(l.at)
	case "revindex":
		return int64(size - l.at)
	case "revindex0":
		return int64(size - l.at - 1)
	case "first":
		return l.at == 0
	case "last":
		return l.at == size-1
	case "length":
		return int64(size)
	case "depth":
		return int64(l.depth + 1)
	case "depth0":
		return int64(l.depth)
	case "previtem":
		return at(l.at - 1)
	case "nextitem":
		return at(l.at + 1)
	case "cycle":
		return &function{"cycle", func(_ *interp, args []any, _ kwargs) any {
			if len(args) == 0 {
				fail("no items for cycling given")
			}
			return args[l.at%len(args)]
		}}
	case "changed":
		return &function{"changed", func(in *interp, args []any, _ kwargs) any {
			now := &List{Items: args, Tuple: true}
			if in.equal(now, l.changed) {
				return false
			}
			l.changed = now
			return true
		}}
	}
	return undefined{"'loop." + n + "'"}
}

// macro makes a callable of a macro; it sees the scope it was defined in.
func (in *interp) macro(m *macroNode, defined *scope) *function {
	return &function{m.name, func(in *interp, args []any, kw kwargs) any {
		in.enter()
		defer in.leave()
		s := defined.inner()
		named := map[string]any{}
		for _, k := range kw {
			named[k.name] = k.value
		}
		for i, p := range m.params {
			v, byName := named[p]
			switch {
			case i < len(args) && byName:
				fail("macro %s takes %s twice", m.name, p)
			case i < len(args):
				v = args[i]
			case byName:
				delete(named, p)
			case i >= len(m.params)-len(m.defaults):
				v = in.eval(m.defaults[i-len(m.params)+len(m.defaults)], s)
			default:
				v = undefined{"parameter " + quote(p) + " was not provided"}
			}
			s.vars[p] = v
		}
		rest := args[min(len(args), len(m.params)):]
		if len(rest) > 0 && !m.catch.varargs {
			fail("macro %s takes not more than %d arguments", m.name, len(m.params))
		}
		if m.catch.varargs {
			s.vars["varargs"] = &List{Items: rest, Tuple: true}
		}
		if m.catch.caller {
			s.vars["caller"] = undefined{"No caller defined"}
			if c, ok := named["caller"]; ok {
				s.vars["caller"] = c
				delete(named, "caller")
			}
		}
		if m.catch.kwargs {
			d := NewDict()
			for _, k := range kw {
				if v, ok := named[k.name]; ok {
					d.Set(k.name, v)
				}
			}
			s.vars["kwargs"] = d
		} else {
			for n := range named {
				fail("macro %s takes no argument %q", m.name, n)
			}
		}
		var b strings.Builder
		in.exec(m.body, s, &b)
		return b.String()
	}}
}

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
