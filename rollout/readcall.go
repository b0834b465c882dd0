package rollout

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/skein-rl/skein/agent/tool"
)

// callKeys are the keys under which a JSON call has its name and arguments.
type callKeys struct{ names, args []string }

var (
	usualKeys = callKeys{[]string{"name"}, []string{"arguments", "parameters"}}
	// anyKeys are all that models are known to write.
	anyKeys = callKeys{[]string{"name", "tool", "tool_name", "function_name", "tool_names"}, []string{"arguments", "parameters", "args", "input"}}
)

// malformed is a call that could not be read.
func malformed(why string) []Part { return []Part{{Err: errors.New(why)}} }

// malformedNamed is one whose name is known.
func malformedNamed(name, why string) Part {
	return Part{Call: tool.Call{Name: name}, Err: errors.New(why)}
}

// quoteJSON is a text as JSON, with no more escapes than JSON needs.
func quoteJSON(s string) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(s) // a text always encodes
	return strings.TrimSuffix(b.String(), "\n")
}

// callOf is a call from its name and the text of its arguments.
func callOf(name, args string) Part {
	if name == "" {
		return Part{Err: errors.New("name is missing")}
	}
	if args = strings.TrimSpace(args); args == "" {
		args = "{}"
	}
	if !json.Valid([]byte(args)) {
		return malformedNamed(name, "arguments are not JSON")
	}
	return callWith(name, json.RawMessage(args))
}

// calls turns a decoded body into one call, or several when it is a list.
func (k callKeys) calls(value json.RawMessage) []Part {
	if value[0] != '[' {
		return []Part{k.call(value)}
	}
	var list []json.RawMessage
	if err := json.Unmarshal(value, &list); err != nil || len(list) == 0 {
		return malformed("an empty list of calls")
	}
	parts := make([]Part, len(list))
	for i, v := range list {
		parts[i] = k.call(v)
	}
	return parts
}

func (k callKeys) call(value json.RawMessage) Part {
	if value[0] != '{' {
		return Part{Err: errors.New("a call is a JSON object")}
	}
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(value, &raw); err != nil {
		return Part{Err: err}
	}
	var name string
	for _, key := range k.names {
		v, ok := raw[key]
		if !ok {
			continue
		}
		if name != "" {
			return malformedNamed(name, "the name is given twice")
		}
		var one []string // "tool_names" is a list
		if json.Unmarshal(v, &one) == nil && len(one) == 1 {
			name = one[0]
		} else if json.Unmarshal(v, &name) != nil {
			return Part{Err: fmt.Errorf("%s is not a text", key)}
		}
	}
	if name == "" {
		return Part{Err: errors.New("name is missing")}
	}
	var args json.RawMessage
	found := ""
	for _, key := range k.args {
		if v, ok := raw[key]; ok {
			if found != "" {
				return malformedNamed(name, "both "+found+" and "+key+" are given")
			}
			found, args = key, v
		}
	}
	if found == "" {
		args = json.RawMessage("{}")
	}
	return callWith(name, args)
}

// callWith is a call with the JSON of its arguments: an object, or a text that
// holds one.
func callWith(name string, args json.RawMessage) Part {
	if args[0] == '"' {
		var inner string
		if json.Unmarshal(args, &inner) == nil {
			args = json.RawMessage(strings.TrimSpace(inner))
		}
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, args); err != nil {
		return Part{Call: tool.Call{Name: name}, Err: fmt.Errorf("arguments: %w", err)}
	}
	if compact.Bytes()[0] != '{' {
		return malformedNamed(name, "arguments must be an object")
	}
	return Part{Call: tool.Call{Name: name, Arguments: compact.Bytes()}}
}
