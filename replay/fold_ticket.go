package replay

import (
	"errors"
	"fmt"
	"time"

	"github.com/skein-rl/skein/replay/internal/keys"
	pb "github.com/skein-rl/skein/replay/internal/replaypb"
	"github.com/skein-rl/skein/replay/table"
)

// Tables that have groups and tickets. Any other one has what SetTable says, or
// just stores logs when it is not configured.
const (
	TableTrain = "train"
	TableEval  = "eval"
)

// maxTickets bounds one reply.
const maxTickets = 1024

// Reasons of dropped groups; Release adds its own.
const (
	dropStale     = "stale"
	dropAllFailed = "all_failed"
	dropExpired   = "expired"
)

// takeTickets hands out groups: evaluations first, then train groups that came
// back, then new train groups while capacity lasts. Within each, by index.
func (f *fold) takeTickets(c TakeTicketsCmd) ([]Ticket, error) {
	if err := errors.Join(checkID("Worker", c.Worker), checkOptionalID("RequestID", c.RequestID)); err != nil {
		return nil, refuse(ErrInvalid, "take tickets of run %q: %w", c.Run, err)
	}
	if c.N < 1 {
		return nil, refuse(ErrInvalid, "take tickets of run %q: N = %d, want at least 1", c.Run, c.N)
	}
	r, err := f.run(c.Run)
	if err != nil {
		return nil, err
	}
	if again, ok, err := f.repeatTickets(r, c); err != nil || ok {
		return again, err
	}
	var out []Ticket
	var groups []string
	for n := min(c.N, maxTickets); len(out) < n && !r.Finished; {
		if left, err := f.ticketsLeft(r); err != nil || !left {
			if err != nil {
				return nil, err
			}
			break
		}
		g, err := f.nextGroup(r)
		if err != nil {
			return nil, err
		}
		if g == nil {
			if g, err = straggler(f.kv, r.RunState, c.Run, c.Worker, f.now); err != nil {
				return nil, err
			}
			if g == nil {
				break
			}
			if err := f.issueTwin(r, g, c.Worker); err != nil {
				return nil, err
			}
		} else if err := f.issue(r, g, c.Worker); err != nil {
			return nil, err
		}
		out = append(out, makeTicket(r, g, c.Worker))
		groups = append(groups, g.Group)
	}
	if c.RequestID == "" || len(out) == 0 {
		return out, nil
	}
	return out, f.put(workerKey(c.Run, c.Worker), &pb.WorkerState{RequestId: c.RequestID, Groups: groups})
}

func checkOptionalID(field, id string) error {
	if id == "" {
		return nil
	}
	return checkID(field, id)
}

// repeatTickets answers a retry of the worker's last request: the groups of it
// that the worker still holds.
func (f *fold) repeatTickets(r *runState, c TakeTicketsCmd) ([]Ticket, bool, error) {
	w := new(pb.WorkerState)
	ok, err := load(f.kv, workerKey(c.Run, c.Worker), w)
	if err != nil || !ok || c.RequestID == "" || w.RequestId != c.RequestID {
		return nil, false, err
	}
	var out []Ticket
	for _, name := range w.Groups {
		g, err := f.mustGroup(c.Run, name)
		if err != nil {
			return nil, false, err
		}
		if holds(g, c.Worker) {
			out = append(out, makeTicket(r, g, c.Worker))
		}
	}
	return out, true, nil
}

// nextGroup returns the next group to hand out, in no queue, or nil.
func (f *fold) nextGroup(r *runState) (*pb.GroupState, error) {
	g, err := f.popPending(r, classEval)
	if g != nil || err != nil {
		return g, err
	}
	g, err = f.newEvalGroup(r)
	if g != nil || err != nil {
		return g, err
	}
	g, err = f.popPending(r, classTrain)
	if g != nil || err != nil {
		return g, err
	}
	if r.OpenGroups+r.ReadyGroups+r.LeasedGroups >= capacity(r.Spec) {
		return nil, nil
	}
	g = &pb.GroupState{
		Group: fmt.Sprintf("%s/train/%d", r.run, r.NextIndex), Table: TableTrain,
		Index: r.NextIndex, Size: r.Spec.GroupSize + r.Spec.GetStragglers().GetOversample(), Attempt: 1,
	}
	if c := curriculumFromPB(r.Spec.Curriculum); c != nil {
		task, err := f.pickTask(r, c, g.Index)
		if err != nil {
			return nil, err
		}
		g.Task = &task
	}
	r.NextIndex++
	r.OpenGroups++
	return g, nil
}

