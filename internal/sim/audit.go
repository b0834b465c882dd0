package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/skein-rl/skein/eventlog"
	"github.com/skein-rl/skein/replay"
)

// Violation is a promise that was broken; every error of an audit is one.
//
//	P1     an acknowledged log is in the store
//	P2     no group and no log is trained twice; steps follow each other, each
//	       from the last one's checkpoint; a step is committed once, by a live
//	       lease; a group is in one live lease at most
//	P3     a leased group is whole (or was closed after its last attempt), of one
//	       task, and no token of it is older than the bound, by the versions that
//	       the workers really sampled with
//	also   groups on their way never exceed (MaxStaleness+1)*GroupsPerStep; a
//	       group has one worker at a time, two with DuplicateAfter; the fold's
//	       counters are those of this bookkeeping; garbage is rejected; replicas
//	       agree; no run stands still while somebody lives for it
type Violation struct{ Promise, What string }

func (v *Violation) Error() string { return v.Promise + ": " + v.What }

func broken(promise, format string, args ...any) error {
	return &Violation{promise, fmt.Sprintf(format, args...)}
}

// audit keeps a run's books from the commands and answers alone.
type audit struct {
	spec    replay.RunSpec
	groups  map[string]*groupBook
	leases  map[uint64]*leaseBook
	steps   map[uint64]replay.StepRecord
	logs    map[string]bool // trained
	acked   []string
	stored  map[string]replay.Item
	version uint64
	prev    string
	trained int
	taken   int // commands that took tickets
	shrunk  map[string]bool
}

type groupBook struct {
	holders []holder
	members map[uint32]replay.Item
	task    string
	trained bool
}

type holder struct {
	worker  string
	expires time.Time
}

type leaseBook struct {
	holder  string
	version uint64
	groups  []replay.LeasedGroup
	expires time.Time
}

func newAudit(spec replay.RunSpec) *audit {
	return &audit{spec: spec, groups: map[string]*groupBook{}, leases: map[uint64]*leaseBook{}, steps: map[uint64]replay.StepRecord{},
		logs: map[string]bool{}, stored: map[string]replay.Item{}, prev: "start", shrunk: map[string]bool{}}
}

func (a *audit) group(name string) *groupBook {
	g := a.groups[name]
	if g == nil {
		g = &groupBook{members: map[uint32]replay.Item{}}
		a.groups[name] = g
	}
	return g
}

// see audits one command and its answer.
func (a *audit) see(kv replay.Reader, cmd replay.Command, res replay.Result) error {
	if res.Err != nil {
		return nil
	}
	now, run := cmd.Clock(), a.spec.Run
	switch c := cmd.(type) {
	case replay.TakeTicketsCmd:
		if c.Run == run {
			return a.tickets(kv, now, c, res.Tickets)
		}
	case replay.ReturnTicketCmd:
		if c.Run == run {
			a.returned(c)
		}
	case replay.AppendItemsCmd:
		return a.appended(c.Items, res.Append)
	case replay.AcquireLeaseCmd:
		if c.Request.Run == run {
			return a.leased(now, c.Request, res.Lease)
		}
	case replay.ExtendLeaseCmd:
		if c.Run == run {
			l, err := a.live(now, c.Lease)
			if err == nil {
				l.expires = now.Add(c.TTL)
			}
			return err
		}
	case replay.ReleaseLeaseCmd:
		if c.Run == run {
			_, err := a.live(now, c.Lease)
			delete(a.leases, c.Lease)
			return err
		}
	case replay.CommitStepCmd:
		if c.Step.Run == run {
			return a.committed(now, c.Step)
		}
	}
	return nil
}

func (a *audit) tickets(kv replay.Reader, now time.Time, c replay.TakeTicketsCmd, tickets []replay.Ticket) error {
	most := 1
	if a.spec.Stragglers.DuplicateAfter > 0 {
		most = 2
	}
	for _, t := range tickets {
		g := a.group(t.Group)
		if g.trained {
			return broken("P2", "group %s was trained and is handed to %s", t.Group, c.Worker)
		}
		if t.Version > a.version {
			return broken("P3", "group %s is to be sampled with version %d, the latest is %d", t.Group, t.Version, a.version)
		}
		if task := fmt.Sprint(t.TaskIndex()); g.task == "" {
			g.task = task
		} else if g.task != task {
			return broken("P3", "group %s was of task %s and is of task %s in attempt %d", t.Group, g.task, task, t.Attempt)
		}
		g.holders = slices.DeleteFunc(g.holders, func(h holder) bool { return h.worker == c.Worker || !h.expires.After(now) })
		g.holders = append(g.holders, holder{c.Worker, t.Expires})
		if len(g.holders) > most {
			return broken("tickets", "group %s is held by %v at once", t.Group, g.holders)
		}
	}
	// A status decodes the last step's record: of a large step not every time.
	if a.taken++; len(tickets) == 0 || a.taken%max(1, int(a.spec.GroupsPerStep)/16) != 0 {
		return nil
	}
	return a.counters(kv)
}

