package rollout

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"
	"strings"

	"github.com/skein-rl/skein/agent/tool"
)

// forms are the messages in which the turn can be given to a template, the
// likeliest first: in parts; with the thought left in the content; with the
// arguments as text, which some templates want; and as it was emitted. A turn
// with a malformed call has parts only in name, so that one comes last there:
// calls without arguments stand for those that cannot be read, because some
// templates refuse a result that answers no call.
func (e *emittedTurn) forms(results []Message) []Message {
	raw := Message{Role: "assistant", Content: e.content}
	parts := Message{Role: "assistant", Content: e.parsed.Text()}
	malformed, n := false, 0
	for _, p := range e.parsed.Parts {
		switch p.Kind {
		case PartReasoning:
			parts.Reasoning = strings.TrimSpace(parts.Reasoning + "\n" + p.Text)
		case PartCall:
			call := p.Call
			if p.Err != nil {
				malformed = true
				call.Arguments = json.RawMessage("{}")
				if call.Name == "" {
					call.Name = "malformed"
				}
			}
			if n < len(results) { // there is one for each call, in order
				call.ID = results[n].CallID
			}
			n++
			parts.Calls = append(parts.Calls, call)
		}
	}
	if n == 0 {
		return []Message{raw}
	}
	forms := []Message{parts}
	if parts.Reasoning != "" {
		whole := parts
		whole.Content, whole.Reasoning = strings.TrimSpace(e.content[:e.parsed.callsAt()]), ""
		forms = append(forms, whole)
	}
	if malformed {
		return append([]Message{raw}, forms...)
	}
	return append(forms, parts.textArguments(), raw)
}

// textArguments gives the message with the arguments of its calls as text that
// holds the JSON, as OpenAI's interface does.
func (m Message) textArguments() Message {
	m.Calls = slices.Clone(m.Calls)
	for i := range m.Calls {
		m.Calls[i].Arguments = json.RawMessage(quoteJSON(string(m.Calls[i].Arguments)))
	}
	return m
}

// saysSame reports whether the template's writing of the turn says what was
// emitted: equal up to the first call but for the blanks before it, the same
// calls after it, and nothing else.
func (e *emittedTurn) saysSame(written string, p Parsed) bool {
	if trimEnd(written[:p.callsAt()]) != trimEnd(e.content[:e.parsed.callsAt()]) {
		return false
	}
	theirs, ok := p.callsOnly()
	ours, ok2 := e.parsed.callsOnly()
	if !ok || !ok2 || len(theirs) != len(ours) {
		return false
	}
	for i := range ours {
		if theirs[i].Err != nil || ours[i].Err == nil && !sameCall(ours[i].Call, theirs[i].Call) {
			return false
		}
	}
	return true
}

func trimEnd(s string) string { return strings.TrimRight(s, " \t\r\n") }

// callsAt is the offset at which the first call begins; the end without one.
func (p Parsed) callsAt() int {
	at := 0
	for _, part := range p.Parts {
		if part.Kind == PartCall {
			break
		}
		at = part.End
	}
	return at
}

// callsOnly gives the calls; false when something other than blanks stands
// between or after them.
func (p Parsed) callsOnly() (calls []Part, ok bool) {
	for _, part := range p.Parts {
		switch {
		case part.Kind == PartCall:
			calls = append(calls, part)
		case len(calls) > 0 && part.Text != "":
			return nil, false
		}
	}
	return calls, true
}

// sameCall compares names and the values of arguments, however written.
func sameCall(a, b tool.Call) bool {
	if a.Name != b.Name {
		return false
	}
	if bytes.Equal(a.Arguments, b.Arguments) {
		return true
	}
	var x, y any
	return json.Unmarshal(a.Arguments, &x) == nil && json.Unmarshal(b.Arguments, &y) == nil && reflect.DeepEqual(x, y)
}
