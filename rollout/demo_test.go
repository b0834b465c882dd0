package rollout

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/agent/tool"
	"github.com/skein-rl/skein/eventlog"
)

func TestDemoLogIsAFullLogThatOnlySupervisedTrainingTakes(t *testing.T) {
	messages := []Message{
		{Role: "system", Content: "s"},
		{Role: "user", Content: "q"},
		{Role: "assistant", Content: `<tool_call>{"name":"echo","arguments":{"a":1}}</tool_call><tool_call>{"name":"echo","arguments":{"a":2}}</tool_call>`},
		{Role: "tool", Name: "echo", CallID: CallID(1), Content: "one"},
		{Role: "tool", Name: "echo", CallID: CallID(2), Content: "two"},
		{Role: "assistant", Content: "done"},
	}
	tk := Task{Source: "src", ID: "train/0", System: "s", User: "q", Tools: []tool.Spec{echoSpec}}
	l, err := DemoLog(byteChat{}, tk, messages, eventlog.Meta{Run: "r", Group: "g"})
	require.NoError(t, err)
	require.NoError(t, l.Validate())
	require.Equal(t, eventlog.Full, l.Tier)
	require.Equal(t, TableDemonstrations, l.Meta.Table)

	var kinds []eventlog.Kind
	calls := map[string]string{}
	for i := range l.Events {
		e := &l.Events[i]
		kinds = append(kinds, e.Kind)
		if e.Kind == eventlog.ToolResult {
			calls[e.CallID] = e.Payload["output"].(string)
		}
	}
	require.Equal(t, []eventlog.Kind{
		eventlog.Observation, eventlog.Observation, eventlog.ToolCall, eventlog.ToolCall, eventlog.ToolResult, eventlog.ToolResult,
		eventlog.TurnComplete, eventlog.Text, eventlog.TurnComplete,
	}, kinds)
	require.Equal(t, map[string]string{CallID(1): "one", CallID(2): "two"}, calls)
	_, err = l.TrainRows(0)
	require.ErrorIs(t, err, eventlog.ErrNoSampledTokens, "an expert's tokens were never sampled")

	again, err := DemoLog(byteChat{}, tk, messages, eventlog.Meta{Run: "r", Group: "g"})
	require.NoError(t, err)
	require.Equal(t, l.ID, again.ID)

	_, err = DemoLog(byteChat{dropThoughts: true}, tk, append(messages[:2:2], Message{Role: "assistant", Content: "<think>x</think>y"}), eventlog.Meta{Run: "r"})
	require.NoError(t, err, "one turn rewrites nothing")
}
