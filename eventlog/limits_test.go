package eventlog

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
)

// The five limits the paper admits of its event schema (SPEC 1.5), each shown
// to be gone, through the encoder and back.

func again(t *testing.T, l *Log) *Log {
	t.Helper()
	got, err := Decode(must(Encode(l)))
	require.NoError(t, err)
	return got
}

// "Concurrent calls are serialised."
func TestLimitConcurrentCalls(t *testing.T) {
	b := NewBuilder(testMeta())
	slow, fast := NewToolCall("slow", "search", map[string]any{"q": "a"}), NewToolCall("fast", "search", map[string]any{"q": "b"})
	slow.Start, slow.End = t0, t0.Add(9*time.Second)
	fast.Start, fast.End = t0.Add(time.Second), t0.Add(2*time.Second)
	must(b.Append(slow))
	must(b.Append(fast))
	_, err := b.Append(Event{Kind: ToolResult, Payload: map[string]any{"output": "?"}})
	require.ErrorContains(t, err, "2 calls above are unanswered")
	must(b.Append(NewToolResult("fast", "B", "")))
	must(b.Append(NewToolResult("slow", nil, "timed out")))
	l := again(t, must(b.Finish(OK, "")))

	require.True(t, l.Events[1].Start.Before(l.Events[0].End), "the calls overlap")
	recs := l.AuditRecords()
	require.Len(t, recs, 2)
	require.Equal(t, []string{"slow", "error", "timed out"}, []string{recs[0].CallID, recs[0].Status, recs[0].ErrorDetails})
	require.Equal(t, []string{"fast", "ok", ""}, []string{recs[1].CallID, recs[1].Status, recs[1].ErrorDetails})
	// Results come back in another order and still find their calls.
	back := must(FromEvalDict(l.EvalDict()))
	require.Equal(t, "slow", back.Events[1].CallID)
	require.Equal(t, "B", back.Events[3].Payload["output"])
}

// "No streaming partials."
func TestLimitStreaming(t *testing.T) {
	b := NewBuilder(testMeta())
	b.SetTier(Full)
	must(b.Append(NewObservation("env", "say hello")))
	for _, piece := range []string{"Hel", "Hello wor"} {
		e := NewText(piece)
		e.Partial = true
		must(b.Append(e))
	}
	_, err := b.Finish(OK, "")
	require.ErrorContains(t, err, "partial", "an open stream is no finished log")
	must(b.Append(NewText("Hello world")))
	l := again(t, must(b.Finish(OK, "")))

	require.Len(t, l.Events, 4)
	require.True(t, l.Events[1].Partial)
	rows := must(l.DatasetRows("sft", RowOptions{Choice: AllRows}))
	require.Len(t, rows, 1, "pieces are no rejected alternatives")
	require.Equal(t, []Message{{"user", "say hello"}, {"assistant", "Hello world"}}, rows[0].Messages)

	// A stream that broke keeps its pieces.
	b = NewBuilder(testMeta())
	e := NewText("Hel")
	e.Partial = true
	must(b.Append(e))
	l = again(t, must(b.Finish(Failed, "engine: connection lost")))
	require.Equal(t, "Hel", l.Events[0].Payload["text"])
	require.Empty(t, l.History())
}

// "Human turns are plain OBSERVATION", and "no author field in multi-agent
// logs".
func TestLimitAuthors(t *testing.T) {
	b := NewBuilder(testMeta())
	must(b.Append(NewObservation("human:ann", "plan it")))
	plan := NewText("a plan")
	plan.Author = "agent:planner"
	must(b.Append(plan))
	critique := NewText("a critique")
	critique.Author = "agent:critic"
	must(b.Append(critique))
	must(b.Append(NewObservation("retrieval", "a document")))
	must(b.Append(NewToolCall("", "calc", nil)))
	must(b.Append(NewToolResult("", 4, "")))
	must(b.Append(NewObservation("human:bob", "wait")))
	must(b.Append(NewReward(EpisodeScope, 0.5)))
	l := again(t, must(b.Finish(OK, "")))

	var authors []string
	for _, e := range l.Events {
		authors = append(authors, e.Author)
	}
	require.Empty(t, cmp.Diff([]string{
		"human:ann", "agent:planner", "agent:critic", "retrieval", "agent", "tool:calc", "human:bob", "env",
	}, authors))
	_, err := NewBuilder(Meta{}).Append(NewObservation("ann", "hi"))
	require.ErrorContains(t, err, `author = "ann"`)
}

