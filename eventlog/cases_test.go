package eventlog

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Bugs other trainers had, at the place where an event log can stop them.

// huggingface/trl #5144: after a tool call, re-tokenisation shortened the ids
// while the mask had grown already.
func TestCaseRetokenise(t *testing.T) {
	b := NewBuilder(testMeta())
	must(b.AppendTokens(0, []int32{1, 2}, nil, Prompt, 0))
	before := len(b.Tokens(0))
	_, err := b.AppendTokens(0, []int32{5, 6}, []float32{-1, -1, -1}, Policy, 1)
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorContains(t, err, "len(logprobs) = 3: want one per token: 2")
	_, err = b.AppendTokens(0, []int32{5, 6}, nil, Policy, 1)
	require.ErrorIs(t, err, ErrInvalid)
	require.Len(t, b.Tokens(0), before, "a refused append changes nothing")

	l := toolLog(t)
	l.Branches[0].Logprobs = l.Branches[0].Logprobs[1:]
	_, err = Encode(l)
	require.ErrorContains(t, err, "len(branches[0].logprobs) = 11: want one per token: 12")
}

// THUDM/slime #1440: the off-policy part of a resumed partial rollout was not
// masked as configured.
func TestCasePartialRollout(t *testing.T) {
	b := NewBuilder(testMeta())
	must(b.AppendTokens(0, []int32{1, 2, 3, 4}, []float32{-1, -1, -1, -1}, Policy, 3))
	must(b.AppendTokens(0, []int32{5, 6, 7}, []float32{-1, -1, -1}, Policy, 4))
	l := again(t, must(b.Finish(OK, "")))
	require.Equal(t, []uint64{3, 3, 3, 3, 4, 4, 4}, l.Branches[0].Versions())
	require.Equal(t, []bool{false, false, false, false, true, true, true}, l.Branches[0].PolicyMask(4))
	rows := must(l.TrainRows(4))
	require.Equal(t, 3, rows[0].Trained)
	rows = must(l.TrainRows(0))
	require.Equal(t, 7, rows[0].Trained)
	_, err := l.TrainRows(5)
	require.ErrorIs(t, err, ErrNoSampledTokens)
}

// OpenPipe/ART #127, microsoft/agent-lightning #74: a trajectory without
// sampled tokens is refused at admission, not found as an all-zero mask later.
func TestCaseNothingSampled(t *testing.T) {
	for name, fill := range map[string]func(b *Builder){
		"no tokens": func(b *Builder) { must(b.Append(NewText("said, but never sampled"))) },
		"expert": func(b *Builder) {
			must(b.AppendTokens(0, []int32{1}, nil, Prompt, 0))
			must(b.AppendTokens(0, []int32{2}, nil, Expert, 0))
		},
		"rejected only": func(b *Builder) {
			p := must(b.AppendTokens(0, []int32{1}, nil, Prompt, 0))
			root := must(b.Append(NewObservation("env", "task").In(0, p)))
			s := must(b.AppendTokens(0, []int32{2}, []float32{-1}, Policy, 1))
			must(b.Append(NewText("rejected").In(0, s)))
			f := must(b.Fork(0, p.End))
			s = must(b.AppendTokens(f, []int32{3}, nil, Environment, 0))
			must(b.AppendAfter(root, NewObservation("env", "given up").In(f, s)))
		},
	} {
		b := NewBuilder(testMeta())
		fill(b)
		l := must(b.Finish(Failed, "engine: no_model_calls"))
		_, err := l.TrainRows(0)
		require.ErrorIs(t, err, ErrNoSampledTokens, name)
		require.ErrorContains(t, err, l.ID)
	}
}

