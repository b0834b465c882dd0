package replay

import (
	"bytes"
	"fmt"
	"sort"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/skein-rl/skein/eventlog"
)

// dump lists a state's pairs in order.
func dump(t require.TestingT, kv Reader) []string {
	var out []string
	require.NoError(t, kv.Iterate(nil, nil, func(k, v []byte) bool {
		out = append(out, fmt.Sprintf("%q=%x", k, v))
		return true
	}))
	return out
}

// machine draws random commands, applies them to the fold and to the model,
// and compares what can be seen.
type machine struct {
	kv    KV
	m     *model
	now   time.Time
	log   []Command
	names int
	used  map[string]bool // trained log ids
}

func drawSpec(t *rapid.T) RunSpec {
	return RunSpec{
		Run:           "r",
		GroupSize:     uint32(rapid.IntRange(1, 3).Draw(t, "size")),
		GroupsPerStep: uint32(rapid.IntRange(1, 3).Draw(t, "perStep")),
		MaxStaleness:  uint64(rapid.IntRange(0, 2).Draw(t, "staleness")),
		TicketTTL:     20 * time.Second,
		MaxAttempts:   uint32(rapid.IntRange(1, 3).Draw(t, "attempts")),
		Stragglers: Stragglers{
			Oversample:     uint32(rapid.SampledFrom([]int{0, 0, 1, 2}).Draw(t, "oversample")),
			DuplicateAfter: time.Duration(rapid.SampledFrom([]int{0, 0, 1, 5, 19}).Draw(t, "duplicate_after")) * time.Second,
			Drop:           rapid.Bool().Draw(t, "drop"),
		},
	}
}

func newMachine(t *rapid.T) *machine {
	spec := drawSpec(t)
	s := &machine{kv: NewMemKV(), m: newModel(spec), now: epoch, used: map[string]bool{}}
	require.NoError(t, s.apply(t, CreateRunCmd{s.now, spec}).Err)
	return s
}

// apply sends a command through its codec and checks that a refusal changed
// nothing but what time changes.
func (s *machine) apply(t *rapid.T, c Command) Result {
	s.log = append(s.log, c)
	b, err := EncodeCommand(c)
	require.NoError(t, err)
	c, err = DecodeCommand(b)
	require.NoError(t, err)
	_, err = Apply(s.kv, TickCmd{c.Clock()})
	require.NoError(t, err)
	before := dump(t, s.kv)
	res, err := Apply(s.kv, c)
	require.NoError(t, err)
	if res.Err != nil {
		require.Equal(t, before, dump(t, s.kv), "refused %T changed the state", c)
	}
	return res
}

func (s *machine) advance(t *rapid.T) {
	s.now = s.now.Add(time.Duration(rapid.IntRange(0, 6).Draw(t, "seconds")) * time.Second)
	s.m.pass(s.now)
}

func (s *machine) take(t *rapid.T) {
	s.advance(t)
	w := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "worker")
	n := rapid.IntRange(1, 4).Draw(t, "n")
	id := rapid.SampledFrom([]string{"", "q1", "q2"}).Draw(t, "id")
	res := s.apply(t, TakeTicketsCmd{s.now, "r", w, n, id})
	want := s.m.take(w, n, id)
	require.NoError(t, res.Err)
	require.Len(t, res.Tickets, len(want))
	for i, g := range want {
		got := res.Tickets[i]
		attempt, expires := g.attempt, g.expires
		if g.twin == w {
			attempt, expires = g.attempt+1, g.twinExpires
		}
		require.Equal(t, Ticket{Run: "r", Table: g.table, Group: g.name, Index: g.index, GroupSize: uint32(g.size), Attempt: attempt,
			Version: g.version, Greedy: g.table == "eval", Seed: got.Seed, Expires: expires, Done: members(g)}, got)
	}
}

func members(g *modelGroup) []uint32 {
	var out []uint32
	for m := range g.items {
		out = append(out, m)
	}
	sort.Slice(out, func(i, j int) bool { return out[i] < out[j] })
	return out
}

func (s *machine) anyGroup(t *rapid.T) *modelGroup {
	// Mostly recent groups: old ones are finished.
	n := len(s.m.groups)
	return s.m.groups[max(0, n-1-rapid.IntRange(0, 6).Draw(t, "group"))]
}

func (s *machine) returnTicket(t *rapid.T) {
	s.advance(t)
	w := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "worker")
	name := rapid.SampledFrom([]string{"", "r/train/0", "r/train/1", "r/train/2", "r/train/3", "none"}).Draw(t, "name")
	res := s.apply(t, ReturnTicketCmd{s.now, "r", name, w})
	require.Equal(t, s.m.returnTicket(w, name), kindOf(res.Err))
}

