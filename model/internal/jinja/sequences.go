package jinja

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
)

var (
	words      = regexp.MustCompile(`[\p{L}\p{N}_]+`)
	wordStarts = regexp.MustCompile(`[-\s({\[<]+|[^-\s({\[<]+`)
)

// sequenceFilters are the filters over lists.
func sequenceFilters() map[string]filterFunc {
	return map[string]filterFunc{
		"map":        mapFilter,
		"select":     selector(false, true),
		"reject":     selector(false, false),
		"selectattr": selector(true, true),
		"rejectattr": selector(true, false),
		"sort": func(in *interp, v any, args []any, kw kwargs) any {
			a := bind("sort", args, kw, "reverse", "case_sensitive", "attribute")
			return NewList(in.sorted(in.iterate(v), or(a[2], nil), truth(or(a[1], false)), truth(or(a[0], false)))...)
		},
		"dictsort": dictSort,
		"unique": func(in *interp, v any, args []any, kw kwargs) any {
			a := bind("unique", args, kw, "case_sensitive", "attribute")
			out, seen := generator(nil), NewDict()
			items := in.iterate(v)
			for i, k := range in.keys(items, or(a[1], nil), truth(or(a[0], false))) {
				if _, ok := seen.get(k); !ok {
					seen.set(k, nil)
					out.Items = append(out.Items, items[i])
				}
			}
			return out
		},
		"min":     extreme("min", -1),
		"max":     extreme("max", 1),
		"groupby": groupBy,
		"sum": func(in *interp, v any, args []any, kw kwargs) any {
			a := bind("sum", args, kw, "attribute", "start")
			total := or(a[1], int64(0))
			items := in.iterate(v)
			if or(a[0], nil) != nil {
				items = in.pick(items, a[0], nil)
			}
			for _, e := range items {
				total = in.arithmetic("+", total, e)
			}
			return total
		},
		"batch": func(in *interp, v any, args []any, kw kwargs) any {
			a := bind("batch", args, kw, "linecount", "fill_with")
			n := int(intArg("batch", a[0], 0))
			if n < 1 {
				fail("batch: linecount is %d; give at least 1", n)
			}
			out := generator(nil)
			for c := range slices.Chunk(in.iterate(v), n) {
				row := NewList(slices.Clone(c)...)
				if fill := or(a[1], nil); fill != nil {
					in.spend(max(0, n-len(c)) * 16)
					for len(row.Items) < n {
						row.Items = append(row.Items, fill)
					}
				}
				out.Items = append(out.Items, row)
			}
			return out
		},
	}
}

// path reads an attribute path: "a.b.0", or an integer.
func path(v any) []any {
	s, ok := str(v)
	if !ok {
		return []any{v}
	}
	var parts []any
	for _, p := range strings.Split(s, ".") {
		if n, err := strconv.ParseUint(p, 10, 31); err == nil {
			parts = append(parts, int64(n))
		} else {
			parts = append(parts, p)
		}
	}
	return parts
}

// pick follows an attribute path in every item; otherwise replaces what is
// undefined, unless it is nil.
func (in *interp) pick(items []any, attribute, otherwise any) []any {
	parts := path(attribute)
	out := make([]any, len(items))
	for i, v := range items {
		for _, p := range parts {
			v = in.item(v, p)
			if _, ok := v.(undefined); ok && otherwise != nil {
				v = otherwise
			}
		}
		out[i] = v
	}
	return out
}

// some lists what map and select see: nothing of what is false.
func (in *interp) some(v any) []any {
	if !truth(v) {
		return nil
	}
	return in.iterate(v)
}

func mapFilter(in *interp, v any, args []any, kw kwargs) any {
	items := in.some(v)
	if len(args) == 0 {
		a := bind("map", nil, kw, "attribute", "default")
		if a[0] == absent {
			fail("map needs a filter or an attribute")
		}
		return generator(in.pick(items, a[0], or(a[1], nil)))
	}
	n := strArg("map", args[0])
	out := generator(nil)
	for _, e := range items {
		out.Items = append(out.Items, in.apply(n, e, args[1:], kw))
	}
	return out
}

