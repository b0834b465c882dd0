package eventlog

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
)

func ptr[T any](v T) *T { return &v }

func testTrajectory() Trajectory {
	return Trajectory{
		ID: "t1", Task: "sum the files",
		Steps: []Step{
			{
				Number: 1, State: map[string]any{"cwd": "/x"}, Thought: "look",
				Action:      map[string]any{"id": "c1", "name": "list_dir", "arguments": map[string]any{"path": "."}},
				Observation: "a b", Reward: ptr(0.1),
			},
			{
				Number: 2,
				Action: map[string]any{"tool_calls": []any{
					map[string]any{"id": "c2", "name": "read", "arguments": map[string]any{"f": "a", "n": json.Number("1.0")}},
					map[string]any{"id": "c3", "name": "read", "arguments": map[string]any{"f": "b"}},
				}},
				Observation: []any{"1", "2"},
			},
		},
		FinalResponse: "3", Reward: ptr(1.0),
		Logprobs: []float32{-0.5, -0.25, -1},
		Metadata: map[string]any{"completion_ids": []any{json.Number("7"), json.Number("8"), json.Number("9")}, "tool_mask": []any{1, 0, 1}},
	}
}

func TestFromTrajectory(t *testing.T) {
	l, err := FromTrajectory(testTrajectory())
	require.NoError(t, err)
	require.Equal(t, Full, l.Tier)
	var kinds []string
	for _, e := range l.Events {
		kinds = append(kinds, e.Kind.String())
	}
	require.Equal(t, "observation reasoning tool_call tool_result reward turn_complete "+
		"tool_call tool_result tool_result turn_complete text reward", strings.Join(kinds, " "))
	require.Equal(t, "c2", l.Events[7].CallID)
	require.Equal(t, "c3", l.Events[8].CallID)
	require.Equal(t, &Span{0, 3}, l.Events[10].Span)
	br := l.Branches[0]
	require.Equal(t, []int32{7, 8, 9}, br.IDs)
	require.Equal(t, []Run{{1, Expert, 0}, {2, Environment, 0}, {3, Expert, 0}}, br.Runs)
	require.Equal(t, float32(-0.5), br.Logprobs[0])
	require.True(t, math.IsNaN(float64(br.Logprobs[1])), "a tool's token has no logprob")
	_, err = l.TrainRows(0)
	require.ErrorIs(t, err, ErrNoSampledTokens, "nobody's policy sampled it: imitation only")
	require.Equal(t, l.Digest(), again(t, l).Digest())
}

func TestFromTrajectorySparse(t *testing.T) {
	l := must(FromTrajectory(Trajectory{Logprobs: []float32{-1, -2}}))
	require.Equal(t, []int32{UnknownID, UnknownID}, again(t, l).Branches[0].IDs)
	l = must(FromTrajectory(Trajectory{Steps: []Step{{Thought: "hm", Observation: map[string]any{"x": 1}}}}))
	require.Equal(t, `{"x":1}`, l.Events[1].Payload["text"], "the world spoke unasked")
	require.Equal(t, Full, l.Tier)
	require.Empty(t, must(FromTrajectory(Trajectory{})).Events)
	// One observation for two calls answers the last.
	l = must(FromTrajectory(Trajectory{Steps: []Step{{Observation: "both", Action: map[string]any{"tool_calls": []any{
		map[string]any{"name": "f"}, map[string]any{"name": "g"},
	}}}}}))
	require.Equal(t, "call_1/1", l.Events[1].CallID)
	require.Equal(t, "tool:g", l.Events[1].Author)

	for want, change := range map[string]func(*Trajectory){
		"len(metadata.completion_ids) = 2: want one per logprob: 3": func(t *Trajectory) { t.Metadata["completion_ids"] = []int32{1, 2} },
		"metadata.tool_mask without completion_ids":                 func(t *Trajectory) { delete(t.Metadata, "completion_ids") },
		"metadata.completion_ids:":                                  func(t *Trajectory) { t.Metadata["completion_ids"] = []any{"x", 1, 2} },
		"logprobs[0] = 0.5":                                         func(t *Trajectory) { t.Logprobs[0] = 0.5 },
		"steps[1]: append tool_call event":                          func(t *Trajectory) { t.Steps[1].Action = math.Inf(1) },
		"steps[0]: append tool_result event":                        func(t *Trajectory) { t.Steps[0].Observation = "\xff" },
	} {
		tr := testTrajectory()
		change(&tr)
		_, err := FromTrajectory(tr)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, "trajectory t1")
	}
}

