package eventlog

import (
	"fmt"
	"strings"
)

// EvalDict is what trajectory metrics read (SPEC 1.3 P3).
type EvalDict struct {
	// ToolCalls are the calls of the accepted history, unwrapped:
	// {"name":..., "arguments":...}, or the action as recorded where it names no
	// tool.
	ToolCalls []any `json:"tool_calls"`
	// ToolOutputs are the outputs of its results, in the order they came.
	ToolOutputs []any `json:"tool_outputs"`
	// Reasoning is the agent's reasoning and text, joined by newlines.
	Reasoning string `json:"reasoning"`
	// CallIDs and OutputCallIDs are parallel to the two lists and pair outputs
	// with calls. Both absent: output i answers call i.
	CallIDs       []string `json:"tool_call_ids,omitempty"`
	OutputCallIDs []string `json:"tool_output_call_ids,omitempty"`
}

// EvalDict projects the accepted history for evaluation. Any tier.
func (l *Log) EvalDict() EvalDict {
	d := EvalDict{ToolCalls: []any{}, ToolOutputs: []any{}}
	var said []string
	for _, e := range l.History() {
		switch e.Kind {
		case Text, Reasoning:
			if s := e.text(); s != "" {
				said = append(said, s)
			}
		case ToolCall:
			if e.Payload["action"] == nil {
				continue
			}
			for _, c := range e.Calls() {
				d.ToolCalls = append(d.ToolCalls, c.bare(e))
				d.CallIDs = append(d.CallIDs, c.ID)
			}
		case ToolResult:
			d.ToolOutputs = append(d.ToolOutputs, clone(e.Payload["output"]))
			d.OutputCallIDs = append(d.OutputCallIDs, e.CallID)
		}
	}
	d.Reasoning = strings.Join(said, "\n")
	return d
}

// bare is the call as {name, arguments}, a copy.
func (c *Call) bare(e *Event) any {
	if c.Name == "" {
		return clone(e.rawAction())
	}
	return map[string]any{"name": c.Name, "arguments": clone(c.Arguments)}
}

// clone copies a payload value, so that a projection shares nothing with its
// log.
func clone(v any) any {
	switch v := v.(type) {
	case map[string]any:
		m := make(map[string]any, len(v))
		for k, x := range v {
			m[k] = clone(x)
		}
		return m
	case []any:
		s := make([]any, len(v))
		for i, x := range v {
			s[i] = clone(x)
		}
		return s
	}
	return v
}

// FromEvalDict makes a light log of evaluation data: the reasoning, then every
// call followed by its outputs. Outputs are paired by id where the dict has ids,
// by position otherwise. It is an error when an output has no call.
func FromEvalDict(d EvalDict) (*Log, error) {
	if d.CallIDs != nil && len(d.CallIDs) != len(d.ToolCalls) {
		return nil, fmt.Errorf("eval dict: %w: %d tool_call_ids for %d tool_calls", ErrInvalid, len(d.CallIDs), len(d.ToolCalls))
	}
	if d.OutputCallIDs != nil && (len(d.OutputCallIDs) != len(d.ToolOutputs) || d.CallIDs == nil) {
		return nil, fmt.Errorf("eval dict: %w: %d tool_output_call_ids for %d tool_outputs and %d tool_call_ids",
			ErrInvalid, len(d.OutputCallIDs), len(d.ToolOutputs), len(d.CallIDs))
	}
	b := NewBuilder(Meta{})
	if d.Reasoning != "" {
		if _, err := b.Append(NewReasoning(d.Reasoning)); err != nil {
			return nil, fmt.Errorf("eval dict: reasoning: %w", err)
		}
	}
	used := 0
	for i, action := range d.ToolCalls {
		e := Event{Kind: ToolCall, Payload: map[string]any{"action": action}}
		if d.CallIDs != nil {
			e.CallID = d.CallIDs[i]
		}
		if _, err := b.Append(e); err != nil {
			return nil, fmt.Errorf("eval dict: tool_calls[%d]: %w", i, err)
		}
		call := &b.log.Events[len(b.log.Events)-1]
		for j, out := range d.ToolOutputs {
			if d.OutputCallIDs == nil && j != i || d.OutputCallIDs != nil && d.OutputCallIDs[j] != d.CallIDs[i] {
				continue
			}
			calls := call.Calls()
			if _, err := b.Append(NewToolResult(calls[len(calls)-1].ID, out, "")); err != nil {
				return nil, fmt.Errorf("eval dict: tool_outputs[%d]: %w", j, err)
			}
			used++
		}
	}
	if used != len(d.ToolOutputs) {
		return nil, fmt.Errorf("eval dict: %w: %d tool_outputs of which %d answer one of the %d tool_calls", ErrInvalid, len(d.ToolOutputs), used, len(d.ToolCalls))
	}
	return b.Finish(OK, "")
}
