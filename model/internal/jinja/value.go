package jinja

import (
	"fmt"
	"math"
	"strings"
	"unicode"
	"unicode/utf8"
)

// List is a Python list, a tuple, or a generator.
type List struct {
	Items []any
	Tuple bool
	// lazy marks a generator, which filters such as map give: it has no length,
	// is always true, and is empty once it was walked through.
	lazy bool
}

func generator(items []any) *List { return &List{Items: items, lazy: true} }

// NewList makes a list.
func NewList(items ...any) *List { return &List{Items: items} }

// Dict is a Python dict: keys are nil, bool, int64, float64, string or a tuple
// of those, in the order of their first setting.
type Dict struct {
	keys []any
	data map[any]any // by hashKey
}

// NewDict makes an empty dict.
func NewDict() *Dict { return &Dict{data: map[any]any{}} }

// Set puts a value under a string key.
func (d *Dict) Set(key string, value any) { d.set(key, value) }

// Get looks up a string key.
func (d *Dict) Get(key string) (any, bool) {
	v, ok := d.data[key]
	return v, ok
}

// Len is the number of keys.
func (d *Dict) Len() int { return len(d.keys) }

func (d *Dict) set(key, value any) {
	k, ok := hashKey(key)
	if !ok {
		fail("unhashable type: %s", typeName(key))
	}
	if _, there := d.data[k]; !there {
		d.keys = append(d.keys, key)
	}
	d.data[k] = value
}

func (d *Dict) get(key any) (any, bool) {
	k, ok := hashKey(key)
	if !ok {
		return nil, false
	}
	v, there := d.data[k]
	return v, there
}

type tupleKey string

// hashKey maps what Python holds equal to one Go key: 1, 1.0 and True are the
// same.
func hashKey(v any) (any, bool) {
	switch v := v.(type) {
	case nil, int64, string:
		return v, true
	case markup:
		return string(v), true
	case bool:
		if v {
			return int64(1), true
		}
		return int64(0), true
	case float64:
		if n := int64(v); float64(n) == v {
			return n, true
		}
		return v, true
	case *List:
		if !v.Tuple || v.lazy {
			return nil, false
		}
		for _, e := range v.Items {
			if _, ok := hashKey(e); !ok {
				return nil, false
			}
		}
		return tupleKey(repr(v)), true
	}
	return nil, false
}

// markup is a string that safe or escape marked: joined to others it escapes
// them, as markupsafe does.
type markup string

// undefined is a name or attribute that is not there. why says what was asked.
type undefined struct{ why string }

// function is something a template can call.
type function struct {
	name string
	call func(in *interp, args []any, kw kwargs) any
}

type kwargs []kwarg

type kwarg struct {
	name  string
	value any
}

func (k kwargs) get(name string) (any, bool) {
	for _, a := range k {
		if a.name == name {
			return a.value, true
		}
	}
	return nil, false
}

// namespace is what {% set ns.x = … %} writes to.
type namespace struct{ attrs *Dict }

// renderError carries a template's failure up to Render.
type renderError struct{ error }

func fail(format string, args ...any) { panic(renderError{fmt.Errorf(format, args...)}) }

func typeName(v any) string {
	switch v := v.(type) {
	case nil:
		return "NoneType"
	case bool:
		return "bool"
	case int64:
		return "int"
	case float64:
		return "float"
	case string:
		return "str"
	case markup:
		return "Markup"
	case undefined:
		return "Undefined"
	case *Dict:
		return "dict"
	case *namespace:
		return "Namespace"
	case *List:
		switch {
		case v.lazy:
			return "generator"
		case v.Tuple:
			return "tuple"
		}
		return "list"
	}
	return "function"
}

func str(v any) (string, bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case markup:
		return string(v), true
	}
	return "", false
}

// number gives an int, float or bool as numbers; isInt says which counts.
func number(v any) (i int64, f float64, isInt, ok bool) {
	switch v := v.(type) {
	case int64:
		return v, float64(v), true, true
	case bool:
		if v {
			return 1, 1, true, true
		}
		return 0, 0, true, true
	case float64:
		return 0, v, false, true
	}
	return 0, 0, false, false
}

func truth(v any) bool {
	switch v := v.(type) {
	case nil, undefined:
		return false
	case bool:
		return v
	case int64:
		return v != 0
	case float64:
		return v != 0
	case string:
		return v != ""
	case markup:
		return v != ""
	case *List:
		return v.lazy || len(v.Items) > 0
	case *Dict:
		return v.Len() > 0
	}
	return true
}

