package eventlog

// The functions of this file make events with the payload keys SPEC 1.1 gives
// their kind. Builder.Append fills in what they leave empty.

// NewText makes a text event of the agent.
func NewText(text string) Event { return Event{Kind: Text, Payload: map[string]any{"text": text}} }

// NewReasoning makes a reasoning event of the agent.
func NewReasoning(text string) Event {
	return Event{Kind: Reasoning, Payload: map[string]any{"text": text}}
}

// NewToolCall makes one tool call. Arguments is a JSON value: an object, or the
// raw string of a call that did not parse.
func NewToolCall(callID, name string, arguments any) Event {
	if arguments == nil {
		arguments = map[string]any{}
	}
	return Event{Kind: ToolCall, CallID: callID, Payload: map[string]any{
		"action": map[string]any{"name": name, "arguments": arguments},
	}}
}

// NewToolResult makes the result of the call callID; errText says how the call
// failed and is left out when empty.
func NewToolResult(callID string, output any, errText string) Event {
	p := map[string]any{"output": output}
	if errText != "" {
		p["error"] = errText
	}
	return Event{Kind: ToolResult, CallID: callID, Payload: p}
}

// NewObservation makes what the world says to the agent: the task, a human
// turn (author "human:<id>"), retrieved or injected text.
func NewObservation(author, text string) Event {
	return Event{Kind: Observation, Author: author, Payload: map[string]any{"text": text}}
}

// NewSystem makes the system prompt: an observation that DatasetRows and the
// messages form give the role "system". Tools are the specs shown to the model
// as JSON objects; nil for none.
func NewSystem(text string, tools []any) Event {
	p := map[string]any{"text": text, "role": "system"}
	if len(tools) > 0 {
		p["tools"] = tools
	}
	return Event{Kind: Observation, Payload: p}
}

// NewTurnComplete marks the end of turn step, counted by the caller.
func NewTurnComplete(step int) Event {
	return Event{Kind: TurnComplete, Payload: map[string]any{"step": step}}
}

// NewReward makes a reward. An unscored episode has none.
func NewReward(scope Scope, value float64) Event {
	return Event{Kind: Reward, Scope: scope, Payload: map[string]any{"value": value}}
}

// NewMemoryOp makes a memory operation: op is ADD, UPDATE, DELETE or NOOP, kind
// the kind of memory.
func NewMemoryOp(op, id, kind string) Event {
	return Event{Kind: MemoryOp, Payload: map[string]any{"op": op, "id": id, "kind": kind}}
}

// In returns the event with its tokens: a span of a branch.
func (e Event) In(branch uint32, span Span) Event {
	e.Branch, e.Span = branch, &span
	return e
}
