package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/replay"
)

func TestAppendFetchOnThreeNodes(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 3)
	cl := c.dial("w1", RoleWorker)
	ctx := testCtx(t)
	require.NoError(t, cl.CreateRun(ctx, testSpec("r")))

	var recs []replay.Record
	var ids []string
	for i := range 40 {
		recs = append(recs, testRecord("r", fmt.Sprint("log", i), 100_000)) // several requests
		ids = append(ids, fmt.Sprint("log", i))
	}
	res, err := cl.Append(ctx, recs)
	require.NoError(t, err)
	require.Len(t, res, 40)
	for _, r := range res {
		require.False(t, r.Duplicate)
	}
	got, err := cl.Fetch(ctx, ids)
	require.NoError(t, err)
	require.Equal(t, recs, got)

	res, err = cl.Append(ctx, recs[:3])
	require.NoError(t, err)
	require.Equal(t, []replay.AppendResult{{Duplicate: true}, {Duplicate: true}, {Duplicate: true}}, res)

	items, next, err := cl.Scan(ctx, "r", "audit", "", 100)
	require.NoError(t, err)
	require.Empty(t, next)
	require.Len(t, items, 40)
	require.NoError(t, cl.CreateRun(ctx, testSpec("r")), "idempotent")
}

func TestAppendAckedWithOneFollowerDown(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 3)
	cl := c.dial("w1", RoleWorker)
	ctx := testCtx(t)
	require.NoError(t, cl.CreateRun(ctx, testSpec("r")))
	down := c.follower()
	require.NoError(t, c.nodes[down].Close())

	var ids []string
	for i := range 5 {
		rec := testRecord("r", fmt.Sprint("log", i), 1000)
		_, err := cl.Append(ctx, []replay.Record{rec})
		require.NoError(t, err)
		ids = append(ids, rec.Item.LogID)
	}
	// It comes back on another port and pulls what it missed.
	c.restart(down, func(conf *Config) { conf.Listen = "127.0.0.1:0" })
	waitHolds(t, c.nodes[down], ids)
	recs, missing, err := c.nodes[down].store.ReadPacked(ids)
	require.NoError(t, err)
	require.Empty(t, missing)
	require.Len(t, recs, 5)
}

// waitHolds waits until a node's replica has the logs with their bytes.
func waitHolds(t *testing.T, n *Node, ids []string) {
	t.Helper()
	eventually(t, fmt.Sprintf("node %s to hold %d logs", n.id, len(ids)), func() bool {
		_, missing, err := n.store.ReadPacked(ids)
		return err == nil && len(missing) == 0
	})
}

func TestNoMajorityIsAnErrorInTime(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 3)
	cl := c.dial("w1", RoleWorker)
	require.NoError(t, cl.CreateRun(testCtx(t), testSpec("r")))
	lead := c.leader()
	for i, n := range c.nodes {
		if i != lead {
			require.NoError(t, n.Close())
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	_, err := cl.Append(ctx, []replay.Record{testRecord("r", "a", 10)})
	require.ErrorIs(t, err, replay.ErrUnavailable)
	require.ErrorContains(t, err, "gave up after")
	_, err = cl.Latest(ctx, "r")
	require.ErrorIs(t, err, replay.ErrUnavailable)
}

// The leader is killed while producers append: what was acknowledged is
// readable afterwards, and nothing is there twice.
func TestLeaderKilledMidAppend(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 3)
	ctx := testCtx(t)
	first := c.dial("w0", RoleWorker)
	require.NoError(t, first.CreateRun(ctx, testSpec("r")))

	var mu sync.Mutex
	acked := make(map[string]replay.Record)
	var stop atomic.Bool
	var wg sync.WaitGroup
	for w := range 4 {
		cl := c.dial(fmt.Sprint("p", w), RoleWorker)
		wg.Go(func() {
			for i := 0; !stop.Load(); i++ {
				recs := []replay.Record{testRecord("r", fmt.Sprintf("w%d-%d-a", w, i), 2000), testRecord("r", fmt.Sprintf("w%d-%d-b", w, i), 2000)}
				if _, err := cl.Append(ctx, recs); err != nil {
					t.Errorf("append: %v", err)
					return
				}
				mu.Lock()
				for _, r := range recs {
					acked[r.Item.LogID] = r
				}
				mu.Unlock()
			}
		})
	}
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(acked)
	}
	eventually(t, "first appends", func() bool { return count() > 20 })
	lead := c.leader()
	require.NoError(t, c.nodes[lead].crash())
	before := count()
	eventually(t, "appends after the failover", func() bool { return count() > before+40 })
	stop.Store(true)
	wg.Wait()

	var ids []string
	for id := range acked {
		ids = append(ids, id)
	}
	got, err := first.Fetch(ctx, ids)
	require.NoError(t, err)
	for _, r := range got {
		require.Equal(t, acked[r.Item.LogID], r)
	}
	seen := make(map[string]bool)
	for cursor, more := "", true; more; more = cursor != "" {
		var items []replay.Item
		items, cursor, err = first.Scan(ctx, "r", "audit", cursor, 100)
		require.NoError(t, err)
		for _, it := range items {
			require.False(t, seen[it.LogID], "twice: %s", it.LogID)
			seen[it.LogID] = true
		}
	}
	for _, id := range ids {
		require.True(t, seen[id])
	}
	c.restart(lead)
	waitHolds(t, c.nodes[lead], ids)
}

