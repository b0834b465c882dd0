package model

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Pattern gives some of an adapter's modules values of their own, as PEFT's
// rank_pattern and alpha_pattern do: a key is a regular expression for the end of
// a module's name, from a dot or the beginning on, so "q_proj",
// "layers.0.self_attn.q_proj" and "layers\.[0-3]\..*" all work. The first key
// that matches decides; order is kept through YAML and JSON, where a Pattern is a
// mapping. Expressions are Go's (RE2): those with lookaround or back references
// are refused.
type Pattern[T int | float64] []PatternValue[T]

// PatternValue is one key of a Pattern and its value.
type PatternValue[T int | float64] struct {
	Key   string
	Value T
}

// String is "key=value, ...".
func (p Pattern[T]) String() string {
	var parts []string
	for _, e := range p {
		parts = append(parts, fmt.Sprintf("%s=%v", e.Key, e.Value))
	}
	return strings.Join(parts, ", ")
}

// without leaves keys out.
func (p Pattern[T]) without(keys []string) (out Pattern[T]) {
	for _, e := range p {
		if !slices.Contains(keys, e.Key) {
			out = append(out, e)
		}
	}
	return out
}

// compiled is a Pattern ready to match.
type compiled[T int | float64] struct {
	p    Pattern[T]
	keys []*regexp.Regexp
	used []bool // it matched something so far
}

// compile reports every key that is no expression or given twice, and every
// value that check refuses.
func (p Pattern[T]) compile(check func(T) error) (*compiled[T], error) {
	c := &compiled[T]{p: p, used: make([]bool, len(p))}
	var errs []error
	seen := map[string]bool{}
	for _, e := range p {
		re, err := regexp.Compile(`\A(?:.*\.)?(?:` + e.Key + `)\z`)
		switch {
		case e.Key == "":
			err = errors.New("the key is empty: name a module such as q_proj")
		case seen[e.Key]:
			err = errors.New("the key is given twice: keep one")
		case err != nil:
			err = fmt.Errorf("not a regular expression for module names: %w", err)
		default:
			err = check(e.Value)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%q: %w", e.Key, err))
		}
		seen[e.Key] = true
		c.keys = append(c.keys, re)
	}
	return c, errors.Join(errs...)
}

// of is a module's value; otherwise when no key matches.
func (c *compiled[T]) of(module string, otherwise T) T {
	found := -1
	for i, re := range c.keys {
		if re.MatchString(module) {
			c.used[i] = true
			if found < 0 {
				found = i
			}
		}
	}
	if found < 0 {
		return otherwise
	}
	return c.p[found].Value
}

// unused are the keys that matched no module asked for.
func (c *compiled[T]) unused() (keys []string) {
	for i, e := range c.p {
		if !c.used[i] {
			keys = append(keys, e.Key)
		}
	}
	return keys
}

// UnmarshalYAML reads a mapping.
func (p *Pattern[T]) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		*p = nil
		return nil
	}
	if n.Kind != yaml.MappingNode {
		return fmt.Errorf("line %d: not a mapping of module names to numbers", n.Line)
	}
	var out Pattern[T]
	for i := 0; i+1 < len(n.Content); i += 2 {
		e := PatternValue[T]{Key: n.Content[i].Value}
		var v float64
		if err := n.Content[i+1].Decode(&v); err != nil {
			return fmt.Errorf("%s: %w", e.Key, err)
		}
		if e.Value = T(v); float64(e.Value) != v { // the library would cut it
			return fmt.Errorf("%s: %v is not a whole number", e.Key, v)
		}
		out = append(out, e)
	}
	*p = out
	return nil
}

// MarshalYAML writes a mapping.
func (p Pattern[T]) MarshalYAML() (any, error) {
	n := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
	for _, e := range p {
		var k, v yaml.Node
		if err := errors.Join(k.Encode(e.Key), v.Encode(e.Value)); err != nil {
			return nil, err
		}
		n.Content = append(n.Content, &k, &v)
	}
	return n, nil
}

// UnmarshalJSON reads an object.
func (p *Pattern[T]) UnmarshalJSON(data []byte) error {
	if isNull(data) {
		*p = nil
		return nil
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return errors.Join(errors.New("not an object of module names and numbers"), err)
	}
	var out Pattern[T]
	for dec.More() {
		k, err := dec.Token()
		if err != nil {
			return err
		}
		e := PatternValue[T]{Key: k.(string)} // a key: More was true inside an object
		if err := dec.Decode(&e.Value); err != nil {
			return fmt.Errorf("%q: %w", e.Key, err)
		}
		out = append(out, e)
	}
	*p = out
	return nil
}

// MarshalJSON writes an object.
func (p Pattern[T]) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, e := range p {
		if i > 0 {
			b.WriteByte(',')
		}
		k, err := json.Marshal(e.Key)
		if err != nil {
			return nil, err
		}
		v, err := json.Marshal(e.Value)
		if err != nil {
			return nil, err
		}
		b.Write(k)
		b.WriteByte(':')
		b.Write(v)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}
