package data

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// Message is one message of a conversation.
type Message struct {
	Role      string // "system", "user", "assistant" or "tool"
	Content   string
	Reasoning string
	Name      string // of the tool, on tool messages
	CallID    string // of the call answered, on tool messages
	Calls     []Call // on assistant messages
	// Weight multiplies the weights of an assistant message's tokens; 0 leaves
	// the turn out of the loss (a suboptimal step) though later turns see it.
	Weight float64
}

// Call is a tool call; Arguments is a JSON object with its order kept.
type Call struct {
	ID        string
	Name      string
	Arguments json.RawMessage
}

// Tool describes a tool; Parameters is a JSON Schema object.
type Tool struct {
	Name        string
	Description string
	Parameters  json.RawMessage
}

// wire forms: OpenAI's, which transformers uses too.
type wireMessage struct {
	Role       string          `json:"role"`
	Content    json.RawMessage `json:"content"`
	Reasoning  string          `json:"reasoning_content"`
	Thinking   string          `json:"thinking"`
	Name       string          `json:"name"`
	ToolCallID string          `json:"tool_call_id"`
	ToolCalls  []wireCall      `json:"tool_calls"`
	Weight     *float64        `json:"weight"`
}

type wireCall struct {
	ID       string    `json:"id"`
	Function *wireFunc `json:"function"`
	wireFunc
}

type wireFunc struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Arguments   json.RawMessage `json:"arguments"`
	Parameters  json.RawMessage `json:"parameters"`
}

// side is one column: plain text or a conversation.
type side struct {
	text     string
	messages []Message // nil: text
}

func (s side) chat() bool { return s.messages != nil }

// parseSide reads text, a list of messages, or a single message.
func parseSide(column string, v json.RawMessage) (side, error) {
	v = bytes.TrimSpace(v)
	if isNull(v) {
		return side{}, fmt.Errorf("column %q is missing or null", column)
	}
	switch v[0] {
	case '"':
		var s side
		if err := json.Unmarshal(v, &s.text); err != nil {
			return side{}, fmt.Errorf("column %q: %w", column, err)
		}
		return s, nil
	case '{':
		v = append(append([]byte{'['}, v...), ']')
	case '[':
	default:
		return side{}, fmt.Errorf("column %q is %s; want text or a list of messages", column, v)
	}
	ms, err := parseMessages(v)
	if err != nil {
		return side{}, fmt.Errorf("column %q: %w", column, err)
	}
	return side{messages: ms}, nil
}

func parseMessages(v json.RawMessage) ([]Message, error) {
	var wire []wireMessage
	if err := json.Unmarshal(v, &wire); err != nil {
		return nil, fmt.Errorf("want a list of messages: %w", err)
	}
	if len(wire) == 0 {
		return nil, errors.New("the list of messages is empty")
	}
	out := make([]Message, len(wire))
	for i, w := range wire {
		m, err := w.message()
		if err != nil {
			return nil, fmt.Errorf("message %d: %w", i, err)
		}
		out[i] = m
	}
	return out, nil
}

func (w wireMessage) message() (Message, error) {
	m := Message{Role: w.Role, Reasoning: w.Reasoning, Name: w.Name, CallID: w.ToolCallID, Weight: 1}
	if m.Reasoning == "" {
		m.Reasoning = w.Thinking
	}
	switch w.Role {
	case "system", "user", "assistant", "tool":
	case "developer":
		m.Role = "system"
	case "":
		return m, errors.New("it has no role")
	default:
		return m, fmt.Errorf("role %q: want system, developer, user, assistant or tool", w.Role)
	}
	if w.Weight != nil {
		if !(*w.Weight >= 0) || *w.Weight > 1e6 {
			return m, fmt.Errorf("weight %v: want a finite number >= 0", *w.Weight)
		}
		m.Weight = *w.Weight
	}
	var err error
	if m.Content, err = contentText(w.Content); err != nil {
		return m, err
	}
	if len(w.ToolCalls) > 0 && w.Role != "assistant" {
		return m, fmt.Errorf("tool_calls in a message of role %q: only the assistant calls tools", w.Role)
	}
	for i, c := range w.ToolCalls {
		f := c.wireFunc
		if c.Function != nil {
			f = *c.Function
		}
		args, err := object(f.Arguments)
		if err != nil || f.Name == "" {
			return m, errors.Join(fmt.Errorf("tool_calls[%d] of %q: want a function name and arguments that are a JSON object", i, f.Name), err)
		}
		m.Calls = append(m.Calls, Call{ID: c.ID, Name: f.Name, Arguments: args})
	}
	return m, nil
}

// contentText reads content: text, null, or a list of text parts.
func contentText(v json.RawMessage) (string, error) {
	if isNull(v) {
		return "", nil
	}
	var text string
	if json.Unmarshal(v, &text) == nil {
		return text, nil
	}
	var parts []struct {
		Type string  `json:"type"`
		Text *string `json:"text"`
	}
	if err := json.Unmarshal(v, &parts); err != nil {
		return "", errors.New("content is neither text nor a list of parts")
	}
	var b strings.Builder
	for i, p := range parts {
		if p.Text == nil {
			return "", fmt.Errorf("content[%d] of type %q: only text can be trained on", i, p.Type)
		}
		b.WriteString(*p.Text)
	}
	return b.String(), nil
}

// object reads a JSON object, or one inside a string; nothing is {}.
func object(v json.RawMessage) (json.RawMessage, error) {
	v = bytes.TrimSpace(v)
	var inner string
	if len(v) > 0 && v[0] == '"' {
		if err := json.Unmarshal(v, &inner); err != nil {
			return nil, err
		}
		v = bytes.TrimSpace([]byte(inner))
	}
	if isNull(v) {
		return json.RawMessage("{}"), nil
	}
	if !json.Valid(v) || v[0] != '{' {
		return nil, fmt.Errorf("%.60q is no JSON object", v)
	}
	return v, nil
}

// parseTools reads a list of tool definitions, or one inside a string.
func parseTools(v json.RawMessage) ([]Tool, error) {
	if isNull(v) {
		return nil, nil
	}
	var inner string
	if json.Unmarshal(v, &inner) == nil {
		v = json.RawMessage(inner)
	}
	var wire []struct {
		Function *wireFunc `json:"function"`
		wireFunc
	}
	if err := json.Unmarshal(v, &wire); err != nil {
		return nil, fmt.Errorf("column \"tools\": want a list of tools: %w", err)
	}
	var out []Tool
	for i, w := range wire {
		f := w.wireFunc
		if w.Function != nil {
			f = *w.Function
		}
		params, err := object(f.Parameters)
		if f.Name == "" || err != nil {
			return nil, errors.Join(fmt.Errorf("column \"tools\": tool %d (%q): want a name and parameters that are a JSON object", i, f.Name), err)
		}
		out = append(out, Tool{Name: f.Name, Description: f.Description, Parameters: params})
	}
	return out, nil
}