// crash ends a node without handing leadership on, as kill -9 would.
func (n *Node) crash() error {
	n.closed.Do(func() {
		n.ready.Store(0)
		n.crashed = true
		n.err = n.close()
	})
	return n.err
}

// A lease is consumed exactly once although the leader dies between lease and
// commit, and the commit is sent again after it succeeded.
func TestLeaseAndCommitAcrossLeaderChange(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 3)
	ctx := testCtx(t)
	w, l := c.dial("w1", RoleWorker), c.dial("learner", RoleLearner)
	require.NoError(t, l.CreateRun(ctx, testSpec("r")))

	tks, err := w.TakeTickets(ctx, "r", "w1", replay.AnyVersion, 2, time.Second)
	require.NoError(t, err)
	require.Len(t, tks, 2)
	for _, tk := range tks {
		_, err := w.Append(ctx, []replay.Record{rollout(tk, 0, "w1"), rollout(tk, 1, "w1")})
		require.NoError(t, err)
	}
	req := replay.LeaseRequest{Run: "r", Holder: "learner", Groups: 1, TTL: time.Minute, Wait: time.Second}
	lease, err := l.Lease(ctx, req)
	require.NoError(t, err)
	require.NotNil(t, lease)

	require.NoError(t, c.nodes[c.leader()].crash())
	ckpt, err := l.PutBlob(ctx, []byte("checkpoint 1"))
	require.NoError(t, err)
	adapter, err := l.PutBlob(ctx, []byte("adapter 1"))
	require.NoError(t, err)
	g := lease.Groups[0]
	step := replay.StepRecord{Run: "r", Step: 1, Version: 1, Lease: lease.ID, Groups: []string{g.Group},
		LogIDs: []string{g.Items[0].LogID, g.Items[1].LogID}, Checkpoint: ckpt, Adapter: adapter, Metrics: map[string]float64{"loss": 1}}
	require.NoError(t, l.Commit(ctx, step))
	require.NoError(t, l.Commit(ctx, step), "the same again changes nothing")
	other := step
	other.Checkpoint = adapter
	require.ErrorIs(t, l.Commit(ctx, other), replay.ErrStale)

	st, err := l.Status(ctx, "r")
	require.NoError(t, err)
	require.Equal(t, 1, st.ConsumedGroups)
	require.Equal(t, 1, st.ReadyGroups)
	p, err := w.WaitPolicy(ctx, "r", 0, time.Second)
	require.NoError(t, err)
	require.Equal(t, replay.Policy{Run: "r", Version: 1, Adapter: adapter, Step: 1}, p)
	data, err := w.GetBlob(ctx, p.Adapter)
	require.NoError(t, err)
	require.Equal(t, "adapter 1", string(data))

	req.LearnerVersion = 1
	lease2, err := l.Lease(ctx, req)
	require.NoError(t, err)
	require.NotEqual(t, g.Group, lease2.Groups[0].Group, "never trained again")
}

