package grammar

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
)

const maxInteger = 999_999_999_999_999_999 // 18 digits

// integers compiles the range of an integer schema.
func (s *schemaCompiler) integers(v map[string]any, at string) (expr, error) {
	lo, hi := int64(-maxInteger), int64(maxInteger)
	ranged := false
	for _, k := range keywords["integer"] {
		raw, ok := v[k]
		if !ok {
			continue
		}
		ranged = true
		n, ok := raw.(json.Number)
		f, err := n.Float64()
		if !ok || err != nil {
			return nil, fmt.Errorf("%s: %s is %v; give a number", at, k, raw)
		}
		edge := int64(max(-maxInteger, min(maxInteger, math.Floor(f))))
		if i, err := n.Int64(); err == nil {
			edge = max(-maxInteger, min(maxInteger, i))
		}
		whole := f == math.Floor(f)
		switch k {
		case "minimum":
			if !whole {
				edge++
			}
			lo = max(lo, edge)
		case "exclusiveMinimum":
			lo = max(lo, edge+1)
		case "maximum":
			hi = min(hi, edge)
		case "exclusiveMaximum":
			if whole {
				edge--
			}
			hi = min(hi, edge)
		}
	}
	if !ranged {
		return s.integer(), nil
	}
	if lo > hi {
		return nil, fmt.Errorf("%s: no integer of at most 18 digits lies in the range", at)
	}
	var out alt
	if lo < 0 {
		out = append(out, seq{literal("-"), naturals(max(1, -hi), -lo)})
	}
	if hi >= 0 {
		out = append(out, naturals(max(0, lo), hi))
	}
	return out, nil
}

// naturals are the decimal numbers lo to hi, both from 0.
func naturals(lo, hi int64) expr {
	var out alt
	for lo <= hi { // split by the number of digits
		top := hi
		if n := len(strconv.FormatInt(lo, 10)); n < len(strconv.FormatInt(hi, 10)) {
			top = int64(math.Pow10(n)) - 1
		}
		out = append(out, sameLength(strconv.FormatInt(lo, 10), strconv.FormatInt(top, 10)))
		lo = top + 1
	}
	return out
}

// sameLength are the digit strings between lo and hi, which are as long.
func sameLength(lo, hi string) expr {
	if lo == "" {
		return literal("")
	}
	if lo[0] == hi[0] {
		return seq{literal(lo[:1]), sameLength(lo[1:], hi[1:])}
	}
	rest := len(lo) - 1
	var out alt
	from, to := rune(lo[0]), rune(hi[0])
	if !all(lo[1:], '0') {
		out = append(out, seq{literal(lo[:1]), atLeast(lo[1:])})
		from++
	}
	if !all(hi[1:], '9') {
		out = append(out, seq{literal(hi[:1]), atMost(hi[1:])})
		to--
	}
	if from <= to {
		out = append(out, seq{runes{{from, to}}, rep{digit, rest, rest}})
	}
	return out
}

func atLeast(s string) expr {
	if s == "" {
		return literal("")
	}
	out := alt{seq{literal(s[:1]), atLeast(s[1:])}}
	if s[0] < '9' {
		out = append(out, seq{runes{{rune(s[0]) + 1, '9'}}, rep{digit, len(s) - 1, len(s) - 1}})
	}
	return out
}

func atMost(s string) expr {
	if s == "" {
		return literal("")
	}
	out := alt{seq{literal(s[:1]), atMost(s[1:])}}
	if s[0] > '0' {
		out = append(out, seq{runes{{'0', rune(s[0]) - 1}}, rep{digit, len(s) - 1, len(s) - 1}})
	}
	return out
}

func all(s string, c byte) bool {
	for i := range len(s) {
		if s[i] != c {
			return false
		}
	}
	return true
}
