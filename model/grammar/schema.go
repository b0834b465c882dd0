package grammar

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
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

func (s *schemaCompiler) typed(t string, v map[string]any, at string) (expr, error) {
	switch t {
	case "null":
		return literal("null"), nil
	case "boolean":
		return alt{literal("true"), literal("false")}, nil
	case "number":
		for _, k := range keywords["integer"] {
			if _, ok := v[k]; ok {
				return nil, fmt.Errorf("%s: %s of a number is not supported, only of an integer", at, k)
			}
		}
		return s.number(), nil
	case "integer":
		return s.integers(v, at)
	case "string":
		return s.text(v, at)
	case "array":
		return s.array(v, at)
	}
	return s.properties(v, at)
}

// count reads a keyword that is a whole number from 0.
func count(v map[string]any, k string, otherwise int, at string) (int, error) {
	raw, ok := v[k]
	if !ok {
		return otherwise, nil
	}
	n, ok := raw.(json.Number)
	if ok {
		if f, err := n.Float64(); err == nil && f >= 0 && f == math.Trunc(f) && f < 1<<31 {
			return int(f), nil
		}
	}
	return 0, fmt.Errorf("%s: %s is %v; give a whole number from 0 to 2147483647", at, k, raw)
}

func bounds(v map[string]any, low, high, at string) (lo, hi int, err error) {
	if lo, err = count(v, low, 0, at); err != nil {
		return
	}
	if hi, err = count(v, high, unlimited, at); err != nil {
		return
	}
	if hi != unlimited && lo > hi {
		err = fmt.Errorf("%s: %s is %d and %s is %d; nothing fits both", at, low, lo, high, hi)
	}
	return
}

func (s *schemaCompiler) text(v map[string]any, at string) (expr, error) {
	lo, hi, err := bounds(v, "minLength", "maxLength", at)
	if err != nil {
		return nil, err
	}
	p, ok := v["pattern"]
	if !ok {
		return s.str(lo, hi), nil
	}
	if _, ok := p.(string); !ok {
		return nil, fmt.Errorf("%s: pattern is not a string", at)
	}
	if v["minLength"] != nil || v["maxLength"] != nil {
		return nil, fmt.Errorf("%s: pattern beside minLength or maxLength is not supported; put the length into the pattern", at)
	}
	e, err := s.pattern(p.(string))
	if err != nil {
		return nil, fmt.Errorf("%s: pattern %q: %w", at, p, err)
	}
	return seq{literal(`"`), e, literal(`"`)}, nil
}

func (s *schemaCompiler) array(v map[string]any, at string) (expr, error) {
	lo, hi, err := bounds(v, "minItems", "maxItems", at)
	if err != nil {
		return nil, err
	}
	var prefix []expr
	if raw, ok := v["prefixItems"]; ok {
		list, ok := raw.([]any)
		if !ok {
			return nil, fmt.Errorf("%s: prefixItems is not a list", at)
		}
		if len(list) > maxBranches/4 {
			return nil, fmt.Errorf("%s: prefixItems of %d schemas; at most %d are supported", at, len(list), maxBranches/4)
		}
		for i, p := range list {
			e, err := s.compileAt(p, at+"/prefixItems/"+strconv.Itoa(i))
			if err != nil {
				return nil, err
			}
			prefix = append(prefix, e)
		}
	}
	var item expr
	switch raw, ok := v["items"]; {
	case !ok:
		item = s.anything()
	case raw != false:
		if item, err = s.compileAt(raw, at+"/items"); err != nil {
			return nil, err
		}
	}
	e := s.list(prefix, item, lo, hi)
	if len(e.(alt)) == 0 {
		return nil, fmt.Errorf("%s: no list has the items that minItems asks for", at)
	}
	return e, nil
}

// maxBranches is the most branches of anyOf or oneOf.
const maxBranches = 1024

const maxProperties = 63 // an object's properties are a bit each; the last bit is further ones

func (s *schemaCompiler) properties(v map[string]any, at string) (expr, error) {
	var declared map[string]any
	if raw, ok := v["properties"]; ok {
		if declared, ok = raw.(map[string]any); !ok {
			return nil, fmt.Errorf("%s: properties is not an object", at)
		}
	}
	required := map[string]bool{}
	if raw, ok := v["required"]; ok {
		list, ok := raw.([]any)
		if !ok {
			return nil, fmt.Errorf("%s: required is not a list", at)
		}
		for _, r := range list {
			n, ok := r.(string)
			if !ok {
				return nil, fmt.Errorf("%s: required holds %v, which is no string", at, r)
			}
			required[n] = true
		}
	}
	further, ok := v["additionalProperties"]
	if !ok {
		further = !s.opts.Closed
	}
	var extra expr
	if further != false {
		var err error
		if extra, err = s.compileAt(further, at+"/additionalProperties"); err != nil {
			return nil, err
		}
	}
	names := sortedKeys(declared)
	for n := range required {
		if _, ok := declared[n]; !ok {
			if extra == nil {
				return nil, fmt.Errorf("%s: %q is required, and neither properties nor additionalProperties allows it", at, n)
			}
			names = append(names, n)
		}
	}
	slices.Sort(names)
	if len(names) > maxProperties {
		return nil, fmt.Errorf("%s: %d properties; at most %d are supported", at, len(names), maxProperties)
	}
	var props []property
	for _, n := range names {
		value := extra
		if p, ok := declared[n]; ok {
			if p == false {
				continue // it must not be there
			}
			var err error
			if value, err = s.compileAt(p, at+"/properties/"+n); err != nil {
				return nil, err
			}
		}
		props = append(props, property{s.entry(s.key(n), value), required[n]})
	}
	if extra != nil {
		key := s.add(at + " other key")
		s.bodies[key] = s.otherKey(names)
		extra = s.entry(key, extra)
	}
	return s.jsonRules.object(props, extra), nil
}

