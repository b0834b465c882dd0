package replay

import (
	"bytes"
	"fmt"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/skein-rl/skein/eventlog"
	"github.com/skein-rl/skein/replay/table"
)

// drawTable draws a valid configuration. Random samplers have no staleness
// bound: which stale groups they met cannot be seen from outside.
func drawTable(t *rapid.T) table.Config {
	c := table.Default()
	sel := func(name string, epochs bool) table.Selector {
		s := table.Selector{Kind: rapid.SampledFrom([]table.Kind{table.FIFO, table.LIFO, table.Uniform, table.Prioritized, table.MaxHeap, table.MinHeap}).Draw(t, name)}
		if s.Kind == table.Prioritized {
			s.Exponent = rapid.SampledFrom([]float64{0, 0.6, 1, 2}).Draw(t, name+"Exponent")
		}
		if rapid.Bool().Draw(t, name+"Stratify") {
			s.Stratify = table.ByTask
		}
		s.Epochs = epochs && rapid.Bool().Draw(t, name+"Epochs")
		return s
	}
	c.Sampler, c.Remover = sel("sampler", true), sel("remover", false)
	c.MaxTimesSampled = uint32(rapid.IntRange(0, 3).Draw(t, "times"))
	switch rapid.IntRange(0, 2).Draw(t, "limiter") {
	case 0:
		c.Limiter = table.Limiter{Kind: table.MinSize, MinSize: uint64(rapid.IntRange(1, 3).Draw(t, "minSize"))}
	case 1:
		spi := rapid.SampledFrom([]float64{0.5, 1, 3}).Draw(t, "ratio")
		c.Limiter = table.Limiter{Kind: table.SamplesPerInsert, MinSize: uint64(rapid.IntRange(1, 3).Draw(t, "minSize")), SamplesPerInsert: spi,
			ErrorBuffer: max(1, spi) + float64(rapid.IntRange(0, 3).Draw(t, "buffer"))}
	case 2:
		c.Limiter = table.Limiter{Kind: table.Queue, Size: uint64(rapid.IntRange(1, 4).Draw(t, "size"))}
		c.Sampler.Kind, c.Sampler.Exponent, c.MaxTimesSampled = table.FIFO, 0, 1
		if rapid.Bool().Draw(t, "stack") {
			c.Limiter.Kind, c.Sampler.Kind = table.Stack, table.LIFO
		}
	}
	if k := c.Sampler.Kind; k != table.Uniform && k != table.Prioritized {
		c.MaxStaleness = int64(rapid.IntRange(-1, 2).Draw(t, "staleness"))
	}
	c.GroupSize = uint32(rapid.IntRange(0, 2).Draw(t, "groupSize"))
	if rapid.Bool().Draw(t, "deadline") {
		c.GroupDeadline = table.Duration(10 * time.Second)
		c.MinMembers = uint32(rapid.IntRange(0, 1).Draw(t, "minMembers"))
	}
	if rapid.Bool().Draw(t, "constant") {
		c.ConstantGroups = table.Drop
	}
	if c.DedupeBy = rapid.SampledFrom([]string{"", "", table.DedupeTask, table.DedupeContent}).Draw(t, "dedupe"); c.DedupeBy != "" {
		c.Replace = rapid.Bool().Draw(t, "replace")
	}
	if rapid.Bool().Draw(t, "ttl") {
		c.TTL = table.Duration(25 * time.Second)
	}
	if rapid.Bool().Draw(t, "bounded") {
		c.MaxItems = uint64(rapid.IntRange(int(max(c.Limiter.MinSize, 1)), 5).Draw(t, "items"))
		c.MaxBytes = uint64(rapid.SampledFrom([]int{0, 30, 60}).Draw(t, "bytes"))
	}
	if rapid.Bool().Draw(t, "remove") {
		c.OnFull = table.Remove
	}
	c.PriorityFrom = rapid.SampledFrom([]string{table.PriorityConstant, table.PriorityMax, table.PriorityReward}).Draw(t, "from")
	c.Priority = float64(rapid.IntRange(0, 2).Draw(t, "priority"))
	c.Seed = uint64(rapid.IntRange(0, 3).Draw(t, "seed"))
	require.NoError(t, c.Validate())
	return c
}

// tableMachine plays commands on one table and its model.
type tableMachine struct {
	kv     KV
	m      *tableModel
	now    time.Time
	log    []Command
	names  int
	steps  uint64
	prev   string
	lastID uint64
}

func newTableMachine(t *rapid.T) *tableMachine {
	cfg := drawTable(t)
	s := &tableMachine{kv: NewMemKV(), now: epoch, m: newTableModel(cfg, epoch)}
	require.NoError(t, s.apply(t, CreateRunCmd{s.now, RunSpec{Run: "r", GroupSize: 1, GroupsPerStep: 1, MaxStaleness: 9, TicketTTL: time.Hour, MaxAttempts: 1}}).Err)
	require.NoError(t, s.apply(t, SetTableCmd{s.now, "r", "x", cfg, 0}).Err)
	return s
}

