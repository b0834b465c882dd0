package jinja

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/language"
)

// mutators change a list or dict in place; the immutable sandbox hides them.
var mutators = map[string][]string{
	"dict": {"clear", "pop", "popitem", "setdefault", "update"},
	"list": {"append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"},
}

// method gives the bound method n of v; nil when v has none of that name.
func (in *interp) method(v any, n string) any {
	if slices.Contains(mutators[typeName(v)], n) {
		return undefined{"the sandbox forbids changing a " + typeName(v) + " by " + n + "; it"}
	}
	switch c := v.(type) {
	case *Dict:
		if f, ok := dictMethods[n]; ok {
			return &function{n, func(in *interp, args []any, kw kwargs) any { return f(in, c, args, kw) }}
		}
	case *List:
		if !c.lazy && (n == "index" || n == "count") {
			return &function{n, func(in *interp, args []any, kw kwargs) any { return in.find(c, n, args) }}
		}
	case string, markup:
		if f, ok := strMethods[n]; ok {
			s, _ := str(v)
			_, marked := v.(markup)
			return &function{n, func(in *interp, args []any, kw kwargs) any {
				in.spend(len(s))
				out := f(in, s, args, kw)
				if t, ok := out.(string); ok && marked {
					return markup(t)
				}
				return out
			}}
		}
	}
	return nil
}

func (in *interp) find(l *List, n string, args []any) any {
	if len(args) != 1 {
		fail("%s takes one argument", n)
	}
	count := int64(0)
	for i, e := range l.Items {
		if in.equal(e, args[0]) {
			if n == "index" {
				return int64(i)
			}
			count++
		}
	}
	if n == "index" {
		fail("index: the value is not in the list")
	}
	return count
}

var dictMethods = map[string]func(in *interp, d *Dict, args []any, kw kwargs) any{
	"get": func(_ *interp, d *Dict, args []any, kw kwargs) any {
		if len(kw) > 0 || len(args) < 1 || len(args) > 2 {
			fail("get takes one or two positional arguments")
		}
		if _, ok := hashKey(args[0]); !ok {
			fail("unhashable type: %s", typeName(args[0]))
		}
		if v, ok := d.get(args[0]); ok {
			return v
		}
		if len(args) == 2 {
			return args[1]
		}
		return nil
	},
	"items":  func(in *interp, d *Dict, _ []any, _ kwargs) any { return in.pairs(d) },
	"keys":   func(_ *interp, d *Dict, _ []any, _ kwargs) any { return NewList(slices.Clone(d.keys)...) },
	"values": func(_ *interp, d *Dict, _ []any, _ kwargs) any { return NewList(d.values()...) },
	"copy":   func(in *interp, d *Dict, _ []any, _ kwargs) any { return newDict(in, []any{d}, nil) },
}

func (d *Dict) values() []any {
	out := make([]any, len(d.keys))
	for i, k := range d.keys {
		out[i], _ = d.get(k)
	}
	return out
}

func (in *interp) pairs(d *Dict) *List {
	in.spend(d.Len() * 32)
	l := &List{Items: make([]any, d.Len())}
	for i, k := range d.keys {
		v, _ := d.get(k)
		l.Items[i] = &List{Items: []any{k, v}, Tuple: true}
	}
	return l
}

type strMethod = func(in *interp, s string, args []any, kw kwargs) any

var strMethods map[string]strMethod

