package grammar

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

type schemaCase struct {
	schema string
	yes    []string
	no     []string
}

var schemaCases = map[string]schemaCase{
	"object": {`{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"}},"required":["a"],"additionalProperties":false}`,
		[]string{`{"a":1}`, `{"a": 1, "b": "x"}`, `{"b":"x","a":-10}`, "{\n  \"a\": 0,\n  \"b\": \"\\u00e9\\ud83d\\ude00\"\n}"},
		[]string{`{}`, `{"b":"x"}`, `{"a":1,"a":2}`, `{"a":1,}`, `{"a":1.5}`, `{"a":01}`, `{"a":1,"c":2}`, `{"a":1`, `{,"a":1}`, `{"a":1 "b":""}`, `{"a":1,"b":"` + "\n" + `"}`, `{"a":1,"b":"\ud800"}`}},
	"additional": {`{"properties":{"name":{"type":"string"},"na":{"type":"null"}},"additionalProperties":{"type":"integer"}}`,
		[]string{`{}`, `{"x":1}`, `{"name":"n","nam":3,"names":4}`, `{"n":1,"":2}`, `{"x\"y":1,"nÄ":3}`},
		[]string{`{"name":1}`, `{"na":1}`, `{"x":"s"}`, `{"n\u0061me":1}`}},
	"escaped names": {`{"properties":{"a\"b":{"type":"null"},"\n":{"type":"null"}},"additionalProperties":true}`,
		[]string{`{"a\"b":null}`, `{"\n":null,"\t":1,"a\\":2,"a\"c":3}`}, []string{`{"a\"b":1}`, `{"\n":1}`}},
	"any":           {`true`, []string{`1`, `"x"`, `[1,{"a":[]}]`, `null`, `-0.5e+3`, `{ "a": [ ] }`}, []string{``, `[1,]`, `nul`, `+1`, `.5`, `1.`}},
	"list":          {`{"type":"array","items":{"enum":["a","b"]},"minItems":1,"maxItems":3}`, []string{`["a"]`, `["a", "b","a"]`}, []string{`[]`, `["c"]`, `["a","a","a","a"]`}},
	"no more items": {`{"type":"array","maxItems":0}`, []string{`[]`}, []string{`[1]`}},
	"prefix":        {`{"type":"array","prefixItems":[{"type":"integer"},{"type":"string"}],"items":false}`, []string{`[]`, `[1]`, `[1,"x"]`}, []string{`["x"]`, `[1,"x",2]`}},
	"prefix open":   {`{"type":"array","prefixItems":[{"type":"integer"}],"items":{"type":"null"},"minItems":2}`, []string{`[1,null]`, `[1,null,null]`}, []string{`[1]`, `[null,null]`}},
	"lengths":       {`{"type":"string","minLength":2,"maxLength":3}`, []string{`"ab"`, `"日本語"`, `"\n\u0041"`, `"\ud83d\ude00x"`}, []string{`"a"`, `"abcd"`, `""`}},
	"pattern":       {`{"type":"string","pattern":"^[A-Z]{2}-\\d+$"}`, []string{`"AB-1"`, `"XY-0042"`}, []string{`"ab-1"`, `"AB-"`, `"AB-1x"`}},
	"pattern part":  {`{"type":"string","pattern":"a.c|^z"}`, []string{`"xxabcyy"`, `"a\"c"`, `"zz"`}, []string{`"ac"`, `"yz"`, `"a\nc"`}},
	"range":         {`{"type":"integer","minimum":-12,"exclusiveMaximum":205}`, []string{`-12`, `-1`, `0`, `9`, `10`, `99`, `199`, `204`}, []string{`-13`, `205`, `300`, `-0`, `00`, `-20`}},
	"range high":    {`{"type":"integer","minimum":98.5,"maximum":1234}`, []string{`99`, `100`, `999`, `1000`, `1234`}, []string{`98`, `1235`, `9`, `10000`}},
	"enum":          {`{"enum":["a",1,null,{"k":[true]},"é"]}`, []string{`"a"`, `1`, `null`, `{"k": [true]}`, `"é"`, `"\u00e9"`}, []string{`"b"`, `2`, `{}`}},
	"const":         {`{"const":"x","type":"string"}`, []string{`"x"`}, []string{`"y"`}},
	"anyOf":         {`{"anyOf":[{"type":"integer"},{"type":"null"}]}`, []string{`1`, `null`}, []string{`"x"`}},
	"oneOf": {`{"oneOf":[{"type":"object","properties":{"t":{"const":"a"},"x":{"type":"integer"}},"required":["t"]},{"type":"object","properties":{"t":{"const":"b"}},"required":["t"]}]}`,
		[]string{`{"t":"a","x":1}`, `{"x":1,"t":"a"}`, `{"t":"b","x":"y"}`}, []string{`{"t":"c"}`, `{"t":"a","x":"y"}`, `{}`}},
	"nullable": {`{"type":"string","nullable":true}`, []string{`null`, `"x"`}, []string{`1`}},
	"types":    {`{"type":["string","integer"],"maxLength":1}`, []string{`"x"`, `12`}, []string{`"xy"`, `null`}},
	"recursive": {`{"$ref":"#/$defs/tree","$defs":{"tree":{"type":"object","properties":{"v":{"type":"integer"},"kids":{"type":"array","items":{"$ref":"#/$defs/tree"}}},"required":["v"],"additionalProperties":false}}}`,
		[]string{`{"v":1}`, `{"v":1,"kids":[{"v":2,"kids":[]},{"v":3}]}`}, []string{`{"kids":[]}`, `{"v":1,"kids":[{}]}`}},
	"allOf one": {`{"allOf":[{"$ref":"#/definitions/x"}],"definitions":{"x":{"type":"boolean"}},"description":"d"}`, []string{`true`}, []string{`1`}},
}

