package jinja

// test is "value is name".
func (in *interp) test(n string, v any, args []any, kw kwargs) bool {
	in.enter()
	defer in.leave()
	if op, ok := comparisons[n]; ok {
		if len(args) != 1 || len(kw) > 0 {
			fail("test %q takes one argument", n)
		}
		return in.holdsTrue(op, v, args[0])
	}
	if len(kw) > 0 {
		fail("test %q takes no named argument", n)
	}
	switch n {
	case "sameas":
		return len(args) == 1 && typeName(v) == typeName(args[0]) && v == args[0]
	case "divisibleby":
		if len(args) != 1 {
			fail("test divisibleby takes one argument")
		}
		return in.equal(in.arithmetic("%", v, args[0]), int64(0))
	}
	f, ok := tests[n]
	if !ok {
		fail("no test named %q", n)
	}
	if len(args) > 0 {
		fail("test %q takes no argument", n)
	}
	return f(in, v)
}

var comparisons = map[string]string{
	"==": "==", "eq": "==", "equalto": "==", "!=": "!=", "ne": "!=", ">": ">", "gt": ">", "greaterthan": ">",
	"<": "<", "lt": "<", "lessthan": "<", ">=": ">=", "ge": ">=", "<=": "<=", "le": "<=", "in": "in",
}

var tests map[string]func(in *interp, v any) bool

func init() {
	is := func(kinds ...string) func(*interp, any) bool {
		return func(_ *interp, v any) bool {
			for _, k := range kinds {
				if typeName(v) == k {
					return true
				}
			}
			return false
		}
	}
	tests = map[string]func(in *interp, v any) bool{
		"defined":   func(_ *interp, v any) bool { _, ok := v.(undefined); return !ok },
		"undefined": is("Undefined"),
		"none":      is("NoneType"),
		"boolean":   is("bool"),
		"true":      func(_ *interp, v any) bool { return v == true },
		"false":     func(_ *interp, v any) bool { return v == false },
		"integer":   is("int"),
		"float":     is("float"),
		"number":    is("int", "float", "bool"),
		"string":    is("str", "Markup"),
		"mapping":   is("dict"),
		"iterable":  is("dict", "list", "tuple", "generator", "str", "Markup", "Undefined"),
		"sequence":  is("dict", "list", "tuple", "str", "Markup", "Undefined"),
		"callable": func(_ *interp, v any) bool {
			switch v.(type) {
			case *function, *loopVar, undefined:
				return true
			}
			return false
		},
		"odd":     func(in *interp, v any) bool { return in.equal(in.arithmetic("%", v, int64(2)), int64(1)) },
		"even":    func(in *interp, v any) bool { return in.equal(in.arithmetic("%", v, int64(2)), int64(0)) },
		"lower":   func(in *interp, v any) bool { return isLower(in.text(v)) },
		"upper":   func(in *interp, v any) bool { return isUpper(in.text(v)) },
		"escaped": is("Markup"),
		"filter": func(_ *interp, v any) bool {
			s, ok := str(v)
			_, there := filters[s]
			return ok && there
		},
		"test": func(_ *interp, v any) bool {
			s, ok := str(v)
			_, there := tests[s]
			_, compares := comparisons[s]
			return ok && (there || compares)
		},
	}
}
