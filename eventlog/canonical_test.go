package eventlog

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestCanonicalJSON(t *testing.T) {
	for _, c := range []struct {
		in   any
		want string
	}{
		{nil, "null"},
		{map[string]any{"b": 1, "a": []any{true, nil}, "": "x"}, `{"":"x","a":[true,null],"b":1}`},
		{"<&>\u2028 \x00\x1f\"\\\n\t\r\b\f é 😀", "\"<&>\u2028 \\u0000\\u001f\\\"\\\\\\n\\t\\r\\b\\f é 😀\""},
		{json.Number("1.50"), "1.50"},
		{json.Number("-0"), "-0"},
		{json.Number("123456789012345678901234567890"), "123456789012345678901234567890"},
		{1.0, "1"},
		{1e21, "1e+21"},
		{1e-7, "1e-7"},
		{-2.5e-10, "-2.5e-10"},
		{0.1, "0.1"},
		{float32(0.1), "0.1"},
		{int64(math.MinInt64), "-9223372036854775808"},
		{uint64(math.MaxUint64), "18446744073709551615"},
		{[]string{"a"}, `["a"]`},
		{[]map[string]any{{"k": int8(1)}}, `[{"k":1}]`},
		{map[string]string{"k": "v"}, `{"k":"v"}`},
		{json.RawMessage(` {"b" : 1.0, "a":2} `), `{"a":2,"b":1.0}`},
	} {
		got, err := CanonicalJSON(c.in)
		require.NoError(t, err)
		require.Equal(t, c.want, string(got))
	}
	loop := map[string]any{}
	loop["x"] = loop
	for want, in := range map[string]any{
		"nested deeper than 256":           loop,
		`json.Number "01" is not`:          json.Number("01"),
		`json.Number "" is not`:            json.Number(""),
		`json.Number "1." is not`:          json.Number("1."),
		`json.Number "1e" is not`:          json.Number("1e"),
		`json.Number "NaN" is not`:         json.Number("NaN"),
		".a: [0]: +Inf is not":             map[string]any{"a": []any{math.Inf(1)}},
		"Go type struct {}":                struct{}{},
		"is not valid UTF-8":               "\xc3",
		"is not valid UTF-8: pass it thro": map[string]any{"\xc3": 1},
		"not JSON":                         json.RawMessage("{} {}"),
	} {
		_, err := CanonicalJSON(in)
		require.ErrorContains(t, err, want)
	}
}

// Canonical JSON reads back as the same JSON, and is a fixed point.
func TestPropertyCanonical(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := map[string]any{"v": drawJSON(t, 0)}
		b := must(CanonicalJSON(m))
		if !json.Valid(b) {
			t.Fatalf("not JSON: %s", b)
		}
		again := must(CanonicalJSON(must(decodePayload(b))))
		if string(again) != string(b) {
			t.Fatalf("%s became %s", b, again)
		}
	})
}

// Two spellings of one payload must not both be readable.
func TestDecodePayloadRefuses(t *testing.T) {
	for _, in := range []string{
		`{}`, ` {"a":1}`, `{"a":1} `, `{"b":1,"a":1}`, `{"a":1,"a":1}`, `{"a":"\u0041"}`, `{"a":"\ud800"}`, `{"a":"\/"}`, `{"a":01}`, `[1]`, `1`, `{"a":1}{}`,
		"{\"a\":\"\xff\"}",
	} {
		_, err := decodePayload([]byte(in))
		require.Error(t, err, in)
	}
}
