package grammar

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
)

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
