package eventlog

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"
)

// maxDepth bounds the nesting of a payload; it also ends a map that holds
// itself.
const maxDepth = 256

// CanonicalJSON writes a JSON value in the one form a payload has on the wire
// and in digests: no white space, object keys sorted by their UTF-8 bytes, only
// the escapes JSON demands, a json.Number exactly as written, a float in its
// shortest form. It accepts what [Event.Payload] may hold and, for writers'
// convenience, every Go integer, float32, json.RawMessage, []string,
// []map[string]any and map[string]string. The error names the path and value
// that is not JSON (NaN, an infinity, invalid UTF-8, another Go type, nesting
// deeper than 256).
func CanonicalJSON(v any) ([]byte, error) { return appendCanonical(nil, v, 0) }

func appendCanonical(dst []byte, v any, depth int) ([]byte, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("nested deeper than %d: flatten it or store it as a string", maxDepth)
	}
	switch v := v.(type) {
	case nil:
		return append(dst, "null"...), nil
	case bool:
		return strconv.AppendBool(dst, v), nil
	case string:
		return appendString(dst, v)
	case json.Number:
		if !validNumber(string(v)) {
			return nil, fmt.Errorf("json.Number %q is not a JSON number", string(v))
		}
		return append(dst, v...), nil
	case json.RawMessage:
		w, err := parseJSON(v)
		if err != nil {
			return nil, err
		}
		return appendCanonical(dst, w, depth)
	case float64:
		return appendFloat(dst, v, 64)
	case float32:
		return appendFloat(dst, float64(v), 32)
	case int:
		return strconv.AppendInt(dst, int64(v), 10), nil
	case int8:
		return strconv.AppendInt(dst, int64(v), 10), nil
	case int16:
		return strconv.AppendInt(dst, int64(v), 10), nil
	case int32:
		return strconv.AppendInt(dst, int64(v), 10), nil
	case int64:
		return strconv.AppendInt(dst, v, 10), nil
	case uint:
		return strconv.AppendUint(dst, uint64(v), 10), nil
	case uint8:
		return strconv.AppendUint(dst, uint64(v), 10), nil
	case uint16:
		return strconv.AppendUint(dst, uint64(v), 10), nil
	case uint32:
		return strconv.AppendUint(dst, uint64(v), 10), nil
	case uint64:
		return strconv.AppendUint(dst, v, 10), nil
	case []any:
		return appendList(dst, v, depth)
	case []string:
		return appendList(dst, v, depth)
	case []map[string]any:
		return appendList(dst, v, depth)
	case map[string]any:
		return appendObject(dst, v, depth)
	case map[string]string:
		return appendObject(dst, v, depth)
	}
	return nil, fmt.Errorf("Go type %T is not JSON: convert it first", v)
}

func appendList[T any](dst []byte, list []T, depth int) ([]byte, error) {
	dst = append(dst, '[')
	var err error
	for i, v := range list {
		if i > 0 {
			dst = append(dst, ',')
		}
		if dst, err = appendCanonical(dst, v, depth+1); err != nil {
			return nil, fmt.Errorf("[%d]: %w", i, err)
		}
	}
	return append(dst, ']'), nil
}

func appendObject[T any](dst []byte, m map[string]T, depth int) ([]byte, error) {
	dst = append(dst, '{')
	var err error
	for i, k := range slices.Sorted(maps.Keys(m)) {
		if i > 0 {
			dst = append(dst, ',')
		}
		if dst, err = appendString(dst, k); err != nil {
			return nil, err
		}
		dst = append(dst, ':')
		if dst, err = appendCanonical(dst, m[k], depth+1); err != nil {
			return nil, fmt.Errorf(".%s: %w", k, err)
		}
	}
	return append(dst, '}'), nil
}

func appendString(dst []byte, s string) ([]byte, error) {
	if !utf8.ValidString(s) {
		return nil, fmt.Errorf("string %.40q is not valid UTF-8: pass it through strings.ToValidUTF8 first", s)
	}
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	start := 0
	for i := range len(s) {
		c := s[i]
		if c >= 0x20 && c != '"' && c != '\\' {
			continue
		}
		dst = append(dst, s[start:i]...)
		start = i + 1
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\b':
			dst = append(dst, '\\', 'b')
		case '\f':
			dst = append(dst, '\\', 'f')
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
	}
	return append(append(dst, s[start:]...), '"'), nil
}

// appendFloat writes the shortest decimal that reads back as f, in plain
// notation between 1e-6 and 1e21.
func appendFloat(dst []byte, f float64, bits int) ([]byte, error) {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return nil, fmt.Errorf("%v is not a JSON number: leave the key out instead", f)
	}
	if a := math.Abs(f); a != 0 && (a < 1e-6 || a >= 1e21) {
		dst = strconv.AppendFloat(dst, f, 'e', -1, bits)
		if n := len(dst); dst[n-2] == '0' && dst[n-3] == '-' { // e-07: one digit is enough
			dst = append(dst[:n-2], dst[n-1])
		}
		return dst, nil
	}
	return strconv.AppendFloat(dst, f, 'f', -1, bits), nil
}

// validNumber says whether s matches the number grammar of RFC 8259.
func validNumber(s string) bool {
	digits := func() bool {
		n := 0
		for n < len(s) && s[n] >= '0' && s[n] <= '9' {
			n++
		}
		s = s[n:]
		return n > 0
	}
	if len(s) > 0 && s[0] == '-' {
		s = s[1:]
	}
	if len(s) > 0 && s[0] == '0' {
		s = s[1:]
	} else if !digits() {
		return false
	}
	if len(s) > 0 && s[0] == '.' {
		if s = s[1:]; !digits() {
			return false
		}
	}
	if len(s) > 0 && (s[0] == 'e' || s[0] == 'E') {
		s = s[1:]
		if len(s) > 0 && (s[0] == '+' || s[0] == '-') {
			s = s[1:]
		}
		if !digits() {
			return false
		}
	}
	return s == ""
}

// parseJSON reads exactly one JSON value, numbers as json.Number.
func parseJSON(b []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, fmt.Errorf("not JSON: %w", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, fmt.Errorf("not JSON: data after the value at byte %d", d.InputOffset())
	}
	return v, nil
}

// normalise returns a deep copy of a payload holding only nil, bool, string,
// json.Number, []any and map[string]any, as decoding would give it.
func normalise(p map[string]any) (map[string]any, error) {
	if len(p) == 0 {
		return nil, nil
	}
	b, err := CanonicalJSON(p)
	if err != nil {
		return nil, err
	}
	return decodePayload(b)
}

// decodePayload reads canonical JSON and refuses any other: duplicate keys,
// white space, unsorted keys and broken UTF-8 do not survive a second writing.
func decodePayload(b []byte) (map[string]any, error) {
	if len(b) == 0 {
		return nil, nil
	}
	v, err := parseJSON(b)
	if err != nil {
		return nil, err
	}
	m, ok := v.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("payload is a JSON %T, want an object", v)
	}
	again, err := CanonicalJSON(m)
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(b, again) || len(m) == 0 {
		return nil, fmt.Errorf("payload is not canonical JSON")
	}
	return m, nil
}

// number reads a payload number of any accepted Go type.
func number(v any) (float64, bool) {
	b, err := CanonicalJSON(v)
	if err != nil || len(b) == 0 || b[0] != '-' && (b[0] < '0' || b[0] > '9') {
		return 0, false
	}
	f, err := strconv.ParseFloat(string(b), 64)
	return f, err == nil
}