func (s *tableMachine) apply(t *rapid.T, c Command) Result {
	s.log = append(s.log, c)
	b, err := EncodeCommand(c)
	require.NoError(t, err)
	c, err = DecodeCommand(b)
	require.NoError(t, err)
	res, err := Apply(s.kv, c)
	require.NoError(t, err)
	return res
}

// advance lets time pass in both, a second at a time: all durations are whole
// seconds, so every moment is met.
func (s *tableMachine) advance(t *rapid.T) {
	s.pass(t, rapid.IntRange(0, 5).Draw(t, "seconds"))
}

func (s *tableMachine) pass(t *rapid.T, seconds int) {
	for range seconds {
		s.now = s.now.Add(time.Second)
		s.watch(t, func() { s.apply(t, TickCmd{s.now}) })
		s.m.pass(s.now)
	}
}

// watch tells the model which groups the fold removed to make room: chance
// chose them, so that the model can only check that they might go. Of several
// the order is not known; if the last one was needed, then so is the largest
// after all others.
func (s *tableMachine) watch(t *rapid.T, do func()) {
	before := s.states(t)
	do()
	after := s.states(t)
	s.m.gone = func(may []*tableGroup) (gone *tableGroup) {
		for _, g := range may {
			if strings.HasPrefix(after[g.name], "dropped full") && before[g.name] != after[g.name] && (gone == nil || g.bytes() < gone.bytes()) {
				gone = g
			}
		}
		require.NotNil(t, gone, "none of the groups that may be removed was: %v", may)
		return gone
	}
}

func (s *tableMachine) append(t *rapid.T) {
	s.advance(t)
	var items []Item
	for range rapid.IntRange(1, 3).Draw(t, "items") {
		s.names++
		size := uint32(rapid.IntRange(1, 2).Draw(t, "groupSize"))
		if s.m.cfg.GroupSize != 0 && rapid.IntRange(0, 9).Draw(t, "wrong") > 0 {
			size = s.m.cfg.GroupSize
		}
		it := Item{LogID: fmt.Sprint("log", s.names), Run: "r", Table: "x", GroupSize: size, Member: uint32(rapid.IntRange(0, int(size)-1).Draw(t, "member")),
			Group: fmt.Sprint("g", rapid.IntRange(0, 9).Draw(t, "group"), "-", size), Task: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "task"),
			Digest: rapid.SampledFrom([]string{"d1", "d2", "d3"}).Draw(t, "digest"), Size: uint32(rapid.SampledFrom([]int{5, 10, 40}).Draw(t, "size")),
			Status: uint8(eventlog.OK), Tokens: uint32(rapid.IntRange(0, 1).Draw(t, "tokens"))}
		if len(s.m.groups) > 0 && rapid.IntRange(0, 2).Draw(t, "new") == 0 {
			it.Group = fmt.Sprint("n", s.names, "-", size)
		}
		if rapid.IntRange(0, 5).Draw(t, "failed") == 0 {
			it.Status, it.Cause = uint8(eventlog.Failed), "tool:x"
		}
		if it.HasReward = rapid.IntRange(0, 3).Draw(t, "scored") > 0; it.HasReward {
			it.Reward = float64(rapid.IntRange(0, 2).Draw(t, "reward")) / 2
		}
		it.MinVersion = uint64(rapid.IntRange(int(max(s.m.version, 3))-3, int(s.m.version)).Draw(t, "version"))
		it.MaxVersion = it.MinVersion
		items = append(items, it)
	}
	for _, it := range items {
		var res AppendResult
		s.watch(t, func() { res = s.apply(t, AppendItemsCmd{s.now, []Item{it}}).Append[0] })
		want := s.m.append(it)
		got := "accepted"
		switch {
		case res.Busy != "":
			got = "busy"
		case res.Duplicate:
			got = "duplicate"
		case res.Rejected != "":
			got = "rejected"
		}
		require.Equal(t, want, got, "%+v: %+v", it, res)
	}
}

// states maps groups to "state reason".
func (s *tableMachine) states(t require.TestingT) map[string]string {
	gs, _, err := TableGroups(s.kv, "r", "x", "", 1<<20)
	require.NoError(t, err)
	out := map[string]string{}
	for _, g := range gs {
		out[g.Group] = g.State + " " + g.Reason
	}
	return out
}