// popPending takes the first waiting group of a class. Train groups whose
// members so far are already too stale are dropped on the way: finishing them
// would be work for nothing.
func (f *fold) popPending(r *runState, class uint64) (*pb.GroupState, error) {
	for {
		var name string
		var at key
		err := f.kv.Iterate(queuePrefix(r.run, class), nil, func(k, v []byte) bool {
			name, at = string(v), append(key(nil), k...)
			return false
		})
		if err != nil || at == nil {
			return nil, err
		}
		g, err := f.mustGroup(r.run, name)
		if err != nil {
			return nil, err
		}
		if err := f.kv.Delete(at); err != nil {
			return nil, err
		}
		if class == classTrain && stale(r.RunState, g, r.LatestVersion) {
			r.OpenGroups--
			if err := f.drop(r, g, dropStale); err != nil {
				return nil, err
			}
			continue
		}
		return g, nil
	}
}

// stale says whether a member's oldest token is out of the run's bound at
// version, or older than what the run was rolled back to. Members without tokens
// have no version.
func stale(r *pb.RunState, g *pb.GroupState, version uint64) bool {
	for _, m := range g.Members {
		if m.Tokens > 0 && m.MinVersion < r.Floor {
			return true
		}
	}
	return staleMembers(g.Members, version, r.Spec.MaxStaleness)
}

func staleMembers(members []*pb.Member, version, bound uint64) bool {
	for _, m := range members {
		if m.Tokens > 0 && version > m.MinVersion && version-m.MinVersion > bound {
			return true
		}
	}
	return false
}

// issue gives g to worker until the ticket's end.
func (f *fold) issue(r *runState, g *pb.GroupState, worker string) error {
	g.Phase = pb.GroupPhase_GROUP_PHASE_RUNNING
	g.Worker = worker
	g.Expires = f.after(time.Duration(r.Spec.TicketTtl))
	if g.Table == TableTrain {
		g.Version = r.LatestVersion
	}
	return f.ticketOut(r, g, worker, g.Expires)
}

// ticketOut records a ticket of g, which has worker and end noted.
func (f *fold) ticketOut(r *runState, g *pb.GroupState, worker string, expires int64) error {
	return firstError(
		f.countTicket(r, 1),
		f.putGroup(r.run, g),
		f.mark(ticketKey(r.run, worker, g.Group)),
		f.putExpiry(expires, &pb.Expiry{Run: r.run, Group: g.Group}),
	)
}

// ticketBack forgets a ticket of g.
func (f *fold) ticketBack(r *runState, g *pb.GroupState, worker string, expires int64) error {
	return firstError(
		f.countTicket(r, -1),
		f.kv.Delete(ticketKey(r.run, worker, g.Group)),
		f.dropExpiry(expires, r.run, g.Group, 0),
	)
}

// takeBack undoes issue, leaving g in no queue and with no worker.
func (f *fold) takeBack(r *runState, g *pb.GroupState) error {
	err := firstError(f.endTwin(r, g), f.ticketBack(r, g, g.Worker, g.Expires))
	g.Worker, g.Expires = "", 0
	return err
}

// wait puts g in the queue of groups that need a worker.
func (f *fold) wait(r *runState, g *pb.GroupState) error {
	g.Phase = pb.GroupPhase_GROUP_PHASE_PENDING
	return firstError(
		f.putGroup(r.run, g),
		f.kv.Set(queueKeyOf(r.run, g), []byte(g.Group)),
	)
}

func queueKeyOf(run string, g *pb.GroupState) key {
	if g.Table == TableEval {
		return queueKey(run, classEval, g.Version, g.Index, g.Group)
	}
	return queueKey(run, classTrain, 0, g.Index, g.Group)
}

// drop ends g for reason; counters of the phase it left are the caller's.
func (f *fold) drop(r *runState, g *pb.GroupState, reason string) error {
	g.Phase = pb.GroupPhase_GROUP_PHASE_DROPPED
	if g.Table == TableTrain {
		r.DroppedGroups++
		r.DropReasons = countReason(r.DropReasons, reason)
	}
	return f.putGroup(r.run, g)
}

