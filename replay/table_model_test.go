package replay

import (
	"fmt"
	"sort"
	"time"

	"github.com/skein-rl/skein/replay/table"
)

// tableModel is one configured table written the naive way: a list of groups
// that every operation walks. Of the kinds that draw it does not say which
// group comes, only which may.
type tableModel struct {
	gone           func(may []*tableGroup) *tableGroup // which one the fold removed to make room
	cfg            table.Config
	now            time.Time
	groups         map[string]*tableGroup
	order          []*tableGroup // inserted, by seq
	logs           map[string]bool
	leases         map[uint64]*tableLease
	version        uint64
	inserted, lost int
	sampled        int
	consumed       int
	removed        map[string]int
	last           string // stratum sampled from
	lastGone       string // stratum removed from
	epoch          uint64
	maxPrio        float64
}

type tableGroup struct {
	name, task string
	size       int
	items      map[uint32]Item
	state      string // open ready leased consumed dropped
	reason     string
	seq        int
	priority   float64
	pinned     bool // has a priority of its own
	times      int
	inserted   time.Time
	deadline   time.Time
	epoch      uint64
	same       string
}

type tableLease struct {
	holder  string
	groups  []*tableGroup
	version uint64
	expires time.Time
}

func newTableModel(cfg table.Config, now time.Time) *tableModel {
	return &tableModel{cfg: cfg, now: now, groups: map[string]*tableGroup{}, logs: map[string]bool{}, leases: map[uint64]*tableLease{}, removed: map[string]int{}}
}

func (m *tableModel) in(states ...string) (out []*tableGroup) {
	for _, g := range m.groups {
		for _, s := range states {
			if g.state == s {
				out = append(out, g)
			}
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].seq < out[j].seq })
	return out
}

func (m *tableModel) bytes() (n int) {
	for _, g := range m.in("open", "ready", "leased") {
		n += g.bytes()
	}
	return n
}

func (g *tableGroup) bytes() (n int) {
	for _, it := range g.items {
		n += int(it.Size)
	}
	return n
}

func (m *tableModel) leave(g *tableGroup, state, reason string) {
	g.state, g.reason = state, reason
	if state == "consumed" {
		m.consumed++
	} else {
		m.removed[reason]++
		if !g.inserted.IsZero() && g.times == 0 && reason != "full" {
			m.lost++
		}
	}
}

// pass lets a moment come: TTLs, then leases by id, then deadlines by name.
func (m *tableModel) pass(now time.Time) {
	m.now = now
	m.sweep()
	type due struct {
		at   time.Time
		rank string
		do   func()
	}
	var dues []due
	for id, l := range m.leases {
		if !l.expires.After(now) {
			dues = append(dues, due{l.expires, fmt.Sprintf("0%09d", id), func() { m.endLease(id, "") }})
		}
	}
	for _, g := range m.groups {
		if g.state == "open" && !g.deadline.IsZero() && !g.deadline.After(now) {
			dues = append(dues, due{g.deadline, "1" + g.name, func() { m.close(g) }})
		}
	}
	sort.Slice(dues, func(i, j int) bool {
		if !dues[i].at.Equal(dues[j].at) {
			return dues[i].at.Before(dues[j].at)
		}
		return dues[i].rank < dues[j].rank
	})
	for _, d := range dues {
		d.do()
	}
}

// expired says whether a group's TTL is over.
func (m *tableModel) expired(g *tableGroup) bool {
	return m.cfg.TTL > 0 && !g.inserted.Add(time.Duration(m.cfg.TTL)).After(m.now)
}

func (m *tableModel) sweep() {
	for _, g := range m.in("ready") {
		if m.expired(g) {
			m.leave(g, "dropped", "ttl")
		}
	}
}

func (m *tableModel) counts() table.Counts {
	return table.Counts{Open: uint64(len(m.in("open"))), Ready: uint64(len(m.in("ready"))), Leased: uint64(len(m.in("leased"))),
		Inserted: uint64(m.inserted - m.lost), Sampled: uint64(m.sampled)}
}

