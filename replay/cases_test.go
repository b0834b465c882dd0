package replay

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/eventlog"
)

// Bugs of other systems, each with its smallest input. The rows on stragglers,
// duplicates, versions and admission are scripts in testdata/fold.

// sim drives a fold the way workers and a learner do.
type sim struct {
	t    *testing.T
	kv   KV
	now  time.Time
	step uint64
	ckpt string
}

func newSim(t *testing.T, size, perStep uint32, staleness uint64) *sim {
	s := &sim{t: t, kv: NewMemKV(), now: epoch}
	require.NoError(t, s.do(CreateRunCmd{s.now, RunSpec{Run: "r", GroupSize: size, GroupsPerStep: perStep, MaxStaleness: staleness,
		TicketTTL: time.Minute, MaxAttempts: 1}}).Err)
	return s
}

func (s *sim) do(c Command) Result {
	s.t.Helper()
	res, err := Apply(s.kv, c)
	require.NoError(s.t, err)
	return res
}

func (s *sim) take(n int) []Ticket { return s.do(TakeTicketsCmd{s.now, "r", "w", n, ""}).Tickets }

func (s *sim) item(tk Ticket, member uint32) Item {
	return Item{LogID: fmt.Sprintf("%s#%d", tk.Group, member), Run: tk.Run, Table: tk.Table, Group: tk.Group, Member: member,
		GroupSize: tk.GroupSize, Status: uint8(eventlog.OK), Tokens: 4, MinVersion: tk.Version, MaxVersion: tk.Version, Digest: "d",
		Attempt: tk.Attempt, Reward: float64(member), HasReward: true}
}

// finish appends all members of a group.
func (s *sim) finish(tk Ticket) {
	var items []Item
	for m := range tk.GroupSize {
		items = append(items, s.item(tk, m))
	}
	for _, r := range s.do(AppendItemsCmd{s.now, items}).Append {
		require.Equal(s.t, AppendResult{Closed: r.Closed}, r)
	}
}

func (s *sim) lease(n int) *Lease {
	res := s.do(AcquireLeaseCmd{s.now, LeaseRequest{Run: "r", Holder: "learner", Groups: n, LearnerVersion: s.status().Latest.Version, TTL: time.Minute}})
	require.NoError(s.t, res.Err)
	return res.Lease
}

func (s *sim) commit(l *Lease) error {
	v := s.status().Latest.Version + 1
	rec := StepRecord{Run: "r", Step: s.step + 1, Version: v, Lease: l.ID, PrevCheckpoint: s.ckpt, Checkpoint: fmt.Sprint("ckpt", v), Adapter: fmt.Sprint("adapter", v)}
	for _, g := range l.Groups {
		rec.Groups = append(rec.Groups, g.Group)
		for _, it := range g.Items {
			rec.LogIDs = append(rec.LogIDs, it.LogID)
		}
	}
	err := s.do(CommitStepCmd{s.now, rec}).Err
	if err == nil {
		s.step, s.ckpt = rec.Step, rec.Checkpoint
	}
	return err
}

func (s *sim) status() RunStatus {
	st, err := Status(s.kv, "r")
	require.NoError(s.t, err)
	return st
}

// recover carries the state over to a new machine.
func (s *sim) recover() {
	var buf bytes.Buffer
	require.NoError(s.t, writeSnapshot(&buf, s.kv, 1))
	s.kv = NewMemKV()
	_, err := readSnapshot(&buf, func(k, v []byte) error { return s.kv.Set(k, v) })
	require.NoError(s.t, err)
}

// staleness: "after recovery the accepted counter is 0 while the version is
// high, so the capacity formula admits a flood" (AReaL #1388): max_staleness 2,
// batch 4, version 10 admits (2+1)*4 = 12, not (2+10+1)*4 = 52.
func TestNoFloodAfterRecovery(t *testing.T) {
	s := newSim(t, 1, 4, 2)
	for s.status().Latest.Version < 10 {
		for _, tk := range s.take(100) {
			s.finish(tk)
		}
		require.NoError(t, s.commit(s.lease(4)))
	}
	s.now = s.now.Add(time.Hour)
	s.recover()
	st := s.status()
	open := st.RunningGroups + st.ReadyGroups + st.LeasedGroups
	require.Equal(t, 12, open+len(s.take(1000)))
	require.Empty(t, s.take(1000))
}

