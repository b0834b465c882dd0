package main

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// The policies of a run are a register that only grows, by one at a time, and
// whose every value is written once. Such a history is linearizable when and
// only when each value was seen by nobody before its writer called, and no
// operation that saw an older value was called after one that saw a newer had
// returned.

// sight is an operation that shows a version to be the newest at some moment
// between its call and its return.
type sight struct {
	version uint64
	op      *Op
}

// judgePolicies checks the reads and commits of every run.
func judgePolicies(ops []Op) (bad []string) {
	runs := map[string][]*Op{}
	for i := range ops {
		if op := &ops[i]; op.Kind == "latest" || op.Kind == "commit" {
			runs[op.Run] = append(runs[op.Run], op)
		}
	}
	for run, ops := range runs {
		bad = append(bad, policiesOf(run, ops)...)
	}
	slices.Sort(bad)
	return bad
}

func policiesOf(run string, ops []*Op) (bad []string) {
	add := func(format string, args ...any) {
		bad = append(bad, "policies of "+run+": "+fmt.Sprintf(format, args...))
	}
	writers := map[string]*Op{} // by checkpoint
	value := map[uint64]string{0: ""}
	var seen []sight
	know := func(v uint64, checkpoint string, op *Op) {
		if old, ok := value[v]; ok && old != checkpoint {
			add("version %d has checkpoint %q, says %s of %s at %v, and %q, says another", v, checkpoint, op.Kind, op.Client, op.Return, old)
		}
		value[v] = checkpoint
		seen = append(seen, sight{v, op})
	}
	for _, op := range ops {
		if op.Kind == "commit" {
			writers[op.Checkpoint] = op
		}
	}
	for _, op := range ops {
		if op.Outcome != OK {
			continue
		}
		know(op.Version, op.Checkpoint, op)
		if op.Kind == "commit" {
			if prev, ok := value[op.Version-1]; ok && prev != op.Prev {
				add("version %d of %s follows checkpoint %q, version %d has %q", op.Version, op.Client, op.Prev, op.Version-1, prev)
			}
			continue
		}
		if w := writers[op.Checkpoint]; op.Version > 0 && (w == nil || w.Version != op.Version || w.Outcome == Failed || w.Call > op.Return) {
			add("version %d with checkpoint %q was read by %s at %v, and nobody had committed it", op.Version, op.Checkpoint, op.Client, op.Return)
		}
	}
	slices.SortStableFunc(seen, func(a, b sight) int { return cmp.Compare(a.op.Call, b.op.Call) })
	byReturn := slices.Clone(seen)
	slices.SortStableFunc(byReturn, func(a, b sight) int { return cmp.Compare(a.op.Return, b.op.Return) })
	newest, at := sight{op: &Op{}}, 0
	for _, s := range seen {
		for at < len(byReturn) && byReturn[at].op.Return < s.op.Call {
			if byReturn[at].version > newest.version {
				newest = byReturn[at]
			}
			at++
		}
		// A commit makes its version: what it replaced must not be overtaken.
		if s.version < newest.version || s.op.Kind == "commit" && s.version == newest.version && s.op != newest.op {
			add("%s of %s, called at %v, saw version %d; %s of %s had seen %d by %v", s.op.Kind, s.op.Client, s.op.Call.Round(time.Microsecond),
				s.version, newest.op.Kind, newest.op.Client, newest.version, newest.op.Return.Round(time.Microsecond))
		}
	}
	return bad
}