// admits says whether a new group may begin.
func (m *tableModel) admits() bool {
	c := m.counts()
	switch m.cfg.Limiter.Kind {
	case table.Queue, table.Stack:
		if c.Open+c.Ready >= m.cfg.Limiter.Size {
			return false
		}
	case table.SamplesPerInsert:
		l := m.cfg.Limiter
		d := float64(c.Inserted+c.Open+1)*l.SamplesPerInsert - float64(c.Sampled+c.Leased)
		if c.Open+c.Ready+c.Leased+1 > l.MinSize && d > float64(l.MinSize)*l.SamplesPerInsert+l.ErrorBuffer {
			return false
		}
	}
	held := c.Open + c.Leased
	if m.cfg.OnFull == table.Refuse {
		held += c.Ready
	}
	return m.cfg.MaxItems == 0 || held < m.cfg.MaxItems
}

// append returns "accepted", "duplicate", "rejected" or "busy".
func (m *tableModel) append(it Item) string {
	if m.logs[it.LogID] {
		return "duplicate"
	}
	g := m.groups[it.Group]
	if g == nil && m.cfg.GroupSize != 0 && it.GroupSize != m.cfg.GroupSize {
		return "rejected"
	}
	if g != nil {
		if _, taken := g.items[it.Member]; taken || g.state != "open" {
			return "duplicate"
		}
		if g.size != int(it.GroupSize) {
			return "rejected"
		}
	}
	if m.cfg.MaxBytes > 0 && uint64(it.Size) > m.cfg.MaxBytes {
		return "rejected"
	}
	if g == nil && !m.admits() {
		return "busy"
	}
	for m.cfg.MaxBytes > 0 && m.bytes()+int(it.Size) > int(m.cfg.MaxBytes) {
		if !m.removeOne() {
			return "busy"
		}
	}
	if g == nil {
		g = &tableGroup{name: it.Group, task: it.Task, size: int(it.GroupSize), items: map[uint32]Item{}, state: "open", seq: 1 << 30}
		if m.cfg.GroupDeadline > 0 && g.size > 1 {
			g.deadline = m.now.Add(time.Duration(m.cfg.GroupDeadline))
		}
		m.groups[g.name] = g
	}
	m.logs[it.LogID] = true
	g.items[it.Member] = it
	if len(g.items) == g.size {
		m.close(g)
	}
	return "accepted"
}

func (m *tableModel) removeOne() bool {
	may := m.may(m.cfg.Remover, m.in("ready"), &m.lastGone)
	if m.cfg.OnFull != table.Remove || len(may) == 0 {
		return false
	}
	m.leave(m.gone(may), "dropped", "full")
	return true
}

func (m *tableModel) close(g *tableGroup) {
	m.closeWith(g, func(may []*tableGroup) *tableGroup { return may[0] })
}

func (m *tableModel) closeWith(g *tableGroup, gone func([]*tableGroup) *tableGroup) {
	failed, scored, unscored := 0, 0, 0
	rewards := map[float64]bool{}
	sum := 0.0
	for _, member := range sortedMembers(g.items) {
		it := g.items[member]
		switch {
		case isFailed(it):
			failed++
		case it.HasReward:
			scored++
			rewards[it.Reward] = true
			sum += it.Reward
		default:
			unscored++
		}
	}
	switch {
	case len(g.items) < g.size && (m.cfg.MinMembers == 0 || len(g.items) < int(m.cfg.MinMembers)):
		m.leave(g, "dropped", "incomplete")
		return
	case failed == len(g.items):
		m.leave(g, "dropped", "all_failed")
		return
	case m.cfg.ConstantGroups == table.Drop && scored >= 2 && unscored == 0 && len(rewards) == 1:
		m.leave(g, "dropped", "constant")
		return
	}
	if !g.pinned {
		g.priority = m.cfg.Priority
		if m.cfg.PriorityFrom == table.PriorityMax && m.inserted > 0 {
			g.priority = m.maxPrio
		}
		if m.cfg.PriorityFrom == table.PriorityReward && scored > 0 {
			g.priority = sum / float64(scored)
		}
	}
	switch m.cfg.DedupeBy {
	case table.DedupeTask:
		g.same = g.task
	case table.DedupeContent:
		for _, member := range sortedMembers(g.items) {
			g.same += g.items[member].Digest + "|"
		}
	}
	if m.cfg.DedupeBy != "" {
		for _, o := range m.in("ready", "leased") {
			if o.same != g.same {
				continue
			}
			if !m.cfg.Replace || o.state == "leased" {
				m.leave(g, "dropped", "duplicate")
				return
			}
			m.leave(o, "dropped", "duplicate")
		}
	}
	if m.cfg.MaxItems > 0 {
		for len(m.in("ready", "leased"))+1 > int(m.cfg.MaxItems) && m.removeOne() {
		}
	}
	if m.inserted == 0 || g.priority > m.maxPrio {
		m.maxPrio = g.priority
	}
	g.seq = m.inserted
	m.inserted++
	g.inserted = m.now
	g.epoch = m.epoch
	g.state = "ready"
}