// expireTicket moves a group whose ticket ran out to its twin or its next
// attempt, or closes it after the last.
func (f *fold) expireTicket(r *runState, g *pb.GroupState) error {
	if g.Twin != "" {
		return f.promote(r, g)
	}
	if err := f.takeBack(r, g); err != nil {
		return err
	}
	if g.Attempt < r.Spec.MaxAttempts {
		g.Attempt++
		return f.wait(r, g)
	}
	if g.Table == TableEval {
		return f.endEval(r, g, nil)
	}
	r.OpenGroups--
	switch {
	case len(g.Members) > 0 && allMembersFailed(g.Members):
		return f.drop(r, g, dropAllFailed)
	case len(g.Members) < 2, r.Spec.GetStragglers().GetDrop():
		return f.drop(r, g, dropExpired)
	}
	r.ShrunkGroups++
	return f.makeReady(r, g)
}

func allMembersFailed(members []*pb.Member) bool {
	for _, m := range members {
		if !m.Failed {
			return false
		}
	}
	return true
}

// makeReady puts a closed group in the learner's queue.
func (f *fold) makeReady(r *runState, g *pb.GroupState) error {
	g.Phase = pb.GroupPhase_GROUP_PHASE_READY
	g.Lease = 0
	r.ReadyGroups++
	return firstError(
		f.putGroup(r.run, g),
		f.kv.Set(readyKey(r.run, g.Index), []byte(g.Group)),
		f.collectTrain(r, g, table.CollectComplete),
	)
}

func (f *fold) returnTicket(c ReturnTicketCmd) error {
	r, err := f.run(c.Run)
	if err != nil {
		return err
	}
	if err := errors.Join(checkID("Worker", c.Worker), checkOptionalID("Group", c.Group)); err != nil {
		return refuse(ErrInvalid, "return ticket of run %q: %w", c.Run, err)
	}
	groups := []string{c.Group}
	if c.Group == "" {
		if groups, err = f.ticketsOf(c.Run, c.Worker); err != nil {
			return err
		}
	}
	for _, name := range groups {
		g := new(pb.GroupState)
		ok, err := load(f.kv, groupKey(c.Run, name), g)
		if err != nil {
			return err
		}
		if !ok {
			return refuse(ErrNotFound, "group %q of run %q", name, c.Run)
		}
		if !holds(g, c.Worker) {
			return refuse(ErrStale, "worker %q does not hold group %q of run %q", c.Worker, name, c.Run)
		}
		// What a crashed worker held counts as an attempt: a task that kills its
		// workers must come to an end too.
		giveBack := func() error { return firstError(f.takeBack(r, g), f.wait(r, g)) }
		switch {
		case g.Worker != c.Worker:
			giveBack = func() error { return firstError(f.endTwin(r, g), f.putGroup(r.run, g)) }
		case g.Twin != "":
			giveBack = func() error { return f.promote(r, g) }
		case c.Group == "":
			giveBack = func() error { return f.expireTicket(r, g) }
		}
		if err := giveBack(); err != nil {
			return err
		}
	}
	return nil
}

// ticketsOf lists the groups a worker holds.
func (f *fold) ticketsOf(run, worker string) ([]string, error) {
	prefix := ticketPrefix(run, worker)
	var groups []string
	err := f.kv.Iterate(prefix, nil, func(k, _ []byte) bool {
		groups = append(groups, keys.Unescape(k[len(prefix):]))
		return true
	})
	return groups, err
}

// makeTicket is what worker, who holds g, is told.
func makeTicket(r *runState, g *pb.GroupState, worker string) Ticket {
	t := Ticket{
		Run: r.run, Table: g.Table, Group: g.Group, Index: g.Index, GroupSize: g.Size, Attempt: g.Attempt,
		Version: g.Version, Greedy: g.Table == TableEval, Seed: ticketSeed(g.Table, g.Index), Expires: fromNanos(g.Expires), Task: g.Task,
	}
	if g.Twin == worker {
		t.Attempt, t.Expires = g.Attempt+1, fromNanos(g.TwinExpires)
	}
	for _, m := range g.Members {
		t.Done = append(t.Done, m.Member)
	}
	return t
}

// ticketSeed is splitmix64 of the index, on another stream for evaluations.
func ticketSeed(table string, index uint64) uint64 {
	x := index + 1
	if table == TableEval {
		x += 1 << 63
	}
	return mixed(x - 1)
}

// mixed is splitmix64's output for the nth draw.
func mixed(n uint64) uint64 {
	x := (n + 1) * 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
