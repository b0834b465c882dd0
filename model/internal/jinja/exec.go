package jinja

import (
	"errors"
	"fmt"
	"strings"
)

// scopeBytes is what a turn of a loop counts for.
const scopeBytes = 512

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