func TestCommitNeedsItsBlobs(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 1)
	cl := c.dial("learner", RoleLearner)
	ctx := testCtx(t)
	require.NoError(t, cl.CreateRun(ctx, testSpec("r")))
	d := "blake3:" + fmt.Sprintf("%064d", 7)
	err := cl.Commit(ctx, replay.StepRecord{Run: "r", Step: 1, Version: 1, Lease: 1, Checkpoint: d, Adapter: d})
	require.ErrorIs(t, err, replay.ErrInvalid)
	require.ErrorContains(t, err, "PutBlob first")
}

func TestLongPollsWakeUp(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 3)
	ctx := testCtx(t)
	w, l := c.dial("w1", RoleWorker), c.dial("learner", RoleLearner)
	spec := testSpec("r")
	spec.MaxStaleness = 0
	require.NoError(t, l.CreateRun(ctx, spec))

	// Nothing to lease yet: nil after the wait, without an error.
	req := replay.LeaseRequest{Run: "r", Holder: "learner", Groups: 1, TTL: time.Minute, Wait: 50 * time.Millisecond}
	lease, err := l.Lease(ctx, req)
	require.NoError(t, err)
	require.Nil(t, lease)

	got := make(chan *replay.Lease, 1)
	go func() {
		req.Wait = patience
		lease, err := l.Lease(ctx, req)
		if err != nil {
			t.Errorf("lease: %v", err)
		}
		got <- lease
	}()
	tks, err := w.TakeTickets(ctx, "r", "w1", replay.AnyVersion, 4, time.Second)
	require.NoError(t, err)
	require.Len(t, tks, 1)
	// The bound is reached: no more until the step is committed.
	more, err := w.TakeTickets(ctx, "r", "w1", replay.AnyVersion, 4, 50*time.Millisecond)
	require.NoError(t, err)
	require.Empty(t, more)
	tickets, policy := make(chan []replay.Ticket, 1), make(chan replay.Policy, 1)
	go func() {
		tks, err := w.TakeTickets(ctx, "r", "w1", replay.AnyVersion, 4, patience)
		if err != nil {
			t.Errorf("tickets: %v", err)
		}
		tickets <- tks
	}()
	go func() {
		p, err := w.WaitPolicy(ctx, "r", 0, patience)
		if err != nil {
			t.Errorf("policy: %v", err)
		}
		policy <- p
	}()
	_, err = w.Append(ctx, []replay.Record{rollout(tks[0], 0, "w1"), rollout(tks[0], 1, "w1")})
	require.NoError(t, err)
	lease = <-got
	require.NotNil(t, lease)
	d, err := l.PutBlob(ctx, []byte("x"))
	require.NoError(t, err)
	require.NoError(t, l.Commit(ctx, replay.StepRecord{Run: "r", Step: 1, Version: 1, Lease: lease.ID,
		Groups: []string{lease.Groups[0].Group}, Checkpoint: d, Adapter: d}))
	require.Len(t, <-tickets, 1)
	require.Equal(t, uint64(1), (<-policy).Version)
}

// Tickets whose worker is silent are handed on by the leader's clock alone.
func TestTicketsExpireWithoutCalls(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 1)
	ctx := testCtx(t)
	cl := c.dial("w1", RoleWorker)
	spec := testSpec("r")
	spec.TicketTTL, spec.MaxStaleness = 200*time.Millisecond, 0
	require.NoError(t, cl.CreateRun(ctx, spec))
	a, err := cl.TakeTickets(ctx, "r", "w1", replay.AnyVersion, 1, 0)
	require.NoError(t, err)
	require.Len(t, a, 1)
	b, err := cl.TakeTickets(ctx, "r", "w2", replay.AnyVersion, 1, patience)
	require.NoError(t, err)
	require.Len(t, b, 1)
	require.Equal(t, a[0].Group, b[0].Group)
	require.Greater(t, b[0].Attempt, a[0].Attempt)
}

