package eventlog

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
)

// wrapperLog has the calls a rollout writes: two in one OpenAI-shaped wrapper,
// whose results come in the other order.
func wrapperLog(t *testing.T) *Log {
	t.Helper()
	b := NewBuilder(testMeta())
	b.SetTier(Full)
	b.SetID("w")
	must(b.Append(NewSystem("be brief", nil)))
	must(b.Append(NewObservation("human:user", "weather?")))
	must(b.Append(NewReasoning("two cities")))
	must(b.Append(Event{Kind: ToolCall, Payload: map[string]any{"action": map[string]any{"tool_calls": []any{
		map[string]any{"id": "a", "type": "function", "function": map[string]any{"name": "weather", "arguments": `{"city":"Oslo","days":1.0}`}},
		map[string]any{"id": "b", "type": "function", "function": map[string]any{"name": "weather", "arguments": `{"city":`}},
		map[string]any{"id": "c", "function": map[string]any{"arguments": "{}"}},
	}}}}))
	must(b.Append(NewToolResult("b", nil, "bad arguments")))
	must(b.Append(NewToolResult("a", map[string]any{"sky": "clear"}, "")))
	must(b.Append(NewReward(StepScope, 0.25)))
	must(b.Append(NewText("clear")))
	must(b.Append(NewReward(EpisodeScope, 1)))
	return must(b.Finish(OK, ""))
}

func TestDatasetRows(t *testing.T) {
	l := wrapperLog(t)
	rows, err := l.DatasetRows("sft", RowOptions{})
	require.NoError(t, err)
	require.Empty(t, cmp.Diff([]Row{{
		Messages: []Message{
			{"system", "be brief"},
			{"user", "weather?"},
			{"assistant", "two cities"},
			{"assistant", `<tool_call>{"name":"weather","arguments":{"city":"Oslo","days":1.0}}</tool_call>`},
			{"assistant", `<tool_call>{"name":"weather","arguments":{}}</tool_call>`},
			{"tool", "bad arguments"},
			{"tool", `{"sky":"clear"}`},
			{"assistant", "clear"},
		},
		SegmentWeights: []float64{0, 0, 1, 2, 2, 0, 0, 1},
		LossMask:       []bool{true, true, false, false, false, true, true, false},
		Events:         []uint32{1, 2, 3, 4, 4, 5, 6, 8},
	}}, rows))
	_, err = l.DatasetRows("dpo", RowOptions{})
	require.ErrorContains(t, err, `unknown format "dpo"`)
	_, err = l.DatasetRows("sft", RowOptions{Choice: 9})
	require.ErrorContains(t, err, "unknown choice 9")
}

func TestRawAction(t *testing.T) {
	b := NewBuilder(Meta{})
	b.SetTier(Full)
	must(b.Append(Event{Kind: ToolCall, Payload: map[string]any{"action": map[string]any{"tool_calls": []any{map[string]any{"arguments": "{}"}}}}}))
	must(b.Append(Event{Kind: ToolCall, Payload: map[string]any{"action": "search[go]"}}))
	l := must(b.Finish(OK, ""))
	rows := must(l.DatasetRows("sft", RowOptions{}))
	require.Equal(t, `<tool_call>{"tool_calls":[{"arguments":"{}"}]}</tool_call>`, rows[0].Messages[0].Content)
	require.Equal(t, `<tool_call>"search[go]"</tool_call>`, rows[0].Messages[1].Content)
	require.Equal(t, "unknown", l.AuditRecords()[0].ToolName)
	require.Equal(t, "search[go]", l.EvalDict().ToolCalls[1])
}

