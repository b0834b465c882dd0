package sim

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/skein-rl/skein/replay"
)

// store is the replicated store as its callers see it: one leader at a time that
// orders commands, or none.
type store struct {
	w           *world
	kv, replica replay.KV
	up          bool
	term        uint64
	skew        time.Duration // of the leader's clock
	last        time.Duration // when the last proposal is decided
}

// tick is how often a leader looks for what has run out.
const tick = 500 * time.Millisecond

func newStore(w *world) *store {
	s := &store{w: w, kv: replay.NewMemKV(), up: true}
	if w.cfg.Replica {
		s.replica = replay.NewMemKV()
	}
	w.after(tick, s.letTimePass)
	return s
}

// clock is the leader's.
func (s *store) clock() time.Time { return epoch.Add(s.w.now + s.skew) }

// arrive takes a request as cluster's leader does.
func (s *store) arrive(a *attempt) {
	if !s.up {
		a.reply(replay.Result{}, replay.ErrUnavailable)
		return
	}
	a.term = s.term
	s.poll(a)
}

// poll proposes when that may give something, on a retry anyway (the answer of
// the first try may be lost); else the request waits.
func (s *store) poll(a *attempt) {
	if a.cmd == nil {
		a.reply(replay.Result{}, a.read(s.kv))
		return
	}
	if a.ready != nil && !a.retry {
		ok, err := a.ready(s.kv, s.clock())
		if err != nil {
			a.reply(replay.Result{}, err)
			return
		}
		if !ok {
			s.park(a)
			return
		}
	}
	a.retry = false
	s.propose(a.cmd(s.clock()), a)
}

func (s *store) park(a *attempt) {
	if a.wait <= s.w.now {
		a.reply(replay.Result{}, nil)
		return
	}
	list := a.parks(a.from.run)
	for len(*list) > 0 && !(*list)[0].parked { // those whose time was over
		*list = (*list)[1:]
	}
	a.parked = true
	*list = append(*list, a)
	s.w.after(a.wait-s.w.now, func() {
		if a.parked {
			a.parked = false
			a.reply(replay.Result{}, nil)
		}
	})
}

// propose decides a command a little later, in order. When the leader changes
// before that, it may be decided or not, and nobody is told which.
func (s *store) propose(cmd replay.Command, a *attempt) {
	term := s.term
	s.last = max(s.last, s.w.now+s.w.rng.draw(s.w.cfg.Net.Commit))
	s.w.after(s.last-s.w.now, func() {
		lost := term != s.term
		if lost && s.w.rng.chance(.5) {
			return
		}
		res := s.apply(cmd)
		switch {
		case a == nil:
		case lost:
			a.reply(replay.Result{}, replay.ErrUnavailable)
		case res.Err == nil && a.empty != nil && a.empty(res):
			s.park(a)
		default:
			a.reply(res, res.Err)
		}
	})
}

// apply folds a command, has it audited, and wakes who waits.
func (s *store) apply(cmd replay.Command) replay.Result {
	w := s.w
	w.rep.Commands[fmt.Sprintf("%T", cmd)[len("replay."):]]++
	res, err := w.cfg.Apply(s.kv, cmd)
	if err != nil {
		w.fail("fold: %w", err)
		return res
	}
	if res.Err != nil {
		w.rep.Refused++
	}
	if s.replica != nil {
		s.second(cmd, res)
	}
	if w.cfg.Trace != nil {
		said, _ := json.Marshal(cmd) // follows pointers, and sorts maps
		answer, _ := json.Marshal(res)
		w.trace("%T %s -> %s %v", cmd, said, answer, res.Err)
	}
	for _, r := range w.runs {
		if err := r.audit.see(s.kv, cmd, res); err != nil {
			w.fail("%T: %w", cmd, err)
		}
	}
	if c, ok := cmd.(replay.CommitStepCmd); ok && res.Err == nil {
		w.published(c.Step)
	}
	s.wake()
	return res
}

// second folds the command on the other state, and notes it in the history.
func (s *store) second(cmd replay.Command, res replay.Result) {
	b, err := replay.EncodeCommand(cmd)
	if err == nil {
		cmd, err = replay.DecodeCommand(b)
	}
	var again replay.Result
	if err == nil {
		again, err = s.w.cfg.Apply(s.replica, cmd)
	}
	if err != nil {
		s.w.fail("second replica: %w", err)
		return
	}
	answer := fmt.Sprint(res)
	if other := fmt.Sprint(again); len(res.Tickets)+len(again.Tickets) == 0 && res.Lease == nil && answer != other {
		s.w.fail("two replicas answer %T with %s and %s", cmd, answer, other)
	}
	s.w.hash.Write(b)
	fmt.Fprint(s.w.hash, s.w.now, res.Err, res.Append, res.Blocked, len(res.Tickets))
}

// looked bounds how many of those who wait are tried after one command.
const looked = 4

// wake tries those who wait for tickets, first come first, and for leases.
func (s *store) wake() {
	if !s.up {
		return
	}
	for _, r := range s.w.runs {
		waiting := slices.Clone(r.leases)
		for _, a := range waiting {
			s.again(&r.leases, 0, a)
		}
		for i, n := 0, 0; i < len(r.takes) && n < looked; {
			if r.takes[i].parked {
				n++
			}
			if s.again(&r.takes, i, r.takes[i]) {
				continue
			}
			if r.spec.Stragglers.DuplicateAfter == 0 {
				break // what this one does not get the next will not
			}
			i++
		}
	}
}

// again proposes for one that waits, and says whether it waits no more.
func (s *store) again(list *[]*attempt, from int, a *attempt) bool {
	ok, err := true, error(nil)
	if a.parked && !a.over {
		ok, err = a.ready(s.kv, s.clock())
	}
	if err == nil && !ok {
		return false
	}
	if i := from + slices.Index((*list)[from:], a); i == 0 {
		*list = (*list)[1:]
	} else {
		*list = slices.Delete(*list, i, i+1)
	}
	waited := a.parked && !a.over
	a.parked = false
	switch {
	case !waited:
	case err != nil:
		a.reply(replay.Result{}, err)
	default:
		s.propose(a.cmd(s.clock()), a)
	}
	return true
}

// letTimePass proposes a tick when something has run out.
func (s *store) letTimePass() {
	if s.up {
		due, err := replay.NextExpiry(s.kv)
		if err != nil {
			s.w.fail("next expiry: %w", err)
		}
		if due != 0 && due <= s.clock().UnixNano() {
			s.propose(replay.TickCmd{Now: s.clock()}, nil)
		}
	}
	s.w.after(tick, s.letTimePass)
}

// change takes the lead away; another node has it after an election.
func (s *store) change() {
	if !s.up {
		return
	}
	s.up = false
	s.term++
	for _, r := range s.w.runs {
		for _, list := range []*[]*attempt{&r.takes, &r.leases} {
			for _, a := range *list {
				if a.parked {
					a.parked = false
					a.reply(replay.Result{}, replay.ErrUnavailable)
				}
			}
			*list = nil
		}
	}
	s.w.after(300*time.Millisecond+s.w.rng.exp(2*time.Second), func() {
		s.up = true
		s.skew += time.Duration(s.w.rng.intn(201)-100) * time.Millisecond
	})
}