// staleness: "'on-policy' setting lets the rollouter refill from old weights
// while the learner trains" (verl #4449): with staleness 0 every trained token
// has the learner's version.
func TestOnPolicyIsOnPolicy(t *testing.T) {
	s := newSim(t, 2, 2, 0)
	for range 5 {
		tks := s.take(100)
		require.Len(t, tks, 2)
		for _, tk := range tks {
			require.Equal(t, s.status().Latest.Version, tk.Version)
			s.finish(tk)
		}
		require.Empty(t, s.take(100), "refilled before the commit")
		l := s.lease(2)
		require.Empty(t, s.take(100), "refilled while the learner trains")
		for _, g := range l.Groups {
			for _, it := range g.Items {
				require.Equal(t, s.status().Latest.Version, it.MinVersion)
				require.Equal(t, it.MinVersion, it.MaxVersion)
			}
		}
		require.NoError(t, s.commit(l))
	}
	require.Equal(t, map[uint64]int{0: 20}, s.status().StalenessCounts)
}

// staleness: "externally started sessions bypass capacity; a bounded deque
// silently evicts oldest" (AReaL #1481): 5 sessions against a capacity of 3,
// admitted + rejected = 5.
func TestSessionsWithoutTicketAreRejected(t *testing.T) {
	s := newSim(t, 1, 3, 0)
	tks := s.take(5)
	var items []Item
	for i := range 5 {
		tk := Ticket{Run: "r", Table: "train", Group: fmt.Sprint("session", i), GroupSize: 1}
		if i < len(tks) {
			tk = tks[i]
		}
		items = append(items, s.item(tk, 0))
	}
	admitted, rejected := 0, 0
	for _, r := range s.do(AppendItemsCmd{s.now, items}).Append {
		if r.Rejected != "" {
			rejected++
		} else if !r.Duplicate {
			admitted++
		}
	}
	require.Equal(t, []int{3, 2}, []int{admitted, rejected})
	require.Equal(t, 2, s.status().RejectedLogs)
	require.Len(t, s.lease(3).Groups, 3)
}

// staleness: "trainer ran ahead of the orchestrator and trained again on old
// rollouts" (prime-rl PR#491): the learner waits, nothing is consumed twice.
func TestLearnerWaitsForRollouts(t *testing.T) {
	s := newSim(t, 1, 2, 1)
	for _, tk := range s.take(2) {
		s.finish(tk)
	}
	l := s.lease(2)
	require.NoError(t, s.commit(l))
	for range 3 {
		require.Nil(t, s.lease(2))
	}
	require.ErrorIs(t, s.commit(l), ErrStale)
	require.Equal(t, 2, s.status().ConsumedGroups)
}

// grouping: "row ids containing ':' collapse to the prefix" (rllm #829): 16
// opaque ids, 16 groups, whatever bytes are in them.
func TestGroupIdsAreOpaque(t *testing.T) {
	for _, run := range []string{"a:b:case:s", "a/train/1", "a\x00\x01b", "a\x00", "a", "ü/%d"} {
		kv := NewMemKV()
		for _, name := range []string{run, run + "/train", run + "\x00", run + ":0"} {
			res, err := Apply(kv, CreateRunCmd{epoch, RunSpec{Run: name, GroupSize: 2, GroupsPerStep: 16, TicketTTL: time.Minute, MaxAttempts: 1}})
			require.NoError(t, err)
			require.NoError(t, res.Err)
		}
		for _, name := range []string{run, run + "/train", run + "\x00", run + ":0"} {
			res, err := Apply(kv, TakeTicketsCmd{epoch, name, "w", 16, ""})
			require.NoError(t, err)
			require.Len(t, res.Tickets, 16)
			seen := map[string]bool{}
			var items []Item
			for _, tk := range res.Tickets {
				seen[tk.Group] = true
				for m := range uint32(2) {
					items = append(items, Item{LogID: fmt.Sprintf("%s#%d", tk.Group, m), Run: name, Table: "train", Group: tk.Group, Member: m,
						GroupSize: 2, Status: uint8(eventlog.OK), Tokens: 1, Digest: "d"})
				}
			}
			require.Len(t, seen, 16)
			res, err = Apply(kv, AppendItemsCmd{epoch, items})
			require.NoError(t, err)
			require.NotContains(t, res.Append, AppendResult{Duplicate: true})
			st, err := Status(kv, name)
			require.NoError(t, err)
			require.Equal(t, 16, st.ReadyGroups)
		}
		runs, err := Runs(kv)
		require.NoError(t, err)
		require.Len(t, runs, 4)
		require.Contains(t, runs, run+"\x00")
	}
}