func TestRejectedRecordsAreNamed(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 1)
	ctx := testCtx(t)
	cl := c.dial("w1", RoleWorker)
	require.NoError(t, cl.CreateRun(ctx, testSpec("r")))
	good, bad := testRecord("r", "good", 10), testRecord("nosuch", "bad", 10)
	res, err := cl.Append(ctx, []replay.Record{good, bad})
	require.ErrorIs(t, err, replay.ErrInvalid)
	require.ErrorContains(t, err, "bad")
	require.Len(t, res, 2)
	require.Empty(t, res[0].Rejected)
	require.NotEmpty(t, res[1].Rejected)
	_, err = cl.Fetch(ctx, []string{"good"})
	require.NoError(t, err)
	_, err = cl.Fetch(ctx, []string{"bad"})
	require.ErrorIs(t, err, replay.ErrNotFound)
	_, err = cl.Latest(ctx, "nosuch")
	require.ErrorIs(t, err, replay.ErrNotFound)
	short := testRecord("r", "short", 10)
	short.Item.Size = 11
	res, err = cl.Append(ctx, []replay.Record{testRecord("r", "good2", 10), short, testRecord("r", "good3", 10)})
	require.ErrorIs(t, err, replay.ErrInvalid)
	require.Contains(t, res[1].Rejected, "short")
	_, err = cl.Fetch(ctx, []string{"good2", "good3"})
	require.NoError(t, err)
	res, err = cl.Append(ctx, []replay.Record{short})
	require.ErrorIs(t, err, replay.ErrInvalid)
	require.Len(t, res, 1)
}

// A record that the storage would refuse is told so alone; those of other
// callers, which would share its chunk, are taken.
func TestUnverifiableRecordCostsNoOther(t *testing.T) {
	t.Parallel()
	cfg := DefaultConfig(t.TempDir())
	cfg.Logger = slog.New(slog.DiscardHandler)
	cfg.Store.Verify = func(it replay.Item, _ []byte) error {
		if it.LogID == "forged" {
			return errors.New("digest of other bytes")
		}
		return nil
	}
	n, err := OpenLocal(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, n.Close()) })
	ctx := testCtx(t)
	s := n.Store()
	require.NoError(t, s.CreateRun(ctx, testSpec("r")))
	res, err := s.Append(ctx, []replay.Record{testRecord("r", "a", 10), testRecord("r", "forged", 10), testRecord("r", "b", 10)})
	require.ErrorIs(t, err, replay.ErrInvalid)
	require.Equal(t, []bool{false, true, false}, []bool{res[0].Rejected != "", res[1].Rejected != "", res[2].Rejected != ""})
	_, err = s.Fetch(ctx, []string{"a", "b"})
	require.NoError(t, err)
}

func TestBlobs(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 3)
	ctx := testCtx(t)
	cl := c.dial("learner", RoleLearner)
	for _, size := range []int{0, 1, blobPiece, 3*blobPiece + 17} {
		data := testRecord("r", "x", max(size, 1)).Bytes[:size]
		d, err := cl.PutBlob(ctx, data)
		require.NoError(t, err)
		got, err := cl.GetBlob(ctx, d)
		require.NoError(t, err)
		require.Equal(t, len(data), len(got))
		require.Equal(t, string(data), string(got))
	}
	// One that only a follower has is pulled from there and kept.
	f, l := c.nodes[c.follower()], c.nodes[c.leader()]
	d, err := f.store.PutBlob([]byte("only there"))
	require.NoError(t, err)
	require.False(t, l.store.HasBlob(d))
	got, err := cl.GetBlob(ctx, d)
	require.NoError(t, err)
	require.Equal(t, "only there", string(got))
	require.True(t, l.store.HasBlob(d))

	_, err = cl.GetBlob(ctx, "blake3:"+fmt.Sprintf("%064d", 1))
	require.ErrorIs(t, err, replay.ErrNotFound)
	_, err = cl.GetBlob(ctx, "sha256:1")
	require.ErrorIs(t, err, replay.ErrInvalid)
}