func TestEvalDict(t *testing.T) {
	d := wrapperLog(t).EvalDict()
	require.Empty(t, cmp.Diff(EvalDict{
		ToolCalls: []any{
			map[string]any{"name": "weather", "arguments": map[string]any{"city": "Oslo", "days": json.Number("1.0")}},
			map[string]any{"name": "weather", "arguments": map[string]any{}},
		},
		ToolOutputs:   []any{nil, map[string]any{"sky": "clear"}},
		Reasoning:     "two cities\nclear",
		CallIDs:       []string{"a", "b"},
		OutputCallIDs: []string{"b", "a"},
	}, d))
	l, err := FromEvalDict(d)
	require.NoError(t, err)
	require.Equal(t, Light, l.Tier)
	var kinds []Kind
	for _, e := range l.Events {
		kinds = append(kinds, e.Kind)
	}
	require.Equal(t, []Kind{Reasoning, ToolCall, ToolResult, ToolCall, ToolResult}, kinds, "call i, output i")
	require.Equal(t, map[string]any{"sky": "clear"}, l.Events[2].Payload["output"])

	// Without ids, by position; fewer outputs than calls is a run that broke off.
	l = must(FromEvalDict(EvalDict{ToolCalls: []any{map[string]any{"name": "f"}, map[string]any{"name": "g"}}, ToolOutputs: []any{1}}))
	require.Len(t, l.Events, 3)
	require.Equal(t, "tool:f", l.Events[1].Author)
	for _, bad := range []EvalDict{
		{ToolOutputs: []any{1}},
		{ToolCalls: []any{map[string]any{"name": "f"}}, CallIDs: []string{"x", "y"}},
		{ToolCalls: []any{map[string]any{"name": "f"}}, ToolOutputs: []any{1}, OutputCallIDs: []string{"x"}},
		{ToolCalls: []any{map[string]any{"name": "f"}}, ToolOutputs: []any{1}, CallIDs: []string{"x"}, OutputCallIDs: []string{"z"}},
	} {
		_, err := FromEvalDict(bad)
		require.ErrorIs(t, err, ErrInvalid)
	}
}

func TestAuditRecords(t *testing.T) {
	recs := wrapperLog(t).AuditRecords()
	require.Empty(t, cmp.Diff([]AuditRecord{
		{
			TrajectoryID: "w", StageName: `weather {"city":"Oslo","days":1.0}`, ToolName: "weather", StageType: "tool_call",
			StateSnapshot: map[string]any{"arguments": map[string]any{"city": "Oslo", "days": json.Number("1.0")}},
			Status:        "ok", CallID: "a", Accepted: true, Seq: 4,
		},
		{
			TrajectoryID: "w", StageName: "weather", ToolName: "weather", StageType: "tool_call",
			StateSnapshot: map[string]any{"arguments": map[string]any{}},
			Status:        "error", ErrorDetails: "bad arguments", CallID: "b", Accepted: true, Seq: 4,
		},
	}, recs))
}

// A call id used twice on a path belongs to the nearer call.
func TestRepeatedCallID(t *testing.T) {
	b := NewBuilder(Meta{})
	must(b.Append(NewToolCall("c", "f", nil)))
	must(b.Append(NewToolResult("c", 1, "")))
	must(b.Append(NewToolCall("c", "g", nil)))
	must(b.Append(NewToolResult("c", 2, "broke")))
	recs := must(b.Finish(OK, "")).AuditRecords()
	require.Equal(t, []string{"ok", "error"}, []string{recs[0].Status, recs[1].Status})
}

// A call in a rejected alternative cannot be answered from another one.
func TestResultNeedsCallAbove(t *testing.T) {
	b := NewBuilder(Meta{})
	must(b.Append(NewObservation("env", "task")))
	must(b.Append(NewToolCall("c", "f", nil)))
	_, err := b.AppendAfter(1, NewToolResult("c", 1, ""))
	require.ErrorContains(t, err, `no tool call above has the id "c"`)
	l := must(b.Finish(OK, ""))
	l.Events = append(l.Events, Event{Seq: 3, Parent: 1, Kind: ToolResult, CallID: "c", Author: "tool:f", Payload: map[string]any{"output": 1}})
	require.ErrorContains(t, l.Validate(), `events[2].call_id = "c": no tool call above it`)
}

