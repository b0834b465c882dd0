package learner

import "github.com/skein-rl/skein/eventlog"

// turn is a run of tokens that a policy or an expert wrote in a branch.
type turn struct {
	start, end  int
	wrong, last bool
}

// turnsOf lists a branch's turns and says which went wrong: a tool result after
// it has an error, or a reward of its step or turn is below 0.
func turnsOf(l *eventlog.Log, branch int) []turn {
	b := &l.Branches[branch]
	var out []turn
	at := 0
	for _, r := range b.Runs {
		if r.Writer == eventlog.Policy || r.Writer == eventlog.Expert {
			if n := len(out); n > 0 && out[n-1].end == at { // a policy swap inside a turn
				out[n-1].end = int(r.End)
			} else {
				out = append(out, turn{start: at, end: int(r.End)})
			}
		}
		at = int(r.End)
	}
	if len(out) == 0 {
		return nil
	}
	out[len(out)-1].last = true
	if !b.Accepted {
		return out // its events are not on the accepted history
	}
	now := 0 // the turn that events speak of
	for _, e := range l.History() {
		if e.Span != nil {
			for k, u := range out {
				if int(e.Span.Start) >= u.start && int(e.Span.Start) < u.end {
					now = k
				}
			}
		}
		switch {
		case e.Kind == eventlog.ToolResult:
			if text, _ := e.Payload["error"].(string); text != "" {
				out[now].wrong = true
			}
		case e.Kind == eventlog.Reward && (e.Scope == eventlog.StepScope || e.Scope == eventlog.TurnScope):
			if v, ok := toFloat(e.Payload["value"]); ok && v < 0 {
				out[now].wrong = true
			}
		}
	}
	return out
}