func TestSchema(t *testing.T) {
	for name, c := range schemaCases {
		t.Run(name, func(t *testing.T) {
			g, err := Schema([]byte(c.schema), SchemaOptions{})
			require.NoError(t, err)
			for _, s := range c.yes {
				require.True(t, matches(t, g, s), "should be accepted: %s", s)
			}
			for _, s := range c.no {
				require.False(t, matches(t, g, s), "should be refused: %s", s)
			}
		})
	}
	g, err := Schema([]byte(schemaCases["object"].schema), SchemaOptions{Compact: true})
	require.NoError(t, err)
	require.True(t, matches(t, g, `{"a":1,"b":""}`))
	require.False(t, matches(t, g, `{"a": 1}`))
	g, err = Schema([]byte(`{"type":"object","properties":{"a":{}}}`), SchemaOptions{Closed: true})
	require.NoError(t, err)
	require.False(t, matches(t, g, `{"b":1}`))
}

func TestSchemaRefuses(t *testing.T) {
	deep := strings.Repeat(`{"items":`, 300) + "true" + strings.Repeat("}", 300)
	many := `{"properties":{`
	for i := range 70 {
		many += fmt.Sprintf(`"p%d":true,`, i)
	}
	for schema, want := range map[string]string{
		`{"type":"string","minLenght":1}`:                                  `#: keyword "minLenght" is not supported`,
		`{"properties":{"a":{"not":{}}}}`:                                  `#/properties/a: keyword "not"`,
		`{"type":"number","multipleOf":2}`:                                 `"multipleOf"`,
		`{"type":"strin"}`:                                                 `type strin is none of`,
		`{"type":"number","minimum":1}`:                                    "minimum of a number",
		`{"minimum":1}`:                                                    "a range without type",
		`{"type":"integer","minimum":2,"maximum":1}`:                       "no integer",
		`{"minLength":3,"maxLength":2}`:                                    "nothing fits both",
		`{"minLength":-1}`:                                                 "whole number",
		`{"pattern":"(?=x)"}`:                                              "pattern",
		`{"pattern":"\\bx"}`:                                               "not supported inside",
		`{"pattern":"x","minLength":1}`:                                    "pattern beside",
		`{"oneOf":[{"type":"integer"},{"type":"number"}]}`:                 "branches 0 and 1",
		`{"oneOf":[{"enum":[1]},{"enum":[1.0]}]}`:                          "branches 0 and 1",
		`{"oneOf":[{"type":"object"},{"type":"object","required":["a"]}]}`: "branches 0 and 1",
		`{"allOf":[{},{}]}`:                                                "allOf of 2",
		`{"anyOf":[]}`:                                                     "list with entries",
		`{"anyOf":[{}],"type":"string"}`:                                   "type beside anyOf",
		`{"$ref":"http://x/y"}`:                                            "only pointers",
		`{"$ref":"#/nowhere"}`:                                             `there is no "nowhere"`,
		`{"$ref":"#"}`:                                                     "can never be complete",
		`{"properties":{"a":{"$ref":"#"}},"required":["a"]}`:               "can never be complete",
		`{"anyOf":[{"$ref":"#"},{"type":"null"}]}`:                         "left recursion",
		`false`: "allows no value",
		`[]`:    "object or a boolean",
		`{"type":"array","items":false,"minItems":1}`:     "no list",
		`{"required":["a"],"additionalProperties":false}`: `"a" is required`,
		`{"type":"string","enum":[1]}`:                    "no constant",
		`{"enum":["a"],"maxLength":1}`:                    "maxLength beside enum",
		`{`:                                               "unexpected EOF",
		`{} {}`:                                           "text follows",
		deep:                                              "nested deeper",
		strings.TrimSuffix(many, ",") + "}}":              "70 properties",
		strings.Repeat(" ", maxSource+1):                  "at most",
	} {
		_, err := Schema([]byte(schema), SchemaOptions{})
		require.ErrorIs(t, err, ErrGrammar, schema)
		require.ErrorContains(t, err, want, schema)
	}
}

