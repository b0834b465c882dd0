package model

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ardanlabs/jinja"
)

// maxRange is the limit of range() in Jinja's sandbox, which transformers uses.
const maxRange = 100000

// addBuiltins puts our versions of what a template may call into vars.
func addBuiltins(vars map[string]jinja.Value, now func() time.Time) {
	add := func(name string, fn func([]jinja.Value, map[string]jinja.Value) (jinja.Value, error)) {
		vars[name] = jinja.NewCallable(name, fn)
	}
	add("skein_tojson", toJSON)
	add("skein_out", func(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
		if len(args) != 1 {
			return jinja.Undefined(), errors.New("{{ }} takes one value")
		}
		return jinja.NewString(pyStr(args[0])), nil
	})
	add("skein_string", func(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
		if len(args) != 1 {
			return jinja.Undefined(), errors.New("string takes no arguments")
		}
		return jinja.NewString(pyStr(args[0])), nil
	})
	add("strftime_now", func(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
		if len(args) != 1 || !args[0].IsString() {
			return jinja.Undefined(), errors.New("strftime_now takes one format string")
		}
		s, err := strftime(now(), args[0].AsString())
		return jinja.NewString(s), err
	})
	add("range", func(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
		n := []int64{0, 0, 1}
		for i, a := range args {
			if !a.IsInt() || i > 2 {
				return jinja.Undefined(), errors.New("range takes one to three integers")
			}
			n[i] = a.AsInt()
		}
		if len(args) == 1 {
			n[0], n[1] = 0, n[0]
		}
		if len(args) == 0 || n[2] == 0 {
			return jinja.Undefined(), errors.New("range takes one to three integers, the step not zero")
		}
		var items []jinja.Value
		for i := n[0]; n[2] > 0 && i < n[1] || n[2] < 0 && i > n[1]; i += n[2] {
			if len(items) == maxRange {
				return jinja.Undefined(), fmt.Errorf("range is longer than %d", maxRange)
			}
			items = append(items, jinja.NewInt(i))
		}
		return jinja.NewList(items), nil
	})
}

