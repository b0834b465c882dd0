package learner

import (
	"math"

	"github.com/skein-rl/skein/eventlog"
	"github.com/skein-rl/skein/learner/advantage"
)

// turnLog is a log's accepted history by turns: what the agent writes until it is
// answered, or ends the turn, is one.
type turnLog struct {
	rewards []float64 // of each turn, scopes step and turn added; 0 where unjudged
	judged  int       // turns with a reward
	spans   []turnSpan
}

type turnSpan struct {
	branch uint32
	span   eventlog.Span
	turn   int
}

// turnLogOf reads a log. A reward belongs to the turn that was written last before
// it; one before the first turn to that.
func turnLogOf(l *eventlog.Log) turnLog {
	t := turnLog{rewards: []float64{0}}
	seen := []bool{false}
	turn, begun, ended := 0, false, false
	for _, e := range l.History() {
		switch e.Kind {
		case eventlog.Text, eventlog.Reasoning, eventlog.ToolCall, eventlog.MemoryOp:
			if ended {
				turn++
				t.rewards, seen = append(t.rewards, 0), append(seen, false)
			}
			begun, ended = true, false
			if e.Span != nil {
				t.spans = append(t.spans, turnSpan{e.Branch, *e.Span, turn})
			}
		case eventlog.ToolResult, eventlog.Observation, eventlog.TurnComplete:
			ended = begun
		case eventlog.Reward:
			if e.Scope != eventlog.StepScope && e.Scope != eventlog.TurnScope {
				continue
			}
			if x, ok := toFloat(e.Payload["value"]); ok {
				t.rewards[turn] += x
				seen[turn] = true
			}
		}
	}
	for _, s := range seen {
		if s {
			t.judged++
		}
	}
	return t
}

// tokens gives every token of a branch its turn. A token that no event covers,
// such as the one that ends a turn, is of the turn before it.
func (t turnLog) tokens(l *eventlog.Log, branch int) []int {
	out := make([]int, len(l.Branches[branch].IDs))
	for i := range out {
		out[i] = -1
	}
	// shared: how many leading tokens the branch has in common with an ancestor.
	shared := map[uint32]int32{}
	for b, n := branch, int32(len(out)); ; {
		shared[uint32(b)] = n
		anc := &l.Branches[b]
		if int(anc.Parent) >= b {
			break
		}
		b, n = int(anc.Parent), min(n, anc.Fork)
	}
	for _, s := range t.spans {
		for k := s.span.Start; k < min(s.span.End, shared[s.branch]); k++ {
			out[k] = s.turn
		}
	}
	last := 0
	for i, turn := range out {
		if turn < 0 {
			out[i] = last
		}
		last = out[i]
	}
	return out
}

// turnAdvantages sets the advantages of grpo's tokens by turn.
func (b *Batch) turnAdvantages(c Config) error {
	samples := make([]advantage.TurnSample, len(b.Episodes))
	for i, e := range b.Episodes {
		samples[i] = advantage.TurnSample{Group: e.Group, Turns: e.turns.rewards, Episode: e.Reward}
	}
	adv, groups, err := advantage.Turns(c.turns(), samples)
	if err != nil {
		return err
	}
	b.Constant = 0
	for _, g := range groups {
		if g.Constant {
			b.Constant++
		}
	}
	for i := range b.Episodes {
		e := &b.Episodes[i]
		e.Advantage = 0
		e.tokenAdv = make([]float64, e.Tokens)
		for t := range e.tokenAdv {
			e.tokenAdv[t] = adv[i][e.turnOf[t]] * e.weight
			e.Advantage += e.tokenAdv[t] / float64(e.Tokens)
		}
	}
	return nil
}

// advantages of an episode's tokens: one for all, or one each.
func (e Episode) advantages() []float64 {
	if len(e.tokenAdv) > 0 {
		return e.tokenAdv
	}
	return []float64{e.Advantage}
}

// paid are the rewards of ppo's tokens: a turn's at the last token trained in it
// or before it, at the first token where there is none; nil without any.
func (e Episode) paid(weight float64) []float64 {
	if e.turns.judged == 0 || e.Tokens == 0 {
		return nil
	}
	out := make([]float64, e.Tokens)
	at := 0
	for turn, x := range e.turns.rewards {
		for t, k := range e.turnOf {
			if k <= turn {
				at = max(at, t)
			}
		}
		out[at] += weight * x
	}
	return out
}

// turnMetrics tells about turns and, where there are any, their rewards.
func (s *stepRun) turnMetrics(m map[string]float64) {
	turns, judged, sum, squares := 0.0, 0.0, 0.0, 0.0
	for _, e := range s.b.Episodes {
		turns += float64(len(e.turns.rewards))
		judged += float64(e.turns.judged)
		for _, x := range e.turns.rewards {
			sum += x
			squares += x * x
		}
	}
	m["turns/mean"] = turns / float64(len(s.b.Episodes))
	if judged > 0 {
		mean := sum / turns
		m["turns/judged_ratio"] = judged / turns
		m["turns/reward_mean"], m["turns/reward_std"] = mean, math.Sqrt(max(squares/turns-mean*mean, 0))
	}
}