func TestTrajectoryInverse(t *testing.T) {
	want := testTrajectory()
	got := must(FromTrajectory(want)).Trajectory()
	want.Logprobs, want.Metadata = nil, nil
	require.Empty(t, cmp.Diff(want, got))
	// And the steps of a log a rollout wrote, which ends in a turn's end.
	b := NewBuilder(Meta{})
	b.SetID("r")
	must(b.Append(NewSystem("sys", nil)))
	must(b.Append(NewObservation("human:ann", "task")))
	must(b.Append(NewText("I will look")))
	must(b.Append(NewToolCall("a", "f", nil)))
	must(b.Append(NewToolResult("a", nil, "broke")))
	must(b.Append(NewToolCall("b", "f", nil)))
	must(b.Append(NewToolResult("b", 1, "")))
	must(b.Append(NewObservation("human:ann", "go on")))
	must(b.Append(NewReasoning("done?")))
	must(b.Append(NewText("yes")))
	must(b.Append(NewTurnComplete(7)))
	must(b.Append(NewReward(EpisodeScope, 0)))
	got = must(b.Finish(OK, "")).Trajectory()
	args := map[string]any{}
	require.Empty(t, cmp.Diff(Trajectory{
		ID: "r", Task: "task", Reward: ptr(0.0), FinalResponse: "yes",
		Steps: []Step{
			{Number: 0, Thought: "I will look", Action: map[string]any{"id": "a", "name": "f", "arguments": args}, Observation: "broke"},
			{Number: 1, Action: map[string]any{"id": "b", "name": "f", "arguments": args}, Observation: json.Number("1")},
			{Number: 2, Observation: "go on"},
			{Number: 7, Thought: "done?"},
		},
	}, got))
}

func TestTrajectoryJSONL(t *testing.T) {
	tr := testTrajectory()
	tr.Steps[0].Action = map[string]any{"tool_calls": []any{
		map[string]any{"id": "c1", "type": "function", "function": map[string]any{"name": "list_dir", "arguments": `{"path":"."}`}},
		map[string]any{"id": "c9", "function": map[string]any{"name": "x", "arguments": "[1"}},
	}}
	tr.Metadata["model"] = "m"
	data, err := ExportTrajectories([]Trajectory{tr, {ID: "t2"}}, false)
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
	require.Len(t, lines, 2)
	require.JSONEq(t, `{
		"trajectory_id": "t1", "task": "sum the files", "final_response": "3", "reward": null, "metadata": {"model": "m"},
		"steps": [
			{"step_number": 1, "state": {"cwd": "/x"}, "thought": "look", "observation": "a b", "reward": null, "action": {"tool_calls": [
				{"id": "c1", "name": "list_dir", "arguments": {"path": "."}}, {"id": "c9", "name": "x", "arguments": "[1"}]}},
			{"step_number": 2, "state": null, "thought": "", "observation": ["1", "2"], "reward": null, "action": {"tool_calls": [
				{"id": "c2", "name": "read", "arguments": {"f": "a", "n": 1.0}}, {"id": "c3", "name": "read", "arguments": {"f": "b"}}]}}
		]}`, lines[0])
	require.Contains(t, lines[0], `"n":1.0`, "numbers are kept as written")

	data = must(ExportTrajectories([]Trajectory{testTrajectory()}, true))
	logs, err := ImportTrajectories(data)
	require.NoError(t, err)
	want := testTrajectory()
	want.Logprobs, want.Metadata = nil, nil
	require.Empty(t, cmp.Diff(want, logs[0].Trajectory()))

	_, err = ImportTrajectories([]byte("{\"task\":\"a\"}\n\n{\"tsak\":1}\n{\"task\":1}\n{} x\n"))
	require.ErrorContains(t, err, `line 3: eventlog: invalid log: unknown key "tsak"`)
	require.ErrorContains(t, err, "line 4:")
	require.ErrorContains(t, err, "line 5:")
}
