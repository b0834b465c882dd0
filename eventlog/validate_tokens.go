package eventlog

import (
	"fmt"
	"math"
)

// maxLogprob is the rounding error above 0 that a log-softmax in float32 may
// have. Values above it are not logprobs.
const maxLogprob = 1e-4

func (l *Log) checkBranches(p *problems) {
	if n := len(l.Branches); n > MaxBranches {
		p.add("len(branches)", n, "at most %d", MaxBranches)
		return
	}
	total := 0
	sound := true
	for i := range l.Branches {
		total += len(l.Branches[i].IDs)
		sound = l.checkBranch(p, i) && sound
	}
	if total > MaxTokens {
		p.add("tokens of all branches", total, "at most %d", MaxTokens)
	}
	if !sound {
		return
	}
	kept := l.acceptedTokens()
	for _, e := range l.History() {
		if s := e.Span; s != nil && int64(e.Branch) < int64(len(kept)) && s.End > kept[e.Branch] {
			p.add(fmt.Sprintf("branches[%d].accepted", e.Branch), l.Branches[e.Branch].Accepted,
				"event %d of the accepted history has tokens up to %d in it; accept it or a branch that continues it", e.Seq, s.End)
		}
	}
}

// acceptedTokens returns for every branch how many of its leading tokens an
// accepted branch has too.
func (l *Log) acceptedTokens() []int32 {
	kept := make([]int32, len(l.Branches))
	for i := len(kept) - 1; i >= 0; i-- { // from children to parents
		b := &l.Branches[i]
		if b.Accepted {
			kept[i] = int32(len(b.IDs))
		}
		if int(b.Parent) < i {
			kept[b.Parent] = max(kept[b.Parent], min(kept[i], b.Fork))
		}
	}
	for i := range kept { // and back
		if b := &l.Branches[i]; int(b.Parent) < i {
			kept[i] = max(kept[i], min(kept[b.Parent], b.Fork))
		}
	}
	return kept
}

// checkBranch returns false when later checks could not rely on the branch.
func (l *Log) checkBranch(p *problems, i int) bool {
	b := &l.Branches[i]
	at := fmt.Sprintf("branches[%d]", i)
	if len(b.Logprobs) != len(b.IDs) {
		p.add("len("+at+".logprobs)", len(b.Logprobs), "want one per token: %d", len(b.IDs))
		return false
	}
	if !checkRuns(p, at, b) {
		return false
	}
	checkTokens(p, at, b)
	if int64(b.Parent) == int64(i) {
		if b.Fork != 0 {
			p.add(at+".fork", b.Fork, "a root branch shares no tokens: want 0")
			return false
		}
		return true
	}
	if int64(b.Parent) > int64(i) {
		p.add(at+".parent", b.Parent, "a branch follows its parent: want 0 to %d (%d itself for a root)", i, i)
		return false
	}
	par := &l.Branches[b.Parent]
	if b.Fork < 0 || int(b.Fork) > len(par.IDs) || int(b.Fork) > len(b.IDs) {
		p.add(at+".fork", b.Fork, "want 0 to %d tokens shared with branch %d", min(len(par.IDs), len(b.IDs)), b.Parent)
		return false
	}
	return checkPrefix(p, at, b, par)
}

func checkRuns(p *problems, at string, b *Branch) bool {
	start := int32(0)
	for j, r := range b.Runs {
		in := fmt.Sprintf("%s.runs[%d]", at, j)
		switch {
		case r.Writer == WriterUnknown || r.Writer > Expert:
			p.add(in+".writer", r.Writer, "want prompt, policy, environment or expert")
		case r.Writer != Policy && r.Version != 0:
			p.add(in+".version", r.Version, "only policy tokens have a version; want 0 on %v", r.Writer)
		case j > 0 && r.Writer == b.Runs[j-1].Writer && r.Version == b.Runs[j-1].Version:
			p.add(in, r, "equal to the run before it; merge them")
		}
		if r.End <= start {
			p.add(in+".end", r.End, "runs are not empty and grow: want more than %d", start)
			return false
		}
		start = r.End
	}
	if int(start) != len(b.IDs) {
		p.add(at+".runs", start, "runs partition the tokens: the last one ends at %d", len(b.IDs))
		return false
	}
	return true
}

// checkTokens reports the first bad id and the first bad logprob of each writer.
func checkTokens(p *problems, at string, b *Branch) {
	start := int32(0)
	for _, r := range b.Runs {
		for t := start; t < r.End; t++ {
			if id := b.IDs[t]; id < 0 && (id != UnknownID || r.Writer != Expert) {
				p.add(fmt.Sprintf("%s.ids[%d]", at, t), id, "a token id is not negative (%d, unknown, in expert runs only)", UnknownID)
				return
			}
			if lp := b.Logprobs[t]; !validLogprob(r.Writer, lp) {
				p.add(fmt.Sprintf("%s.logprobs[%d]", at, t), lp, "%s", logprobRule(r.Writer))
				return
			}
		}
		start = r.End
	}
}

func validLogprob(w Writer, lp float32) bool {
	switch w {
	case Policy:
		return lp <= maxLogprob && lp >= -math.MaxFloat32
	case Expert:
		return lp != lp || lp <= maxLogprob && lp >= -math.MaxFloat32
	}
	return lp != lp // NaN
}

func logprobRule(w Writer) string {
	switch w {
	case Policy:
		return "the logprob a policy token was sampled with is finite and <= 0, in nats"
	case Expert:
		return "an expert token has NaN or the teacher's logprob, finite and <= 0"
	}
	return fmt.Sprintf("%v tokens were not sampled: want NaN", w)
}

// checkPrefix compares the shared tokens of a branch and its parent.
func checkPrefix(p *problems, at string, b, par *Branch) bool {
	for t := range b.Fork {
		if b.IDs[t] != par.IDs[t] {
			p.add(fmt.Sprintf("%s.ids[%d]", at, t), b.IDs[t], "differs from branch %d (%d) before fork %d", b.Parent, par.IDs[t], b.Fork)
			return false
		}
		x, y := b.Logprobs[t], par.Logprobs[t]
		if x != y && (x == x || y == y) {
			p.add(fmt.Sprintf("%s.logprobs[%d]", at, t), x, "differs from branch %d (%v) before fork %d", b.Parent, y, b.Fork)
			return false
		}
	}
	for i, j, t := 0, 0, int32(0); t < b.Fork; {
		x, y := b.Runs[i], par.Runs[j]
		if x.Writer != y.Writer || x.Version != y.Version {
			p.add(fmt.Sprintf("%s.runs[%d]", at, i), x, "differs from branch %d at token %d, before fork %d", b.Parent, t, b.Fork)
			return false
		}
		t = min(x.End, y.End)
		if x.End == t {
			i++
		}
		if y.End == t {
			j++
		}
	}
	return true
}