func TestLiveness(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 3)
	ctx := testCtx(t)
	w := c.dial("w1", RoleWorker)
	info := NodeInfo{ID: "w1", Role: RoleWorker, PolicyVersion: 7, TokensPerSecond: 12.5, LastError: "tool: boom",
		Version: "v", Started: time.Unix(5, 0).UTC(), Metrics: map[string]float64{"rollouts": 3}}
	require.NoError(t, w.Heartbeat(ctx, info))
	var s ClusterStatus
	eventually(t, "all nodes in the status", func() bool {
		var err error
		s, err = w.ClusterStatus(ctx)
		require.NoError(t, err)
		return len(s.Nodes) == 4
	})
	leaders, voters := 0, 0
	for _, n := range s.Nodes {
		if n.ID == "w1" {
			require.Equal(t, info, n.NodeInfo)
			require.True(t, n.Alive)
			continue
		}
		require.Equal(t, RoleReplay, n.Role)
		require.NotEmpty(t, n.Addr)
		if n.Leader {
			leaders++
		}
		if n.Voter {
			voters++
		}
	}
	require.Equal(t, 1, leaders)
	require.Equal(t, 3, voters)
	require.Equal(t, c.nodes[0].Identity().Cluster(), s.Cluster)

	info.ID = "w2"
	require.ErrorIs(t, w.Heartbeat(ctx, info), ErrDenied, "only about itself")
}

func TestLocalNode(t *testing.T) {
	t.Parallel()
	conf := testConfig(t, t.TempDir())
	conf.Heartbeat = 0
	n, err := OpenLocal(conf)
	require.NoError(t, err)
	ctx := testCtx(t)
	s := n.Store()
	require.NoError(t, s.CreateRun(ctx, testSpec("r")))
	rec := testRecord("r", "a", 1000)
	_, err = s.Append(ctx, []replay.Record{rec})
	require.NoError(t, err)
	d, err := s.PutBlob(ctx, []byte("b"))
	require.NoError(t, err)
	require.NoError(t, n.Heartbeat(ctx, NodeInfo{ID: "w", Role: RoleWorker}))
	require.Len(t, n.clusterStatus().Nodes, 2)

	_, err = OpenLocal(conf)
	require.ErrorContains(t, err, "in use by another process")
	require.NoError(t, n.Close())
	_, err = s.Runs(ctx)
	require.ErrorIs(t, err, replay.ErrUnavailable)

	n, err = OpenLocal(conf)
	require.NoError(t, err)
	defer func() { require.NoError(t, n.Close()) }()
	got, err := n.Store().Fetch(ctx, []string{"a"})
	require.NoError(t, err)
	require.Equal(t, []replay.Record{rec}, got)
	_, err = n.Store().GetBlob(ctx, d)
	require.NoError(t, err)

	_, err = Open(ctx, Config{Dir: conf.Dir})
	require.Error(t, err)
	require.True(t, errors.Is(err, replay.ErrUnavailable) || err != nil)
}

// Two living processes with one id: the later start counts, the other is told.
func TestTwoProcessesWithOneID(t *testing.T) {
	t.Parallel()
	l, now := newLiveness(10*time.Second), time.Now()
	beat := func(role string, started, at time.Time) error {
		return l.beat(NodeStatus{NodeInfo: NodeInfo{ID: "w1", Role: role, Started: started}}, at)
	}
	require.NoError(t, beat(RoleWorker, now, now))
	require.NoError(t, beat(RoleLearner, now, now), "another role of the same id")
	require.NoError(t, beat(RoleWorker, now.Add(time.Minute), now.Add(time.Minute)), "started again, or a second one")
	err := beat(RoleWorker, now, now.Add(time.Minute))
	require.ErrorIs(t, err, replay.ErrInvalid)
	require.ErrorContains(t, err, "give it an id of its own")
	require.NoError(t, beat(RoleWorker, now, now.Add(2*time.Minute)), "the second one is gone")
	require.Len(t, l.list(now), 2)
}