func (s *machine) appendItems(t *rapid.T) {
	s.advance(t)
	if len(s.m.groups) == 0 {
		return
	}
	var items []Item
	for range rapid.IntRange(1, 4).Draw(t, "items") {
		g := s.anyGroup(t)
		s.names++
		it := Item{LogID: fmt.Sprintf("log%d", s.names), Run: "r", Table: g.table, Group: g.name, GroupSize: uint32(g.size),
			Member: uint32(rapid.IntRange(0, g.size-1).Draw(t, "member")), Digest: "d", Size: 1, Attempt: g.attempt}
		if len(g.items) < g.size && rapid.Bool().Draw(t, "fill") {
			for m := uint32(0); ; m++ {
				if _, ok := g.items[m]; !ok {
					it.Member = m
					break
				}
			}
		}
		switch rapid.IntRange(0, 9).Draw(t, "kind") {
		case 0: // retry of a log
			it.LogID = fmt.Sprintf("log%d", rapid.IntRange(1, s.names).Draw(t, "again"))
		case 1: // refused
			it.GroupSize++
		}
		it.Status = uint8(rapid.SampledFrom([]eventlog.Status{eventlog.OK, eventlog.OK, eventlog.Truncated, eventlog.Failed, eventlog.TimedOut}).Draw(t, "status"))
		it.Tokens = 5
		if isFailed(it) {
			it.Cause = "tool: x"
			it.Tokens = uint32(rapid.IntRange(0, 1).Draw(t, "tokens"))
		} else {
			it.HasReward, it.Reward = true, float64(rapid.IntRange(0, 2).Draw(t, "reward"))/2
		}
		it.MinVersion = g.version
		it.MaxVersion = it.MinVersion
		if g.table == "train" || rapid.IntRange(0, 3).Draw(t, "wrongVersion") == 0 {
			it.MinVersion = uint64(rapid.IntRange(0, int(s.m.version)).Draw(t, "min"))
			it.MaxVersion = uint64(rapid.IntRange(int(it.MinVersion), int(s.m.version)).Draw(t, "max"))
		}
		items = append(items, it)
	}
	res := s.apply(t, AppendItemsCmd{s.now, items})
	require.NoError(t, res.Err)
	require.Len(t, res.Append, len(items))
	for i, it := range items {
		want := s.m.append(it)
		require.Equal(t, want == "duplicate", res.Append[i].Duplicate, "%+v: model says %s", it, want)
		require.Equal(t, want == "rejected", res.Append[i].Rejected != "", "%+v: model says %s, fold %q", it, want, res.Append[i].Rejected)
		g := s.m.group(it.Group)
		if open := g != nil && (g.state == "running" || g.state == "pending"); i == len(items)-1 && open {
			require.False(t, res.Append[i].Closed, "%+v: its group goes on", it)
		} else if want == "accepted" && i == len(items)-1 {
			require.True(t, res.Append[i].Closed, "%+v: its group is closed", it)
		}
	}
}

func (s *machine) lease(t *rapid.T) {
	s.advance(t)
	q := LeaseRequest{Run: "r", Holder: rapid.SampledFrom([]string{"x", "x", "y"}).Draw(t, "holder"), Groups: rapid.IntRange(0, 4).Draw(t, "groups"),
		LearnerVersion: max(s.m.version, 1) - 1 + uint64(rapid.SampledFrom([]int{0, 1, 1, 1, 2, 3}).Draw(t, "at")), TTL: 15 * time.Second}
	if s.m.version == 0 && q.LearnerVersion > 0 {
		q.LearnerVersion--
	}
	res := s.apply(t, AcquireLeaseCmd{s.now, q})
	id, want, err := s.m.acquire(q)
	require.Equal(t, err, kindOf(res.Err))
	if want == nil {
		require.Nil(t, res.Lease)
		return
	}
	require.NotNil(t, res.Lease)
	require.Equal(t, id, res.Lease.ID)
	require.Len(t, res.Lease.Groups, len(want))
	for i, g := range want {
		lg := res.Lease.Groups[i]
		require.Equal(t, g.name, lg.Group)
		require.Len(t, lg.Items, len(g.items))
		for j, m := range members(g) {
			require.Equal(t, g.items[m], lg.Items[j])
			// P3: bound, and one prompt.
			if it := lg.Items[j]; it.Tokens > 0 {
				require.LessOrEqual(t, int64(q.LearnerVersion)-int64(it.MinVersion), int64(s.m.spec.MaxStaleness))
			}
			require.Equal(t, g.name, lg.Items[j].Group)
		}
	}
}

func (s *machine) someLease(t *rapid.T) uint64 {
	return s.m.lastID - min(uint64(rapid.SampledFrom([]int{0, 0, 0, 1, 2}).Draw(t, "back")), s.m.lastID)
}