// genSchema draws a schema of the supported keywords.
func genSchema(r *rand.Rand, depth int) map[string]any {
	kind := r.IntN(9)
	if depth <= 0 {
		kind = r.IntN(6)
	}
	switch kind {
	case 0:
		return map[string]any{"type": "boolean"}
	case 1:
		s := map[string]any{"type": "integer"}
		if r.IntN(2) == 0 {
			lo := r.IntN(2000) - 1000
			s["minimum"], s["maximum"] = lo, lo+r.IntN(1500)
		}
		return s
	case 2:
		return map[string]any{"type": "number"}
	case 3:
		s := map[string]any{"type": "string"}
		switch r.IntN(3) {
		case 0:
			s["minLength"] = r.IntN(3)
			s["maxLength"] = 3 + r.IntN(4)
		case 1:
			s["pattern"] = []string{"^a+b?$", "^[a-c\\\\\"]{1,3}$", "x|y", "^\\d{2}-\\w"}[r.IntN(4)]
		}
		return s
	case 4:
		return map[string]any{"enum": []any{"a", "b\"", 3, nil, true, []any{1}}[:1+r.IntN(6)]}
	case 5:
		return map[string]any{"type": []any{"null", "string"}, "maxLength": 4}
	case 6:
		s := map[string]any{"type": "array", "items": genSchema(r, depth-1), "maxItems": 1 + r.IntN(3)}
		if r.IntN(2) == 0 {
			s["minItems"] = 1
		}
		return s
	case 7:
		return map[string]any{"anyOf": []any{genSchema(r, depth-1), genSchema(r, depth-1)}}
	}
	props, required := map[string]any{}, []any{}
	for _, n := range []string{"a", "ab", "name", "\u00e9\"", "n"}[:1+r.IntN(5)] {
		props[n] = genSchema(r, depth-1)
		if r.IntN(2) == 0 {
			required = append(required, n)
		}
	}
	s := map[string]any{"type": "object", "properties": props, "required": required}
	switch r.IntN(3) {
	case 0:
		s["additionalProperties"] = false
	case 1:
		s["additionalProperties"] = genSchema(r, 0)
	}
	return s
}