func selector(byAttr, want bool) filterFunc {
	return func(in *interp, v any, args []any, kw kwargs) any {
		items := in.some(v)
		tested := items
		if byAttr {
			if len(args) == 0 {
				fail("selectattr and rejectattr need an attribute")
			}
			tested = in.pick(items, args[0], nil)
			args = args[1:]
		}
		out := generator(nil)
		for i, e := range tested {
			var yes bool
			if len(args) == 0 {
				yes = truth(e)
			} else {
				yes = in.test(strArg("select", args[0]), e, args[1:], kw)
			}
			if yes == want {
				out.Items = append(out.Items, items[i])
			}
		}
		return out
	}
}

// keys gives what items are ordered by.
func (in *interp) keys(items []any, attribute any, caseSensitive bool) []any {
	if attribute != nil {
		items = in.pick(items, attribute, nil)
	}
	out := slices.Clone(items)
	if !caseSensitive {
		for i, k := range out {
			if s, ok := str(k); ok {
				in.spend(len(s))
				out[i] = lower(s)
			}
		}
	}
	return out
}

func (in *interp) sorted(items []any, attribute any, caseSensitive, reverse bool) []any {
	keys := in.keys(items, attribute, caseSensitive)
	return in.order(items, keys, reverse)
}

func (in *interp) order(items, keys []any, reverse bool) []any {
	index := make([]int, len(items))
	for i := range index {
		index[i] = i
	}
	slices.SortStableFunc(index, func(a, b int) int {
		c := in.compare(keys[a], keys[b])
		switch {
		case c == 2:
			return 0
		case reverse:
			return -c
		}
		return c
	})
	out := make([]any, len(items))
	for i, at := range index {
		out[i] = items[at]
	}
	return out
}

func dictSort(in *interp, v any, args []any, kw kwargs) any {
	a := bind("dictsort", args, kw, "case_sensitive", "by", "reverse")
	d, ok := v.(*Dict)
	if !ok {
		fail("dictsort: a mapping is required, not %s", typeName(v))
	}
	at := int64(0)
	switch by := strArg("dictsort", or(a[1], "key")); by {
	case "key":
	case "value":
		at = 1
	default:
		fail("dictsort: by must be key or value, not %q", by)
	}
	return NewList(in.sorted(in.pairs(d).Items, at, truth(or(a[0], false)), truth(or(a[2], false)))...)
}

func extreme(n string, want int) filterFunc {
	return func(in *interp, v any, args []any, kw kwargs) any {
		a := bind(n, args, kw, "case_sensitive", "attribute")
		items := in.iterate(v)
		if len(items) == 0 {
			return undefined{"no aggregated item, sequence was empty; it"}
		}
		keys := in.keys(items, or(a[1], nil), truth(or(a[0], false)))
		best := 0
		for i := range items {
			if in.compare(keys[i], keys[best]) == want {
				best = i
			}
		}
		return items[best]
	}
}

func groupBy(in *interp, v any, args []any, kw kwargs) any {
	a := bind("groupby", args, kw, "attribute", "default", "case_sensitive")
	items := in.iterate(v)
	picked := in.pick(items, a[0], or(a[1], nil))
	keys := in.keys(picked, nil, truth(or(a[2], false)))
	index := make([]any, len(items))
	for i := range index {
		index[i] = int64(i)
	}
	out := NewList()
	var group *List
	var last any
	for _, at := range in.order(index, keys, false) {
		i := at.(int64)
		if group == nil || !in.equal(last, keys[i]) {
			group, last = NewList(), keys[i]
			out.Items = append(out.Items, &List{Items: []any{picked[i], group}, Tuple: true})
		}
		group.Items = append(group.Items, items[i])
	}
	return out
}