func TestMaskedTokens(t *testing.T) {
	l := toolLog(t)
	spans, err := l.MaskedTokens()
	require.NoError(t, err)
	require.Equal(t, []EventSpan{
		{1, 0, Span{0, 3}}, {2, 0, Span{3, 7}}, {3, 0, Span{7, 9}}, {5, 0, Span{9, 12}},
	}, spans)
}

func TestFromPipelineState(t *testing.T) {
	c := 7.0
	l, err := FromPipelineState(PipelineState{
		ID: "p", InputText: "a loan", StepHistory: []string{"score", "judge", "score"},
		StageOutputs: map[string]any{"score": 3, "judge": map[string]any{"ok": true}}, Reason: "fine", Confidence: &c,
	})
	require.NoError(t, err)
	require.Equal(t, Light, l.Tier)
	require.Equal(t, []float64{0.7}, l.Rewards(EpisodeScope))
	recs := l.AuditRecords()
	require.Equal(t, []string{"score", "judge", "score"}, []string{recs[0].StageName, recs[1].StageName, recs[2].StageName})
	require.Empty(t, l.EvalDict().ToolCalls, "a stage has no action")
	require.Len(t, l.EvalDict().ToolOutputs, 3)
	l = must(FromPipelineState(PipelineState{InputText: "x"}))
	require.Empty(t, l.Rewards(EpisodeScope))
	require.Equal(t, Text, l.Events[1].Kind)
}

func TestMaskedTokensSkipPartials(t *testing.T) {
	b := NewBuilder(testMeta())
	s := must(b.AppendTokens(0, []int32{1, 2}, []float32{-1, -1}, Policy, 1))
	piece := NewText("he").In(0, Span{0, 1})
	piece.Partial = true
	must(b.Append(piece))
	must(b.Append(NewText("hello").In(0, s)))
	spans := must(must(b.Finish(OK, "")).MaskedTokens())
	require.Equal(t, []EventSpan{{2, 0, Span{0, 2}}}, spans)
}

// An event may point at shared tokens through any branch that has them.
func TestAcceptedThroughSharedPrefix(t *testing.T) {
	b := NewBuilder(testMeta())
	p := must(b.AppendTokens(0, []int32{1, 2}, nil, Prompt, 0))
	f := must(b.Fork(0, 2))
	must(b.Append(NewObservation("env", "task").In(f, p)))
	s := must(b.AppendTokens(0, []int32{3}, []float32{-1}, Policy, 1))
	must(b.Append(NewText("x").In(0, s)))
	l := must(b.Finish(OK, ""))
	require.Equal(t, []bool{true, false}, []bool{l.Branches[0].Accepted, l.Branches[1].Accepted})
}

// What a middle turn says without a call is a step, not the final response; and
// two agents' turns are two messages.
func TestTextInTheMiddle(t *testing.T) {
	b := NewBuilder(Meta{})
	for i, who := range []string{"agent:a", "agent:b"} {
		e := NewReasoning("thought " + who)
		e.Author = who
		must(b.Append(e))
		e = NewText("says " + who)
		e.Author = who
		must(b.Append(e))
		if i == 0 {
			must(b.Append(NewTurnComplete(0)))
		}
	}
	tr := must(b.Finish(OK, "")).Trajectory()
	require.Equal(t, "says agent:b", tr.FinalResponse)
	require.Len(t, tr.Steps, 2)
	require.Equal(t, "thought agent:a\nsays agent:a", tr.Steps[0].Thought)
	require.Equal(t, "thought agent:b", tr.Steps[1].Thought)

	b = NewBuilder(Meta{})
	e := NewReasoning("a thinks")
	e.Author = "agent:a"
	must(b.Append(e))
	e = NewText("b says")
	e.Author = "agent:b"
	must(b.Append(e))
	line := string(must(ExportMessages(must(b.Finish(OK, "")))))
	require.Contains(t, line, `{"content":null,"name":"a","reasoning_content":"a thinks","role":"assistant"},{"content":"b says","name":"b","role":"assistant"}`)
}