// jsonValue decodes JSON keeping the order of keys. No text is an empty object.
func jsonValue(raw json.RawMessage) (jinja.Value, error) {
	if len(bytes.TrimSpace(raw)) == 0 {
		return jinja.NewDict(), nil
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	v, err := decodeValue(d, 0)
	if err != nil {
		return v, fmt.Errorf("not JSON: %w", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return v, errors.New("not JSON: text after the value")
	}
	return v, nil
}

const maxJSONDepth = 200

func decodeValue(d *json.Decoder, depth int) (jinja.Value, error) {
	tok, err := d.Token()
	if err != nil {
		return jinja.Undefined(), err
	}
	if depth > maxJSONDepth {
		return jinja.Undefined(), fmt.Errorf("nested deeper than %d", maxJSONDepth)
	}
	switch t := tok.(type) {
	case nil:
		return jinja.None(), nil
	case bool:
		return jinja.NewBool(t), nil
	case string:
		return jinja.NewString(t), nil
	case json.Number:
		if !strings.ContainsAny(string(t), ".eE") {
			n, err := t.Int64()
			if err != nil {
				return jinja.Undefined(), fmt.Errorf("integer %s does not fit 64 bits", t)
			}
			return jinja.NewInt(n), nil
		}
		f, err := t.Float64()
		return jinja.NewFloat(f), err
	case json.Delim:
		if t == '[' {
			var items []jinja.Value
			for d.More() {
				v, err := decodeValue(d, depth+1)
				if err != nil {
					return v, err
				}
				items = append(items, v)
			}
			_, err := d.Token()
			return jinja.NewList(items), err
		}
		v := jinja.NewDict()
		for d.More() {
			key, err := d.Token()
			if err != nil {
				return v, err
			}
			val, err := decodeValue(d, depth+1)
			if err != nil {
				return v, err
			}
			v.AsDict().Set(key.(string), val)
		}
		_, err := d.Token()
		return v, err
	}
	return jinja.Undefined(), fmt.Errorf("unexpected %v", tok)
}

// toJSON is transformers' tojson: json.dumps with ensure_ascii off.
func toJSON(args []jinja.Value, kw map[string]jinja.Value) (jinja.Value, error) {
	if len(args) == 0 {
		return jinja.Undefined(), errors.New("tojson needs a value")
	}
	names := []string{"ensure_ascii", "indent", "separators", "sort_keys"}
	opt := map[string]jinja.Value{}
	for i, a := range args[1:] {
		if i >= len(names) {
			return jinja.Undefined(), errors.New("tojson: too many arguments")
		}
		opt[names[i]] = a
	}
	for k, v := range kw {
		if !slices.Contains(names, k) {
			return jinja.Undefined(), fmt.Errorf("tojson: unknown argument %q", k)
		}
		opt[k] = v
	}
	j := jsonWriter{item: ", ", key: ": ", indent: -1, ascii: opt["ensure_ascii"].IsTruthy(), sorted: opt["sort_keys"].IsTruthy()}
	if v, ok := opt["indent"]; ok && v.IsInt() {
		j.indent, j.item = int(v.AsInt()), ","
	}
	if v, ok := opt["separators"]; ok && !v.IsNone() {
		if !v.IsList() || v.AsList().Len() != 2 || !v.AsList().Get(0).IsString() || !v.AsList().Get(1).IsString() {
			return jinja.Undefined(), errors.New("tojson: separators must be two strings")
		}
		j.item, j.key = v.AsList().Get(0).AsString(), v.AsList().Get(1).AsString()
	}
	if err := j.write(args[0], 0); err != nil {
		return jinja.Undefined(), err
	}
	return jinja.NewString(j.out.String()), nil
}

// jsonWriter writes as Python's json.dumps.
type jsonWriter struct {
	out       strings.Builder
	item, key string
	indent    int // -1 = on one line
	ascii     bool
	sorted    bool
}

func (j *jsonWriter) write(v jinja.Value, depth int) error {
	switch {
	case v.IsNone():
		j.out.WriteString("null")
	case v.IsBool():
		j.out.WriteString(strconv.FormatBool(v.AsBool()))
	case v.IsInt():
		j.out.WriteString(strconv.FormatInt(v.AsInt(), 10))
	case v.IsFloat():
		j.out.WriteString(pyFloat(v.AsFloat(), true))
	case v.IsString():
		j.str(v.AsString())
	case v.IsList():
		items := v.AsList().Items
		return j.group('[', ']', len(items), depth, func(i int) error { return j.write(items[i], depth+1) })
	case v.IsDict():
		d := v.AsDict()
		keys := d.OrderedKeys()
		if j.sorted {
			slices.Sort(keys)
		}
		return j.group('{', '}', len(keys), depth, func(i int) error {
			j.str(keys[i])
			j.out.WriteString(j.key)
			return j.write(d.Data[keys[i]], depth+1)
		})
	case v.IsUndefined():
		return errors.New("tojson: the value is undefined")
	default:
		return errors.New("tojson: a function has no JSON form")
	}
	return nil
}

func (j *jsonWriter) group(open, end byte, n, depth int, one func(int) error) error {
	j.out.WriteByte(open)
	for i := range n {
		if i > 0 {
			j.out.WriteString(j.item)
		}
		j.newline(depth + 1)
		if err := one(i); err != nil {
			return err
		}
	}
	if n > 0 {
		j.newline(depth)
	}
	j.out.WriteByte(end)
	return nil
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
			fmt.Fprintf(&j.out, `\u%04x`, r)
		case j.ascii && r > 0xffff:
			r -= 0x10000
			fmt.Fprintf(&j.out, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		default:
			j.out.WriteRune(r)
		}
	}
	j.out.WriteByte('"')
}