func (in *interp) equal(a, b any) bool {
	in.enter()
	defer in.leave()
	if ai, af, aInt, ok := number(a); ok {
		bi, bf, bInt, ok := number(b)
		if !ok {
			return false
		}
		if aInt && bInt {
			return ai == bi
		}
		return af == bf
	}
	if s, ok := str(a); ok {
		t, ok := str(b)
		return ok && s == t
	}
	switch a := a.(type) {
	case nil:
		return b == nil
	case undefined:
		_, ok := b.(undefined)
		return ok
	case *List:
		b, ok := b.(*List)
		if ok && (a.lazy || b.lazy) {
			return a == b
		}
		if !ok || a.Tuple != b.Tuple || len(a.Items) != len(b.Items) {
			return false
		}
		for i := range a.Items {
			if !in.equal(a.Items[i], b.Items[i]) {
				return false
			}
		}
		return true
	case *Dict:
		b, ok := b.(*Dict)
		if !ok || a.Len() != b.Len() {
			return false
		}
		for k, v := range a.data {
			w, there := b.data[k]
			if !there || !in.equal(v, w) {
				return false
			}
		}
		return true
	}
	return a == b
}

// compare orders a and b as Python's < does: -1, 0, 1; NaN has no order (2).
func (in *interp) compare(a, b any) int {
	in.enter()
	defer in.leave()
	if ai, af, aInt, ok := number(a); ok {
		if bi, bf, bInt, ok := number(b); ok {
			switch {
			case aInt && bInt:
				return order(ai < bi, ai == bi)
			case math.IsNaN(af) || math.IsNaN(bf):
				return 2
			}
			return order(af < bf, af == bf)
		}
	}
	if s, ok := str(a); ok {
		if t, ok := str(b); ok {
			return strings.Compare(s, t) // UTF-8 keeps the order of code points
		}
	}
	if x, ok := a.(*List); ok {
		if y, ok := b.(*List); ok && x.Tuple == y.Tuple && !x.lazy && !y.lazy {
			for i := range min(len(x.Items), len(y.Items)) {
				if !in.equal(x.Items[i], y.Items[i]) {
					return in.compare(x.Items[i], y.Items[i])
				}
			}
			return order(len(x.Items) < len(y.Items), len(x.Items) == len(y.Items))
		}
	}
	if u, ok := a.(undefined); ok {
		fail("%s is undefined", u.why)
	}
	fail("'<' not supported between instances of '%s' and '%s'", typeName(a), typeName(b))
	return 0
}

func order(less, same bool) int {
	switch {
	case less:
		return -1
	case same:
		return 0
	}
	return 1
}

// iterate lists what a for loop sees.
func (in *interp) iterate(v any) []any {
	switch v := v.(type) {
	case *List:
		items := v.Items
		if v.lazy {
			v.Items = nil
		}
		return items
	case *Dict:
		return v.keys
	case undefined:
		return nil
	}
	if s, ok := str(v); ok {
		in.spend(len(s))
		out := make([]any, 0, len(s))
		for _, r := range s {
			out = append(out, string(r))
		}
		return out
	}
	fail("'%s' object is not iterable", typeName(v))
	return nil
}

func length(v any) int {
	switch v := v.(type) {
	case *List:
		if !v.lazy {
			return len(v.Items)
		}
	case *Dict:
		return v.Len()
	case undefined:
		return 0
	}
	if s, ok := str(v); ok {
		return utf8.RuneCountInString(s)
	}
	fail("object of type '%s' has no len()", typeName(v))
	return 0
}

func (in *interp) contains(container, v any) bool {
	switch c := container.(type) {
	case *Dict:
		if _, ok := hashKey(v); !ok {
			fail("unhashable type: %s", typeName(v))
		}
		_, ok := c.get(v)
		return ok
	case string, markup:
		s, _ := str(c)
		t, ok := str(v)
		if !ok {
			fail("'in <string>' requires string as left operand, not %s", typeName(v))
		}
		in.spend(len(s) / 16)
		return strings.Contains(s, t)
	}
	for _, e := range in.iterate(container) {
		if in.equal(e, v) {
			return true
		}
	}
	return false
}

// isSpace is Python's str.isspace for one character.
func isSpace(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f }