func init() {
	plain := func(f func(string) string) strMethod {
		return func(_ *interp, s string, _ []any, _ kwargs) any { return f(s) }
	}
	all := func(f func(rune) bool) strMethod {
		return func(_ *interp, s string, _ []any, _ kwargs) any {
			return s != "" && strings.IndexFunc(s, func(r rune) bool { return !f(r) }) < 0
		}
	}
	strMethods = map[string]strMethod{
		"upper": plain(upper), "lower": plain(lower), "casefold": plain(cases.Fold().String),
		"capitalize": plain(capitalize), "title": plain(title), "swapcase": plain(swapCase),
		"isspace": all(isSpace), "isalpha": all(unicode.IsLetter), "isdigit": all(unicode.IsDigit), "isdecimal": all(unicode.IsDigit),
		"isnumeric": all(unicode.IsNumber),
		"isalnum":   all(func(r rune) bool { return unicode.IsLetter(r) || unicode.IsNumber(r) }),
		"isascii": func(_ *interp, s string, _ []any, _ kwargs) any {
			return strings.IndexFunc(s, func(r rune) bool { return r > 0x7f }) < 0
		},
		"islower":    func(_ *interp, s string, _ []any, _ kwargs) any { return isLower(s) },
		"isupper":    func(_ *interp, s string, _ []any, _ kwargs) any { return isUpper(s) },
		"strip":      trimmer(true, true),
		"lstrip":     trimmer(true, false),
		"rstrip":     trimmer(false, true),
		"startswith": affix("startswith", strings.HasPrefix),
		"endswith":   affix("endswith", strings.HasSuffix),
		"split":      func(in *interp, s string, args []any, kw kwargs) any { return in.split("split", s, args, kw) },
		"rsplit":     func(in *interp, s string, args []any, kw kwargs) any { return in.split("rsplit", s, args, kw) },
		"splitlines": splitLines,
		"partition":  func(_ *interp, s string, args []any, kw kwargs) any { return partition("partition", s, args, kw) },
		"rpartition": func(_ *interp, s string, args []any, kw kwargs) any { return partition("rpartition", s, args, kw) },
		"replace": func(in *interp, s string, args []any, kw kwargs) any {
			a := bind("replace", args, kw, "old", "new", "count")
			return in.replace(s, strArg("replace", a[0]), strArg("replace", a[1]), intArg("replace", a[2], -1))
		},
		"removeprefix": func(_ *interp, s string, args []any, kw kwargs) any {
			return strings.TrimPrefix(s, strArg("removeprefix", bind("removeprefix", args, kw, "prefix")[0]))
		},
		"removesuffix": func(_ *interp, s string, args []any, kw kwargs) any {
			return strings.TrimSuffix(s, strArg("removesuffix", bind("removesuffix", args, kw, "suffix")[0]))
		},
		"join": func(in *interp, s string, args []any, kw kwargs) any {
			a := bind("join", args, kw, "iterable")
			if a[0] == absent {
				fail("join takes one argument")
			}
			parts := []string{}
			for _, e := range in.iterate(a[0]) {
				t, ok := str(e)
				if !ok {
					fail("join: a string is required, not %s", typeName(e))
				}
				in.spend(len(t) + len(s))
				parts = append(parts, t)
			}
			return strings.Join(parts, s)
		},
		"find":   finder("find", strings.Index, false),
		"rfind":  finder("rfind", strings.LastIndex, false),
		"index":  finder("index", strings.Index, true),
		"rindex": finder("rindex", strings.LastIndex, true),
		"count": func(_ *interp, s string, args []any, kw kwargs) any {
			return int64(strings.Count(s, strArg("count", bind("count", args, kw, "sub")[0])))
		},
		"format": func(in *interp, s string, args []any, kw kwargs) any { return in.format(s, args, kw) },
		"zfill": func(in *interp, s string, args []any, kw kwargs) any {
			n := intArg("zfill", bind("zfill", args, kw, "width")[0], 0) - int64(utf8.RuneCountInString(s))
			sign := ""
			if s != "" && (s[0] == '-' || s[0] == '+') {
				sign, s = s[:1], s[1:]
			}
			return sign + in.repeat("0", n) + s
		},
		"ljust":  padder("ljust", 0, 1),
		"rjust":  padder("rjust", 1, 0),
		"center": padder("center", 1, 1),
		"expandtabs": func(in *interp, s string, args []any, kw kwargs) any {
			n := intArg("expandtabs", bind("expandtabs", args, kw, "tabsize")[0], 8)
			var b strings.Builder
			col := int64(0)
			for _, r := range s {
				switch {
				case r == '\t' && n > 0:
					in.write(&b, in.repeat(" ", n-col%n))
					col += n - col%n
				case r == '\t':
				case r == '\n' || r == '\r':
					b.WriteRune(r)
					col = 0
				default:
					b.WriteRune(r)
					col++
				}
			}
			return b.String()
		},
	}
}