// "Tree branches (ToT, Reflexion) are flattened."
func TestLimitTree(t *testing.T) {
	b := NewBuilder(testMeta())
	prompt := must(b.AppendTokens(0, []int32{1, 2}, nil, Prompt, 0))
	task := must(b.Append(NewObservation("env", "task").In(0, prompt)))
	s := must(b.AppendTokens(0, []int32{7, 8}, []float32{-1, -1}, Policy, 1))
	must(b.Append(NewText("bad try").In(0, s)))
	must(b.Append(NewReward(TurnScope, -1)))
	second := must(b.Fork(0, prompt.End))
	s = must(b.AppendTokens(second, []int32{9}, []float32{-2}, Policy, 1))
	must(b.AppendAfter(task, NewText("good try").In(second, s)))
	must(b.Append(NewReward(EpisodeScope, 1)))
	third := must(b.Fork(0, prompt.End))
	s = must(b.AppendTokens(third, []int32{5}, []float32{-3}, Policy, 1))
	worse := must(b.AppendAfter(task, NewText("worse").In(third, s)))
	require.NoError(t, b.SetOutcome(worse-1))
	l := again(t, must(b.Finish(OK, "")))

	br, ok := l.Accepted()
	require.True(t, ok)
	require.Equal(t, 1, br)
	require.Equal(t, []bool{false, true, false}, []bool{l.Branches[0].Accepted, l.Branches[1].Accepted, l.Branches[2].Accepted})
	require.Equal(t, []int32{1, 2, 9}, l.Branches[1].IDs, "a branch reads alone")
	r, ok := l.EpisodeReward()
	require.True(t, ok)
	require.Equal(t, 1.0, r)
	require.Empty(t, l.Rewards(TurnScope), "a rejected branch's reward is not the log's")

	rows := must(l.DatasetRows("sft", RowOptions{Choice: AllRows}))
	require.Len(t, rows, 3)
	require.Equal(t, "good try", rows[0].Messages[1].Content)
	require.False(t, rows[0].Rejected)
	for i, want := range []string{"bad try", "worse"} {
		require.True(t, rows[i+1].Rejected)
		require.Equal(t, 1, rows[i+1].Shared, "a preference pair shares its prompt")
		require.Equal(t, want, rows[i+1].Messages[1].Content)
	}
	train := must(l.TrainRows(0))
	require.Equal(t, []TrainRow{{Branch: 1, Mask: []bool{false, false, true}, Trained: 1}}, train)
}

// SFT rows carry memory operations when asked.
func TestRowsWithMemory(t *testing.T) {
	b := NewBuilder(testMeta())
	b.SetTier(Full)
	must(b.Append(NewObservation("env", "my name is Ann")))
	must(b.Append(NewMemoryOp("ADD", "m1", "entity")))
	must(b.Append(NewText("noted")))
	l := again(t, must(b.Finish(OK, "")))
	plain := must(l.DatasetRows("sft", RowOptions{}))
	require.Len(t, plain[0].Messages, 2)
	rows := must(l.DatasetRows("sft", RowOptions{Memory: true}))
	require.Equal(t, Message{"assistant", `<memory_op>{"id":"m1","kind":"entity","op":"ADD"}</memory_op>`}, rows[0].Messages[1])
	require.Equal(t, []float64{0, MemoryWeight, TextWeight}, rows[0].SegmentWeights)
	require.Equal(t, []bool{true, false, false}, rows[0].LossMask)
}