// grouping: "groups keyed by prompt tokens merge duplicate prompts in a batch"
// (NeMo-RL PR#3882) and "groups cut as consecutive windows" (prime-rl PR#600):
// the same prompt twice is two groups, in any order of arrival.
func TestGroupingIsByIdInAnyOrder(t *testing.T) {
	var first []LeasedGroup
	for perm := range 24 {
		s := newSim(t, 2, 2, 0)
		var items []Item
		for _, tk := range s.take(2) {
			for m := range uint32(2) {
				it := s.item(tk, m)
				it.Task = "the same prompt"
				items = append(items, it)
			}
		}
		for i, k := 0, perm; i < 4; i++ { // the perm-th permutation
			j := i + k%(4-i)
			k /= 4 - i
			items[i], items[j] = items[j], items[i]
		}
		for _, it := range items {
			s.do(AppendItemsCmd{s.now, []Item{it}})
		}
		l := s.lease(2)
		require.NotNil(t, l)
		if first == nil {
			first = l.Groups
		}
		require.Equal(t, first, l.Groups)
		require.Len(t, l.Groups[0].Items, 2)
	}
}

// replay-buffer: "only 'group 0' was ever stored and a swap replaced tokens but
// one advantage" (trl #6804): a group moves as a whole, with all of its members.
func TestGroupsMoveAsAWhole(t *testing.T) {
	s := newSim(t, 2, 2, 0)
	for _, tk := range s.take(2) {
		s.finish(tk)
	}
	l := s.lease(1)
	require.Len(t, l.Groups[0].Items, 2)
	require.NoError(t, s.do(ReleaseLeaseCmd{s.now, "r", l.ID, "zero_advantage"}).Err)
	l2 := s.lease(1)
	require.NotEqual(t, l.Groups[0].Group, l2.Groups[0].Group)
	for m, it := range l2.Groups[0].Items {
		require.Equal(t, l2.Groups[0].Group, it.Group)
		require.Equal(t, uint32(m), it.Member)
		require.Equal(t, float64(m), it.Reward)
	}
	require.Nil(t, s.lease(2), "the dropped group came back")
}

// resume: "generated-but-untrained samples are skipped after resume" (OpenRLHF
// #1322): ids 0..7, generate 4, train 2, checkpoint, resume: trained is {0..7},
// once each.
func TestResumeTrainsEveryIndexOnce(t *testing.T) {
	s := newSim(t, 1, 2, 1)
	var trained []uint64
	train := func() {
		l := s.lease(2)
		require.NotNil(t, l)
		require.NoError(t, s.commit(l))
		for _, g := range l.Groups {
			trained = append(trained, g.Index)
		}
	}
	for _, tk := range s.take(4) {
		s.finish(tk)
	}
	train()
	s.recover()
	for len(trained) < 8 {
		for _, tk := range s.take(2) {
			s.finish(tk)
		}
		train()
	}
	require.Equal(t, []uint64{0, 1, 2, 3, 4, 5, 6, 7}, trained)
}

// resume: "watermark advanced on add, not on consumption; reservations leak"
// (NeMo-RL PR#2651): a crash between lease and commit consumes nothing and
// leaves nothing reserved.
func TestCrashBeforeCommitReservesNothing(t *testing.T) {
	s := newSim(t, 1, 2, 0)
	for _, tk := range s.take(2) {
		s.finish(tk)
	}
	before := s.lease(2)
	s.recover()
	require.Zero(t, s.status().ConsumedGroups)
	after := s.lease(2) // the restarted learner, at once
	require.NotNil(t, after)
	require.Equal(t, before.Groups, after.Groups) // P5: the same batch
	require.ErrorIs(t, s.commit(before), ErrStale)
	s.now = s.now.Add(time.Hour)
	s.do(TickCmd{s.now}) // nobody came back: the clock returns them
	require.Equal(t, 2, s.status().ReadyGroups)
	require.Zero(t, s.status().LeasedGroups)
}

