package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/skein-rl/skein/internal/clock"
)

// The model of a table: every group by itself is a small state machine. A
// history is linearizable when that of each group is, so each is checked alone,
// which takes milliseconds.
//
// What the store does by itself (a lease or ticket runs out) is no operation.
// The model allows it when, and only when, as much time has passed as was
// granted: between the call of the operation that granted it and the return of
// the one that shows it is over. So a lease that ends early, or that two hold
// at once, is a violation.

// granted is until when, at least, what the operation gave holds: the time that
// it asked for, as the group's clock counts it.
func (op *Op) granted() time.Duration { return op.Call + op.TTL - op.TTL/clock.Slew }

// never is the return of an operation whose outcome is unknown.
const never = time.Duration(math.MaxInt64)

// phases of a group.
const (
	phaseOpen = iota // being collected
	phaseReady
	phaseLeased
	phaseDone // consumed or dropped
)

// groupState is comparable.
type groupState struct {
	members string // "0=log,1=log," sorted
	size    uint32
	phase   uint8
	lease   uint64
	holder  string
	until   time.Duration // the lease holds at least until then
	sampled uint32
	worker  string // of the ticket, "" = none is out
	tuntil  time.Duration
	attempt uint32
}

// groupOp is an operation as one group sees it.
type groupOp struct {
	op   *Op
	held *Held
	app  *Append
	ends bool // an earlier lease of the holder ends
}

func (s groupState) member(m uint32) string {
	for _, e := range strings.Split(s.members, ",") {
		if log, ok := strings.CutPrefix(e, fmt.Sprintf("%d=", m)); ok {
			return log
		}
	}
	return ""
}

func (s groupState) with(m uint32, log string) groupState {
	all := append(strings.Split(s.members, ","), fmt.Sprintf("%d=%s", m, log))
	all = slices.DeleteFunc(all, func(e string) bool { return e == "" })
	slices.Sort(all)
	s.members = strings.Join(all, ",")
	return s
}

func (s groupState) count() int {
	if s.members == "" {
		return 0
	}
	return strings.Count(s.members, ",") + 1
}

func (s groupState) free() groupState {
	s.phase, s.lease, s.holder, s.until = phaseReady, 0, "", 0
	return s
}

// consumed counts a sample.
func (s groupState) consumed(limit uint32) groupState {
	s = s.free()
	s.sampled++
	if limit > 0 && s.sampled >= limit {
		s.phase = phaseDone
	}
	return s
}

// step gives the states a group can be in after an operation; none = it is not
// possible.
func (s groupState) step(o groupOp) []groupState {
	op := o.op
	may := func(next ...groupState) []groupState {
		if op.Outcome != OK { // or it had no effect
			next = append(next, s)
		}
		return next
	}
	mine := func(lease uint64) bool { return s.phase == phaseLeased && s.lease == lease }
	switch {
	case o.ends:
		if mine(op.Ended) {
			return may(s.free())
		}
		return []groupState{s}
	case op.Kind == "append":
		return s.append(o)
	case op.Kind == "insert":
		n := s
		for i, log := range o.app.Logs {
			n = n.with(uint32(i), log)
		}
		n.size, n.phase = uint32(len(o.app.Logs)), phaseReady
		switch {
		case op.Outcome != OK:
			if s.members == "" {
				return []groupState{s, n}
			}
			return []groupState{s}
		case (o.app.Result == "accepted" || o.app.Result == "duplicate") && s.members == "":
			return []groupState{n} // a duplicate of an earlier try of its own
		case o.app.Result == "duplicate", o.app.Result == "busy", o.app.Result == "rejected":
			return []groupState{s}
		}
	case op.Kind == "take":
		if s.phase == phaseOpen && (s.worker == "" || op.Return >= s.tuntil) && o.held.Attempt >= s.attempt {
			n := s
			n.worker, n.tuntil, n.attempt, n.size = op.Client, op.granted(), o.held.Attempt, o.held.Size
			return []groupState{n}
		}
	case op.Kind == "return":
		n := s
		if s.worker == op.Client {
			n.worker, n.tuntil = "", 0
			if op.Outcome == Failed { // it ran out before
				return []groupState{s, n}
			}
			return may(n)
		}
		return []groupState{s}
	case op.Kind == "lease":
		over := s.phase == phaseReady || s.phase == phaseLeased && (op.Return >= s.until || s.holder == op.Client)
		if over && s.holds(o.held.Logs) && s.sampled == o.held.Sampled {
			n := s
			n.phase, n.lease, n.holder, n.until = phaseLeased, op.Lease, op.Client, op.granted()
			return []groupState{n}
		}
	case op.Kind == "extend":
		n := s
		n.until = op.granted()
		switch {
		case op.Outcome == OK && mine(op.Lease):
			return []groupState{n}
		case op.Outcome == OK:
			return nil
		case op.Outcome == Unknown && mine(op.Lease):
			return []groupState{s, n}
		case mine(op.Lease) && op.Return < s.until:
			return nil // refused, although it is live
		case mine(op.Lease):
			return []groupState{s.free()}
		}
		return []groupState{s}
	case op.Kind == "commit":
		if mine(op.Lease) {
			if n := s.consumed(op.Max); op.Outcome != Failed {
				return may(n)
			}
			return []groupState{s}
		}
		if op.Outcome != OK {
			return []groupState{s}
		}
	case op.Kind == "release":
		if mine(op.Lease) {
			n := s.free()
			if op.Drop {
				n.phase = phaseDone
			}
			switch {
			case op.Outcome != Failed:
				return may(n)
			case op.Return >= s.until:
				return []groupState{s.free()}
			}
			return nil // refused, although it is live
		}
		return []groupState{s} // an earlier try did it, or it ran out
	}
	return nil
}

