package eventlog

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTokenWeights(t *testing.T) {
	b := NewBuilder(testMeta())
	p := must(b.AppendTokens(0, []int32{1, 2}, nil, Prompt, 0))
	must(b.Append(NewObservation("env", "task").In(0, p)))
	must(b.AppendTokens(0, []int32{3, 4, 5, 6}, nil, Expert, 0)) // opening, thought, call, turn's end
	must(b.Append(NewReasoning("hm").In(0, Span{3, 4})))
	must(b.Append(NewToolCall("c", "f", nil).In(0, Span{4, 5})))
	r := must(b.AppendTokens(0, []int32{7}, nil, Environment, 0))
	must(b.Append(NewToolResult("c", "x", "").In(0, r)))
	must(b.AppendTokens(0, []int32{8}, []float32{-1}, Policy, 1)) // no event
	f := must(b.Fork(0, 5))
	s := must(b.AppendTokens(f, []int32{9}, []float32{-1}, Policy, 1))
	must(b.AppendAfter(1, NewText("t").In(f, s)))
	l := must(b.Finish(OK, ""))
	w, err := l.TokenWeights(0)
	require.NoError(t, err)
	require.Equal(t, []float32{0, 0, 1, 1, 2, 2, 0, 1}, w)
	w, err = l.TokenWeights(1)
	require.NoError(t, err)
	require.Equal(t, []float32{0, 0, 1, 1, 2, 1}, w, "the shared prefix keeps its weights, the rejected rest is not here")
	_, err = l.TokenWeights(2)
	require.ErrorContains(t, err, "branch = 2: there are 2")
	l.Tier = Light
	_, err = l.TokenWeights(0)
	require.ErrorIs(t, err, ErrLightTier)
}
