package eventlog

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/stretchr/testify/require"
)

var t0 = time.Date(2026, 5, 4, 3, 2, 1, 987654321, time.UTC)

func testMeta() Meta {
	return Meta{
		Run: "r", Group: "g:1:x", Member: 1, GroupSize: 4, Table: "train", Source: "store", Task: "t-7", Attempt: 2,
		Worker: "w1", Created: t0,
	}
}

// must unwraps in tests.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

var equalLogs = cmp.Options{cmpopts.EquateNaNs(), cmpopts.EquateEmpty()}

// toolLog is a two-turn episode with one tool call, in tokens of two policy
// versions.
func toolLog(t *testing.T) *Log {
	t.Helper()
	b := NewBuilder(testMeta())
	p := must(b.AppendTokens(0, []int32{1, 2, 3}, nil, Prompt, 0))
	must(b.Append(NewObservation("human:ann", "how much is 6*7?").In(0, p)))
	c := must(b.AppendTokens(0, []int32{10, 11, 12, 13}, []float32{-0.5, -0.25, 0, -1}, Policy, 3))
	must(b.Append(NewToolCall("c1", "calc", map[string]any{"expr": "6*7", "digits": 2}).In(0, c)))
	r := must(b.AppendTokens(0, []int32{20, 21}, nil, Environment, 0))
	must(b.Append(NewToolResult("c1", "42", "").In(0, r)))
	must(b.Append(NewTurnComplete(0)))
	a := must(b.AppendTokens(0, []int32{30, 31, 2}, []float32{-0.125, -2, -0.0625}, Policy, 4))
	must(b.Append(NewText("42").In(0, a)))
	must(b.Append(NewReward(EpisodeScope, 1)))
	return must(b.Finish(OK, ""))
}

func TestBuilderRoundTrip(t *testing.T) {
	l := toolLog(t)
	require.Equal(t, Full, l.Tier)
	data, err := Encode(l)
	require.NoError(t, err)
	got, err := Decode(data)
	require.NoError(t, err)
	require.Empty(t, cmp.Diff(l, got, equalLogs))
	require.Equal(t, l.Digest(), got.Digest())
	lo, hi, n := got.PolicyVersions()
	require.Equal(t, []uint64{3, 4, 7}, []uint64{lo, hi, uint64(n)})
	r, ok := got.EpisodeReward()
	require.True(t, ok)
	require.Equal(t, 1.0, r)
	br, ok := got.Accepted()
	require.True(t, ok)
	require.Zero(t, br)
	require.True(t, math.IsNaN(float64(got.Branches[0].Logprobs[0])))
}
