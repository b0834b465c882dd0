package jinja

import (
	"errors"
)

// maxRange is the limit of range() in Jinja's sandbox.
const maxRange = 100000

// Raised is the error of raise_exception: the template refuses the
// conversation, and says why.
type Raised struct{ Message string }

func (r *Raised) Error() string { return "the template refuses: " + r.Message }

var globals map[string]*function

func init() {
	globals = map[string]*function{}
	for n, f := range map[string]func(*interp, []any, kwargs) any{
		"range": rangeOf, "namespace": newNamespace, "dict": newDict,
		"raise_exception": func(in *interp, args []any, _ kwargs) any {
			if len(args) != 1 {
				fail("raise_exception takes one message")
			}
			panic(renderError{&Raised{in.text(args[0])}})
		},
		"strftime_now": func(in *interp, args []any, _ kwargs) any {
			if len(args) != 1 {
				fail("strftime_now takes one format string")
			}
			s, ok := str(args[0])
			if !ok {
				fail("strftime_now takes one format string")
			}
			in.spend(len(s))
			return strftime(in.now(), s)
		},
		"joiner": func(_ *interp, args []any, kw kwargs) any {
			sep := any(", ")
			if v := bind("joiner", args, kw, "sep")[0]; v != absent {
				sep = v
			}
			used := false
			return &function{"joiner", func(*interp, []any, kwargs) any {
				if !used {
					used = true
					return ""
				}
				return sep
			}}
		},
	} {
		globals[n] = &function{n, f}
	}
}

func rangeOf(in *interp, args []any, _ kwargs) any {
	n := []int64{0, 0, 1}
	if len(args) == 0 || len(args) > 3 {
		fail("range takes one to three integers")
	}
	for i, a := range args {
		v, _, isInt, ok := number(a)
		if !ok || !isInt {
			fail("range takes integers, not %s", typeName(a))
		}
		n[i] = v
	}
	if len(args) == 1 {
		n[0], n[1] = 0, n[0]
	}
	if n[2] == 0 {
		fail("range: the step is zero")
	}
	l := &List{}
	for i := n[0]; n[2] > 0 && i < n[1] || n[2] < 0 && i > n[1]; {
		if len(l.Items) == maxRange {
			fail("range is longer than %d", maxRange)
		}
		l.Items = append(l.Items, i)
		next := i + n[2]
		if (next > i) != (n[2] > 0) {
			break
		}
		i = next
	}
	in.spend(len(l.Items) * 16)
	return l
}

func newNamespace(in *interp, args []any, kw kwargs) any {
	d := newDict(in, args, kw).(*Dict)
	for _, k := range d.keys {
		if s, ok := str(k); ok && len(s) > 0 && s[0] == '_' {
			fail("a namespace takes no attribute that begins with an underscore: %s", s)
		}
	}
	return &namespace{d}
}

func newDict(in *interp, args []any, kw kwargs) any {
	d := NewDict()
	if len(args) > 1 {
		fail("dict takes at most one positional argument")
	}
	for _, a := range args {
		if from, ok := a.(*Dict); ok {
			for _, k := range from.keys {
				v, _ := from.get(k)
				d.set(k, v)
			}
			continue
		}
		for _, pair := range in.iterate(a) {
			kv := in.iterate(pair)
			if len(kv) != 2 {
				fail("dict: a sequence element has length %d; 2 is required", len(kv))
			}
			d.set(kv[0], kv[1])
		}
	}
	for _, k := range kw {
		d.Set(k.name, k.value)
	}
	in.spend(d.Len() * 16)
	return d
}

type missing struct{}

// absent marks a parameter that was not given.
var absent = any(missing{})

var errTwice = errors.New("given twice")

// bind puts positional and named arguments into the order of names; absent
// where none was given.
func bind(fn string, args []any, kw kwargs, names ...string) []any {
	out := make([]any, len(names))
	for i := range out {
		out[i] = absent
	}
	if len(args) > len(names) {
		fail("%s takes at most %d arguments, %d were given", fn, len(names), len(args))
	}
	copy(out, args)
next:
	for _, k := range kw {
		for i, n := range names {
			if n == k.name {
				if out[i] != absent {
					fail("%s: argument %s: %w", fn, n, errTwice)
				}
				out[i] = k.value
				continue next
			}
		}
		fail("%s takes no argument %q", fn, k.name)
	}
	return out
}

// or gives a bound argument or its default.
func or(v, otherwise any) any {
	if v == absent {
		return otherwise
	}
	return v
}

func intArg(fn string, v any, otherwise int64) int64 {
	if v == absent {
		return otherwise
	}
	i, _, isInt, ok := number(v)
	if !ok || !isInt {
		fail("%s: an integer is required, not %s", fn, typeName(v))
	}
	return i
}

func strArg(fn string, v any) string {
	s, ok := str(v)
	if !ok {
		if v == absent {
			fail("%s: an argument is missing", fn)
		}
		fail("%s: a string is required, not %s", fn, typeName(v))
	}
	return s
}