func (s *machine) extend(t *rapid.T) {
	s.advance(t)
	id := s.someLease(t)
	res := s.apply(t, ExtendLeaseCmd{s.now, "r", id, 10 * time.Second})
	l := s.m.leases[id]
	require.Equal(t, l == nil, res.Err != nil)
	if l != nil {
		l.expires = s.now.Add(10 * time.Second)
	} else {
		require.Equal(t, ErrStale, kindOf(res.Err))
	}
}

func (s *machine) release(t *rapid.T) {
	s.advance(t)
	id := s.someLease(t)
	drop := rapid.SampledFrom([]string{"", "zero_advantage"}).Draw(t, "drop")
	res := s.apply(t, ReleaseLeaseCmd{s.now, "r", id, drop})
	l := s.m.leases[id]
	require.Equal(t, l == nil, res.Err != nil)
	if l != nil {
		s.m.endLease(id, drop)
	}
}

func (s *machine) commit(t *rapid.T) {
	s.advance(t)
	var step StepRecord
	if n := len(s.m.steps); n > 0 && rapid.IntRange(0, 4).Draw(t, "retry") == 0 {
		step = s.m.steps[rapid.IntRange(0, n-1).Draw(t, "old")]
		if rapid.Bool().Draw(t, "changed") {
			step.Adapter = "other"
		}
	} else {
		id := max(1, s.someLease(t)) // 0 is a rollback
		n := uint64(len(s.m.steps))
		step = StepRecord{Run: "r", Step: n + 1, Version: s.m.version + 1, Lease: id, Checkpoint: fmt.Sprintf("c%d", n+1),
			Adapter: "a", Metrics: map[string]float64{"a": 1, "b": 2, "c": 3}}
		if n > 0 {
			step.PrevCheckpoint = s.m.steps[n-1].Checkpoint
			if rapid.IntRange(0, 9).Draw(t, "fork") == 0 {
				step.PrevCheckpoint = "c0"
			}
		}
		if l := s.m.leases[id]; l != nil {
			for _, g := range l.groups {
				step.Groups = append(step.Groups, g.name)
				for _, m := range members(g) {
					step.LogIDs = append(step.LogIDs, g.items[m].LogID)
				}
			}
		}
	}
	fresh := true
	for _, old := range s.m.steps {
		fresh = fresh && old.Step != step.Step
	}
	res := s.apply(t, CommitStepCmd{s.now, step})
	require.Equal(t, s.m.commit(step), kindOf(res.Err))
	if res.Err == nil && fresh {
		for _, id := range step.LogIDs {
			require.False(t, s.used[id], "log %s trained twice", id) // P2
			s.used[id] = true
		}
	}
}

func (s *machine) eval(t *rapid.T) {
	s.advance(t)
	q := EvalRequest{Run: "r", Version: uint64(rapid.IntRange(0, int(s.m.version)+1).Draw(t, "version")), From: 10, Count: uint32(rapid.IntRange(1, 3).Draw(t, "count"))}
	res := s.apply(t, RequestEvalCmd{s.now, q})
	require.Equal(t, s.m.requestEval(q), kindOf(res.Err))
}

func (s *machine) finish(t *rapid.T) {
	if rapid.IntRange(0, 30).Draw(t, "finish") != 0 {
		return
	}
	s.advance(t)
	require.NoError(t, s.apply(t, FinishRunCmd{s.now, "r"}).Err)
	s.m.finished = true
}

// check compares the counters, and that they are what the groups say.
func (s *machine) check(t *rapid.T) {
	st, err := Status(s.kv, "r")
	require.NoError(t, err)
	m := s.m
	// The fold lets time pass when a command comes; the model's clock is the
	// last command's, so they agree.
	got := fmt.Sprint(st.RunningGroups, st.ReadyGroups, st.LeasedGroups, st.ConsumedGroups, st.DropReasons, st.Appended, st.Duplicates,
		st.LateLogs, st.RejectedLogs, st.FailedRollouts, st.ShrunkGroups, st.StalenessCounts, st.Latest.Version, st.Finished)
	want := fmt.Sprint(m.count("train", "pending", "running"), m.count("train", "ready"), m.count("train", "leased"), m.count("train", "consumed"),
		m.drops, m.appended, m.duplicates, m.late, m.rejected, m.failed, m.shrunk, m.lags, m.version, m.finished)
	require.Equal(t, want, got)
	require.LessOrEqual(t, st.RunningGroups+st.ReadyGroups+st.LeasedGroups, int(m.spec.MaxStaleness+1)*int(m.spec.GroupsPerStep))
	for _, e := range m.evals {
		es, err := EvalOf(s.kv, "r", e.version)
		require.NoError(t, err)
		require.Equal(t, fmt.Sprint(e.count, e.done, e.failed, e.scored), fmt.Sprint(es.Requested, es.Done, es.Failed, es.Scored))
		if e.scored > 0 {
			require.InDelta(t, e.sum/float64(e.scored), es.MeanReward, 1e-12)
			require.InDelta(t, float64(e.succeeded)/float64(e.scored), es.Success, 1e-12)
		}
	}
	items, _, err := ScanItems(s.kv, "r", "train", "", 1<<20)
	require.NoError(t, err)
	evals, _, err := ScanItems(s.kv, "r", "eval", "", 1<<20)
	require.NoError(t, err)
	require.Equal(t, m.appended, len(items)+len(evals))
	some, err := HasTickets(s.kv, "r", "probe", s.m.now)
	require.NoError(t, err)
	if !some {
		clone := cloneKV(t, s.kv)
		res, err := Apply(clone, TakeTicketsCmd{s.m.now.Add(0), "r", "probe", 1, ""})
		require.NoError(t, err)
		require.Empty(t, res.Tickets, "HasTickets missed them")
	}
}

