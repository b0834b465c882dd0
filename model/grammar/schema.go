package grammar

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// SchemaOptions says how JSON is written where the schema leaves it open.
type SchemaOptions struct {
	// Compact leaves no white space. Otherwise a blank or an indented line may
	// stand between the parts, as common encoders write them.
	Compact bool
	// Closed reads a missing additionalProperties as false, as tool callers
	// want; JSON Schema reads it as true.
	Closed bool
}

// Schema compiles a JSON Schema. What is written under it is valid under the
// schema, and the other way round: every valid instance is accepted, but for
// these. White space is limited (see SchemaOptions); numbers have at most 25
// digits before the point, 20 after it and two in the exponent; integers have
// at most 18 digits, no point and no exponent; constants and keys are spelled with the short escapes,
// or with everything beyond ASCII escaped; a schema that restricts one type
// without naming it means that type only.
//
// Known keywords: type, enum, const, properties, required,
// additionalProperties, items, prefixItems, minItems, maxItems, minLength,
// maxLength, pattern, minimum, maximum, exclusiveMinimum and exclusiveMaximum
// (of integers), anyOf, oneOf (of branches that exclude each other), allOf of
// one, $ref inside the document, $defs and definitions, nullable; annotations
// and format are read over. Any other keyword is an error that names it.
func Schema(schema []byte, o SchemaOptions) (*Grammar, error) {
	j := &jsonRules{compact: o.Compact, made: map[string]ref{}}
	root := j.add("root")
	e, err := j.schema(schema, o)
	if err != nil {
		return nil, err
	}
	j.bodies[root] = e
	return j.compile()
}

// schema compiles one document into j.
func (j *jsonRules) schema(schema []byte, o SchemaOptions) (expr, error) {
	if len(schema) > maxSource {
		return nil, fmt.Errorf("%w: the schema has %d bytes; at most %d are read", ErrGrammar, len(schema), maxSource)
	}
	d := json.NewDecoder(bytes.NewReader(schema))
	d.UseNumber()
	var doc any
	if err := d.Decode(&doc); err != nil {
		return nil, fmt.Errorf("%w: schema: %w", ErrGrammar, err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, fmt.Errorf("%w: schema: text follows the value", ErrGrammar)
	}
	s := &schemaCompiler{jsonRules: j, doc: doc, opts: o, refs: map[string]ref{}}
	e, err := s.compileAt(doc, "#")
	if err != nil {
		return nil, fmt.Errorf("%w: schema: %w", ErrGrammar, err)
	}
	return e, nil
}

type schemaCompiler struct {
	*jsonRules
	doc   any
	opts  SchemaOptions
	refs  map[string]ref
	depth int
}

// annotations are keywords that restrict nothing.
var annotations = []string{"title", "description", "default", "examples", "example", "$comment", "$schema", "$id", "$defs", "definitions",
	"deprecated", "readOnly", "writeOnly", "format", "contentMediaType", "contentEncoding", "nullable", "discriminator"}

// keywords by the type they restrict.
var keywords = map[string][]string{
	"object":  {"properties", "required", "additionalProperties"},
	"array":   {"items", "prefixItems", "minItems", "maxItems"},
	"string":  {"minLength", "maxLength", "pattern"},
	"integer": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},
}

var typeNames = []string{"object", "array", "string", "integer", "number", "boolean", "null"}

// compileAt compiles the schema at a place into a rule of its own, so that
// using it twice costs nothing.
func (s *schemaCompiler) compileAt(v any, at string) (expr, error) {
	e, err := s.inline(v, at)
	if err != nil {
		return nil, err
	}
	if r, ok := e.(ref); ok {
		return r, nil
	}
	r := s.add(at)
	s.bodies[r] = e
	return r, nil
}

func (s *schemaCompiler) inline(v any, at string) (expr, error) {
	if s.depth++; s.depth > maxNesting {
		return nil, fmt.Errorf("%s: nested deeper than %d", at, maxNesting)
	}
	defer func() { s.depth-- }()
	switch v := v.(type) {
	case bool:
		if v {
			return s.anything(), nil
		}
		return nil, fmt.Errorf("%s: false allows no value", at)
	case map[string]any:
		e, err := s.object1(v, at)
		if err == nil && v["nullable"] == true {
			e = alt{e, literal("null")}
		}
		return e, err
	}
	return nil, fmt.Errorf("%s: a schema is an object or a boolean, not %T", at, v)
}

