package eventlog

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// forkLog is toolLog with a second, rejected branch.
func forkLog(t *testing.T) *Log {
	t.Helper()
	l := toolLog(t)
	l.ID = ""
	b := &Builder{log: *l, head: uint32(len(l.Events))}
	f := must(b.Fork(0, 5))
	s := must(b.AppendTokens(f, []int32{40}, []float32{-1}, Policy, 5))
	must(b.AppendAfter(1, NewText("no tool").In(f, s)))
	require.NoError(t, b.SetOutcome(6))
	l = must(b.Finish(OK, ""))
	require.NoError(t, l.Validate())
	return l
}

// TestValidate breaks one invariant at a time; Encode must refuse each.
func TestValidate(t *testing.T) {
	inf := float32(math.Inf(-1))
	for want, breakIt := range map[string]func(l *Log){
		`id = "": a log needs an id`:                  func(l *Log) { l.ID = "" },
		`meta.worker = "\xff": not valid UTF-8`:       func(l *Log) { l.Meta.Worker = "\xff" },
		`meta.created = `:                             func(l *Log) { l.Meta.Created = time.Date(1600, 1, 1, 0, 0, 0, 0, time.UTC) },
		`meta.member = 4: must be below meta.group_s`: func(l *Log) { l.Meta.Member = 4 },
		`meta.member = 1: must be below`:              func(l *Log) { l.Meta.GroupSize = 0 },
		`meta.status = unknown`:                       func(l *Log) { l.Meta.Status = StatusUnknown },
		`meta.status = status(9)`:                     func(l *Log) { l.Meta.Status = 9 },
		`meta.cause = "x": status ok has no cause`:    func(l *Log) { l.Meta.Cause = "x" },
		`meta.cause = "": status failed needs`:        func(l *Log) { l.Meta.Status = Failed },
		`meta.cause = "": status timed_out needs`:     func(l *Log) { l.Meta.Status = TimedOut },
		`tier = light: a light log has no tokens`:     func(l *Log) { l.Tier = Light },
		`tier = tier(2)`:                              func(l *Log) { l.Tier = 2 },
		`outcome = 99: there are 7 events`:            func(l *Log) { l.Outcome = 99 },
		`outcome = 6: that event is partial`:          func(l *Log) { l.Events[5].Partial = true },

		`events[2].seq = 9`:                                           func(l *Log) { l.Events[2].Seq = 9 },
		`events[2].parent = 3: a parent precedes`:                     func(l *Log) { l.Events[2].Parent = 3 },
		`events[3].parent = 3: that event is partial`:                 func(l *Log) { l.Events[2].Partial = true },
		`events[0].partial = true: no later observation event`:        func(l *Log) { l.Events[0].Partial = true },
		`events[0].kind = unknown`:                                    func(l *Log) { l.Events[0].Kind = KindUnknown },
		`events[0].kind = kind(9)`:                                    func(l *Log) { l.Events[0].Kind = 9 },
		`events[5].scope = none: a reward judges`:                     func(l *Log) { l.Events[5].Scope = NoScope },
		`events[0].scope = turn: only reward events`:                  func(l *Log) { l.Events[0].Scope = TurnScope },
		`events[0].author = "": want`:                                 func(l *Log) { l.Events[0].Author = "" },
		`events[0].author = "human:": want`:                           func(l *Log) { l.Events[0].Author = "human:" },
		`events[0].author = "env:x": want`:                            func(l *Log) { l.Events[0].Author = "env:x" },
		`events[0].call_id = "\xff": not valid`:                       func(l *Log) { l.Events[0].CallID = "\xff" },
		`events[1].call_id = "": a tool call needs an id`:             func(l *Log) { l.Events[1].CallID = "" },
		`events[2].call_id = "": a tool result needs`:                 func(l *Log) { l.Events[2].CallID = "" },
		`events[2].call_id = "zz": no tool call above`:                func(l *Log) { l.Events[2].CallID = "zz" },
		`events[0].start = `:                                          func(l *Log) { l.Events[0].Start = time.Date(3000, 1, 1, 0, 0, 0, 0, time.UTC) },
		`events[0].end = `:                                            func(l *Log) { l.Events[0].Start = t0; l.Events[0].End = t0.Add(-1) },
		`events[0].branch = 2: the span needs a branch`:               func(l *Log) { l.Events[0].Branch = 2 },
		`events[0].span = [0,13)`:                                     func(l *Log) { l.Events[0].Span = &Span{0, 13} },
		`events[0].span = [-1,1)`:                                     func(l *Log) { l.Events[0].Span = &Span{-1, 1} },
		`events[0].span = [2,1)`:                                      func(l *Log) { l.Events[0].Span = &Span{2, 1} },
		`payload = invalid: .x: Go type chan int is not JSON`:         func(l *Log) { l.Events[0].Payload["x"] = make(chan int) },
		`payload = invalid: .x: [1]: NaN is not a JSON number`:        func(l *Log) { l.Events[0].Payload["x"] = []any{1, math.NaN()} },
		`payload.text = <absent>: want a string`:                      func(l *Log) { l.Events[0].Payload = nil },
		`payload.text = 3`:                                            func(l *Log) { l.Events[4].Payload = map[string]any{"text": 3} },
		`payload.action = <absent>: want an action`:                   func(l *Log) { l.Events[1].Payload = nil },
		`payload.stage = 1: want a string`:                            func(l *Log) { l.Events[1].Payload = map[string]any{"stage": 1} },
		`payload.output = <absent>: want an output`:                   func(l *Log) { l.Events[2].Payload = nil },
		`payload.error = true: want a string`:                         func(l *Log) { l.Events[2].Payload["error"] = true },
		`payload.step = 0.5: want a whole number`:                     func(l *Log) { l.Events[3].Payload["step"] = 0.5 },
		`payload.step = -1: want a whole number`:                      func(l *Log) { l.Events[3].Payload["step"] = -1 },
		`payload.value = "1": want a finite number`[:15]:              func(l *Log) { l.Events[5].Payload["value"] = "1" },
		`payload.op = ADDD: want ADD, UPDATE, DELETE or NOOP`:         func(l *Log) { l.Events[4].Kind = MemoryOp; l.Events[4].Payload = map[string]any{"op": "ADDD"} },
		`payload.id = 1: want a string in an event of kind memory_op`: func(l *Log) { l.Events[4].Kind = MemoryOp; l.Events[4].Payload = map[string]any{"op": "ADD", "id": 1} },

		`len(branches[0].logprobs) = 13: want one per token: 12`: func(l *Log) { l.Branches[0].Logprobs = append(l.Branches[0].Logprobs, 0) },
		`branches[0].ids[4] = -3: a token id is not negative`:    func(l *Log) { l.Branches[0].IDs[4] = -3 },
		`branches[0].ids[4] = -1: a token id is not negative`:    func(l *Log) { l.Branches[0].IDs[4] = UnknownID },
		`branches[0].logprobs[3] = NaN: the logprob a policy`:    func(l *Log) { l.Branches[0].Logprobs[3] = nan },
		`branches[0].logprobs[3] = -Inf`:                         func(l *Log) { l.Branches[0].Logprobs[3] = inf },
		`branches[0].logprobs[3] = +Inf`:                         func(l *Log) { l.Branches[0].Logprobs[3] = -inf },
		`branches[0].logprobs[3] = 0.001`:                        func(l *Log) { l.Branches[0].Logprobs[3] = 0.001 },
		`branches[0].logprobs[0] = -1: prompt tokens were not s`: func(l *Log) { l.Branches[0].Logprobs[0] = -1 },
		`branches[0].logprobs[7] = 0: environment tokens were n`: func(l *Log) { l.Branches[0].Logprobs[7] = 0 },
		`branches[0].runs[0].writer = unknown`:                   func(l *Log) { l.Branches[0].Runs[0].Writer = WriterUnknown },
		`branches[0].runs[0].writer = writer(5)`:                 func(l *Log) { l.Branches[0].Runs[0].Writer = 5 },
		`branches[0].runs[0].version = 1: only policy`:           func(l *Log) { l.Branches[0].Runs[0].Version = 1 },
		`branches[0].runs[1].end = 2: runs are not empty`:        func(l *Log) { l.Branches[0].Runs[1].End = 2 },
		`branches[0].runs = 9: runs partition the tokens`:        func(l *Log) { l.Branches[0].Runs = l.Branches[0].Runs[:3] },
		`branches[0].runs[2] = {5 policy 3}: equal to the run`: func(l *Log) {
			r := l.Branches[0].Runs
			l.Branches[0].Runs = append([]Run{r[0], {4, Policy, 3}, {5, Policy, 3}}, r[1:]...)
		},
		`branches[0].fork = 1: a root branch shares no tokens`:      func(l *Log) { l.Branches[0].Fork = 1 },
		`branches[0].parent = 1: a branch follows its parent`:       func(l *Log) { l.Branches[0].Parent = 1 },
		`branches[1].fork = 13: want 0 to 6 tokens`:                 func(l *Log) { l.Branches[1].Fork = 13 },
		`branches[1].ids[0] = 77: differs from branch 0 (1)`:        func(l *Log) { l.Branches[1].IDs[0] = 77 },
		`branches[1].logprobs[3] = -0.75: differs from branch 0`:    func(l *Log) { l.Branches[1].Logprobs[3] = -0.75 },
		`branches[1].runs[1] = {5 policy 9}: differs from branch 0`: func(l *Log) { l.Branches[1].Runs[1].Version = 9 },
		`branches[0].accepted = false: event 1 of the accepted h`:   func(l *Log) { l.Branches[0].Accepted = false; l.Branches[1].Accepted = false },
		`branches[0].accepted = false: event 2 of the accepted h`:   func(l *Log) { l.Branches[0].Accepted = false; l.Branches[1].Accepted = true },
	} {
		l := forkLog(t)
		breakIt(l)
		err := l.Validate()
		require.ErrorIs(t, err, ErrInvalid, want)
		require.Contains(t, err.Error(), want)
		_, err = Encode(l)
		require.ErrorIs(t, err, ErrInvalid, want)
	}
}

