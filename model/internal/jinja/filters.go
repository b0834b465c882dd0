package jinja

import (
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// filter applies a filter expression; given is the value when e.of is nil.
func (in *interp) filter(e filter, s *scope, given any) any {
	v := given
	if inner, ok := e.of.(filter); ok {
		v = in.filter(inner, s, given)
	} else if e.of != nil {
		v = in.eval(e.of, s)
	}
	args, kw := in.args(e.args, s)
	return in.apply(e.name, v, args, kw)
}

func (in *interp) apply(n string, v any, args []any, kw kwargs) any {
	in.enter()
	defer in.leave()
	f, ok := filters[n]
	if !ok {
		fail("no filter named %q", n)
	}
	return f(in, v, args, kw)
}

type filterFunc = func(in *interp, v any, args []any, kw kwargs) any

var filters map[string]filterFunc

func init() {
	text := func(f func(string) string) filterFunc {
		return func(in *interp, v any, _ []any, _ kwargs) any {
			s := in.text(v)
			in.spend(len(s))
			return f(s)
		}
	}
	escape := func(in *interp, v any, _ []any, _ kwargs) any {
		if m, ok := v.(markup); ok {
			return m
		}
		return markup(htmlEscapes.Replace(in.text(v)))
	}
	size := func(_ *interp, v any, _ []any, _ kwargs) any { return int64(length(v)) }
	byDefault := func(_ *interp, v any, args []any, kw kwargs) any {
		a := bind("default", args, kw, "default_value", "boolean")
		if _, missing := v.(undefined); missing || truth(or(a[1], false)) && !truth(v) {
			return or(a[0], "")
		}
		return v
	}
	filters = map[string]filterFunc{
		"length": size, "count": size, "default": byDefault, "d": byDefault,
		"upper": text(upper), "lower": text(lower), "capitalize": text(capitalize), "title": text(titleFilter),
		"string": func(in *interp, v any, _ []any, _ kwargs) any {
			if m, ok := v.(markup); ok {
				return m
			}
			return in.text(v)
		},
		"safe":   func(in *interp, v any, _ []any, _ kwargs) any { return markup(in.text(v)) },
		"escape": escape, "e": escape,
		"forceescape": func(in *interp, v any, _ []any, _ kwargs) any { return markup(htmlEscapes.Replace(in.text(v))) },
		"trim": func(in *interp, v any, args []any, kw kwargs) any {
			a := bind("trim", args, kw, "chars")
			s := in.text(v)
			in.spend(len(s))
			return trimmer(true, true)(in, s, []any{or(a[0], nil)}, nil)
		},
		"replace": func(in *interp, v any, args []any, kw kwargs) any {
			a := bind("replace", args, kw, "old", "new", "count")
			count := int64(-1)
			if or(a[2], nil) != nil {
				count = intArg("replace", a[2], -1)
			}
			return in.replace(in.text(v), in.text(a[0]), in.text(a[1]), count)
		},
		"list":    func(in *interp, v any, _ []any, _ kwargs) any { return NewList(slices.Clone(in.iterate(v))...) },
		"items":   itemsFilter,
		"first":   func(in *interp, v any, _ []any, _ kwargs) any { return end(in.iterate(v), false) },
		"last":    func(in *interp, v any, _ []any, _ kwargs) any { return end(in.iterate(v), true) },
		"join":    joinFilter,
		"tojson":  toJSON,
		"int":     toInt,
		"float":   toFloat,
		"abs":     absFilter,
		"round":   roundFilter,
		"reverse": reverseFilter,
		"indent":  indentFilter,
		"format":  func(in *interp, v any, args []any, kw kwargs) any { return in.percentFilter(v, args, kw) },
		"center": func(in *interp, v any, args []any, kw kwargs) any {
			a := bind("center", args, kw, "width")
			return padder("center", 1, 1)(in, in.text(v), []any{or(a[0], int64(80))}, nil)
		},
		"wordcount": func(in *interp, v any, _ []any, _ kwargs) any { return int64(len(words.FindAllString(in.text(v), -1))) },
		"urlencode": func(in *interp, v any, _ []any, _ kwargs) any {
			return strings.ReplaceAll(strings.ReplaceAll(url.QueryEscape(in.text(v)), "+", "%20"), "%2F", "/")
		},
		"attr": func(in *interp, v any, args []any, kw kwargs) any {
			n := strArg("attr", bind("attr", args, kw, "name")[0])
			if _, isDict := v.(*Dict); isDict {
				if m := in.method(v, n); m != nil {
					return m
				}
				return undefined{"the dict has no attribute " + quote(n) + "; it"}
			}
			return in.attr(v, n)
		},
		"truncate": truncateFilter,
	}
	for n, f := range sequenceFilters() {
		filters[n] = f
	}
}

func end(items []any, last bool) any {
	switch {
	case len(items) == 0:
		return undefined{"the sequence is empty; its item"}
	case last:
		return items[len(items)-1]
	}
	return items[0]
}

// titleFilter is jinja's title, which knows word starts other than Python's.
func titleFilter(s string) string {
	var b strings.Builder
	for _, w := range wordStarts.FindAllString(s, -1) {
		_, n := utf8.DecodeRuneInString(w)
		b.WriteString(upper(w[:n]) + lower(w[n:]))
	}
	return b.String()
}

func itemsFilter(in *interp, v any, _ []any, _ kwargs) any {
	switch d := v.(type) {
	case undefined:
		return generator(nil)
	case *Dict:
		return generator(in.pairs(d).Items)
	}
	fail("items: can only get item pairs from a mapping")
	return nil
}

func joinFilter(in *interp, v any, args []any, kw kwargs) any {
	a := bind("join", args, kw, "d", "attribute")
	sep := in.text(or(a[0], ""))
	items := in.iterate(v)
	if or(a[1], nil) != nil {
		items = in.pick(items, a[1], nil)
	}
	var b strings.Builder
	for i, e := range items {
		if i > 0 {
			in.write(&b, sep)
		}
		in.write(&b, in.text(e))
	}
	return b.String()
}

// toJSON is transformers' tojson: json.dumps with ensure_ascii off.
func toJSON(in *interp, v any, args []any, kw kwargs) any {
	a := bind("tojson", args, kw, "ensure_ascii", "indent", "separators", "sort_keys")
	j := jsonWriter{item: ", ", key: ": ", indent: -1, ascii: truth(or(a[0], false)), sorted: truth(or(a[3], false))}
	if or(a[1], nil) != nil {
		n := intArg("tojson", a[1], 0)
		if n > 100 {
			fail("tojson: indent is %d; give at most 100", n)
		}
		j.indent, j.item = int(max(0, n)), ","
	}
	if seps := or(a[2], nil); seps != nil {
		l, ok := seps.(*List)
		if !ok || len(l.Items) != 2 {
			fail("tojson: separators must be two strings")
		}
		j.item, j.key = strArg("tojson", l.Items[0]), strArg("tojson", l.Items[1])
	}
	in.weigh(v)
	out := dump(v, j)
	in.spend(len(out))
	return out
}

func toInt(in *interp, v any, args []any, kw kwargs) any {
	a := bind("int", args, kw, "default", "base")
	if i, f, isInt, ok := number(v); ok {
		switch {
		case isInt:
			return i
		case math.Abs(f) < 1<<63:
			return int64(f)
		case math.IsNaN(f):
			return or(a[0], int64(0))
		}
		fail("int: %v does not fit 64 bits", f)
	}
	if s, ok := str(v); ok {
		s = strings.ReplaceAll(strings.TrimFunc(s, isSpace), "_", "")
		if n, err := strconv.ParseInt(s, int(intArg("int", a[1], 10)), 64); err == nil {
			return n
		}
		if f, err := strconv.ParseFloat(s, 64); err == nil && math.Abs(f) < 1<<63 {
			return int64(f)
		}
	}
	return or(a[0], int64(0))
}

func toFloat(in *interp, v any, args []any, kw kwargs) any {
	a := bind("float", args, kw, "default")
	if _, f, _, ok := number(v); ok {
		return f
	}
	if s, ok := str(v); ok {
		if f, err := strconv.ParseFloat(strings.TrimFunc(s, isSpace), 64); err == nil {
			return f
		}
	}
	return or(a[0], 0.0)
}

func absFilter(_ *interp, v any, _ []any, _ kwargs) any {
	i, f, isInt, ok := number(v)
	switch {
	case !ok:
		fail("abs: a number is required, not %s", typeName(v))
	case isInt && i < 0:
		return negate("-", i)
	case isInt:
		return i
	}
	return math.Abs(f)
}

func roundFilter(_ *interp, v any, args []any, kw kwargs) any {
	a := bind("round", args, kw, "precision", "method")
	_, f, _, ok := number(v)
	if !ok {
		fail("round: a number is required, not %s", typeName(v))
	}
	n := intArg("round", a[0], 0)
	method := strArg("round", or(a[1], "common"))
	switch {
	case n < -300 || n > 300:
		fail("round: precision %d is out of range", n)
	case method == "common" && n >= 0:
		r, _ := strconv.ParseFloat(strconv.FormatFloat(f, 'f', int(n), 64), 64)
		return r
	}
	p := math.Pow(10, float64(n))
	switch method {
	case "common":
		return math.RoundToEven(f*p) / p
	case "ceil":
		return math.Ceil(f*p) / p
	case "floor":
		return math.Floor(f*p) / p
	}
	fail("round: method must be common, ceil or floor, not %q", method)
	return nil
}

func reverseFilter(in *interp, v any, _ []any, _ kwargs) any {
	if s, ok := str(v); ok {
		in.spend(len(s))
		r := []rune(s)
		slices.Reverse(r)
		return string(r)
	}
	items := slices.Clone(in.iterate(v))
	slices.Reverse(items)
	return generator(items)
}

func indentFilter(in *interp, v any, args []any, kw kwargs) any {
	a := bind("indent", args, kw, "width", "first", "blank")
	pad := ""
	if s, ok := str(or(a[0], nil)); ok {
		pad = s
	} else {
		pad = in.repeat(" ", intArg("indent", a[0], 4))
	}
	s := in.text(v) + "\n"
	lines := splitLines(in, s, nil, nil).(*List).Items
	blank := truth(or(a[2], false))
	var b strings.Builder
	for i, l := range lines {
		if i > 0 {
			b.WriteByte('\n')
		}
		line := l.(string)
		if (i > 0 && (line != "" || blank)) || i == 0 && truth(or(a[1], false)) {
			in.write(&b, pad)
		}
		in.write(&b, line)
	}
	return b.String()
}

func (in *interp) percentFilter(v any, args []any, kw kwargs) any {
	if len(kw) > 0 {
		if len(args) > 0 {
			fail("format takes positional or named arguments, not both")
		}
		d := NewDict()
		for _, k := range kw {
			d.Set(k.name, k.value)
		}
		return in.percent(in.text(v), d)
	}
	return in.percent(in.text(v), &List{Items: args, Tuple: true})
}

func truncateFilter(in *interp, v any, args []any, kw kwargs) any {
	a := bind("truncate", args, kw, "length", "killwords", "end", "leeway")
	n, ending, leeway := intArg("truncate", a[0], 255), strArg("truncate", or(a[2], "...")), int64(5)
	if or(a[3], nil) != nil {
		leeway = intArg("truncate", a[3], 5)
	}
	r := []rune(in.text(v))
	in.spend(len(r))
	keep := n - int64(utf8.RuneCountInString(ending))
	switch {
	case keep < 0 || leeway < 0:
		fail("truncate: length %d is shorter than the ending", n)
	case int64(len(r)) <= n+leeway:
		return string(r)
	case truth(or(a[1], false)):
		return string(r[:keep]) + ending
	}
	s := string(r[:keep])
	if i := strings.LastIndexByte(s, ' '); i >= 0 {
		s = s[:i]
	}
	return s + ending
}
