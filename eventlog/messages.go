package eventlog

import (
	"encoding/json"
	"fmt"
	"strings"
)

// chatLine is one conversation as OpenAI-style fine-tuning and log files write
// it.
type chatLine struct {
	ID       string        `json:"id"`
	Messages []chatMessage `json:"messages"`
	Tools    []any         `json:"tools"`
	Reward   *float64      `json:"reward"`
}

type chatMessage struct {
	Role         string          `json:"role"`
	Content      json.RawMessage `json:"content"`
	Name         string          `json:"name"`
	Reasoning    string          `json:"reasoning_content"`
	Reasoning2   string          `json:"reasoning"`
	ToolCalls    []any           `json:"tool_calls"`
	ToolCallID   string          `json:"tool_call_id"`
	FunctionCall json.RawMessage `json:"function_call"`
}

// ImportMessages reads JSONL of OpenAI-style conversations as light logs: each
// line an object with "messages" (and optionally "id", "tools", "reward"), or a
// bare list of messages. Every bad line is reported.
//
// System and developer messages become observations of role system, with the
// tools; user messages, observations by human:<name> (human:user without one);
// assistant messages, reasoning, text and one call event per tool call, ended
// by a turn-complete event; tool messages, results paired by tool_call_id.
// Arguments are decoded when they are a JSON object and kept as the string they
// are otherwise. Content parts must be text.
func ImportMessages(data []byte) ([]*Log, error) { return importLines(data, parseMessages) }

func parseMessages(line []byte) (*Log, error) {
	var c chatLine
	var err error
	if line[0] == '[' {
		err = decodeLine(line, &c.Messages)
	} else {
		err = decodeLine(line, &c)
	}
	if err != nil {
		return nil, err
	}
	if len(c.Messages) == 0 {
		return nil, fmt.Errorf(`%w: no "messages"`, ErrInvalid)
	}
	b := NewBuilder(Meta{})
	b.SetID(c.ID)
	if len(c.Tools) > 0 && c.Messages[0].Role != "system" && c.Messages[0].Role != "developer" {
		if _, err := b.Append(NewSystem("", c.Tools)); err != nil {
			return nil, fmt.Errorf("tools: %w", err)
		}
		c.Tools = nil
	}
	turn, open := 0, false
	for i := range c.Messages {
		m := &c.Messages[i]
		if open && m.Role != "tool" {
			if _, err := b.Append(NewTurnComplete(turn)); err != nil {
				return nil, err
			}
			turn, open = turn+1, false
		}
		events, err := m.events(c.Tools)
		if err != nil {
			return nil, fmt.Errorf("messages[%d]: %w", i, err)
		}
		c.Tools = nil
		for _, e := range events {
			if _, err := b.Append(e); err != nil {
				return nil, fmt.Errorf("messages[%d]: %w", i, err)
			}
		}
		open = open || m.Role == "assistant"
	}
	if open {
		if _, err := b.Append(NewTurnComplete(turn)); err != nil {
			return nil, err
		}
	}
	if c.Reward != nil {
		if _, err := b.Append(NewReward(EpisodeScope, *c.Reward)); err != nil {
			return nil, fmt.Errorf("reward: %w", err)
		}
	}
	return b.Finish(OK, "")
}

// events translates one message.
func (m *chatMessage) events(tools []any) ([]Event, error) {
	text, present, err := m.text()
	if err != nil {
		return nil, err
	}
	if len(m.FunctionCall) > 0 && string(m.FunctionCall) != "null" {
		return nil, fmt.Errorf("%w: legacy function_call: rewrite it as tool_calls", ErrInvalid)
	}
	if len(m.ToolCalls) > 0 && m.Role != "assistant" {
		return nil, fmt.Errorf("%w: tool_calls in a message of role %q: only the assistant calls tools", ErrInvalid, m.Role)
	}
	switch m.Role {
	case "system", "developer":
		return []Event{NewSystem(text, tools)}, nil
	case "user":
		who := m.Name
		if who == "" {
			who = "user"
		}
		return []Event{NewObservation("human:"+who, text)}, nil
	case "tool":
		if m.ToolCallID == "" {
			return nil, fmt.Errorf("%w: tool message without tool_call_id", ErrInvalid)
		}
		return []Event{NewToolResult(m.ToolCallID, text, "")}, nil
	case "assistant":
	default:
		return nil, fmt.Errorf("%w: role %q: want system, developer, user, assistant or tool", ErrInvalid, m.Role)
	}
	var events []Event
	if r := m.Reasoning + m.Reasoning2; r != "" {
		events = append(events, NewReasoning(r))
	}
	if present && (text != "" || len(m.ToolCalls) == 0) {
		events = append(events, NewText(text))
	}
	for i, entry := range m.ToolCalls {
		c, ok := asObject(entry)
		if !ok {
			return nil, fmt.Errorf("%w: tool_calls[%d] is no object", ErrInvalid, i)
		}
		call, ok := portableCall(c).(map[string]any)
		name, _ := call["name"].(string)
		if id, _ := call["id"].(string); ok && name != "" && id != "" {
			events = append(events, NewToolCall(id, name, call["arguments"]))
			continue
		}
		return nil, fmt.Errorf("%w: tool_calls[%d] wants an id and a function name", ErrInvalid, i)
	}
	if m.Name != "" {
		for i := range events {
			events[i].Author = "agent:" + m.Name
		}
	}
	return events, nil
}