// OpenPipe/ART #726, huggingface/trl PR#6250: a template that rewrites history
// forks the trajectory; no logprob is attached to a token the engine did not
// see, and no sampled token is trained twice.
func TestCaseTemplateRewritesHistory(t *testing.T) {
	b := NewBuilder(testMeta())
	p := must(b.AppendTokens(0, []int32{1, 2}, nil, Prompt, 0))
	must(b.Append(NewObservation("env", "task").In(0, p)))
	s := must(b.AppendTokens(0, []int32{50, 51, 60}, []float32{-1, -1, -1}, Policy, 1))
	must(b.Append(NewText("<think>hm</think> first").In(0, s)))
	// The second prompt lacks the thinking: [1 2 60' ...].
	f := must(b.Fork(0, p.End))
	must(b.AppendTokens(f, []int32{60, 70}, nil, Prompt, 0))
	s = must(b.AppendTokens(f, []int32{80}, []float32{-1}, Policy, 2))
	must(b.Append(NewText("second").In(f, s)))
	l := again(t, must(b.Finish(OK, "")))

	rows := must(l.TrainRows(0))
	require.Equal(t, []TrainRow{
		{Branch: 0, Mask: []bool{false, false, true, true, true}, Trained: 3},
		{Branch: 1, Mask: []bool{false, false, false, false, true}, Trained: 1},
	}, rows)
	lo, hi, n := l.PolicyVersions()
	require.Equal(t, []uint64{1, 2, 4}, []uint64{lo, hi, uint64(n)})
}

// A sampled token shared by two accepted branches is trained in the first.
func TestCaseSharedTokensTrainOnce(t *testing.T) {
	b := NewBuilder(testMeta())
	s := must(b.AppendTokens(0, []int32{1, 2, 3}, []float32{-1, -1, -1}, Policy, 1))
	must(b.Append(NewText("a").In(0, s)))
	f := must(b.Fork(0, 2))
	s = must(b.AppendTokens(f, []int32{4}, []float32{-1}, Policy, 1))
	must(b.Append(NewText("b").In(f, s)))
	l := must(b.Finish(OK, ""))
	rows := must(l.TrainRows(0))
	require.Equal(t, [][]bool{{true, true, true}, {false, false, true}}, [][]bool{rows[0].Mask, rows[1].Mask})
	_, _, n := l.PolicyVersions()
	require.Equal(t, 4, n)
}

// rllm-org/rllm #829: ids holding ':' collapsed to their prefix.
func TestCaseOpaqueGroup(t *testing.T) {
	l := toolLog(t)
	require.Equal(t, "g:1:x", again(t, l).Meta.Group)
	m := *l
	m.Meta.Group = "g:1:y"
	require.NotEqual(t, l.Digest(), m.Digest())
}

// PrimeIntellect-ai/verifiers PR#1763: malformed tool JSON lost the whole
// rollout. Here it is a call with a result that carries the error.
func TestCaseMalformedCall(t *testing.T) {
	b := NewBuilder(testMeta())
	b.SetTier(Full)
	must(b.Append(NewToolCall("c1", "calc", `{"a": 1,`)))
	must(b.Append(NewToolResult("c1", nil, "arguments are not JSON")))
	l := again(t, must(b.Finish(OK, "")))
	c := l.Events[0].Calls()[0]
	require.Equal(t, Call{ID: "c1", Name: "calc", Arguments: map[string]any{}, Malformed: `{"a": 1,`}, c)
	rec := l.AuditRecords()[0]
	require.Equal(t, []string{"error", "arguments are not JSON"}, []string{rec.Status, rec.ErrorDetails})
	line := string(must(ExportMessages(l)))
	require.Contains(t, line, `"arguments":"{\"a\": 1,"`)
	require.Contains(t, line, `"content":"arguments are not JSON"`)
}

// An unscored episode is not one of reward 0.
func TestCaseUnscored(t *testing.T) {
	b := NewBuilder(testMeta())
	must(b.Append(NewText("hi")))
	l := must(b.Finish(OK, ""))
	_, ok := l.EpisodeReward()
	require.False(t, ok)
	_, err := NewBuilder(Meta{}).Append(NewReward(EpisodeScope, nanFloat()))
	require.ErrorContains(t, err, "NaN is not a JSON number")
}

func nanFloat() float64 { z := 0.0; return z / z }
