package reward

import (
	"errors"
	"regexp"
	"sort"
	"strings"
)

var ignoredInStrings = regexp.MustCompile(`[ ,./\-_*^]`)

func standardise(s string) string {
	return strings.ReplaceAll(strings.ToLower(ignoredInStrings.ReplaceAllString(s, "")), "'", `"`)
}

func standardiseAny(v any) any {
	if s, ok := v.(string); ok {
		return standardise(s)
	}
	return v
}

func matchString(name string, value any, accepted []any) error {
	s := standardise(value.(string))
	for _, a := range accepted {
		if w, ok := a.(string); ok && standardise(w) == s {
			return nil
		}
	}
	return mismatch("value", "%s", name)
}

func standardiseList(v any) ([]any, bool) {
	items, ok := pySequence(v)
	if !ok {
		return nil, false
	}
	out := make([]any, len(items))
	for i := range items {
		out[i] = standardiseAny(items[i])
	}
	return out, true
}

func matchList(name string, value any, accepted []any) error {
	got, _ := standardiseList(value)
	matched := false
	for _, a := range accepted {
		want, ok := standardiseList(a) // "" reads as the empty list
		if !ok {
			return mismatch("reference", "%s: an accepted value is not a list", name)
		}
		matched = matched || pyEqual(got, want)
	}
	if !matched {
		return mismatch("value", "%s", name)
	}
	return nil
}

func matchDict(name string, value any, accepted []any) error {
	got, ok := value.(map[string]any)
	if !ok {
		return mismatch("type", "%s", name)
	}
	var last error = mismatch("value", "%s: no accepted object", name)
	for _, a := range accepted {
		if s, isString := a.(string); isString && s == "" {
			continue
		}
		want, ok := a.(map[string]any)
		if !ok {
			return mismatch("reference", "%s: an accepted value is not an object", name)
		}
		if last = matchOneDict(name, got, want); last == nil {
			return nil
		}
		var m *Mismatch
		if errors.As(last, &m) && m.Kind == "reference" {
			return last
		}
	}
	return last
}

func matchOneDict(name string, got, want map[string]any) error {
	for _, key := range sortedKeys(got) {
		if _, ok := want[key]; !ok {
			return mismatch("dict_key", "%s.%s is unexpected", name, key)
		}
		values, ok := standardiseList(want[key])
		if !ok {
			return mismatch("reference", "%s.%s: accepted values are not a list", name, key)
		}
		if !pyIn(standardiseAny(got[key]), values) {
			return mismatch("dict_value", "%s.%s", name, key)
		}
	}
	for key, values := range want {
		if _, given := got[key]; given {
			continue
		}
		optional := false
		switch v := values.(type) {
		case []any:
			optional = pyIn("", v)
		case string:
			optional = true // the empty string is part of every string
		case map[string]any:
			_, optional = v[""]
		default:
			return mismatch("reference", "%s.%s: accepted values are not a list", name, key)
		}
		if !optional {
			return mismatch("dict_key", "%s.%s is missing", name, key)
		}
	}
	return nil
}

func matchDictList(name string, value any, accepted []any) error {
	got, _ := value.([]any)
	var last error = mismatch("value", "%s: no accepted list", name)
	for _, a := range accepted {
		want, ok := pySequence(a)
		if !ok {
			return mismatch("reference", "%s: an accepted value is not a list", name)
		}
		if len(got) != len(want) {
			last = mismatch("dict_count", "%s has %d objects; need %d", name, len(got), len(want))
			continue
		}
		last = nil
		for i := range got {
			if last = matchDict(name, got[i], want[i:i+1]); last != nil {
				break
			}
		}
		if last == nil {
			return nil
		}
		var m *Mismatch
		if errors.As(last, &m) && (m.Kind == "reference" || m.Kind == "type") { // the reference raises
			return last
		}
	}
	return last
}

func sortedKeys(m map[string]any) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	sort.Strings(out)
	return out
}
