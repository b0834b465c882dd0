package eventlog

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestJSONNamesKindsAndLeavesUnknownLogprobsOut(t *testing.T) {
	nan := float32(math.NaN())
	l := &Log{
		ID: "x", Tier: Full, Meta: Meta{Status: OK, GroupSize: 1},
		Events: []Event{{Seq: 1, Kind: ToolCall, Author: "agent", CallID: "c1", Span: &Span{Start: 1, End: 2},
			Payload: map[string]any{"action": map[string]any{"name": "calc"}}}},
		Branches: []Branch{{Accepted: true, IDs: []int32{5, 6}, Logprobs: []float32{nan, -0.5},
			Runs: []Run{{End: 1, Writer: Prompt}, {End: 2, Writer: Policy, Version: 3}}}},
	}
	b, err := json.Marshal(l)
	require.NoError(t, err)
	var got map[string]any
	require.NoError(t, json.Unmarshal(b, &got))
	event := got["events"].([]any)[0].(map[string]any)
	require.Equal(t, "tool_call", event["kind"])
	require.Equal(t, []any{1.0, 2.0}, event["span"])
	branch := got["branches"].([]any)[0].(map[string]any)
	require.Equal(t, []any{nil, -0.5}, branch["logprobs"])
	require.Equal(t, []any{
		map[string]any{"end": 1.0, "writer": "prompt"},
		map[string]any{"end": 2.0, "writer": "policy", "version": 3.0},
	}, branch["runs"])
	require.Equal(t, l.Digest(), got["digest"])
}