// empty-batch: "an environment that only errors yields an empty batch that
// crashed the trainer" (prime-rl PR#1563): no step is made, the reasons are
// there to be read, and dispatch goes on.
func TestOnlyFailures(t *testing.T) {
	s := newSim(t, 2, 2, 0)
	for range 3 {
		for _, tk := range s.take(2) {
			for m := range uint32(2) {
				it := s.item(tk, m)
				it.Status, it.Cause, it.Tokens, it.HasReward = uint8(eventlog.Failed), "sandbox: no image", 0, false
				s.do(AppendItemsCmd{s.now, []Item{it}})
			}
		}
		require.Nil(t, s.lease(1))
	}
	st := s.status()
	require.Equal(t, 6, st.DroppedGroups)
	require.Equal(t, map[string]int{"all_failed": 6}, st.DropReasons)
	require.Equal(t, map[string]int{"sandbox: no image": 12}, st.FailureReasons)
}

// TestFailureReasonsAreBounded: free text can't grow the state without end.
func TestFailureReasonsAreBounded(t *testing.T) {
	s := newSim(t, 1, 2, 0)
	for i := range 200 {
		it := s.item(Ticket{Run: "r", Table: "demo", Group: fmt.Sprint(i), GroupSize: 1}, 0)
		it.Status, it.Cause = uint8(eventlog.Failed), fmt.Sprintf("%d %s", i, string(bytes.Repeat([]byte("ü"), 200)))
		require.Equal(t, []AppendResult{{}}, s.do(AppendItemsCmd{s.now, []Item{it}}).Append)
	}
	st := s.status()
	require.Equal(t, 200, st.FailedRollouts)
	require.Len(t, st.FailureReasons, 65)
	require.Equal(t, 200-64, st.FailureReasons["other"])
	for reason := range st.FailureReasons {
		require.LessOrEqual(t, len(reason), maxReasonBytes)
	}
}

// TestReadyForAndNextExpiry: what a node asks before it proposes a command.
func TestReadyForAndNextExpiry(t *testing.T) {
	s := newSim(t, 1, 2, 0)
	q := LeaseRequest{Run: "r", Holder: "learner", Groups: 2}
	ready := func() bool {
		ok, err := ReadyFor(s.kv, q)
		require.NoError(t, err)
		return ok
	}
	next := func() time.Duration {
		at, err := NextExpiry(s.kv)
		require.NoError(t, err)
		if at == 0 {
			return 0
		}
		return time.Unix(0, at).Sub(epoch)
	}
	require.False(t, ready())
	require.Zero(t, next())
	tks := s.take(2)
	require.Equal(t, time.Minute, next())
	s.finish(tks[0])
	require.False(t, ready())
	s.finish(tks[1])
	require.True(t, ready())
	require.Zero(t, next())
	s.now = s.now.Add(time.Second)
	s.lease(2)
	require.True(t, ready(), "its own lease counts: a new one takes it over")
	q.Holder = "other"
	require.False(t, ready())
	require.Equal(t, 61*time.Second, next())
	s.do(FinishRunCmd{s.now, "r"})
	require.True(t, ready(), "a finished run must not be waited for")
	_, err := ReadyFor(s.kv, LeaseRequest{Run: "none"})
	require.ErrorIs(t, err, ErrNotFound)
	_, err = HasTickets(s.kv, "none", "w", s.now)
	require.ErrorIs(t, err, ErrNotFound)
}

// TestTicketSeeds: a group's seed is the same in every attempt and run, and
// differs between groups and tables.
func TestTicketSeeds(t *testing.T) {
	seen := map[uint64]bool{}
	for i := range uint64(1000) {
		seen[ticketSeed(TableTrain, i)] = true
		seen[ticketSeed(TableEval, i)] = true
	}
	require.Len(t, seen, 2000)
	s := newSim(t, 1, 1, 0)
	require.Equal(t, ticketSeed(TableTrain, 0), s.take(1)[0].Seed)
}