// holds: a lease lists the members in order.
func (s groupState) holds(logs []string) bool {
	if s.count() != len(logs) {
		return false
	}
	for _, l := range logs {
		if !strings.Contains(","+s.members+",", "="+l+",") {
			return false
		}
	}
	return true
}

func (s groupState) append(o groupOp) []groupState {
	a := o.app
	taken := s.member(a.Member) != ""
	n := s.with(a.Member, a.Log)
	n.size = a.Size
	if n.count() == int(a.Size) {
		n.phase, n.worker, n.tuntil = phaseReady, "", 0
	}
	fits := s.phase == phaseOpen && !taken
	switch {
	case o.op.Outcome != OK && fits:
		return []groupState{s, n}
	case o.op.Outcome != OK:
		return []groupState{s}
	case (a.Result == "accepted" || a.Result == "duplicate") && fits:
		return []groupState{n} // a duplicate of an earlier try of its own
	case a.Result == "duplicate", a.Result == "busy", a.Result == "rejected":
		return []groupState{s}
	}
	return nil
}

// part is the history of one group.
type part struct {
	name string
	ops  []porcupine.Operation
}

// groupModel is the model of one group.
var groupModel = porcupine.NondeterministicModel{
	Init: func() []any { return []any{groupState{}} },
	Step: func(state, input, _ any) (out []any) {
		for _, s := range state.(groupState).step(input.(groupOp)) {
			out = append(out, s)
		}
		return out
	},
	Equal: func(a, b any) bool { return a == b },
}

// parts cuts a history up. Runs with other rules than the model's (attempts
// that end, a staleness bound) are left out.
func parts(ops []Op) []part {
	byName := map[string]*part{}
	add := func(name string, op *Op, input groupOp) {
		p := byName[name]
		if p == nil {
			p = &part{name: name}
			byName[name] = p
		}
		ret := op.Return
		if op.Outcome == Unknown {
			ret = never
		}
		p.ops = append(p.ops, porcupine.Operation{Input: input, Call: int64(op.Call), Return: int64(ret)})
	}
	for i := range ops {
		op := &ops[i]
		if op.Run == runFresh {
			continue
		}
		name := func(g string) string { return op.Run + " " + cmp.Or(op.Table, "train") + " " + g }
		for k := range op.Appends {
			a := &op.Appends[k]
			if op.Table == tableAudit {
				continue
			}
			add(name(a.Group), op, groupOp{op: op, app: a})
		}
		if op.Kind == "lease" && op.Ended != 0 {
			for _, g := range op.EndedOf {
				if !slices.ContainsFunc(op.Groups, func(h Held) bool { return h.Group == g }) {
					add(name(g), op, groupOp{op: op, ends: true})
				}
			}
		}
		for k := range op.Groups {
			add(name(op.Groups[k].Group), op, groupOp{op: op, held: &op.Groups[k]})
		}
	}
	out := make([]part, 0, len(byName))
	for _, p := range byName {
		out = append(out, *p)
	}
	slices.SortFunc(out, func(a, b part) int { return cmp.Compare(a.name, b.name) })
	return out
}

// judge checks every part; it returns how many there were, those that time did
// not suffice for, and what is wrong.
func judge(ops []Op, limit time.Duration) (checked, open int, bad []string) {
	end := time.Now().Add(limit)
	for _, p := range parts(ops) {
		res := porcupine.CheckOperationsTimeout(groupModel.ToModel(), p.ops, max(min(time.Until(end), 20*time.Second), 100*time.Millisecond))
		checked++
		switch res {
		case porcupine.Unknown:
			open++
		case porcupine.Illegal:
			bad = append(bad, "not linearizable: "+p.name+"\n"+p.describe())
		}
	}
	return checked, open, bad
}

// describe lists a part's operations.
func (p part) describe() string {
	var b strings.Builder
	ops := slices.Clone(p.ops)
	slices.SortFunc(ops, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
	for _, o := range ops {
		in := o.Input.(groupOp)
		op := in.op
		what := fmt.Sprintf("lease %d ttl %v", op.Lease, op.TTL)
		switch {
		case in.ends:
			what = fmt.Sprintf("ends lease %d by asking for another", op.Ended)
		case in.app != nil:
			what = fmt.Sprintf("member %d/%d log %s%v: %s", in.app.Member, in.app.Size, in.app.Log, in.app.Logs, in.app.Result)
		case in.held != nil:
			what += fmt.Sprintf(" logs %v attempt %d sampled %d", in.held.Logs, in.held.Attempt, in.held.Sampled)
		}
		fmt.Fprintf(&b, "  [%10.4f %10.4f] %-8s %-8s %s %s %s\n", op.Call.Seconds(), op.Return.Seconds(), op.Kind, op.Outcome, op.Client, what, op.Err)
	}
	return b.String()
}
