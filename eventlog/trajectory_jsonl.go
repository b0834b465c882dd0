package eventlog

import (
	"encoding/json"
	"fmt"
)

// trajectoryLine is the portable JSONL form of SPEC 1.6.
type trajectoryLine struct {
	ID            string         `json:"trajectory_id"`
	Task          string         `json:"task"`
	Steps         []stepLine     `json:"steps"`
	FinalResponse string         `json:"final_response"`
	Reward        *float64       `json:"reward"`
	Metadata      map[string]any `json:"metadata"`
	Logprobs      []float32      `json:"logprobs"` // read only
}

type stepLine struct {
	Number      int      `json:"step_number"`
	State       any      `json:"state"`
	Action      any      `json:"action"`
	Observation any      `json:"observation"`
	Thought     string   `json:"thought"`
	Reward      *float64 `json:"reward"`
}

// tokenMetadata are the keys of Trajectory.Metadata that the portable form
// drops with the logprobs.
var tokenMetadata = []string{"prompt_ids", "completion_ids", "tool_mask"}

// ExportTrajectories writes trajectories as JSONL, one a line: calls as
// {id, name, arguments} (several in a step under "tool_calls"), arguments that
// are no object left as they are, token data dropped. Rewards are null unless
// keepReward is set, so that a file given away holds no labels by accident.
func ExportTrajectories(ts []Trajectory, keepReward bool) ([]byte, error) {
	var out []byte
	for i := range ts {
		t := &ts[i]
		meta := map[string]any{}
		for k, v := range t.Metadata {
			meta[k] = v
		}
		for _, k := range tokenMetadata {
			delete(meta, k)
		}
		steps := make([]any, len(t.Steps))
		for j, s := range t.Steps {
			steps[j] = map[string]any{
				"step_number": s.Number, "state": s.State, "action": portableAction(s.Action), "observation": s.Observation,
				"thought": s.Thought, "reward": kept(s.Reward, keepReward),
			}
		}
		var err error
		out, err = appendLine(out, map[string]any{
			"trajectory_id": t.ID, "task": t.Task, "steps": steps, "final_response": t.FinalResponse,
			"reward": kept(t.Reward, keepReward), "metadata": meta,
		})
		if err != nil {
			return nil, fmt.Errorf("export trajectory %d (%s): %w", i, t.ID, err)
		}
	}
	return out, nil
}

func kept(r *float64, keep bool) any {
	if r == nil || !keep {
		return nil
	}
	return *r
}

// portableAction rewrites a recorded action with calls as {id, name, arguments}.
func portableAction(action any) any {
	m, ok := asObject(action)
	if !ok {
		return action
	}
	entries, wrapped := asList(m["tool_calls"])
	if !wrapped {
		return portableCall(m)
	}
	calls := make([]any, len(entries))
	for i, entry := range entries {
		calls[i] = entry
		if c, ok := asObject(entry); ok {
			calls[i] = portableCall(c)
		}
	}
	return map[string]any{"tool_calls": calls}
}

func portableCall(m map[string]any) any {
	f := m
	if inner, ok := asObject(m["function"]); ok {
		f = inner
	}
	name, _ := f["name"].(string)
	if name == "" {
		return m
	}
	args := f["arguments"]
	if s, ok := args.(string); ok {
		if v, err := parseJSON([]byte(s)); err == nil {
			if _, object := asObject(v); object {
				args = v
			}
		}
	}
	if args == nil {
		args = map[string]any{}
	}
	id, _ := m["id"].(string)
	return map[string]any{"id": id, "name": name, "arguments": args}
}

// ImportTrajectories reads the portable JSONL form (also with OpenAI-shaped
// calls) as full logs by way of [FromTrajectory]. Every bad line is reported;
// an unknown key in a line is an error.
func ImportTrajectories(data []byte) ([]*Log, error) {
	return importLines(data, func(line []byte) (*Log, error) {
		t, err := parseTrajectory(line)
		if err != nil {
			return nil, err
		}
		return FromTrajectory(t)
	})
}

func parseTrajectory(line []byte) (Trajectory, error) {
	var w trajectoryLine
	if err := checkKeys(line, "trajectory_id", "task", "steps", "final_response", "reward", "metadata", "logprobs"); err != nil {
		return Trajectory{}, err
	}
	if err := decodeLine(line, &w); err != nil {
		return Trajectory{}, err
	}
	t := Trajectory{ID: w.ID, Task: w.Task, FinalResponse: w.FinalResponse, Reward: w.Reward, Metadata: w.Metadata, Logprobs: w.Logprobs}
	for _, s := range w.Steps {
		t.Steps = append(t.Steps, Step(s))
	}
	return t, nil
}

// checkKeys refuses an object with other keys than those named.
func checkKeys(line []byte, keys ...string) error {
	var m map[string]json.RawMessage
	if err := decodeLine(line, &m); err != nil {
		return err
	}
	for _, k := range keys {
		delete(m, k)
	}
	for k := range m {
		return fmt.Errorf("%w: unknown key %q: want %v", ErrInvalid, k, keys)
	}
	return nil
}
