package jinja

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"
)

// pyFloat is Python's repr of a float: shortest digits, exponent form from
// 1e16 and below 1e-4. JSON spells the non-numbers differently.
func pyFloat(f float64, js bool) string {
	names := [3]string{"nan", "inf", "-inf"}
	if js {
		names = [3]string{"NaN", "Infinity", "-Infinity"}
	}
	switch {
	case math.IsNaN(f):
		return names[0]
	case math.IsInf(f, 1):
		return names[1]
	case math.IsInf(f, -1):
		return names[2]
	}
	if a := math.Abs(f); a != 0 && (a >= 1e16 || a < 1e-4) {
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

// text is Python's str().
func text(v any) string {
	if s, ok := str(v); ok {
		return s
	}
	if _, ok := v.(undefined); ok {
		return ""
	}
	return repr(v)
}

// repr is Python's repr(). Values come from JSON or are built by a template
// that cannot make cycles, so the recursion ends; Render bounds their depth.
func repr(v any) string {
	switch v := v.(type) {
	case nil:
		return "None"
	case bool:
		if v {
			return "True"
		}
		return "False"
	case int64:
		return strconv.FormatInt(v, 10)
	case float64:
		return pyFloat(v, false)
	case string:
		return quote(v)
	case markup:
		return "Markup(" + quote(string(v)) + ")"
	case undefined:
		return "Undefined"
	case *List:
		if v.lazy {
			fail("a generator has no printed form; list it")
		}
		parts := make([]string, len(v.Items))
		for i, e := range v.Items {
			parts[i] = repr(e)
		}
		body := strings.Join(parts, ", ")
		switch {
		case v.Tuple && len(parts) == 1:
			return "(" + body + ",)"
		case v.Tuple:
			return "(" + body + ")"
		}
		return "[" + body + "]"
	case *Dict:
		parts := make([]string, 0, v.Len())
		for _, k := range v.keys {
			e, _ := v.get(k)
			parts = append(parts, repr(k)+": "+repr(e))
		}
		return "{" + strings.Join(parts, ", ") + "}"
	case *namespace:
		return "<Namespace " + repr(v.attrs) + ">"
	}
	fail("a function has no printed form")
	return ""
}

// quote is Python's repr of a string.
func quote(s string) string {
	mark := '\''
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		mark = '"'
	}
	var b strings.Builder
	b.WriteRune(mark)
	for _, r := range s {
		switch {
		case r == mark || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case r < 0x20 || r == 0x7f || r < 0x100 && !unicode.IsPrint(r):
			fmt.Fprintf(&b, `\x%02x`, r)
		case !unicode.IsPrint(r) && r <= 0xffff:
			fmt.Fprintf(&b, `\u%04x`, r)
		case !unicode.IsPrint(r):
			fmt.Fprintf(&b, `\U%08x`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteRune(mark)
	return b.String()
}