func (s *tableMachine) lease(t *rapid.T) {
	s.advance(t)
	q := LeaseRequest{Run: "r", Table: "x", Holder: rapid.SampledFrom([]string{"p", "q"}).Draw(t, "holder"), Groups: rapid.IntRange(1, 4).Draw(t, "groups"),
		LearnerVersion: s.m.version, TTL: 12 * time.Second}
	if rapid.Bool().Draw(t, "partial") {
		q.AtLeast = 1
	}
	if most := s.m.cfg.Limiter.Most(); most > 0 && uint64(q.atLeast()) > most {
		require.ErrorIs(t, s.apply(t, AcquireLeaseCmd{s.now, q}).Err, ErrInvalid)
		return
	}
	res := s.apply(t, AcquireLeaseCmd{s.now, q})
	require.NoError(t, res.Err)
	require.Equal(t, res.Lease == nil, res.Blocked != "")
	require.NoError(t, s.m.sample(q, res.Lease), "%s", res.Blocked)
	if res.Lease != nil {
		require.Greater(t, res.Lease.ID, s.lastID)
		s.lastID = res.Lease.ID
	}
}

// live draws one of the leases, or an ended one.
func (s *tableMachine) live(t *rapid.T) uint64 {
	return max(1, s.lastID-min(uint64(rapid.SampledFrom([]int{0, 0, 0, 1, 2}).Draw(t, "back")), s.lastID)) // 0 is a rollback
}

func (s *tableMachine) commit(t *rapid.T) {
	s.advance(t)
	id := s.live(t)
	step := StepRecord{Run: "r", Step: s.steps + 1, Version: s.m.version + 1, Lease: id, PrevCheckpoint: s.prev, Checkpoint: fmt.Sprint("c", s.steps+1), Adapter: "a"}
	l := s.m.leases[id]
	if l != nil && l.version != s.m.version {
		l = nil // of an older version: refused
	}
	if l != nil {
		for _, g := range l.groups {
			step.Groups = append(step.Groups, g.name)
		}
	}
	res := s.apply(t, CommitStepCmd{s.now, step})
	if l == nil {
		require.ErrorIs(t, res.Err, ErrStale)
		return
	}
	require.NoError(t, res.Err)
	s.m.commit(id)
	s.steps, s.prev = step.Step, step.Checkpoint
}

func (s *tableMachine) release(t *rapid.T) {
	s.advance(t)
	id, drop := s.live(t), rapid.SampledFrom([]string{"", "bad"}).Draw(t, "drop")
	res := s.apply(t, ReleaseLeaseCmd{s.now, "r", id, drop})
	if s.m.leases[id] == nil {
		require.ErrorIs(t, res.Err, ErrStale)
		return
	}
	require.NoError(t, res.Err)
	s.m.endLease(id, drop)
}

func (s *tableMachine) priorities(t *rapid.T) {
	s.advance(t)
	var ups []GroupPriority
	want := 0
	for range rapid.IntRange(1, 3).Draw(t, "updates") {
		names := append([]string{"none"}, keysOf(s.m.groups)...)
		u := GroupPriority{rapid.SampledFrom(names).Draw(t, "group"), float64(rapid.IntRange(0, 3).Draw(t, "priority"))}
		ups = append(ups, u)
		if g := s.m.groups[u.Group]; g != nil && (g.state == "open" || g.state == "ready" || g.state == "leased") {
			want++
			g.priority, g.pinned = u.Priority, true
			s.m.maxPrio = max(s.m.maxPrio, u.Priority)
		}
	}
	res := s.apply(t, UpdatePrioritiesCmd{s.now, "r", "x", ups})
	require.NoError(t, res.Err)
	require.Equal(t, want, res.Updated)
}

func keysOf(m map[string]*tableGroup) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	sort.Strings(out)
	return out
}

func (s *tableMachine) remove(t *rapid.T) {
	s.advance(t)
	if len(s.m.groups) == 0 {
		return
	}
	name := rapid.SampledFrom(keysOf(s.m.groups)).Draw(t, "group")
	g := s.m.groups[name]
	res := s.apply(t, RemoveGroupsCmd{s.now, "r", "x", []string{name}, "mine"})
	switch g.state {
	case "leased":
		require.ErrorIs(t, res.Err, ErrStale)
	case "open", "ready":
		require.Equal(t, 1, res.Updated)
		s.m.leave(g, "dropped", "mine")
	default:
		require.Zero(t, res.Updated)
	}
}

// check compares every group and count, and the structures with the groups.
func (s *tableMachine) check(t *rapid.T) {
	ts, err := Tables(s.kv, "r")
	require.NoError(t, err)
	got, c := ts[1], s.m.counts()
	c.Inserted += uint64(s.m.lost)
	require.Equal(t, fmt.Sprint(c, s.m.consumed, s.m.bytes(), s.m.removed),
		fmt.Sprint(table.Counts{Open: got.Open, Ready: got.Ready, Leased: got.Leased, Inserted: got.Inserted, Sampled: got.Sampled}, got.Consumed, got.Bytes, got.Removed))
	if s.m.cfg.MaxItems > 0 && s.m.cfg.OnFull == table.Refuse {
		require.LessOrEqual(t, got.Open+got.Ready+got.Leased, s.m.cfg.MaxItems)
	}
	want := map[string]string{}
	for _, g := range s.m.groups {
		want[g.name] = g.state + " " + g.reason
	}
	require.Equal(t, want, s.states(t))
	checkSets(t, s.kv)
}

