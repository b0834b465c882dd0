package model

import (
	"encoding/json"
	"fmt"

	"github.com/ardanlabs/jinja"
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
// not empty.
func (m Message) value() (jinja.Value, error) {
	v := jinja.NewDict()
	d := v.AsDict()
	d.Set("role", jinja.NewString(m.Role))
	d.Set("content", jinja.NewString(m.Content))
	if m.Reasoning != "" {
		d.Set("reasoning_content", jinja.NewString(m.Reasoning))
	}
	if len(m.ToolCalls) > 0 {
		calls := make([]jinja.Value, len(m.ToolCalls))
		for i, c := range m.ToolCalls {
			args, err := jsonValue(c.Arguments)
			if err != nil {
				return v, fmt.Errorf("tool call %d (%s): arguments: %w", i, c.Name, err)
			}
			fn := jinja.NewDict()
			fn.AsDict().Set("name", jinja.NewString(c.Name))
			fn.AsDict().Set("arguments", args)
			call := jinja.NewDict()
			call.AsDict().Set("type", jinja.NewString("function"))
			if c.ID != "" {
				call.AsDict().Set("id", jinja.NewString(c.ID))
			}
			call.AsDict().Set("function", fn)
			calls[i] = call
		}
		d.Set("tool_calls", jinja.NewList(calls))
	}
	if m.ToolCallID != "" {
		d.Set("tool_call_id", jinja.NewString(m.ToolCallID))
	}
	if m.Name != "" {
		d.Set("name", jinja.NewString(m.Name))
	}
	return v, nil
}

// value gives the tool in OpenAI's shape: {type, function: {name, description,
// parameters}}.
func (t ToolDef) value() (jinja.Value, error) {
	params, err := jsonValue(t.Parameters)
	if err != nil {
		return params, fmt.Errorf("tool %s: parameters: %w", t.Name, err)
	}
	fn := jinja.NewDict()
	fn.AsDict().Set("name", jinja.NewString(t.Name))
	fn.AsDict().Set("description", jinja.NewString(t.Description))
	fn.AsDict().Set("parameters", params)
	v := jinja.NewDict()
	v.AsDict().Set("type", jinja.NewString("function"))
	v.AsDict().Set("function", fn)
	return v, nil
}
