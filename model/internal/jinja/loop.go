package jinja

import (
	"strings"
)

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