// genInstance draws a value; whether it is valid the validator says.
func genInstance(r *rand.Rand, s map[string]any, depth int) any {
	if list, ok := s["enum"].([]any); ok {
		return list[r.IntN(len(list))]
	}
	if list, ok := s["anyOf"].([]any); ok {
		return genInstance(r, list[r.IntN(len(list))].(map[string]any), depth)
	}
	t := s["type"]
	if list, ok := t.([]any); ok {
		t = list[r.IntN(len(list))]
	}
	switch t {
	case "boolean":
		return r.IntN(2) == 0
	case "integer":
		if lo, ok := s["minimum"].(int); ok {
			return lo + r.IntN(s["maximum"].(int)-lo+1)
		}
		return r.Int64N(1<<50) - 1<<49
	case "number":
		return (r.Float64() - 0.5) * []float64{1, 1000, 1e22, 1e-7}[r.IntN(4)]
	case "string":
		if p, ok := s["pattern"].(string); ok {
			fits := map[string][]string{"^a+b?$": {"a", "aaab"}, "^[a-c\\\\\"]{1,3}$": {"a\"\\", "c"}, "x|y": {"--x\n", "y"}, "^\\d{2}-\\w": {"12-a\u00e9"}}[p]
			return fits[r.IntN(len(fits))]
		}
		out := ""
		for range r.IntN(6) {
			out += []string{"a", "\"", "\\", "\n", "\u00e9", "\U0001f600", "/", "\x01", " ", "<", "\u2028"}[r.IntN(11)]
		}
		return out
	case "array":
		out := []any{}
		for range r.IntN(4) {
			out = append(out, genInstance(r, s["items"].(map[string]any), depth-1))
		}
		return out
	case "object":
		out := map[string]any{}
		for n, p := range s["properties"].(map[string]any) {
			if r.IntN(4) > 0 {
				out[n] = genInstance(r, p.(map[string]any), depth-1)
			}
		}
		if extra, ok := s["additionalProperties"].(map[string]any); ok && r.IntN(2) == 0 {
			out[[]string{"x", "nam", "\n", "abc", ""}[r.IntN(5)]] = genInstance(r, extra, 0)
		}
		return out
	}
	return nil
}

func validator(t testing.TB, schema []byte) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema))
	require.NoError(t, err)
	c := jsonschema.NewCompiler()
	require.NoError(t, c.AddResource("s.json", doc))
	s, err := c.Compile("s.json")
	require.NoError(t, err, string(schema))
	return s
}

func validate(t testing.TB, s *jsonschema.Schema, text string) error {
	t.Helper()
	v, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		return err
	}
	return s.Validate(v)
}

// What is written under a random schema by drawing allowed tokens is valid, and
// every valid instance is accepted, compact, spaced and indented.
func TestSchemaAgreesWithValidator(t *testing.T) {
	vocab := testVocabulary(t)
	written, accepted := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 1))
		schema := genSchema(r, 3)
		data, err := json.Marshal(schema)
		require.NoError(rt, err)
		g, err := Schema(data, SchemaOptions{Compact: r.IntN(2) == 0})
		require.NoError(rt, err, string(data))
		spaced, err := Schema(data, SchemaOptions{})
		require.NoError(rt, err)
		valid := validator(t, data)
		p := NewProgram(g, vocab)
		for range 3 {
			if text, ok := vocab.write(t, p, r); ok {
				written++
				require.NoError(rt, validate(t, valid, text), "schema %s wrote %s", data, text)
				require.True(rt, matches(t, g, text), text)
			}
		}
		for range 5 {
			instance := genInstance(r, schema, 3)
			var buf bytes.Buffer
			enc := json.NewEncoder(&buf)
			enc.SetEscapeHTML(false)
			require.NoError(rt, enc.Encode(instance))
			compact := strings.TrimSpace(buf.String())
			if validate(t, valid, compact) != nil {
				continue
			}
			accepted++
			indented, err := json.MarshalIndent(instance, "", "  ")
			require.NoError(rt, err)
			require.True(rt, matches(t, g, compact), "schema %s refuses %s", data, compact)
			require.True(rt, matches(t, spaced, compact), "schema %s refuses %s", data, compact)
			require.True(rt, matches(t, spaced, string(indented)), "schema %s refuses %s", data, indented)
		}
	})
	t.Log(written, "texts written,", accepted, "instances accepted")
	require.Greater(t, written, 100)
	require.Greater(t, accepted, 100)
}

func FuzzSchema(f *testing.F) {
	for _, c := range schemaCases {
		f.Add([]byte(c.schema), c.yes[0])
	}
	f.Fuzz(func(t *testing.T, schema []byte, text string) {
		g, err := Schema(schema, SchemaOptions{})
		if err != nil {
			return
		}
		if len(text) < 1000 {
			_, _ = g.Matches(text)
		}
	})
}