func upper(s string) string { return cases.Upper(language.Und).String(s) }
func lower(s string) string { return cases.Lower(language.Und).String(s) }

func capitalize(s string) string {
	_, n := utf8.DecodeRuneInString(s)
	return cases.Title(language.Und, cases.NoLower).String(s[:n]) + lower(s[n:])
}

// title is str.title: letters after a non-letter upper, the others lower.
func title(s string) string {
	var b strings.Builder
	inWord := false
	for _, r := range s {
		switch {
		case !unicode.IsLetter(r):
			inWord = false
			b.WriteRune(r)
		case inWord:
			b.WriteString(lower(string(r)))
		default:
			b.WriteRune(unicode.ToTitle(r))
			inWord = true
		}
	}
	return b.String()
}

func swapCase(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsUpper(r) {
			return unicode.ToLower(r)
		}
		return unicode.ToUpper(r)
	}, s)
}

func isLower(s string) bool { return hasCase(s, unicode.IsLower, unicode.IsUpper) }
func isUpper(s string) bool { return hasCase(s, unicode.IsUpper, unicode.IsLower) }

func hasCase(s string, want, never func(rune) bool) bool {
	return strings.IndexFunc(s, want) >= 0 && strings.IndexFunc(s, func(r rune) bool { return never(r) || unicode.IsTitle(r) }) < 0
}

func trimmer(left, right bool) strMethod {
	return func(_ *interp, s string, args []any, kw kwargs) any {
		if len(kw) > 0 || len(args) > 1 {
			fail("strip takes at most one positional argument")
		}
		in := isSpace
		if len(args) == 1 && args[0] != nil {
			chars := strArg("strip", args[0])
			in = func(r rune) bool { return strings.ContainsRune(chars, r) }
		}
		if left {
			s = strings.TrimLeftFunc(s, in)
		}
		if right {
			s = strings.TrimRightFunc(s, in)
		}
		return s
	}
}

func affix(n string, has func(s, t string) bool) strMethod {
	return func(_ *interp, s string, args []any, kw kwargs) any {
		if len(args) != 1 || len(kw) > 0 {
			fail("%s takes one positional argument", n)
		}
		if l, ok := args[0].(*List); ok && l.Tuple {
			return slices.ContainsFunc(l.Items, func(e any) bool { return has(s, strArg(n, e)) })
		}
		return has(s, strArg(n, args[0]))
	}
}

func finder(n string, index func(s, sub string) int, must bool) strMethod {
	return func(_ *interp, s string, args []any, kw kwargs) any {
		i := index(s, strArg(n, bind(n, args, kw, "sub")[0]))
		if i < 0 {
			if must {
				fail("%s: substring not found", n)
			}
			return int64(-1)
		}
		return int64(utf8.RuneCountInString(s[:i]))
	}
}

func padder(n string, left, right int) strMethod {
	return func(in *interp, s string, args []any, kw kwargs) any {
		a := bind(n, args, kw, "width", "fillchar")
		fill := strArg(n, or(a[1], " "))
		if utf8.RuneCountInString(fill) != 1 {
			fail("%s: the fill character must be one character", n)
		}
		width := intArg(n, a[0], 0)
		missing := max(0, width-int64(utf8.RuneCountInString(s)))
		if left+right == 2 {
			before := missing/2 + missing&width&1 // as CPython rounds
			return in.repeat(fill, before) + s + in.repeat(fill, missing-before)
		}
		return in.repeat(fill, missing*int64(left)) + s + in.repeat(fill, missing*int64(right))
	}
}

