package model

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"

	"github.com/ardanlabs/jinja"
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

// pyStr is Python's str().
func pyStr(v jinja.Value) string {
	switch {
	case v.IsString():
		return v.AsString()
	case v.IsUndefined():
		return ""
	}
	return pyRepr(v)
}

func pyRepr(v jinja.Value) string {
	switch {
	case v.IsFloat():
		return pyFloat(v.AsFloat(), false)
	case v.IsString():
		return pyQuote(v.AsString())
	case v.IsList():
		parts := make([]string, v.AsList().Len())
		for i, e := range v.AsList().Items {
			parts[i] = pyRepr(e)
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case v.IsDict():
		d := v.AsDict()
		parts := make([]string, 0, d.Len())
		for _, k := range d.OrderedKeys() {
			parts = append(parts, pyQuote(k)+": "+pyRepr(d.Data[k]))
		}
		return "{" + strings.Join(parts, ", ") + "}"
	}
	return v.String() // None, True, False, integers
}

// pyQuote is Python's repr of a string.
func pyQuote(s string) string {
	quote := '\''
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		quote = '"'
	}
	var b strings.Builder
	b.WriteRune(quote)
	for _, r := range s {
		switch {
		case r == quote || r == '\\':
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
	b.WriteRune(quote)
	return b.String()
}