// object1 compiles a schema object.
func (s *schemaCompiler) object1(v map[string]any, at string) (expr, error) {
	for _, k := range sortedKeys(v) {
		if !known(k) {
			return nil, fmt.Errorf("%s: keyword %q is not supported; leave it out or restrict the value otherwise", at, k)
		}
	}
	// Keywords that are a whole schema of their own stand alone.
	for _, k := range []string{"$ref", "anyOf", "oneOf", "allOf"} {
		part, ok := v[k]
		if !ok {
			continue
		}
		for o := range v {
			if o != k && !slices.Contains(annotations, o) && !strings.HasPrefix(o, "x-") {
				return nil, fmt.Errorf("%s: %s beside %s is not supported; move it into the branches", at, o, k)
			}
		}
		if k == "$ref" {
			return s.ref(part, at)
		}
		return s.branches(k, part, at)
	}
	types, err := schemaTypes(v, at)
	if err != nil {
		return nil, err
	}
	if values, ok := constants(v); ok {
		fitting := slices.DeleteFunc(slices.Clone(values), func(c any) bool {
			return types != nil && !slices.ContainsFunc(types, func(t string) bool { return isType(c, t) })
		})
		if len(fitting) == 0 {
			return nil, fmt.Errorf("%s: no constant has the type %v", at, types)
		}
		for _, group := range keywords {
			for _, k := range group {
				if v[k] != nil {
					return nil, fmt.Errorf("%s: %s beside enum or const is not supported; list the values that fit it", at, k)
				}
			}
		}
		return s.constants(fitting), nil
	}
	if types == nil {
		for _, t := range []string{"object", "array", "string", "integer"} {
			for _, k := range keywords[t] {
				if _, ok := v[k]; ok && !slices.Contains(types, t) {
					types = append(types, t)
				}
			}
		}
		if types == nil {
			return s.anything(), nil
		}
		if i := slices.Index(types, "integer"); i >= 0 {
			return nil, fmt.Errorf("%s: a range without type; add \"type\": \"integer\"", at)
		}
	}
	var out alt
	for _, t := range types {
		e, err := s.typed(t, v, at)
		if err != nil {
			return nil, err
		}
		out = append(out, e)
	}
	return out, nil
}

func known(k string) bool {
	if slices.Contains(annotations, k) || strings.HasPrefix(k, "x-") || slices.Contains([]string{"type", "enum", "const", "$ref", "anyOf", "oneOf", "allOf"}, k) {
		return true
	}
	for _, group := range keywords {
		if slices.Contains(group, k) {
			return true
		}
	}
	return false
}

func schemaTypes(v map[string]any, at string) ([]string, error) {
	raw, ok := v["type"]
	if !ok {
		return nil, nil
	}
	list, ok := raw.([]any)
	if !ok {
		list = []any{raw}
	}
	var types []string
	for _, t := range list {
		n, ok := t.(string)
		if !ok || !slices.Contains(typeNames, n) {
			return nil, fmt.Errorf("%s: type %v is none of %v", at, t, typeNames)
		}
		types = append(types, n)
	}
	if len(types) == 0 {
		return nil, fmt.Errorf("%s: type is an empty list", at)
	}
	return types, nil
}

func constants(v map[string]any) ([]any, bool) {
	c, isConst := v["const"]
	list, isEnum := v["enum"].([]any)
	switch {
	case isConst && isEnum:
		return slices.DeleteFunc(slices.Clone(list), func(e any) bool { return !sameJSON(e, c) }), true
	case isConst:
		return []any{c}, true
	}
	return list, isEnum
}

func sameJSON(a, b any) bool {
	x, _ := json.Marshal(a)
	y, _ := json.Marshal(b)
	return bytes.Equal(x, y)
}

func isType(v any, t string) bool {
	switch v := v.(type) {
	case nil:
		return t == "null"
	case bool:
		return t == "boolean"
	case string:
		return t == "string"
	case json.Number:
		f, err := v.Float64()
		return t == "number" || t == "integer" && err == nil && f == math.Trunc(f)
	case []any:
		return t == "array"
	case map[string]any:
		return t == "object"
	}
	return false
}
