package grammar

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

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