// counters compares the fold's with these books.
func (a *audit) counters(kv replay.Reader) error {
	st, err := replay.Status(kv, a.spec.Run)
	if err != nil {
		return err
	}
	open := st.RunningGroups + st.ReadyGroups + st.LeasedGroups
	if most := int(a.spec.MaxStaleness+1) * int(a.spec.GroupsPerStep); open > most {
		return broken("capacity", "%d groups are on their way, at most %d may be", open, most)
	}
	if st.ConsumedGroups != a.trained || st.Latest.Version != a.version {
		return broken("P2", "the fold counts %d groups consumed at version %d, there were %d at %d", st.ConsumedGroups, st.Latest.Version, a.trained, a.version)
	}
	return nil
}

func (a *audit) returned(c replay.ReturnTicketCmd) {
	drop := func(g *groupBook) {
		g.holders = slices.DeleteFunc(g.holders, func(h holder) bool { return h.worker == c.Worker })
	}
	if c.Group != "" {
		drop(a.group(c.Group))
		return
	}
	for _, g := range a.groups {
		drop(g)
	}
}

func (a *audit) appended(items []replay.Item, results []replay.AppendResult) error {
	for i, it := range items {
		if it.Run != a.spec.Run || results[i].Rejected != "" {
			continue
		}
		if results[i].Duplicate || results[i].Busy != "" {
			continue
		}
		g := a.group(it.Group)
		if have, ok := g.members[it.Member]; ok {
			return broken("P2", "member %d of group %s was accepted as %s and again as %s", it.Member, it.Group, have.LogID, it.LogID)
		}
		if g.trained {
			return broken("P2", "group %s was trained and takes member %d", it.Group, it.Member)
		}
		g.members[it.Member], a.stored[it.LogID] = it, it
		if results[i].Closed {
			g.holders = nil
		}
	}
	return nil
}

// acknowledged notes what a worker was told is stored.
func (a *audit) acknowledged(logID string, r replay.AppendResult) {
	if !r.Duplicate {
		a.acked = append(a.acked, logID)
	}
}

// live is a lease that can't be over.
func (a *audit) live(now time.Time, id uint64) (*leaseBook, error) {
	l := a.leases[id]
	if l == nil || l.expires.Before(now) {
		return &leaseBook{}, broken("P2", "lease %d is over and still serves", id)
	}
	return l, nil
}

// leased audits a lease, or nil when there were too few groups: the holder's
// earlier lease is over either way.
func (a *audit) leased(now time.Time, q replay.LeaseRequest, lease *replay.Lease) error {
	for id, l := range a.leases {
		if l.holder == q.Holder || !l.expires.After(now) {
			delete(a.leases, id)
		}
	}
	if lease == nil {
		return nil
	}
	for id, l := range a.leases {
		for _, g := range l.groups {
			if slices.ContainsFunc(lease.Groups, func(o replay.LeasedGroup) bool { return o.Group == g.Group }) {
				return broken("P2", "group %s is in lease %d of %s and in lease %d of %s", g.Group, id, l.holder, lease.ID, q.Holder)
			}
		}
	}
	if len(lease.Groups) != q.Groups {
		return broken("P3", "lease %d holds %d groups, %d were wanted", lease.ID, len(lease.Groups), q.Groups)
	}
	for i, g := range lease.Groups {
		if slices.ContainsFunc(lease.Groups[:i], func(o replay.LeasedGroup) bool { return o.Group == g.Group }) {
			return broken("P2", "lease %d holds group %s twice", lease.ID, g.Group)
		}
		if err := a.whole(q, g); err != nil {
			return err
		}
	}
	a.leases[lease.ID] = &leaseBook{q.Holder, q.LearnerVersion, lease.Groups, lease.Expires}
	return nil
}