// Every problem is reported at once, and a flood of them is counted.
func TestValidateReportsAll(t *testing.T) {
	l := toolLog(t)
	l.Meta.Cause, l.Events[0].Author, l.Branches[0].Logprobs[3] = "x", "", nan
	msg := l.Validate().Error()
	require.Equal(t, 3, strings.Count(msg, ErrInvalid.Error()), msg)
	l.Events = make([]Event, 5000)
	msg = l.Validate().Error()
	require.Equal(t, maxProblems+1, strings.Count(msg, ErrInvalid.Error()))
	require.Contains(t, msg, "more problems")
}

// Rounding above 0 is accepted, as are a failed log without an outcome and a
// truncated one with a cause.
func TestValidateAccepts(t *testing.T) {
	l := toolLog(t)
	l.Branches[0].Logprobs[3] = 1e-6
	l.Meta.Status, l.Meta.Cause = Truncated, "engine: context limit 4096"
	require.NoError(t, l.Validate())
	require.NoError(t, (&Log{ID: "x", Meta: Meta{Status: Failed, Cause: "engine: down"}}).Validate())
}

func TestBuilderRefuses(t *testing.T) {
	b := NewBuilder(testMeta())
	must(b.AppendTokens(0, []int32{1}, nil, Prompt, 0))
	for want, f := range map[string]func() error{
		"branch = 1: there are 1": func() error { _, err := b.AppendTokens(1, nil, nil, Prompt, 0); return err },
		"writer = unknown":        func() error { _, err := b.AppendTokens(0, []int32{1}, nil, 0, 0); return err },
		"version = 3: only policy": func() error {
			_, err := b.AppendTokens(0, []int32{1}, nil, Environment, 3)
			return err
		},
		"ids[1] = -1": func() error { _, err := b.AppendTokens(0, []int32{1, -1}, nil, Environment, 0); return err },
		"logprobs[0] = 1: the logprob a policy": func() error {
			_, err := b.AppendTokens(0, []int32{1}, []float32{1}, Policy, 0)
			return err
		},
		"logprobs[0] = -1: prompt tokens": func() error {
			_, err := b.AppendTokens(0, []int32{1}, []float32{-1}, Prompt, 0)
			return err
		},
		"parent = 4: there are 1 branches": func() error { _, err := b.Fork(4, 0); return err },
		"at = 2: want 0 to 1":              func() error { _, err := b.Fork(0, 2); return err },
		"at = -1":                          func() error { _, err := b.Fork(0, -1); return err },
		"events[0].parent = 3: there are 0": func() error {
			_, err := b.AppendAfter(3, NewText("x"))
			return err
		},
		"events[0].span = [0,2)": func() error { _, err := b.Append(NewText("x").In(0, Span{0, 2})); return err },
		"seq = 0":                func() error { return b.SetOutcome(0) },
		"meta.status = unknown":  func() error { _, err := b.Finish(StatusUnknown, ""); return err },
	} {
		err := f()
		require.ErrorIs(t, err, ErrInvalid, want)
		require.ErrorContains(t, err, want)
	}
	require.Len(t, b.Tokens(0), 1)
	require.Nil(t, b.Tokens(9))
	l, err := b.Finish(TimedOut, "group: deadline 60s")
	require.NoError(t, err)
	require.Len(t, l.Events, 0)
	_, err = b.Finish(OK, "")
	require.ErrorIs(t, err, ErrFinished)
	_, err = b.Append(NewText("x"))
	require.ErrorIs(t, err, ErrFinished)
	_, err = b.AppendTokens(0, nil, nil, Prompt, 0)
	require.ErrorIs(t, err, ErrFinished)
	_, err = b.Root()
	require.ErrorIs(t, err, ErrFinished)
}

// The log does not share memory with what its writer holds.
func TestBuilderCopies(t *testing.T) {
	b := NewBuilder(testMeta())
	ids, lps := []int32{1, 2}, []float32{-1, -1}
	s := must(b.AppendTokens(0, ids, lps, Policy, 1))
	args := map[string]any{"x": []any{1}}
	e := NewToolCall("c", "f", args).In(0, s)
	must(b.Append(e))
	ids[0], lps[0], args["x"].([]any)[0], e.Span.End = 9, -9, 9, 0
	l := must(b.Finish(OK, ""))
	require.Equal(t, int32(1), l.Branches[0].IDs[0])
	require.Equal(t, float32(-1), l.Branches[0].Logprobs[0])
	require.Equal(t, "[1]", compact(l.Events[0].Calls()[0].Arguments.(map[string]any)["x"]))
	require.Equal(t, int32(2), l.Events[0].Span.End)
}

// A log sent twice has one id; another log another one.
func TestContentID(t *testing.T) {
	a, b := toolLog(t), toolLog(t)
	require.Equal(t, a.ID, b.ID)
	require.Regexp(t, `^[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`, a.ID)
	require.NotEqual(t, a.ID, forkLog(t).ID)
}