// checkSets says that every structure of every table holds exactly the ready
// groups.
func checkSets(t require.TestingT, kv Reader) {
	ts, err := Tables(kv, "r")
	require.NoError(t, err)
	for _, st := range ts[1:] { // train has its own
		if st.Indexing {
			continue
		}
		probe := newOverlay(kv)
		f := &fold{kv: probe}
		tab, _, err := f.table(st.Run, st.Table)
		require.NoError(t, err)
		want := map[string]bool{}
		gs, _, err := TableGroups(kv, st.Run, st.Table, "", 1<<20)
		require.NoError(t, err)
		for _, g := range gs {
			if g.State == "ready" {
				want[g.Group] = true
			}
		}
		for _, set := range tab.all {
			got := map[string]bool{}
			stratum := ""
			taken, err := set.Take(1<<20, &stratum, &table.Draw{})
			require.NoError(t, err)
			for _, x := range taken {
				require.False(t, got[x.Group], "group %s is in a structure twice", x.Group)
				got[x.Group] = true
			}
			require.Equal(t, want, got)
		}
	}
}

// reconfigure changes the selectors live. The rest of the configuration stays,
// so that the model goes on.
func (s *tableMachine) reconfigure(t *rapid.T) {
	s.advance(t)
	ts, err := Tables(s.kv, "r")
	require.NoError(t, err)
	cfg := drawTable(t)
	now := s.m.cfg
	if k := now.Limiter.Kind; k == table.Queue || k == table.Stack || cfg.Limiter.Kind == table.Queue || cfg.Limiter.Kind == table.Stack {
		return
	}
	if cfg.Sampler.Epochs != now.Sampler.Epochs { // the model's epochs are those of one setting
		return
	}
	now.Sampler, now.Remover, now.MaxStaleness, now.MaxTimesSampled = cfg.Sampler, cfg.Remover, cfg.MaxStaleness, cfg.MaxTimesSampled
	res := s.apply(t, SetTableCmd{s.now, "r", "x", now, ts[1].Version})
	require.NoError(t, res.Err)
	s.m.cfg = now
	s.pass(t, 1) // the structures are built
}

func (s *tableMachine) run(t *rapid.T) {
	actions := map[string]func(*rapid.T){"append": s.append, "lease": s.lease, "commit": s.commit, "release": s.release,
		"priorities": s.priorities, "remove": s.remove, "reconfigure": s.reconfigure}
	names := []string{"append", "append", "append", "append", "lease", "lease", "lease", "commit", "commit", "release", "priorities", "remove", "reconfigure"}
	for range rapid.IntRange(10, 80).Draw(t, "length") {
		actions[rapid.SampledFrom(names).Draw(t, "action")](t)
		s.check(t)
	}
}

// TestTableAgainstModel: tables of random configurations agree with the naive
// model on every reply, every group and every count.
func TestTableAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) { newTableMachine(t).run(t) })
}

// TestTableIsAFunction: the same commands give the same bytes, in batches of
// any size, with a snapshot at any point, in memory and layered.
func TestTableIsAFunction(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newTableMachine(t)
		s.run(t)
		want := dump(t, s.kv)
		at := rapid.IntRange(0, len(s.log)).Draw(t, "snapshot")
		kv := NewMemKV()
		for i, c := range s.log {
			if i == at {
				var snap bytes.Buffer
				require.NoError(t, writeSnapshot(&snap, kv, uint64(i)))
				kv = NewMemKV()
				_, err := readSnapshot(&snap, func(k, v []byte) error { return kv.Set(k, v) })
				require.NoError(t, err)
			}
			_, err := Apply(kv, c)
			require.NoError(t, err)
		}
		require.Equal(t, want, dump(t, kv))

		// Batches: an overlay each, merged into the base as a node does.
		base := NewMemKV()
		for left := s.log; len(left) > 0; {
			n := min(rapid.IntRange(1, 7).Draw(t, "batch"), len(left))
			batch := newOverlay(base)
			for _, c := range left[:n] {
				_, err := Apply(batch, c)
				require.NoError(t, err)
			}
			batch.each(func(k string, v []byte) {
				if v == nil {
					require.NoError(t, base.Delete([]byte(k)))
				} else {
					require.NoError(t, base.Set([]byte(k), v))
				}
			})
			left = left[n:]
		}
		require.Equal(t, want, dump(t, base))
	})
}