// whole checks what the learner gets of one group.
func (a *audit) whole(q replay.LeaseRequest, g replay.LeasedGroup) error {
	book := a.groups[g.Group]
	if book == nil {
		return broken("P3", "group %s was never handed out", g.Group)
	}
	if book.trained {
		return broken("P2", "group %s was trained and is leased to %s", g.Group, q.Holder)
	}
	good := 0
	for i, it := range g.Items {
		have, ok := book.members[it.Member]
		switch {
		case !ok || have.LogID != it.LogID || it.Group != g.Group:
			return broken("P3", "group %s has log %s as member %d, which was not appended as that", g.Group, it.LogID, it.Member)
		case i > 0 && g.Items[i-1].Member >= it.Member:
			return broken("P3", "group %s lists member %d after %d", g.Group, it.Member, g.Items[i-1].Member)
		case it.Task != book.task:
			return broken("P3", "group %s is of task %s and has a log of task %s", g.Group, book.task, it.Task)
		case have.Tokens > 0 && q.LearnerVersion > have.MinVersion && q.LearnerVersion-have.MinVersion > a.spec.MaxStaleness:
			return broken("P3", "group %s has tokens of version %d, the learner is at %d and the bound is %d", g.Group, have.MinVersion, q.LearnerVersion, a.spec.MaxStaleness)
		}
		if it.Status != uint8(eventlog.Failed) && it.Status != uint8(eventlog.TimedOut) {
			good++
		}
	}
	all := int(a.spec.GroupSize + a.spec.Stragglers.Oversample)
	switch {
	case len(g.Items) == all, good >= int(a.spec.GroupSize):
	case len(g.Items) < 2 || a.spec.Stragglers.Drop:
		return broken("P3", "group %s has %d members of %d", g.Group, len(g.Items), all)
	default:
		a.shrunk[g.Group] = true
	}
	return nil
}

func (a *audit) committed(now time.Time, s replay.StepRecord) error {
	if old, ok := a.steps[s.Step]; ok {
		if old.Checkpoint != s.Checkpoint || old.Lease != s.Lease {
			return broken("P2", "step %d was committed with %s and again with %s", s.Step, old.Checkpoint, s.Checkpoint)
		}
		return nil
	}
	l, err := a.live(now, s.Lease)
	if err != nil {
		return err
	}
	if s.Version != a.version+1 || s.Step != a.version+1 || s.PrevCheckpoint != a.prev && a.version > 0 {
		return broken("P2", "step %d, version %d from %s was committed after version %d, checkpoint %s", s.Step, s.Version, s.PrevCheckpoint, a.version, a.prev)
	}
	if s.Version != l.version+1 {
		return broken("P3", "version %d was committed with a lease at %d", s.Version, l.version)
	}
	for _, name := range s.Groups {
		g := a.group(name)
		if g.trained {
			return broken("P2", "group %s is trained twice, the second time in step %d", name, s.Step)
		}
		g.trained, g.holders = true, nil
		if !slices.ContainsFunc(l.groups, func(o replay.LeasedGroup) bool { return o.Group == name }) {
			return broken("P2", "step %d trains group %s, which lease %d does not hold", s.Step, name, s.Lease)
		}
	}
	for _, id := range s.LogIDs {
		if a.logs[id] {
			return broken("P2", "log %s is trained twice, the second time in step %d", id, s.Step)
		}
		a.logs[id] = true
	}
	a.trained += len(s.Groups)
	a.version, a.prev, a.steps[s.Step] = s.Version, s.Checkpoint, s
	delete(a.leases, s.Lease)
	return nil
}

// end checks the state against the books.
func (a *audit) end(kv replay.Reader, st replay.RunStatus) error {
	items, err := replay.Items(kv, a.acked)
	if err != nil {
		return broken("P1", "an acknowledged log is gone: %v", err)
	}
	for _, it := range items {
		want := a.stored[it.LogID]
		if want.Group != it.Group || want.Member != it.Member || want.MinVersion != it.MinVersion || want.MaxVersion != it.MaxVersion {
			return broken("P1", "log %s is stored as %+v, it was appended as %+v", it.LogID, it, want)
		}
	}
	if st.Appended != len(a.stored) {
		return broken("P1", "the fold counts %d logs, %d were accepted", st.Appended, len(a.stored))
	}
	if st.ShrunkGroups < len(a.shrunk) {
		return broken("P3", "%d groups were leased incomplete, the fold counts %d", len(a.shrunk), st.ShrunkGroups)
	}
	lags := 0
	for lag, n := range st.StalenessCounts {
		if lags += n; lag > a.spec.MaxStaleness {
			return broken("P3", "%d logs were trained %d versions late, the bound is %d", n, lag, a.spec.MaxStaleness)
		}
	}
	for n := uint64(1); n <= a.version; n++ {
		rec, err := replay.Step(kv, a.spec.Run, n)
		if err != nil {
			return broken("P2", "step %d: %v", n, err)
		}
		if want := a.steps[n]; rec.Checkpoint != want.Checkpoint || strings.Join(rec.LogIDs, " ") != strings.Join(want.LogIDs, " ") {
			return broken("P2", "step %d is recorded as %+v, it was committed as %+v", n, rec, want)
		}
	}
	return nil
}
