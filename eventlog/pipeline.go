package eventlog

import "fmt"

// PipelineState is a decision workflow's run (SPEC 6).
type PipelineState struct {
	ID          string
	InputText   string
	StepHistory []string // stage ids in the order they ran
	// StageOutputs holds the output of each stage, a JSON value.
	StageOutputs map[string]any
	Reason       string
	Confidence   *float64 // 0 to 10; nil when none was given
}

// FromPipelineState makes a light log: the input as an observation, every stage
// as a call with its output, the reason as text, and confidence/10 as episode
// reward.
func FromPipelineState(s PipelineState) (*Log, error) {
	b := NewBuilder(Meta{})
	b.SetID(s.ID)
	events := []Event{NewObservation("env", s.InputText)}
	for i, stage := range s.StepHistory {
		id := fmt.Sprintf("stage_%d", i)
		events = append(events,
			Event{Kind: ToolCall, CallID: id, Payload: map[string]any{"stage": stage}},
			NewToolResult(id, s.StageOutputs[stage], ""))
	}
	events = append(events, NewText(s.Reason))
	if s.Confidence != nil {
		events = append(events, NewReward(EpisodeScope, *s.Confidence/10))
	}
	for _, e := range events {
		if _, err := b.Append(e); err != nil {
			return nil, fmt.Errorf("pipeline state %s: %w", s.ID, err)
		}
	}
	return b.Finish(OK, "")
}
