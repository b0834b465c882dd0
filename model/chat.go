package model

import (
	"encoding/json"
	"fmt"

	"github.com/skein-rl/skein/model/internal/jinja"
)

// Message is one message of a conversation, in the fields that chat templates
// look for.
type Message struct {
	Role    string // "system", "user", "assistant" or "tool"
	Content string
	// Reasoning is given to the template as reasoning_content when not empty.
	Reasoning  string
	ToolCalls  []ToolCall // on assistant messages
	ToolCallID string     // on tool messages: the call answered
	Name       string     // on tool messages: the tool; else the speaker
}

// ToolCall is a call as the assistant made it. Arguments is a JSON object whose
// key order is kept.
type ToolCall struct {
	ID        string
	Name      string
	Arguments json.RawMessage
}

// ToolDef describes a tool to the template. Parameters is a JSON Schema object
// whose key order is kept. It converts to and from agent/tool.Spec.
type ToolDef struct {
	Name        string
	Description string
	Parameters  json.RawMessage
}

// value gives the message as transformers passes it: optional keys are absent,
// not empty, and reasoning goes by both names that templates know.
func (m Message) value() (any, error) {
	d := jinja.NewDict()
	if m.Reasoning != "" {
		d.Set("thinking", m.Reasoning)
	}
	d.Set("role", m.Role)
	d.Set("content", m.Content)
	if m.Reasoning != "" {
		d.Set("reasoning_content", m.Reasoning)
	}
	if len(m.ToolCalls) > 0 {
		calls := jinja.NewList()
		for i, c := range m.ToolCalls {
			args, err := jinja.DecodeJSON(c.Arguments)
			if err != nil {
				return nil, fmt.Errorf("tool call %d (%s): arguments: %w", i, c.Name, err)
			}
			call := jinja.NewDict()
			call.Set("type", "function")
			if c.ID != "" {
				call.Set("id", c.ID)
			}
			fn := jinja.NewDict()
			fn.Set("name", c.Name)
			fn.Set("arguments", args)
			call.Set("function", fn)
			calls.Items = append(calls.Items, call)
		}
		d.Set("tool_calls", calls)
	}
	if m.ToolCallID != "" {
		d.Set("tool_call_id", m.ToolCallID)
	}
	if m.Name != "" {
		d.Set("name", m.Name)
	}
	return d, nil
}

// value gives the tool in OpenAI's shape: {type, function: {name, description,
// parameters}}.
func (t ToolDef) value() (any, error) {
	params, err := jinja.DecodeJSON(t.Parameters)
	if err != nil {
		return nil, fmt.Errorf("tool %s: parameters: %w", t.Name, err)
	}
	fn := jinja.NewDict()
	fn.Set("name", t.Name)
	fn.Set("description", t.Description)
	fn.Set("parameters", params)
	v := jinja.NewDict()
	v.Set("type", "function")
	v.Set("function", fn)
	return v, nil
}
