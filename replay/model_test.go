package replay

import (
	"errors"
	"fmt"
	"sort"
	"time"

	"github.com/skein-rl/skein/eventlog"
)

// model is the fold written the naive way: one run, plain maps, everything
// recomputed by looping over all groups. The property tests hold the fold to
// it.
type model struct {
	spec                                                 RunSpec
	finished                                             bool
	now                                                  time.Time
	groups                                               []*modelGroup // train and eval, in order of creation
	next                                                 uint64
	version                                              uint64
	steps                                                []StepRecord
	leases                                               map[uint64]*modelLease
	lastID                                               uint64
	logs                                                 map[string]bool
	evals                                                []*modelEval
	appended, duplicates, late, rejected, failed, shrunk int
	drops                                                map[string]int
	lags                                                 map[uint64]int
	last                                                 map[string]modelReply
}

type modelGroup struct {
	name    string
	table   string
	index   uint64
	size    int
	state   string // pending running ready leased consumed dropped
	attempt uint32
	worker  string
	version uint64
	expires time.Time
	lease   uint64
	items   map[uint32]Item

	twin        string
	twinExpires time.Time
}

func (g *modelGroup) heldBy(worker string) bool {
	return g.state == "running" && (g.worker == worker || g.twin == worker)
}

// enough says whether a group is complete.
func (m *model) enough(g *modelGroup) bool {
	good := 0
	for _, it := range g.items {
		if !isFailed(it) {
			good++
		}
	}
	return len(g.items) == g.size || g.table == "train" && m.spec.Stragglers.Oversample > 0 && good >= int(m.spec.GroupSize)
}

// slowest is the running group whose ticket ends first of those that may have a
// second worker.
func (m *model) slowest(worker string) *modelGroup {
	after := m.spec.Stragglers.DuplicateAfter
	var best *modelGroup
	for _, g := range m.groups {
		if after == 0 || g.state != "running" || g.twin != "" || g.worker == worker || g.attempt >= m.spec.MaxAttempts ||
			g.expires.After(m.now.Add(m.spec.TicketTTL-after)) || g.table == "train" && g.staleAt(m.version, m.spec.MaxStaleness) {
			continue
		}
		if best == nil || g.expires.Before(best.expires) || g.expires.Equal(best.expires) && g.name < best.name {
			best = g
		}
	}
	return best
}

type modelLease struct {
	holder  string
	groups  []*modelGroup
	version uint64
	expires time.Time
}

type modelEval struct {
	version, from, next  uint64
	count                uint32
	done, failed, scored int
	sum                  float64
	succeeded            int
}

type modelReply struct {
	id     string
	groups []*modelGroup
}

func newModel(spec RunSpec) *model {
	return &model{spec: spec, leases: map[uint64]*modelLease{}, logs: map[string]bool{}, drops: map[string]int{},
		lags: map[uint64]int{}, last: map[string]modelReply{}}
}

func isFailed(it Item) bool {
	return it.Status == uint8(eventlog.Failed) || it.Status == uint8(eventlog.TimedOut)
}

func (g *modelGroup) allFailed() bool {
	for _, it := range g.items {
		if !isFailed(it) {
			return false
		}
	}
	return len(g.items) > 0
}

func (g *modelGroup) staleAt(version, bound uint64) bool {
	for _, it := range g.items {
		if it.Tokens > 0 && int64(version)-int64(it.MinVersion) > int64(bound) {
			return true
		}
	}
	return false
}

func (m *model) count(table string, states ...string) int {
	n := 0
	for _, g := range m.groups {
		for _, s := range states {
			if g.table == table && g.state == s {
				n++
			}
		}
	}
	return n
}

func (m *model) dropGroup(g *modelGroup, reason string) {
	g.state = "dropped"
	if g.table == "train" {
		m.drops[reason]++
	}
}

func (m *model) pass(now time.Time) {
	m.now = now
	// In order of their ends; at one end leases come first.
	type due struct {
		at time.Time
		do func()
	}
	var dues []due
	for id, l := range m.leases {
		if !l.expires.After(now) {
			dues = append(dues, due{l.expires, func() { m.endLease(id, "") }})
		}
	}
	for _, g := range m.groups {
		if g.state == "running" && !g.expires.After(now) {
			dues = append(dues, due{g.expires, func() { m.expire(g) }})
		}
		if at := g.twinExpires; g.state == "running" && g.twin != "" && !at.After(now) {
			dues = append(dues, due{at, func() {
				if g.twin != "" { // else it is the first worker by now
					g.twin = ""
					return
				}
				m.expire(g)
			}})
		}
	}
	sort.SliceStable(dues, func(i, j int) bool { return dues[i].at.Before(dues[j].at) })
	for _, d := range dues {
		d.do()
	}
}

