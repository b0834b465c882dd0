package eventlog

import (
	"encoding/json"
	"fmt"
)

// Trajectory is the native trajectory of SPEC 1.6: an episode as steps of
// action and observation.
type Trajectory struct {
	ID            string
	Task          string
	Steps         []Step
	FinalResponse string
	// Reward is the episode's; nil when unscored.
	Reward *float64
	// Logprobs are those of the final response's tokens. Metadata may hold their
	// ids under "completion_ids" and, under "tool_mask", 1 for a token the agent
	// wrote and 0 for one of a tool.
	Logprobs []float32
	Metadata map[string]any
}

// Step is one action with what it led to.
type Step struct {
	Number int
	State  any // JSON value; nil when unknown
	// Action is a call {name, arguments} or a wrapper {tool_calls: [...]}; nil
	// for a step in which the world spoke unasked.
	Action any
	// Observation answers the action: a JSON value, for n > 1 calls a list of n.
	Observation any
	Thought     string
	Reward      *float64
}

// FromTrajectory makes a full log: the task as an observation; for each step
// the thought, the call, its result, its reward and the turn's end; the final
// response with its tokens; the episode reward. Empty parts are left out.
//
// The tokens are written by an Expert, since the policy that sampled them is
// none of ours: they can be imitated, not reinforced. Ids that metadata does
// not give are UnknownID; lists of unequal length are an error.
func FromTrajectory(t Trajectory) (*Log, error) {
	b := NewBuilder(Meta{})
	b.SetID(t.ID)
	b.SetTier(Full)
	wrap := func(where string, err error) (*Log, error) {
		return nil, fmt.Errorf("trajectory %s: %s: %w", t.ID, where, err)
	}
	if t.Task != "" {
		if _, err := b.Append(NewObservation("env", t.Task)); err != nil {
			return wrap("task", err)
		}
	}
	for i, s := range t.Steps {
		if err := appendStep(b, s); err != nil {
			return wrap(fmt.Sprintf("steps[%d]", i), err)
		}
	}
	final := NewText(t.FinalResponse)
	if len(t.Logprobs) > 0 {
		if err := appendCompletion(b, t); err != nil {
			return wrap("logprobs", err)
		}
		final = final.In(0, Span{0, int32(len(t.Logprobs))})
	}
	if t.FinalResponse != "" || final.Span != nil {
		if _, err := b.Append(final); err != nil {
			return wrap("final_response", err)
		}
	}
	if t.Reward != nil {
		if _, err := b.Append(NewReward(EpisodeScope, *t.Reward)); err != nil {
			return wrap("reward", err)
		}
	}
	l, err := b.Finish(OK, "")
	if err != nil {
		return wrap("log", err)
	}
	return l, nil
}

func appendStep(b *Builder, s Step) error {
	var events []Event
	if s.Thought != "" {
		events = append(events, NewReasoning(s.Thought))
	}
	if s.Action != nil {
		call := Event{Kind: ToolCall, Payload: map[string]any{"action": s.Action}}
		if s.State != nil {
			call.Payload["state"] = s.State
		}
		if m, ok := asObject(s.Action); ok { // a bare call may carry its id
			call.CallID, _ = m["id"].(string)
		}
		for _, e := range append(events, call) {
			if _, err := b.Append(e); err != nil {
				return err
			}
		}
		calls := b.log.Events[len(b.log.Events)-1].Calls()
		events = nil
		if parts, ok := asList(s.Observation); ok && len(calls) > 1 && len(parts) == len(calls) {
			for i, c := range calls {
				events = append(events, NewToolResult(c.ID, parts[i], ""))
			}
		} else {
			events = append(events, NewToolResult(calls[len(calls)-1].ID, s.Observation, ""))
		}
	} else if s.Observation != nil {
		text, ok := s.Observation.(string)
		if !ok {
			raw, err := CanonicalJSON(s.Observation)
			if err != nil {
				return fmt.Errorf("observation: %w", err)
			}
			text = string(raw)
		}
		events = append(events, NewObservation("env", text))
	}
	if s.Reward != nil {
		events = append(events, NewReward(StepScope, *s.Reward))
	}
	for _, e := range append(events, NewTurnComplete(s.Number)) {
		if _, err := b.Append(e); err != nil {
			return err
		}
	}
	return nil
}

// appendCompletion writes the tokens of the final response.
func appendCompletion(b *Builder, t Trajectory) error {
	n := len(t.Logprobs)
	ids, err := intList(t.Metadata, "completion_ids", n)
	if err != nil {
		return err
	}
	mask, err := intList(t.Metadata, "tool_mask", n)
	if err != nil {
		return err
	}
	if mask != nil && ids == nil {
		return fmt.Errorf("%w: metadata.tool_mask without completion_ids: give both", ErrInvalid)
	}
	for i := range n {
		id, writer, lp := UnknownID, Expert, t.Logprobs[i:i+1]
		if ids != nil {
			id = ids[i]
		}
		if mask != nil && mask[i] == 0 {
			writer, lp = Environment, nil
		}
		if _, err := b.AppendTokens(0, []int32{id}, lp, writer, 0); err != nil {
			return fmt.Errorf("token %d: %w", i, err)
		}
	}
	return nil
}

// intList reads metadata[key] as n integers; nil when absent.
func intList(meta map[string]any, key string, n int) ([]int32, error) {
	v, ok := meta[key]
	if !ok || v == nil {
		return nil, nil
	}
	raw, err := CanonicalJSON(v)
	if ids, ok := v.([]int32); ok {
		raw, err = json.Marshal(ids)
	}
	var out []int32
	if err == nil {
		err = json.Unmarshal(raw, &out)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: metadata.%s: %w", ErrInvalid, key, err)
	}
	if len(out) != n {
		return nil, fmt.Errorf("%w: len(metadata.%s) = %d: want one per logprob: %d", ErrInvalid, key, len(out), n)
	}
	return out, nil
}
