package reward

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/big"
	"strconv"
	"strings"
)

// The reference AST checker is defined by Python's values, so the match works
// on those: nil, bool, string, *big.Int (int), float64 (float), []any (list)
// and map[string]any (dict), as json.loads would give them.

// pyDecode reads exactly one JSON value into Python's terms.
func pyDecode(data []byte) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, fmt.Errorf("more than one JSON value")
	}
	return pyValue(v), nil
}

func pyValue(v any) any {
	switch x := v.(type) {
	case json.Number:
		if !strings.ContainsAny(x.String(), ".eE") {
			if n, ok := new(big.Int).SetString(x.String(), 10); ok {
				return n
			}
		}
		f, _ := strconv.ParseFloat(x.String(), 64) // out of range is ±Inf, as in Python
		return f
	case []any:
		out := make([]any, len(x))
		for i := range x {
			out[i] = pyValue(x[i])
		}
		return out
	case map[string]any:
		out := make(map[string]any, len(x))
		for k := range x {
			out[k] = pyValue(x[k])
		}
		return out
	default:
		return v
	}
}

// pyType is the name of type(v).
func pyType(v any) string {
	switch v.(type) {
	case nil:
		return "NoneType"
	case bool:
		return "bool"
	case string:
		return "str"
	case *big.Int:
		return "int"
	case float64:
		return "float"
	case []any:
		return "list"
	default:
		return "dict"
	}
}

// pyEqual is ==: booleans are the integers 0 and 1, and an int equals a float
// of exactly the same value.
func pyEqual(a, b any) bool {
	if x, ok := pyNumber(a); ok {
		y, ok := pyNumber(b)
		return ok && x.Cmp(y) == 0
	}
	switch x := a.(type) {
	case nil:
		return b == nil
	case string:
		y, ok := b.(string)
		return ok && x == y
	case float64: // not finite
		y, ok := b.(float64)
		return ok && x == y
	case []any:
		y, ok := b.([]any)
		if !ok || len(x) != len(y) {
			return false
		}
		for i := range x {
			if !pyEqual(x[i], y[i]) {
				return false
			}
		}
		return true
	case map[string]any:
		y, ok := b.(map[string]any)
		if !ok || len(x) != len(y) {
			return false
		}
		for k := range x {
			w, ok := y[k]
			if !ok || !pyEqual(x[k], w) {
				return false
			}
		}
		return true
	}
	return false
}

func pyNumber(v any) (*big.Rat, bool) {
	switch x := v.(type) {
	case bool:
		if x {
			return big.NewRat(1, 1), true
		}
		return new(big.Rat), true
	case *big.Int:
		return new(big.Rat).SetInt(x), true
	case float64:
		if math.IsInf(x, 0) || math.IsNaN(x) {
			return nil, false
		}
		return new(big.Rat).SetFloat64(x), true
	}
	return nil, false
}

// pyIn is "v in list".
func pyIn(v any, list []any) bool {
	for _, w := range list {
		if pyEqual(v, w) {
			return true
		}
	}
	return false
}

// pySequence indexes like Python does: a list by item, a string by character.
func pySequence(v any) ([]any, bool) {
	switch x := v.(type) {
	case []any:
		return x, true
	case string:
		var out []any
		for _, r := range x {
			out = append(out, string(r))
		}
		return out, true
	}
	return nil, false
}
