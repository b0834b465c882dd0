package eventlog

import "fmt"

// TokenWeights gives every token of a branch its weight in the supervised loss,
// so that a full log trains on the tokens it holds instead of on rendered text:
// that of its event (see DatasetRows) where a policy or an expert wrote it, 0
// elsewhere. A written token that no event's span covers, such as the one that
// ends a turn, has the weight of the token before it in its run, failing that
// of the next one covered. len = len(IDs). Full tier only.
func (l *Log) TokenWeights(branch int) ([]float32, error) {
	if err := l.needFull("token weights"); err != nil {
		return nil, err
	}
	if branch < 0 || branch >= len(l.Branches) {
		return nil, fmt.Errorf("token weights of log %s: %w: branch = %d: there are %d", l.ID, ErrInvalid, branch, len(l.Branches))
	}
	const uncovered = -1
	b := &l.Branches[branch]
	w := make([]float32, len(b.IDs))
	for i := range w {
		w[i] = uncovered
	}
	// limit[a]: how many leading tokens the branch shares with its ancestor a.
	limit := map[uint32]int32{}
	for a, n := branch, int32(len(b.IDs)); ; {
		limit[uint32(a)] = n
		anc := &l.Branches[a]
		if int(anc.Parent) >= a {
			break
		}
		a, n = int(anc.Parent), min(n, anc.Fork)
	}
	for i := range l.Events {
		e := &l.Events[i]
		if e.Span == nil || e.Partial {
			continue
		}
		if n, ok := limit[e.Branch]; ok {
			weight := e.weight()
			for t := e.Span.Start; t < min(e.Span.End, n); t++ {
				w[t] = weight
			}
		}
	}
	start := 0
	for _, r := range b.Runs {
		fillWeights(w[start:r.End], hasLogprobs(r.Writer), uncovered)
		start = int(r.End)
	}
	return w, nil
}

// weight is the segment weight of an event's tokens.
func (e *Event) weight() float32 {
	switch e.Kind {
	case Text, Reasoning:
		return TextWeight
	case ToolCall:
		return CallWeight
	case MemoryOp:
		return MemoryWeight
	}
	return 0
}

// fillWeights settles the weights of one run.
func fillWeights(w []float32, written bool, uncovered float32) {
	if !written {
		clear(w)
		return
	}
	last := float32(TextWeight)
	for _, x := range w {
		if x != uncovered {
			last = x
			break
		}
	}
	for i, x := range w {
		if x == uncovered {
			w[i] = last
		}
		last = w[i]
	}
}
