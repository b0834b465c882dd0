package eventlog

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// drawJSON makes a payload value.
func drawJSON(t *rapid.T, depth int) any {
	top := 5
	if depth >= 3 {
		top = 3
	}
	switch rapid.IntRange(0, top).Draw(t, "json") {
	case 0:
		return rapid.SampledFrom([]any{nil, true, false, "", json.Number("1.0"), json.Number("-0"), json.Number("1E+400")}).Draw(t, "lit")
	case 1:
		return rapid.String().Draw(t, "s")
	case 2:
		return rapid.Int64().Draw(t, "i")
	case 3:
		return rapid.Float64().Filter(func(f float64) bool { return f-f == 0 }).Draw(t, "f")
	case 4:
		list := []any{}
		for range rapid.IntRange(0, 3).Draw(t, "n") {
			list = append(list, drawJSON(t, depth+1))
		}
		return list
	default:
		m := map[string]any{}
		for range rapid.IntRange(0, 3).Draw(t, "n") {
			m[rapid.String().Draw(t, "k")] = drawJSON(t, depth+1)
		}
		return m
	}
}

// drawTokens makes ids and, where a policy or an expert writes, logprobs.
func drawTokens(t *rapid.T, w Writer) (ids []int32, lps []float32) {
	n := rapid.IntRange(0, 5).Draw(t, "tokens")
	for range n {
		ids = append(ids, rapid.Int32Range(0, 200_000).Draw(t, "id"))
		if hasLogprobs(w) {
			lps = append(lps, -rapid.Float32Range(0, 50).Draw(t, "lp"))
		}
	}
	if w == Policy && lps == nil {
		lps = []float32{}
	}
	return ids, lps
}

// drawEvent makes an event of any kind; open lists the calls above it.
func drawEvent(t *rapid.T, open []Call) Event {
	text := rapid.String().Draw(t, "text")
	switch k := Kind(rapid.IntRange(1, 8).Draw(t, "kind")); k {
	case Text:
		return NewText(text)
	case Reasoning:
		return NewReasoning(text)
	case ToolCall:
		args := drawJSON(t, 1)
		switch rapid.IntRange(0, 3).Draw(t, "shape") {
		case 0:
			return Event{Kind: ToolCall, Payload: map[string]any{"stage": text}}
		case 1: // a wrapper, one call with an id, one without, one without a name
			return Event{Kind: ToolCall, Payload: map[string]any{"action": map[string]any{"tool_calls": []any{
				map[string]any{"id": "w" + text, "type": "function", "function": map[string]any{"name": "a", "arguments": `{"x": 1.50}`}},
				map[string]any{"name": "b", "arguments": args},
				map[string]any{"arguments": args},
			}}}}
		case 2:
			return Event{Kind: ToolCall, Payload: map[string]any{"action": drawJSON(t, 1), "stage": "s"}}
		}
		return NewToolCall(text, "calc", args)
	case ToolResult:
		if len(open) == 0 {
			return NewObservation("retrieval", text)
		}
		c := rapid.SampledFrom(open).Draw(t, "call")
		errText := rapid.SampledFrom([]string{"", "boom"}).Draw(t, "err")
		return NewToolResult(c.ID, drawJSON(t, 1), errText)
	case Observation:
		return NewObservation(rapid.SampledFrom([]string{"env", "human:ann", "retrieval", "agent:critic"}).Draw(t, "author"), text)
	case TurnComplete:
		return NewTurnComplete(rapid.IntRange(0, 9).Draw(t, "step"))
	case Reward:
		return NewReward(Scope(rapid.IntRange(1, 3).Draw(t, "scope")), rapid.Float64Range(-2, 2).Draw(t, "r"))
	default:
		return NewMemoryOp(rapid.SampledFrom([]string{"ADD", "UPDATE", "DELETE", "NOOP"}).Draw(t, "op"), text, "episodic")
	}
}

// drawLog builds a log: a tree of events with alternatives and partial pieces,
// and, when full, a tree of token branches.
func drawLog(t *rapid.T) *Log {
	b := NewBuilder(Meta{
		Run: rapid.StringN(0, 3, -1).Draw(t, "run"), Group: "a:b", Table: "train", GroupSize: 2, Member: 1,
		Created: time.Unix(0, rapid.Int64Range(0, 1<<60).Draw(t, "created")).UTC(),
	})
	full := rapid.Bool().Draw(t, "full")
	if full {
		b.SetTier(Full)
	}
	ok := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	branch := uint32(0)
	for range rapid.IntRange(0, 12).Draw(t, "events") {
		parent := b.Head()
		if parent > 0 && rapid.IntRange(0, 4).Draw(t, "alternative") == 0 {
			parent = rapid.Uint32Range(0, parent).Draw(t, "parent")
			for parent > 0 && b.log.Events[parent-1].Partial {
				parent--
			}
			if full && len(b.log.Branches) > 0 {
				from := rapid.Uint32Range(0, uint32(len(b.log.Branches)-1)).Draw(t, "from")
				at := rapid.Int32Range(0, int32(len(b.Tokens(from)))).Draw(t, "at")
				var err error
				branch, err = b.Fork(from, at)
				ok(err)
			}
		}
		e := drawEvent(t, b.openCalls(parent, ""))
		if rapid.Bool().Draw(t, "timed") {
			e.Start = time.Unix(0, rapid.Int64Range(0, 1<<60).Draw(t, "start")).UTC()
			e.End = e.Start.Add(time.Duration(rapid.Int64Range(0, 1<<40).Draw(t, "took")))
		}
		if full && rapid.Bool().Draw(t, "spans") {
			w := Writer(rapid.IntRange(1, 4).Draw(t, "writer"))
			ids, lps := drawTokens(t, w)
			version := uint64(0)
			if w == Policy {
				version = rapid.Uint64Range(0, 3).Draw(t, "version")
			}
			span, err := b.AppendTokens(branch, ids, lps, w, version)
			ok(err)
			if len(b.log.Branches) > 0 {
				e = e.In(branch, span)
			}
		}
		if e.Kind == Text && rapid.Bool().Draw(t, "streamed") {
			p := NewText("piece")
			p.Partial = true
			_, err := b.AppendAfter(parent, p)
			ok(err)
		}
		_, err := b.AppendAfter(parent, e)
		ok(err)
	}
	if b.Head() > 0 && rapid.IntRange(0, 3).Draw(t, "outcome") == 0 {
		seq := rapid.Uint32Range(1, b.Head()).Draw(t, "seq")
		if !b.log.Events[seq-1].Partial {
			ok(b.SetOutcome(seq))
		}
	}
	l, err := b.Finish(OK, "")
	if err != nil {
		t.Fatal(fmt.Errorf("the builder let an invalid log through: %w", err))
	}
	return l
}

func checkLogs(t *testing.T, prop func(*rapid.T, *Log)) {
	t.Helper()
	rapid.Check(t, func(rt *rapid.T) { prop(rt, drawLog(rt)) })
}
