package eventlog

// Trajectory projects the accepted history back to steps: the inverse of
// FromTrajectory but for what a Trajectory cannot hold, which is left out
// (system prompt, tokens, authors, times, errors beside an output, memory
// operations). Any tier.
func (l *Log) Trajectory() Trajectory {
	t := Trajectory{ID: l.ID}
	if r, ok := l.EpisodeReward(); ok {
		t.Reward = &r
	}
	s := stepper{t: &t, outputs: map[string]any{}}
	asked := false
	for _, e := range l.History() {
		switch e.Kind {
		case Observation:
			switch {
			case e.isSystem():
			case !asked && !s.open && len(t.Steps) == 0:
				t.Task = e.text()
			default:
				s.flush()
				s.step.Observation, s.open = e.text(), true
			}
			asked = asked || !e.isSystem()
		case Reasoning:
			s.agent()
			s.step.Thought = join(s.step.Thought, e.text())
		case Text:
			s.agent()
			s.said = join(s.said, e.text())
		case ToolCall:
			s.agent()
			s.call(e)
		case ToolResult:
			out := clone(e.Payload["output"])
			if msg := e.resultText(); out == nil && msg != "" {
				out = msg
			}
			s.outputs[e.CallID] = out
			s.answered = true
		case Reward:
			if v, ok := number(e.Payload["value"]); ok && e.Scope == StepScope {
				s.step.Reward, s.open = &v, true
			}
		case TurnComplete:
			if n, ok := number(e.Payload["step"]); ok && s.open {
				s.step.Number, s.numbered = int(n), true
			}
			s.flush()
		}
	}
	s.finish()
	return t
}

func join(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "\n" + b
}

// stepper gathers the events of one step.
type stepper struct {
	t        *Trajectory
	step     Step
	said     string // text of the step
	calls    []any
	ids      []string
	outputs  map[string]any
	open     bool // something was gathered
	answered bool // a result came: what the agent does next is a new step
	numbered bool
	last     string // text of the step flushed last, if it called nothing
}

// agent notes that the agent acts.
func (s *stepper) agent() {
	if s.answered || s.step.Observation != nil {
		s.flush()
	}
	s.open = true
}

func (s *stepper) call(e *Event) {
	for _, c := range e.Calls() {
		action := c.bare(e)
		if m, ok := asObject(action); ok {
			m["id"] = c.ID
		}
		s.calls = append(s.calls, action)
		s.ids = append(s.ids, c.ID)
	}
	if state, ok := e.Payload["state"]; ok {
		s.step.State = clone(state)
	}
}

func (s *stepper) flush() {
	if !s.open {
		return
	}
	last := ""
	switch len(s.calls) {
	case 0:
		last = s.said
	case 1:
		s.step.Action, s.step.Observation = s.calls[0], s.outputs[s.ids[0]]
	default:
		list := make([]any, len(s.ids))
		for i, id := range s.ids {
			list[i] = s.outputs[id]
		}
		s.step.Action, s.step.Observation = map[string]any{"tool_calls": s.calls}, list
	}
	if last == "" {
		s.step.Thought = join(s.step.Thought, s.said)
	}
	if !s.numbered {
		s.step.Number = len(s.t.Steps)
	}
	// What an earlier step only said was not the final response after all.
	s.spill()
	s.t.Steps = append(s.t.Steps, s.step)
	*s = stepper{t: s.t, outputs: map[string]any{}, last: last}
}

// spill moves the text kept for the final response into the step that said it.
func (s *stepper) spill() {
	if s.last != "" {
		step := &s.t.Steps[len(s.t.Steps)-1]
		step.Thought = join(step.Thought, s.last)
	}
}

// finish takes the last text as final response and drops the step it leaves
// empty.
func (s *stepper) finish() {
	s.flush()
	s.t.FinalResponse = s.last
	if n := len(s.t.Steps); n > 0 && s.last != "" {
		if step := s.t.Steps[n-1]; step.Thought == "" && step.Reward == nil {
			s.t.Steps = s.t.Steps[:n-1]
		}
	}
}