func (in *interp) split(n, s string, args []any, kw kwargs) any {
	a := bind(n, args, kw, "sep", "maxsplit")
	limit := intArg(n, a[1], -1)
	if limit < 0 || limit > int64(len(s)) {
		limit = int64(len(s)) + 1
	}
	var parts []string
	sep := or(a[0], nil)
	switch {
	case sep != nil && strArg(n, sep) == "":
		fail("%s: empty separator", n)
	case sep != nil && n == "split":
		parts = strings.SplitN(s, strArg(n, sep), int(limit)+1)
	case sep != nil:
		t := strArg(n, sep)
		for i := strings.LastIndex(s, t); i >= 0 && limit > 0; i = strings.LastIndex(s, t) {
			parts, s, limit = append(parts, s[i+len(t):]), s[:i], limit-1
		}
		parts = append(parts, s)
		slices.Reverse(parts)
	case n == "split":
		for s = strings.TrimLeftFunc(s, isSpace); s != ""; s = strings.TrimLeftFunc(s, isSpace) {
			i := strings.IndexFunc(s, isSpace)
			if i < 0 || limit == 0 {
				parts = append(parts, s)
				break
			}
			parts, s, limit = append(parts, s[:i]), s[i:], limit-1
		}
	default:
		for s = strings.TrimRightFunc(s, isSpace); s != ""; s = strings.TrimRightFunc(s, isSpace) {
			i := strings.LastIndexFunc(s, isSpace)
			if i < 0 || limit == 0 {
				parts = append(parts, s)
				break
			}
			_, size := utf8.DecodeRuneInString(s[i:])
			parts, s, limit = append(parts, s[i+size:]), s[:i+size], limit-1
		}
		slices.Reverse(parts)
	}
	in.spend(len(parts) * 64)
	return stringList(parts)
}

func stringList(parts []string) *List {
	l := &List{Items: make([]any, len(parts))}
	for i, p := range parts {
		l.Items[i] = p
	}
	return l
}

func splitLines(in *interp, s string, args []any, kw kwargs) any {
	keep := truth(or(bind("splitlines", args, kw, "keepends")[0], false))
	var parts []string
	for s != "" {
		i := strings.IndexFunc(s, func(r rune) bool {
			return r >= '\n' && r <= '\r' || r >= 0x1c && r <= 0x1e || r == 0x85 || r == 0x2028 || r == 0x2029
		})
		if i < 0 {
			parts = append(parts, s)
			break
		}
		_, size := utf8.DecodeRuneInString(s[i:])
		if strings.HasPrefix(s[i:], "\r\n") {
			size = 2
		}
		line := s[:i]
		if keep {
			line = s[:i+size]
		}
		parts, s = append(parts, line), s[i+size:]
	}
	in.spend(len(parts) * 64)
	return stringList(parts)
}

func partition(n, s string, args []any, kw kwargs) any {
	sep := strArg(n, bind(n, args, kw, "sep")[0])
	if sep == "" {
		fail("%s: empty separator", n)
	}
	parts := []string{s, "", ""}
	i := strings.Index(s, sep)
	if n == "rpartition" {
		parts = []string{"", "", s}
		i = strings.LastIndex(s, sep)
	}
	if i >= 0 {
		parts = []string{s[:i], sep, s[i+len(sep):]}
	}
	l := stringList(parts)
	l.Tuple = true
	return l
}

func (in *interp) replace(s, old, new string, count int64) string {
	n := strings.Count(s, old)
	if count >= 0 {
		n = min(n, int(min(count, int64(len(s))+1)))
	}
	if n > 0 && len(new) > in.limits.Bytes/n {
		in.spend(in.limits.Bytes + 1)
	}
	in.spend(len(s) + n*len(new))
	return strings.Replace(s, old, new, n)
}
