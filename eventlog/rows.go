package eventlog

import (
	"errors"
	"fmt"
)

// ErrLightTier is returned by the token-level projections on a light log: what
// they need was not recorded.
var ErrLightTier = errors.New("eventlog: light-tier log")

func (l *Log) needFull(projection string) error {
	if l.Tier != Full {
		return fmt.Errorf("%s of log %s: %w: record it through a rollout engine (full tier)", projection, l.ID, ErrLightTier)
	}
	return nil
}

// EventSpan is the place of one event's tokens.
type EventSpan struct {
	Seq    uint32
	Branch uint32
	Span   Span
}

// MaskedTokens returns the span of every event that has one, in event order,
// rejected alternatives included and partial pieces left out. Full tier only.
func (l *Log) MaskedTokens() ([]EventSpan, error) {
	if err := l.needFull("masked tokens"); err != nil {
		return nil, err
	}
	var out []EventSpan
	for i := range l.Events {
		if e := &l.Events[i]; e.Span != nil && !e.Partial {
			out = append(out, EventSpan{e.Seq, e.Branch, *e.Span})
		}
	}
	return out, nil
}

// Weights of the segments in a supervised row (SPEC 1.1): a tool call counts
// double, what the environment wrote nothing.
const (
	TextWeight   = 1.0
	CallWeight   = 2.0
	MemoryWeight = 1.0
)

// Choice says which alternatives DatasetRows turns into rows.
type Choice uint8

const (
	AcceptedRows Choice = iota // the accepted history: one row
	RejectedRows               // every rejected alternative: one row each, as negatives
	AllRows                    // the accepted row, then the rejected ones
)

// RowOptions are the choices of DatasetRows; the zero value is SPEC's P2.
type RowOptions struct {
	// Memory adds MEMORY_OP events as messages of the agent.
	Memory bool
	// Choice picks the alternatives.
	Choice Choice
}

// Message is one chat message of a supervised row.
type Message struct {
	Role    string `json:"role"` // system, user, assistant or tool
	Content string `json:"content"`
}

// Row is one supervised example: three lists of one length.
type Row struct {
	Messages []Message `json:"messages"`
	// SegmentWeights is above 0 for what the agent wrote and 0 for the rest. The
	// loss is L = sum_i w_i sum_t NLL(i,t) / sum_i w_i |i|, so that the weights
	// shift emphasis and not the learning rate.
	SegmentWeights []float64 `json:"segment_weights"`
	// LossMask is true where a message is left out of the loss.
	LossMask []bool `json:"loss_mask"`
	// Events holds the Seq of each message's event, in order; a wrapper of
	// several calls repeats its own.
	Events []uint32 `json:"events"`
	// Rejected marks a negative.
	Rejected bool `json:"rejected,omitempty"`
	// Shared counts the leading messages a negative has in common with the
	// accepted row: the prompt of a preference pair.
	Shared int `json:"shared,omitempty"`
}

// DatasetRows projects a full log to supervised rows (SPEC 1.3 P2). The only
// format is "sft"; another is an error, as is a light log.
//
// Reasoning and text become assistant messages of weight 1; each tool call,
// unwrapped, an assistant message of weight 2 holding
// <tool_call>{"name":...,"arguments":...}</tool_call>; tool results, tool
// messages and observations, user messages (system where the payload's role
// says so), both of weight 0. A result without output shows its error. Turn
// ends and rewards have no message; memory operations have one when asked for:
// <memory_op>{...}</memory_op>, weight 1.
func (l *Log) DatasetRows(format string, opt RowOptions) ([]Row, error) {
	if err := l.needFull("dataset rows"); err != nil {
		return nil, err
	}
	if format != "sft" {
		return nil, fmt.Errorf("dataset rows of log %s: unknown format %q: want \"sft\"", l.ID, format)
	}
	if opt.Choice > AllRows {
		return nil, fmt.Errorf("dataset rows of log %s: unknown choice %d", l.ID, opt.Choice)
	}
	accepted := row(l.History(), opt)
	var rows []Row
	if opt.Choice != RejectedRows {
		rows = append(rows, accepted)
	}
	if opt.Choice != AcceptedRows {
		for _, path := range l.Rejected() {
			r := row(path, opt)
			r.Rejected = true
			for r.Shared < min(len(r.Events), len(accepted.Events)) && r.Events[r.Shared] == accepted.Events[r.Shared] {
				r.Shared++
			}
			rows = append(rows, r)
		}
	}
	return rows, nil
}

func row(path []*Event, opt RowOptions) Row {
	r := Row{Messages: []Message{}, SegmentWeights: []float64{}, LossMask: []bool{}, Events: []uint32{}}
	for _, e := range path {
		add := func(role, content string, weight float64) {
			r.Messages = append(r.Messages, Message{role, content})
			r.SegmentWeights = append(r.SegmentWeights, weight)
			r.LossMask = append(r.LossMask, weight == 0)
			r.Events = append(r.Events, e.Seq)
		}
		switch e.Kind {
		case Text, Reasoning:
			add("assistant", e.text(), TextWeight)
		case ToolCall:
			for _, c := range e.Calls() {
				add("assistant", "<tool_call>"+c.compact(e)+"</tool_call>", CallWeight)
			}
		case ToolResult:
			add("tool", e.resultText(), 0)
		case Observation:
			role := "user"
			if e.isSystem() {
				role = "system"
			}
			add(role, e.text(), 0)
		case MemoryOp:
			if opt.Memory {
				add("assistant", "<memory_op>"+compact(e.Payload)+"</memory_op>", MemoryWeight)
			}
		}
	}
	return r
}

// compact writes the call as a model is taught to write it, name first.
func (c *Call) compact(e *Event) string {
	if c.Name == "" {
		return compact(e.rawAction())
	}
	return `{"name":` + compact(c.Name) + `,"arguments":` + compact(c.Arguments) + `}`
}

// rawAction is the action of a call as recorded; the whole payload where there
// is none.
func (e *Event) rawAction() any {
	if a := e.Payload["action"]; a != nil {
		return a
	}
	return e.Payload
}

func (e *Event) text() string {
	s, _ := e.Payload["text"].(string)
	return s
}

func (e *Event) isSystem() bool { return e.Kind == Observation && e.Payload["role"] == "system" }

// resultText is a tool result as the model sees it: a string output as it is,
// another as compact JSON, the error where there is no output.
func (e *Event) resultText() string {
	switch out := e.Payload["output"].(type) {
	case string:
		return out
	case nil:
		s, _ := e.Payload["error"].(string)
		return s
	default:
		return compact(out)
	}
}

// compact writes a payload value as canonical JSON. Payloads of a valid log
// cannot fail; "null" stands in one that is not.
func compact(v any) string {
	b, err := CanonicalJSON(v)
	if err != nil {
		return "null"
	}
	return string(b)
}
