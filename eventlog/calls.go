package eventlog

import "fmt"

// Call is one tool call of a ToolCall event. An event whose action is a wrapper
// ({"tool_calls": [...]}) holds several.
type Call struct {
	// ID is the call's own id in a wrapper, else the event's CallID, followed by
	// "/<position>" where a wrapper holds several calls without ids.
	ID string
	// Name is the tool's name; "" when the action names none.
	Name string
	// Arguments is the decoded JSON value; an empty object when absent or
	// undecodable.
	Arguments any
	// Malformed is the argument string that did not decode; "" for the rest.
	Malformed string
}

// Calls unwraps a ToolCall event: the calls of an OpenAI-shaped wrapper, the
// one call of a bare action, or the stage of a pipeline step as a call without
// arguments. Entries without a name are dropped; when none survives, or the
// action is not an object, the result is one call without a name. It is nil for
// other kinds.
func (e *Event) Calls() []Call {
	if e.Kind != ToolCall {
		return nil
	}
	if stage, ok := e.Payload["stage"].(string); ok && e.Payload["action"] == nil {
		return []Call{{ID: e.CallID, Name: stage, Arguments: map[string]any{}}}
	}
	action, _ := asObject(e.Payload["action"])
	entries, wrapped := asList(action["tool_calls"])
	if !wrapped {
		entries = []any{action}
	}
	var calls []Call
	for i, entry := range entries {
		m, ok := asObject(entry)
		if !ok {
			continue
		}
		c := bareCall(m)
		if c.Name == "" {
			continue
		}
		if id, _ := m["id"].(string); wrapped && id != "" {
			c.ID = id
		} else if len(entries) == 1 {
			c.ID = e.CallID
		} else {
			c.ID = fmt.Sprintf("%s/%d", e.CallID, i)
		}
		calls = append(calls, c)
	}
	if calls == nil {
		args := action["arguments"]
		if args == nil {
			args = map[string]any{}
		}
		return []Call{{ID: e.CallID, Arguments: args}}
	}
	return calls
}

// bareCall reads {name, arguments} or {function: {name, arguments}}.
func bareCall(m map[string]any) Call {
	if f, ok := asObject(m["function"]); ok {
		m = f
	}
	c := Call{Arguments: m["arguments"]}
	c.Name, _ = m["name"].(string)
	if s, ok := c.Arguments.(string); ok {
		v, err := parseJSON([]byte(s))
		if c.Arguments = v; err != nil {
			c.Malformed = s
		}
	}
	if c.Arguments == nil {
		c.Arguments = map[string]any{}
	}
	return c
}

func asObject(v any) (map[string]any, bool) {
	m, ok := v.(map[string]any)
	return m, ok
}

func asList(v any) ([]any, bool) {
	switch v := v.(type) {
	case []any:
		return v, true
	case []map[string]any:
		list := make([]any, len(v))
		for i := range v {
			list[i] = v[i]
		}
		return list, true
	}
	return nil, false
}

// callRef points at one call: Events[event].Calls()[call].
type callRef struct {
	event, call int
	name        string
}

// pairResults finds the call that each ToolResult answers: the nearest one above
// it with its CallID. The key is an index into Events; results without a call
// are missing. One walk over the tree, whatever its shape.
func (l *Log) pairResults() map[int]callRef {
	n := len(l.Events)
	// Children of s in order: first[s], next[first[s]], ...
	first, next := make([]int, n+1), make([]int, n+1)
	for s := n; s > 0; s-- {
		p := l.up(uint32(s))
		next[s], first[p] = first[p], s
	}
	open := map[string][]callRef{}
	pairs := map[int]callRef{}
	type frame struct {
		seq int
		ids []string
	}
	var stack []frame
	for s := first[0]; s > 0 || len(stack) > 0; {
		if s == 0 { // leave
			top := stack[len(stack)-1]
			stack = stack[:len(stack)-1]
			for _, id := range top.ids {
				open[id] = open[id][:len(open[id])-1]
			}
			s = next[top.seq]
			continue
		}
		f := frame{seq: s}
		e := &l.Events[s-1]
		switch {
		case e.Partial:
		case e.Kind == ToolCall:
			for i, c := range e.Calls() {
				open[c.ID] = append(open[c.ID], callRef{s - 1, i, c.Name})
				f.ids = append(f.ids, c.ID)
			}
		case e.Kind == ToolResult:
			if refs := open[e.CallID]; len(refs) > 0 {
				pairs[s-1] = refs[len(refs)-1]
			}
		}
		stack = append(stack, f)
		s = first[s]
	}
	return pairs
}