// text reads content: a string, null or a list of text parts.
func (m *chatMessage) text() (text string, present bool, err error) {
	if len(m.Content) == 0 || string(m.Content) == "null" {
		return "", false, nil
	}
	if err := json.Unmarshal(m.Content, &text); err == nil {
		return text, true, nil
	}
	var parts []struct {
		Type string  `json:"type"`
		Text *string `json:"text"`
	}
	if err := json.Unmarshal(m.Content, &parts); err != nil {
		return "", false, fmt.Errorf("%w: content is neither a string nor a list of parts", ErrInvalid)
	}
	var all strings.Builder
	for i, p := range parts {
		if p.Text == nil {
			return "", false, fmt.Errorf("%w: content[%d] of type %q: only text parts can be read", ErrInvalid, i, p.Type)
		}
		all.WriteString(*p.Text)
	}
	return all.String(), true, nil
}

// ExportMessages writes the accepted histories as JSONL of OpenAI-style
// conversations, the form ImportMessages reads: {"id", "messages", "tools",
// "reward"}, the last two where there are any. Arguments are JSON in a string.
// What the form has no place for is left out: tokens, times, memory operations,
// step and turn rewards, rejected alternatives, the error of a result that has
// an output as well. Any tier.
func ExportMessages(logs ...*Log) ([]byte, error) {
	var out []byte
	for _, l := range logs {
		line, err := appendLine(out, l.chat())
		if err != nil {
			return nil, fmt.Errorf("export log %s: %w", l.ID, err)
		}
		out = line
	}
	return out, nil
}

func (l *Log) chat() map[string]any {
	c := chatWriter{messages: []any{}}
	for _, e := range l.History() {
		c.add(e)
	}
	c.flush()
	line := map[string]any{"id": l.ID, "messages": c.messages}
	if c.tools != nil {
		line["tools"] = c.tools
	}
	if r, ok := l.EpisodeReward(); ok {
		line["reward"] = r
	}
	return line
}

// chatWriter gathers the events of an assistant message.
type chatWriter struct {
	messages  []any
	tools     any
	open      bool
	author    string
	reasoning string
	content   *string
	calls     []any
}

func (c *chatWriter) add(e *Event) {
	switch e.Kind {
	case Reasoning, Text, ToolCall:
		c.agent(e)
	case ToolResult:
		c.flush()
		c.messages = append(c.messages, map[string]any{"role": "tool", "tool_call_id": e.CallID, "content": e.resultText()})
	case Observation:
		c.flush()
		m := map[string]any{"role": "user", "content": e.text()}
		if e.isSystem() {
			m["role"] = "system"
			if tools, ok := asList(e.Payload["tools"]); ok && c.tools == nil {
				c.tools = tools
				if e.text() == "" {
					return
				}
			}
		} else if who, ok := strings.CutPrefix(e.Author, "human:"); ok && who != "user" {
			m["name"] = who
		}
		c.messages = append(c.messages, m)
	case TurnComplete:
		c.flush()
	}
}

// agent adds what the agent did to the open message, or opens another: the
// form's order is reasoning, content, calls.
func (c *chatWriter) agent(e *Event) {
	if e.Kind == Reasoning && e.text() == "" {
		return // the form has no empty reasoning
	}
	again := e.Kind == Reasoning && (c.reasoning != "" || c.content != nil || c.calls != nil) ||
		e.Kind == Text && (c.content != nil || c.calls != nil)
	if again || c.open && c.author != e.Author {
		c.flush()
	}
	c.open, c.author = true, e.Author
	switch e.Kind {
	case Reasoning:
		c.reasoning = e.text()
	case Text:
		s := e.text()
		c.content = &s
	default:
		for _, call := range e.Calls() {
			c.calls = append(c.calls, call.openAI(e))
		}
	}
}

func (c *chatWriter) flush() {
	if !c.open {
		return
	}
	m := map[string]any{"role": "assistant", "content": nil}
	if c.content != nil && (*c.content != "" || c.calls == nil) {
		m["content"] = *c.content
	}
	if c.reasoning != "" {
		m["reasoning_content"] = c.reasoning
	}
	if c.calls != nil {
		m["tool_calls"] = c.calls
	}
	if who, ok := strings.CutPrefix(c.author, "agent:"); ok {
		m["name"] = who
	}
	c.messages = append(c.messages, m)
	*c = chatWriter{messages: c.messages, tools: c.tools}
}

// openAI writes a call with its arguments in a string: as recorded when they
// are one, else as canonical JSON.
func (c *Call) openAI(e *Event) map[string]any {
	args := compact(c.Arguments)
	if c.Malformed != "" {
		args = c.Malformed
	}
	name := c.Name
	if name == "" {
		name, args = "unknown", compact(e.rawAction())
	}
	return map[string]any{"id": c.ID, "type": "function", "function": map[string]any{"name": name, "arguments": args}}
}
