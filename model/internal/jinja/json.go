package jinja

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

const maxJSONDepth = 200

// DecodeJSON decodes JSON keeping the order of keys. No text is an empty
// object.
func DecodeJSON(raw []byte) (any, error) {
	if len(bytes.TrimSpace(raw)) == 0 {
		return NewDict(), nil
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	v, err := decodeValue(d, 0)
	if err != nil {
		return nil, fmt.Errorf("not JSON: %w", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("not JSON: text after the value")
	}
	return v, nil
}

func decodeValue(d *json.Decoder, depth int) (any, error) {
	tok, err := d.Token()
	if err != nil {
		return nil, err
	}
	if depth > maxJSONDepth {
		return nil, fmt.Errorf("nested deeper than %d", maxJSONDepth)
	}
	switch t := tok.(type) {
	case json.Number:
		if strings.ContainsAny(string(t), ".eE") {
			return t.Float64()
		}
		n, err := t.Int64()
		if err != nil {
			return nil, fmt.Errorf("integer %s does not fit 64 bits", t)
		}
		return n, nil
	case json.Delim:
		if t == '[' {
			list := NewList()
			for d.More() {
				v, err := decodeValue(d, depth+1)
				if err != nil {
					return nil, err
				}
				list.Items = append(list.Items, v)
			}
			_, err := d.Token()
			return list, err
		}
		dict := NewDict()
		for d.More() {
			key, err := d.Token()
			if err != nil {
				return nil, err
			}
			val, err := decodeValue(d, depth+1)
			if err != nil {
				return nil, err
			}
			dict.Set(key.(string), val)
		}
		_, err := d.Token()
		return dict, err
	}
	return tok, nil // nil, bool, string
}

// DumpJSON writes a value as Python's json.dumps does with ensure_ascii off.
func DumpJSON(v any) (out string, err error) {
	defer catch(&err)
	return dump(v, jsonWriter{item: ", ", key: ": ", indent: -1}), nil
}

func dump(v any, j jsonWriter) string {
	j.out = &strings.Builder{}
	j.write(v, 0)
	return j.out.String()
}

// jsonWriter writes as Python's json.dumps.
type jsonWriter struct {
	out       *strings.Builder
	item, key string
	indent    int // -1 = on one line
	ascii     bool
	sorted    bool
}

func (j *jsonWriter) write(v any, depth int) {
	switch v := v.(type) {
	case nil:
		j.out.WriteString("null")
	case bool:
		j.out.WriteString(strconv.FormatBool(v))
	case int64:
		j.out.WriteString(strconv.FormatInt(v, 10))
	case float64:
		j.out.WriteString(pyFloat(v, true))
	case string:
		j.str(v)
	case markup:
		j.str(string(v))
	case *List:
		if v.lazy {
			fail("Object of type generator is not JSON serializable")
		}
		j.group('[', ']', len(v.Items), depth, func(i int) { j.write(v.Items[i], depth+1) })
	case *Dict:
		keys := slices.Clone(v.keys)
		if j.sorted {
			slices.SortStableFunc(keys, func(a, b any) int { return strings.Compare(jsonKey(a), jsonKey(b)) })
		}
		j.group('{', '}', len(keys), depth, func(i int) {
			j.str(jsonKey(keys[i]))
			j.out.WriteString(j.key)
			e, _ := v.get(keys[i])
			j.write(e, depth+1)
		})
	default:
		fail("Object of type %s is not JSON serializable", typeName(v))
	}
}

func jsonKey(k any) string {
	switch k := k.(type) {
	case nil:
		return "null"
	case bool:
		return strconv.FormatBool(k)
	case float64:
		return pyFloat(k, true)
	case *List:
		fail("keys must be str, int, float, bool or None, not tuple")
	}
	return text(k)
}

func (j *jsonWriter) group(open, end byte, n, depth int, one func(int)) {
	j.out.WriteByte(open)
	for i := range n {
		if i > 0 {
			j.out.WriteString(j.item)
		}
		j.newline(depth + 1)
		one(i)
	}
	if n > 0 {
		j.newline(depth)
	}
	j.out.WriteByte(end)
}

func (j *jsonWriter) newline(depth int) {
	if j.indent >= 0 {
		j.out.WriteByte('\n')
		j.out.WriteString(strings.Repeat(" ", j.indent*depth))
	}
}

func (j *jsonWriter) str(s string) {
	j.out.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			j.out.WriteByte('\\')
			j.out.WriteRune(r)
		case r == '\n':
			j.out.WriteString(`\n`)
		case r == '\r':
			j.out.WriteString(`\r`)
		case r == '\t':
			j.out.WriteString(`\t`)
		case r == '\b':
			j.out.WriteString(`\b`)
		case r == '\f':
			j.out.WriteString(`\f`)
		case r < 0x20 || j.ascii && r > 0x7e && r <= 0xffff:
			fmt.Fprintf(j.out, `\u%04x`, r)
		case j.ascii && r > 0xffff:
			r -= 0x10000
			fmt.Fprintf(j.out, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		default:
			j.out.WriteRune(r)
		}
	}
	j.out.WriteByte('"')
}