func sortedMembers(items map[uint32]Item) (out []uint32) {
	for i := range items {
		out = append(out, i)
	}
	sort.Slice(out, func(i, j int) bool { return out[i] < out[j] })
	return out
}

// may lists the groups a selector may choose among those given; last is the
// stratum it moves on from and to.
func (m *tableModel) may(sel table.Selector, from []*tableGroup, last *string) []*tableGroup {
	if len(from) == 0 {
		return nil
	}
	if sel.Epochs {
		low := from[0].epoch
		for _, g := range from {
			low = min(low, g.epoch)
		}
		from = filter(from, func(g *tableGroup) bool { return g.epoch == low })
	}
	if sel.Stratify != "" {
		var tasks []string
		for _, g := range from {
			tasks = append(tasks, g.task)
		}
		sort.Strings(tasks)
		next := tasks[0]
		if *last != "" {
			for _, s := range tasks {
				if s > *last {
					next = s
					break
				}
			}
		}
		*last = next
		from = filter(from, func(g *tableGroup) bool { return g.task == next })
	}
	best := func(less func(a, b *tableGroup) bool) []*tableGroup {
		b := from[0]
		for _, g := range from {
			if less(g, b) {
				b = g
			}
		}
		return []*tableGroup{b}
	}
	switch sel.Kind {
	case table.FIFO:
		return best(func(a, b *tableGroup) bool { return a.seq < b.seq })
	case table.LIFO:
		return best(func(a, b *tableGroup) bool { return a.seq > b.seq })
	case table.MaxHeap:
		return best(func(a, b *tableGroup) bool {
			return a.priority > b.priority || a.priority == b.priority && a.seq < b.seq
		})
	case table.MinHeap:
		return best(func(a, b *tableGroup) bool {
			return a.priority < b.priority || a.priority == b.priority && a.seq < b.seq
		})
	case table.Prioritized:
		if pos := filter(from, func(g *tableGroup) bool { return g.priority > 0 }); len(pos) > 0 {
			return pos
		}
	}
	return from
}

func filter(in []*tableGroup, keep func(*tableGroup) bool) (out []*tableGroup) {
	for _, g := range in {
		if keep(g) {
			out = append(out, g)
		}
	}
	return out
}

func (m *tableModel) endLease(id uint64, drop string) {
	l := m.leases[id]
	delete(m.leases, id)
	for _, g := range l.groups {
		reason := drop
		if reason == "" && m.expired(g) {
			reason = "ttl"
		}
		g.state = "ready"
		if reason != "" {
			m.leave(g, "dropped", reason)
		}
	}
}

func (m *tableModel) outOfBounds(g *tableGroup, version uint64) string {
	for _, it := range g.items {
		if m.cfg.MaxStaleness >= 0 && it.Tokens > 0 && version > it.MinVersion && version-it.MinVersion > uint64(m.cfg.MaxStaleness) {
			return "stale"
		}
	}
	return ""
}

