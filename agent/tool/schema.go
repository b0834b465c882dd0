package tool

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
	"strings"
	"unicode/utf8"
)

// Schema is the part of JSON Schema that tool parameters use: type, properties,
// required, additionalProperties (boolean), items, enum, minimum, maximum,
// minLength, maxLength, minItems, maxItems. Annotations (description, title,
// default, examples) are ignored; any other keyword is refused when the schema
// is parsed, so that no constraint is silently skipped.
//
// Unlike JSON Schema, additionalProperties defaults to false: an argument the
// tool does not know is a mistake worth telling the model.
type Schema struct {
	types      []string // empty = any
	properties map[string]*Schema
	names      []string // property names, sorted, for messages
	required   []string
	open       bool // additionalProperties: true
	items      *Schema
	enum       []any
	min, max   *float64
	minLen     *int
	maxLen     *int
	minItems   *int
	maxItems   *int
}

type rawSchema struct {
	Type        json.RawMessage            `json:"type"`
	Properties  map[string]json.RawMessage `json:"properties"`
	Required    []string                   `json:"required"`
	Additional  *bool                      `json:"additionalProperties"`
	Items       json.RawMessage            `json:"items"`
	Enum        []any                      `json:"enum"`
	Minimum     *float64                   `json:"minimum"`
	Maximum     *float64                   `json:"maximum"`
	MinLength   *int                       `json:"minLength"`
	MaxLength   *int                       `json:"maxLength"`
	MinItems    *int                       `json:"minItems"`
	MaxItems    *int                       `json:"maxItems"`
	Description json.RawMessage            `json:"description"`
	Title       json.RawMessage            `json:"title"`
	Default     json.RawMessage            `json:"default"`
	Examples    json.RawMessage            `json:"examples"`
}

var schemaTypes = []string{"object", "array", "string", "number", "integer", "boolean", "null"}

const maxSchemaDepth = 32

// ParseSchema reads the schema of a tool's parameters: its type must be
// "object". Empty input stands for an object without properties.
func ParseSchema(data json.RawMessage) (*Schema, error) {
	if len(bytes.TrimSpace(data)) == 0 {
		return &Schema{types: []string{"object"}}, nil
	}
	s, err := parseSchema(data, "schema", 0)
	if err != nil {
		return nil, err
	}
	if !slices.Equal(s.types, []string{"object"}) {
		return nil, fmt.Errorf("schema: type is %v; tool parameters must be \"object\"", s.types)
	}
	return s, nil
}

func parseSchema(data json.RawMessage, at string, depth int) (*Schema, error) {
	if depth > maxSchemaDepth {
		return nil, fmt.Errorf("%s: nested deeper than %d", at, maxSchemaDepth)
	}
	var raw rawSchema
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	dec.UseNumber()
	if err := dec.Decode(&raw); err != nil {
		return nil, fmt.Errorf("%s: %w", at, err)
	}
	s := &Schema{
		required: raw.Required, enum: raw.Enum, min: raw.Minimum, max: raw.Maximum,
		minLen: raw.MinLength, maxLen: raw.MaxLength, minItems: raw.MinItems, maxItems: raw.MaxItems,
		open: raw.Additional != nil && *raw.Additional,
	}
	if len(raw.Type) > 0 {
		var one string
		if json.Unmarshal(raw.Type, &one) == nil {
			s.types = []string{one}
		} else if err := json.Unmarshal(raw.Type, &s.types); err != nil {
			return nil, fmt.Errorf("%s: type %s is neither a name nor a list of names", at, raw.Type)
		}
		for _, t := range s.types {
			if !slices.Contains(schemaTypes, t) {
				return nil, fmt.Errorf("%s: unknown type %q; types: %s", at, t, strings.Join(schemaTypes, ", "))
			}
		}
	}
	if raw.Properties != nil {
		s.properties = make(map[string]*Schema, len(raw.Properties))
		for name, sub := range raw.Properties {
			p, err := parseSchema(sub, at+"."+name, depth+1)
			if err != nil {
				return nil, err
			}
			s.properties[name] = p
			s.names = append(s.names, name)
		}
		sort.Strings(s.names)
	}
	for _, r := range s.required {
		if _, ok := s.properties[r]; !ok {
			return nil, fmt.Errorf("%s: required %q is not among its properties", at, r)
		}
	}
	if len(raw.Items) > 0 {
		it, err := parseSchema(raw.Items, at+"[]", depth+1)
		if err != nil {
			return nil, err
		}
		s.items = it
	}
	return s, nil
}