func cloneKV(t require.TestingT, kv Reader) KV {
	out := NewMemKV()
	require.NoError(t, kv.Iterate(nil, nil, func(k, v []byte) bool {
		return out.Set(k, v) == nil
	}))
	return out
}

// fill completes a random incomplete group with good logs, so that runs get
// somewhere.
func (s *machine) fill(t *rapid.T) {
	s.advance(t)
	g := s.m.first(func(g *modelGroup) bool { return g.state == "running" })
	if g == nil {
		return
	}
	var items []Item
	for m := range uint32(g.size) {
		if _, ok := g.items[m]; !ok {
			s.names++
			items = append(items, Item{LogID: fmt.Sprintf("log%d", s.names), Run: "r", Table: g.table, Group: g.name, GroupSize: uint32(g.size),
				Member: m, Digest: "d", Size: 1, Status: uint8(eventlog.OK), Tokens: 3, MinVersion: g.version, MaxVersion: g.version})
		}
	}
	res := s.apply(t, AppendItemsCmd{s.now, items})
	for i, it := range items {
		require.Equal(t, s.m.append(it) == "accepted", res.Append[i] == AppendResult{Closed: res.Append[i].Closed})
	}
}

// run plays a random story, comparing after every command.
func (s *machine) run(t *rapid.T) {
	actions := map[string]func(*rapid.T){
		"take": s.take, "return": s.returnTicket, "append": s.appendItems, "fill": s.fill, "lease": s.lease, "extend": s.extend,
		"release": s.release, "commit": s.commit, "eval": s.eval, "finish": s.finish,
	}
	// A name listed twice comes twice as often.
	names := []string{"take", "take", "return", "append", "append", "fill", "fill", "fill", "lease", "lease", "lease", "extend", "release",
		"commit", "commit", "commit", "eval", "finish"}
	for range rapid.IntRange(10, 120).Draw(t, "length") {
		actions[rapid.SampledFrom(names).Draw(t, "action")](t)
		if s.log[len(s.log)-1].Clock() != s.now {
			s.apply(t, TickCmd{s.now}) // the action had nothing to do but wait
		}
		s.check(t)
	}
}

// TestFoldAgainstModel: the fold and the naive model agree on every reply and
// every counter, and refusals change nothing.
func TestFoldAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newMachine(t)
		s.run(t)
	})
}

// TestFoldIsAFunction: the same commands give the same bytes; so does stopping
// in the middle, carrying the state over in a snapshot, and going on.
func TestFoldIsAFunction(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newMachine(t)
		s.run(t)
		at := rapid.IntRange(0, len(s.log)).Draw(t, "snapshot")

		replayed := NewMemKV()
		var snap bytes.Buffer
		for i, c := range s.log {
			if i == at {
				require.NoError(t, writeSnapshot(&snap, replayed, uint64(i)))
			}
			_, err := Apply(replayed, c)
			require.NoError(t, err)
		}
		want := dump(t, replayed)
		if at == len(s.log) {
			require.NoError(t, writeSnapshot(&snap, replayed, uint64(at)))
		}
		restored := NewMemKV()
		applied, err := readSnapshot(&snap, func(k, v []byte) error { return restored.Set(k, v) })
		require.NoError(t, err)
		require.Equal(t, uint64(at), applied)
		for _, c := range s.log[at:] {
			_, err := Apply(restored, c)
			require.NoError(t, err)
		}
		require.Equal(t, want, dump(t, restored))

		// On an overlay of an overlay too, which is how a node applies.
		layered := newOverlay(newOverlay(nil))
		for _, c := range s.log {
			_, err := Apply(layered, c)
			require.NoError(t, err)
		}
		require.Equal(t, want, dump(t, layered))
	})
}