// room is how many groups the limiter lets out.
func (m *tableModel) room(n int) int {
	c := m.counts()
	l := m.cfg.Limiter
	size := int(c.Ready + c.Leased)
	switch l.Kind {
	case table.MinSize:
		if size < int(l.MinSize) {
			return 0
		}
	case table.SamplesPerInsert:
		if size < int(l.MinSize) {
			return 0
		}
		for n > 0 && float64(c.Inserted)*l.SamplesPerInsert-float64(c.Sampled+c.Leased)-float64(n) < float64(l.MinSize)*l.SamplesPerInsert-l.ErrorBuffer {
			n--
		}
	}
	return min(n, int(c.Ready))
}

// sample checks a lease that the fold gave (nil = none) and follows it.
func (m *tableModel) sample(q LeaseRequest, got *Lease) error {
	for id, l := range m.leases {
		if l.holder == q.Holder {
			m.endLease(id, "")
		}
	}
	n := m.room(q.Groups)
	ready := len(m.in("ready"))
	if n < q.atLeast() && m.cfg.MaxStaleness >= 0 && ready < q.atLeast() {
		n = ready // stale ones leave all the same
	} else if n < q.atLeast() {
		if got != nil {
			return fmt.Errorf("the model gives none, the fold %v", got.Groups)
		}
		return nil
	}
	// Follow the fold's choices: which stale groups it met is seen from what
	// remains possible.
	var picked []*tableGroup
	avail := m.in("ready")
	take := func(g *tableGroup) {
		avail = filter(avail, func(o *tableGroup) bool { return o != g })
	}
	random := m.cfg.Sampler.Kind == table.Uniform || m.cfg.Sampler.Kind == table.Prioritized
	if random && m.cfg.MaxStaleness >= 0 {
		return fmt.Errorf("the model cannot follow random choices with a staleness bound")
	}
	for len(picked) < n {
		may := m.may(m.cfg.Sampler, avail, &m.last)
		if len(may) == 0 {
			break
		}
		g := may[0]
		if random {
			if got == nil || len(got.Groups) <= len(picked) {
				return fmt.Errorf("the fold gave fewer than %d groups", n)
			}
			g = m.groups[got.Groups[len(picked)].Group]
			if len(filter(may, func(o *tableGroup) bool { return o == g })) == 0 {
				return fmt.Errorf("the fold chose %q, which may not come now", got.Groups[len(picked)].Group)
			}
		}
		take(g)
		if reason := m.outOfBounds(g, q.LearnerVersion); reason != "" {
			m.leave(g, "dropped", reason)
			continue
		}
		picked = append(picked, g)
	}
	if len(picked) < q.atLeast() {
		if got != nil {
			return fmt.Errorf("the model gives none, the fold %v", got.Groups)
		}
		return nil
	}
	if got == nil {
		return fmt.Errorf("the model gives %d groups, the fold none", len(picked))
	}
	if len(got.Groups) != len(picked) {
		return fmt.Errorf("the model gives %d groups, the fold %d", len(picked), len(got.Groups))
	}
	for i, g := range picked {
		if got.Groups[i].Group != g.name || got.Groups[i].Priority != g.priority || int(got.Groups[i].TimesSampled) != g.times || len(got.Groups[i].Items) != len(g.items) {
			return fmt.Errorf("group %d: the model gives %+v, the fold %+v", i, *g, got.Groups[i])
		}
		g.state = "leased"
		m.epoch = max(m.epoch, g.epoch)
	}
	m.leases[got.ID] = &tableLease{q.Holder, picked, q.LearnerVersion, m.now.Add(q.TTL)}
	return nil
}

func (m *tableModel) commit(id uint64) {
	l := m.leases[id]
	delete(m.leases, id)
	m.version++
	for _, g := range l.groups {
		g.times++
		m.sampled++
		if m.cfg.MaxTimesSampled > 0 && g.times >= int(m.cfg.MaxTimesSampled) {
			m.leave(g, "consumed", "")
			continue
		}
		if m.cfg.Sampler.Epochs {
			g.epoch++
		}
		g.state = "ready"
		if m.expired(g) {
			m.leave(g, "dropped", "ttl")
		}
	}
}