// TestSpecValidate names every wrong field at once.
func TestSpecValidate(t *testing.T) {
	err := RunSpec{MaxStaleness: 1 << 40, Config: make([]byte, 1<<20), BaseDigest: "\xff"}.Validate()
	require.ErrorIs(t, err, ErrInvalid)
	for _, field := range []string{"Run is empty", "GroupSize = 0", "GroupsPerStep = 0", "MaxStaleness =", "TicketTTL = 0s", "MaxAttempts = 0", "Config of", "BaseDigest"} {
		require.ErrorContains(t, err, field)
	}
	s := newSim(t, 2, 2, 0)
	base := s.status().Spec
	for field, change := range map[string]func(*RunSpec){
		"GroupSize":       func(r *RunSpec) { r.GroupSize++ },
		"GroupsPerStep":   func(r *RunSpec) { r.GroupsPerStep++ },
		"MaxStaleness":    func(r *RunSpec) { r.MaxStaleness++ },
		"TicketTTL":       func(r *RunSpec) { r.TicketTTL++ },
		"MaxAttempts":     func(r *RunSpec) { r.MaxAttempts++ },
		"BaseDigest":      func(r *RunSpec) { r.BaseDigest = "x" },
		"StartAdapter":    func(r *RunSpec) { r.StartAdapter = "x" },
		"KeepCheckpoints": func(r *RunSpec) { r.KeepCheckpoints++ },
		"Config":          func(r *RunSpec) { r.Config = []byte("x") },
	} {
		spec := base
		change(&spec)
		err := s.do(CreateRunCmd{s.now, spec}).Err
		require.ErrorIs(t, err, ErrInvalid)
		require.ErrorContains(t, err, field+" ")
	}
}

// TestNoClockNoCommand: a command without a time is refused, not timed by us.
func TestNoClockNoCommand(t *testing.T) {
	s := newSim(t, 1, 1, 0)
	require.ErrorIs(t, s.do(TickCmd{}).Err, ErrInvalid)
	require.ErrorIs(t, s.do(TickCmd{time.Unix(-5, 0)}).Err, ErrInvalid)
}

// TestBlobsOfState lists what collection must keep.
func TestBlobsOfState(t *testing.T) {
	s := newSim(t, 1, 1, 0)
	s.ckpt = "start"
	s.finish(s.take(1)[0])
	require.NoError(t, s.commit(s.lease(1)))
	live, expired, err := Blobs(s.kv)
	require.NoError(t, err)
	var got []string
	for d := range live {
		got = append(got, d)
	}
	slices.Sort(got)
	require.Equal(t, []string{"adapter1", "ckpt1", "start"}, got)
	require.Empty(t, expired)
}

// TestKeptCheckpoints: the last two steps can be recomputed, which takes three
// checkpoints; adapters stay; another run that refers to a checkpoint keeps it.
func TestKeptCheckpoints(t *testing.T) {
	s := newSim(t, 1, 1, 0)
	spec := s.status().Spec
	spec.Run, spec.KeepCheckpoints = "k", 2
	kv := NewMemKV()
	s.kv = kv
	require.NoError(t, s.do(CreateRunCmd{s.now, spec}).Err)
	step := func(n uint64) {
		tk := s.do(TakeTicketsCmd{s.now, "k", "w", 1, ""}).Tickets[0]
		require.Empty(t, s.do(AppendItemsCmd{s.now, []Item{s.item(tk, 0)}}).Append[0].Rejected)
		l := s.do(AcquireLeaseCmd{s.now, LeaseRequest{Run: "k", Holder: "h", Groups: 1, LearnerVersion: n - 1, TTL: time.Minute}}).Lease
		require.NoError(t, s.do(CommitStepCmd{s.now, StepRecord{Run: "k", Step: n, Version: n, Lease: l.ID, LogIDs: []string{l.Groups[0].Items[0].LogID},
			PrevCheckpoint: fmt.Sprint("c", n-1), Checkpoint: fmt.Sprint("c", n), Adapter: fmt.Sprint("a", n)}}).Err)
	}
	sorted := func(m map[string]bool) []string { return slices.Sorted(maps.Keys(m)) }
	for n, want := range [][2][]string{
		1: {{"a1", "c0", "c1"}, nil},
		2: {{"a1", "a2", "c0", "c1", "c2"}, nil},
		3: {{"a1", "a2", "a3", "c1", "c2", "c3"}, {"c0"}},
		4: {{"a1", "a2", "a3", "a4", "c2", "c3", "c4"}, {"c0", "c1"}},
	} {
		if n == 0 {
			continue
		}
		step(uint64(n))
		live, expired, err := Blobs(s.kv)
		require.NoError(t, err)
		require.Equal(t, want[0], sorted(live))
		require.Equal(t, want[1], sorted(expired))
	}
	other := spec
	other.Run, other.StartAdapter = "other", "c0"
	require.NoError(t, s.do(CreateRunCmd{s.now, other}).Err)
	_, expired, err := Blobs(s.kv)
	require.NoError(t, err)
	require.Equal(t, []string{"c1"}, sorted(expired))
}