func (m *model) expire(g *modelGroup) {
	if g.twin != "" {
		g.worker, g.expires, g.twin = g.twin, g.twinExpires, ""
		g.attempt++
		return
	}
	g.worker = ""
	switch {
	case g.attempt < m.spec.MaxAttempts:
		g.attempt++
		g.state = "pending"
	case g.table == "eval":
		g.state = "dropped"
		e := m.eval(g.version)
		e.done++
		e.failed++
	case g.allFailed():
		m.dropGroup(g, "all_failed")
	case len(g.items) < 2 || m.spec.Stragglers.Drop:
		m.dropGroup(g, "expired")
	default:
		m.shrunk++
		g.state = "ready"
	}
}

func (m *model) eval(version uint64) *modelEval {
	for _, e := range m.evals {
		if e.version == version {
			return e
		}
	}
	return nil
}

func (m *model) endLease(id uint64, drop string) {
	for _, g := range m.leases[id].groups {
		if drop != "" {
			m.dropGroup(g, drop)
		} else {
			g.state = "ready"
		}
	}
	delete(m.leases, id)
}

// first returns the group with the least key among those that match.
func (m *model) first(match func(*modelGroup) bool) *modelGroup {
	var best *modelGroup
	for _, g := range m.groups {
		if match(g) && (best == nil || g.version < best.version && g.table == "eval" || (g.table != "eval" || g.version == best.version) && g.index < best.index) {
			best = g
		}
	}
	return best
}

func (m *model) take(worker string, n int, id string) []*modelGroup {
	if l := m.last[worker]; id != "" && l.id == id {
		var out []*modelGroup
		for _, g := range l.groups {
			if g.heldBy(worker) {
				out = append(out, g)
			}
		}
		return out
	}
	var out []*modelGroup
	for len(out) < n && !m.finished {
		g := m.pick()
		if g == nil {
			if g = m.slowest(worker); g == nil {
				break
			}
			g.twin, g.twinExpires = worker, m.now.Add(m.spec.TicketTTL)
			out = append(out, g)
			continue
		}
		g.state, g.worker, g.expires = "running", worker, m.now.Add(m.spec.TicketTTL)
		if g.table == "train" {
			g.version = m.version
		}
		out = append(out, g)
	}
	if id != "" && len(out) > 0 {
		m.last[worker] = modelReply{id, out}
	}
	return out
}

func (m *model) pick() *modelGroup {
	if g := m.first(func(g *modelGroup) bool { return g.table == "eval" && g.state == "pending" }); g != nil {
		return g
	}
	var open *modelEval
	for _, e := range m.evals {
		if e.next < e.from+uint64(e.count) && (open == nil || e.version < open.version) {
			open = e
		}
	}
	if open != nil {
		g := &modelGroup{name: fmt.Sprintf("r/eval/%d/%d", open.version, open.next), table: "eval", index: open.next,
			size: 1, attempt: 1, version: open.version, items: map[uint32]Item{}}
		open.next++
		m.groups = append(m.groups, g)
		return g
	}
	for {
		g := m.first(func(g *modelGroup) bool { return g.table == "train" && g.state == "pending" })
		if g == nil {
			break
		}
		if !g.staleAt(m.version, m.spec.MaxStaleness) {
			return g
		}
		m.dropGroup(g, "stale")
	}
	if m.count("train", "pending", "running", "ready", "leased") >= int(m.spec.MaxStaleness+1)*int(m.spec.GroupsPerStep) {
		return nil
	}
	g := &modelGroup{name: fmt.Sprintf("r/train/%d", m.next), table: "train", index: m.next, size: int(m.spec.GroupSize + m.spec.Stragglers.Oversample),
		attempt: 1, items: map[uint32]Item{}}
	m.next++
	m.groups = append(m.groups, g)
	return g
}

func (m *model) group(name string) *modelGroup {
	for _, g := range m.groups {
		if g.name == name {
			return g
		}
	}
	return nil
}

func (m *model) returnTicket(worker, group string) error {
	if group == "" {
		for _, g := range m.groups {
			switch {
			case g.heldBy(worker) && g.worker != worker:
				g.twin = ""
			case g.heldBy(worker):
				m.expire(g)
			}
		}
		return nil
	}
	g := m.group(group)
	if g == nil {
		return ErrNotFound
	}
	switch {
	case !g.heldBy(worker):
		return ErrStale
	case g.worker != worker:
		g.twin = ""
		return nil
	case g.twin != "":
		m.expire(g)
		return nil
	}
	g.state, g.worker = "pending", ""
	return nil
}