func (s *schemaCompiler) branches(k string, raw any, at string) (expr, error) {
	list, ok := raw.([]any)
	if !ok || len(list) == 0 {
		return nil, fmt.Errorf("%s: %s is not a list with entries", at, k)
	}
	if len(list) > maxBranches {
		return nil, fmt.Errorf("%s: %s of %d schemas; at most %d are supported", at, k, len(list), maxBranches)
	}
	if k == "allOf" && len(list) > 1 {
		return nil, fmt.Errorf("%s: allOf of %d schemas is not supported; merge them into one", at, len(list))
	}
	var out alt
	for i, b := range list {
		e, err := s.compileAt(b, fmt.Sprintf("%s/%s/%d", at, k, i))
		if err != nil {
			return nil, err
		}
		out = append(out, e)
		for n := 0; k == "oneOf" && n < i; n++ {
			if !s.exclude(list[n], b, 0) {
				return nil, fmt.Errorf("%s: oneOf: branches %d and %d could both match; use anyOf, or tell them apart by type or by a required property with different constants", at, n, i)
			}
		}
	}
	return out, nil
}

// exclude reports whether no value can match both schemas, as far as types and
// constants tell.
func (s *schemaCompiler) exclude(a, b any, depth int) bool {
	x, y := s.resolved(a), s.resolved(b)
	if x == nil || y == nil || depth > 4 {
		return false
	}
	xc, xIs := constants(x)
	yc, yIs := constants(y)
	xt, _ := schemaTypes(x, "")
	yt, _ := schemaTypes(y, "")
	if x["nullable"] == true || y["nullable"] == true {
		return false
	}
	apart := func(cs []any, types []string) bool {
		return types != nil && !slices.ContainsFunc(cs, func(c any) bool {
			return slices.ContainsFunc(types, func(t string) bool { return isType(c, t) })
		})
	}
	switch {
	case xIs && yIs:
		return !slices.ContainsFunc(xc, func(c any) bool { return slices.ContainsFunc(yc, func(d any) bool { return sameValue(c, d) }) })
	case xIs:
		return apart(xc, yt)
	case yIs:
		return apart(yc, xt)
	case xt == nil || yt == nil:
		return false
	}
	for _, t := range xt {
		for _, u := range yt {
			if t == u && t == "object" {
				if !s.toldApart(x, y, depth) {
					return false
				}
			} else if t == u || t == "integer" && u == "number" || t == "number" && u == "integer" {
				return false
			}
		}
	}
	return true
}

// toldApart reports whether a property that both objects require excludes them.
func (s *schemaCompiler) toldApart(x, y map[string]any, depth int) bool {
	xp, _ := x["properties"].(map[string]any)
	yp, _ := y["properties"].(map[string]any)
	xr, _ := x["required"].([]any)
	yr, _ := y["required"].([]any)
	for n := range xp {
		if yp[n] != nil && slices.Contains(xr, any(n)) && slices.Contains(yr, any(n)) && s.exclude(xp[n], yp[n], depth+1) {
			return true
		}
	}
	return false
}

// sameValue compares constants as JSON Schema does: 1 equals 1.0.
func sameValue(a, b any) bool {
	x, xn := a.(json.Number)
	y, yn := b.(json.Number)
	if xn && yn {
		f, _ := x.Float64()
		g, _ := y.Float64()
		return f == g
	}
	_, xa := a.([]any)
	_, xo := a.(map[string]any)
	return sameJSON(a, b) || xa || xo // containers: not looked into
}

// resolved follows references and single allOf.
func (s *schemaCompiler) resolved(v any) map[string]any {
	for range 16 {
		m, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		if r, ok := m["$ref"].(string); ok {
			v, _ = s.find(r)
			continue
		}
		if list, ok := m["allOf"].([]any); ok && len(list) == 1 {
			v = list[0]
			continue
		}
		if m["anyOf"] != nil || m["oneOf"] != nil || m["allOf"] != nil {
			return nil
		}
		return m
	}
	return nil
}

func (s *schemaCompiler) ref(raw any, at string) (expr, error) {
	name, ok := raw.(string)
	if !ok {
		return nil, fmt.Errorf("%s: $ref is not a string", at)
	}
	if r, ok := s.refs[name]; ok {
		return r, nil
	}
	target, err := s.find(name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", at, err)
	}
	r := s.add(name)
	s.refs[name] = r
	e, err := s.compileAt(target, name)
	if err != nil {
		return nil, err
	}
	s.bodies[r] = e
	return r, nil
}

var unescapePointer = strings.NewReplacer("~1", "/", "~0", "~")

// find looks up a JSON pointer in the document.
func (s *schemaCompiler) find(name string) (any, error) {
	pointer, ok := strings.CutPrefix(name, "#")
	if !ok || pointer != "" && pointer[0] != '/' {
		return nil, fmt.Errorf("$ref %q: only pointers into the document, such as #/$defs/x, are followed", name)
	}
	v := s.doc
	if pointer == "" {
		return v, nil
	}
	for _, part := range strings.Split(pointer[1:], "/") {
		part = unescapePointer.Replace(part)
		switch c := v.(type) {
		case map[string]any:
			v, ok = c[part]
		case []any:
			i, err := strconv.Atoi(part)
			if ok = err == nil && i >= 0 && i < len(c); ok {
				v = c[i]
			}
		default:
			ok = false
		}
		if !ok {
			return nil, fmt.Errorf("$ref %q: there is no %q", name, part)
		}
	}
	return v, nil
}

func sortedKeys(m map[string]any) []string { return slices.Sorted(maps.Keys(m)) }