// Validate checks arguments against the schema and reports every problem, one
// short line each, for the model to read.
func (s *Schema) Validate(args json.RawMessage) error {
	dec := json.NewDecoder(bytes.NewReader(args))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return fmt.Errorf("not JSON: %w", err)
	}
	if dec.More() {
		return errors.New("more than one JSON value")
	}
	if _, ok := v.(map[string]any); !ok {
		return fmt.Errorf("expected an object, got %s", kindOf(v))
	}
	return errors.Join(s.check(v, "")...)
}

func (s *Schema) check(v any, at string) []error {
	if len(s.types) > 0 && !slices.ContainsFunc(s.types, func(t string) bool { return hasType(v, t) }) {
		return []error{fmt.Errorf("%sexpected %s, got %s", label(at), strings.Join(s.types, " or "), kindOf(v))}
	}
	var errs []error
	add := func(format string, a ...any) { errs = append(errs, fmt.Errorf(label(at)+format, a...)) }
	if len(s.enum) > 0 && !slices.ContainsFunc(s.enum, func(e any) bool { return sameJSON(e, v) }) {
		list, _ := json.Marshal(s.enum)
		add("not one of %s", list)
	}
	switch x := v.(type) {
	case map[string]any:
		errs = append(errs, s.checkObject(x, at)...)
	case []any:
		if s.minItems != nil && len(x) < *s.minItems {
			add("fewer than %d items", *s.minItems)
		}
		if s.maxItems != nil && len(x) > *s.maxItems {
			add("more than %d items", *s.maxItems)
		}
		if s.items != nil {
			for i, item := range x {
				errs = append(errs, s.items.check(item, fmt.Sprintf("%s[%d]", at, i))...)
			}
		}
	case string:
		n := utf8.RuneCountInString(x)
		if s.minLen != nil && n < *s.minLen {
			add("shorter than %d characters", *s.minLen)
		}
		if s.maxLen != nil && n > *s.maxLen {
			add("longer than %d characters", *s.maxLen)
		}
	case json.Number:
		f, err := x.Float64()
		switch {
		case err != nil:
			add("number out of range")
		case s.min != nil && f < *s.min:
			add("less than %v", *s.min)
		case s.max != nil && f > *s.max:
			add("greater than %v", *s.max)
		}
	}
	return errs
}

func (s *Schema) checkObject(x map[string]any, at string) []error {
	var errs []error
	for _, r := range s.required {
		if _, ok := x[r]; !ok {
			errs = append(errs, fmt.Errorf("%smissing", label(join(at, r))))
		}
	}
	keys := make([]string, 0, len(x))
	for k := range x {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	for _, k := range keys {
		p, ok := s.properties[k]
		switch {
		case ok:
			errs = append(errs, p.check(x[k], join(at, k))...)
		case !s.open:
			errs = append(errs, fmt.Errorf("%sunknown; known: %s", label(join(at, k)), strings.Join(s.names, ", ")))
		}
	}
	return errs
}

func join(at, name string) string {
	if at == "" {
		return name
	}
	return at + "." + name
}

func label(at string) string {
	if at == "" {
		return ""
	}
	return at + ": "
}

func kindOf(v any) string {
	switch x := v.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case string:
		return "string"
	case json.Number:
		if isInteger(x) {
			return "integer"
		}
		return "number"
	case []any:
		return "array"
	default:
		return "object"
	}
}

func hasType(v any, want string) bool {
	k := kindOf(v)
	return k == want || want == "number" && k == "integer"
}

// isInteger follows JSON Schema: 2.0 is an integer.
func isInteger(n json.Number) bool {
	f, err := n.Float64()
	return err == nil && f == math.Trunc(f)
}

func sameJSON(a, b any) bool {
	na, okA := a.(json.Number)
	nb, okB := b.(json.Number)
	if okA && okB {
		fa, errA := na.Float64()
		fb, errB := nb.Float64()
		return errA == nil && errB == nil && fa == fb
	}
	x, errA := json.Marshal(a)
	y, errB := json.Marshal(b)
	return errA == nil && errB == nil && bytes.Equal(x, y)
}