// append returns "accepted", "duplicate" or "rejected".
func (m *model) append(it Item) string {
	if it.Validate() != nil || it.MaxVersion > m.version {
		m.rejected++
		return "rejected"
	}
	if m.logs[it.LogID] {
		m.duplicates++
		return "duplicate"
	}
	g := m.group(it.Group)
	if g == nil || g.table != it.Table || g.size != int(it.GroupSize) ||
		g.table == "eval" && it.Tokens > 0 && (it.MinVersion != g.version || it.MaxVersion != g.version) {
		m.rejected++
		return "rejected"
	}
	_, taken := g.items[it.Member]
	if taken || g.state != "running" && g.state != "pending" {
		m.duplicates++
		if !taken {
			m.late++
		}
		return "duplicate"
	}
	m.logs[it.LogID] = true
	m.appended++
	if isFailed(it) {
		m.failed++
	}
	g.items[it.Member] = it
	if !m.enough(g) {
		return "accepted"
	}
	g.worker, g.twin = "", ""
	switch {
	case g.table == "eval":
		g.state = "consumed"
		e := m.eval(g.version)
		e.done++
		if isFailed(it) {
			e.failed++
		} else if it.HasReward {
			e.scored++
			e.sum += it.Reward
			if it.Reward >= 1 {
				e.succeeded++
			}
		}
	case g.allFailed():
		m.dropGroup(g, "all_failed")
	default:
		g.state = "ready"
	}
	return "accepted"
}

func (m *model) acquire(q LeaseRequest) (uint64, []*modelGroup, error) {
	if m.finished || q.Groups < 1 || q.Groups > int(m.spec.MaxStaleness+1)*int(m.spec.GroupsPerStep) || q.LearnerVersion > m.version+1 {
		return 0, nil, ErrInvalid
	}
	if q.LearnerVersion < m.version {
		return 0, nil, ErrStale
	}
	for id, l := range m.leases {
		if l.holder == q.Holder {
			m.endLease(id, "")
		}
	}
	var out []*modelGroup
	for len(out) < q.Groups {
		g := m.first(func(g *modelGroup) bool {
			for _, o := range out {
				if o == g {
					return false
				}
			}
			return g.table == "train" && g.state == "ready"
		})
		if g == nil {
			return 0, nil, nil
		}
		if g.staleAt(q.LearnerVersion, m.spec.MaxStaleness) {
			m.dropGroup(g, "stale")
			continue
		}
		out = append(out, g)
	}
	m.lastID++
	for _, g := range out {
		g.state, g.lease = "leased", m.lastID
	}
	m.leases[m.lastID] = &modelLease{q.Holder, out, q.LearnerVersion, m.now.Add(q.TTL)}
	return m.lastID, out, nil
}

func (m *model) commit(s StepRecord) error {
	for _, old := range m.steps {
		if old.Step == s.Step {
			if sameStep(old, s) {
				return nil
			}
			return ErrStale
		}
	}
	l := m.leases[s.Lease]
	if l == nil || s.Version != m.version+1 || s.Version != l.version+1 {
		return ErrStale
	}
	if n := len(m.steps); n > 0 && (s.Step <= m.steps[n-1].Step || s.PrevCheckpoint != m.steps[n-1].Checkpoint) {
		return ErrStale
	}
	for _, g := range l.groups {
		if g.state != "leased" || g.lease != s.Lease {
			panic("model: leased group is elsewhere")
		}
		g.state = "consumed"
		for _, it := range g.items {
			for _, id := range s.LogIDs {
				if id == it.LogID && it.Tokens > 0 {
					m.lags[l.version-it.MinVersion]++
				}
			}
		}
	}
	delete(m.leases, s.Lease)
	m.version = s.Version
	m.steps = append(m.steps, s)
	return nil
}

func (m *model) requestEval(q EvalRequest) error {
	if q.Version > m.version {
		return ErrInvalid
	}
	if e := m.eval(q.Version); e != nil {
		if e.from == q.From && e.count == q.Count {
			return nil
		}
		return ErrInvalid
	}
	if m.finished {
		return ErrInvalid
	}
	m.evals = append(m.evals, &modelEval{version: q.Version, from: q.From, next: q.From, count: q.Count})
	return nil
}

// kindOf reduces an error to its sentinel.
func kindOf(err error) error {
	for _, kind := range []error{ErrStale, ErrDiskFull, ErrNotFound, ErrInvalid, ErrUnavailable} {
		if errors.Is(err, kind) {
			return kind
		}
	}
	return err
}
