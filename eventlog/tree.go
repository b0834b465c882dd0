package eventlog

// outcome resolves [Log.Outcome]: the Seq of the event that ends the accepted
// history, 0 when there is none.
func (l *Log) outcome() uint32 {
	if l.Outcome != 0 {
		return l.Outcome
	}
	for i := len(l.Events) - 1; i >= 0; i-- {
		if !l.Events[i].Partial {
			return uint32(i + 1)
		}
	}
	return 0
}

// Path returns the events from a root to seq, in order. It is empty when seq
// names no event.
func (l *Log) Path(seq uint32) []*Event {
	n := 0
	for s := seq; s > 0 && int(s) <= len(l.Events); s = l.up(s) {
		n++
	}
	path := make([]*Event, n)
	for s := seq; n > 0; s = l.up(s) {
		n--
		path[n] = &l.Events[s-1]
	}
	return path
}

// up returns the parent of seq, 0 for a root or a parent that does not precede
// its child.
func (l *Log) up(seq uint32) uint32 {
	if p := l.Events[seq-1].Parent; p < seq {
		return p
	}
	return 0
}

// History returns the accepted history: the events from a root to the outcome.
// The pointers are into the log; treat them as read-only.
func (l *Log) History() []*Event { return l.Path(l.outcome()) }

// Rejected returns the rejected alternatives: one path from a root for every
// leaf outside the accepted history that is not partial, in order of the
// leaves.
func (l *Log) Rejected() [][]*Event {
	inner := make([]bool, len(l.Events)+1)
	for i := range l.Events {
		if !l.Events[i].Partial {
			inner[l.up(uint32(i+1))] = true
		}
	}
	accepted := l.acceptedSeqs()
	var paths [][]*Event
	for i := range l.Events {
		seq := uint32(i + 1)
		if !inner[seq] && !accepted[seq] && !l.Events[i].Partial {
			paths = append(paths, l.Path(seq))
		}
	}
	return paths
}

// acceptedSeqs marks the events of the accepted history, indexed by Seq.
func (l *Log) acceptedSeqs() []bool {
	marks := make([]bool, len(l.Events)+1)
	for s := l.outcome(); s > 0 && int(s) <= len(l.Events); s = l.up(s) {
		marks[s] = true
	}
	return marks
}

// Accepted returns the index of the branch that holds the outcome: the last
// accepted one. ok is false when no branch is accepted (a light log).
func (l *Log) Accepted() (branch int, ok bool) {
	for i := len(l.Branches) - 1; i >= 0; i-- {
		if l.Branches[i].Accepted {
			return i, true
		}
	}
	return 0, false
}

// Rewards returns the values of the accepted history's Reward events of one
// scope, in order. Rewards of rejected alternatives stay in their events.
func (l *Log) Rewards(scope Scope) []float64 {
	var out []float64
	for _, e := range l.History() {
		if e.Kind != Reward || e.Scope != scope {
			continue
		}
		if v, ok := number(e.Payload["value"]); ok {
			out = append(out, v)
		}
	}
	return out
}

// EpisodeReward returns the last episode reward of the accepted history; a
// later one corrects an earlier one. ok is false when the episode is unscored,
// which is not a reward of zero.
func (l *Log) EpisodeReward() (value float64, ok bool) {
	rs := l.Rewards(EpisodeScope)
	if len(rs) == 0 {
		return 0, false
	}
	return rs[len(rs)-1], true
}
