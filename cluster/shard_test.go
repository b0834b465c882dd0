package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/replay"
)

// shardedCluster is a root and further shards of one authority.
type shardedCluster struct {
	*testCluster // the root
	shards       map[string]*testCluster
	router       *Router
}

// newShardedCluster starts groups of n nodes each, the shards registered.
func newShardedCluster(t *testing.T, n int, shards ...string) *shardedCluster {
	t.Helper()
	keys := filepath.Join(t.TempDir(), "keys")
	_, err := MakeAuthority(keys)
	require.NoError(t, err)
	group := func(shard string) *testCluster {
		return newTestCluster(t, n, func(i int, c *Config) {
			c.ID = fmt.Sprintf("%s%d", shard, i)
			if i == 0 {
				c.Authority, c.Shard = keys, shard
			}
		})
	}
	s := &shardedCluster{testCluster: group(""), shards: map[string]*testCluster{}}
	s.router = s.route("op", RoleClient)
	for _, name := range shards {
		s.shards[name] = group(name)
		got, err := s.router.AddShard(testCtx(t), name, []string{s.shards[name].nodes[0].Addr()})
		require.NoError(t, err)
		require.Len(t, got.Addrs, n)
	}
	return s
}

func (s *shardedCluster) route(id, role string) *Router {
	s.t.Helper()
	r, err := Route(testCtx(s.t), s.dial(id, role))
	require.NoError(s.t, err)
	s.t.Cleanup(func() { _ = r.Close() })
	return r
}

// at says in which shards a run has any state.
func (s *shardedCluster) at(run string) (in []string) {
	s.t.Helper()
	for _, name := range append([]string{replay.RootShard}, slices.Sorted(mapKeys(s.shards))...) {
		c, err := s.router.of(name)
		require.NoError(s.t, err)
		if _, n, err := digestRun(testCtx(s.t), c, run); err == nil && n > 0 {
			in = append(in, name)
		} else {
			require.ErrorIs(s.t, err, replay.ErrNotFound)
		}
	}
	return in
}

func mapKeys[V any](m map[string]V) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

func TestShards(t *testing.T) {
	s := newShardedCluster(t, 1, "b")
	ctx, r := testCtx(t), s.router

	// Runs are spread by how many are unfinished, or go where they were placed.
	_, err := r.Place(ctx, "asked", "b", nil)
	require.NoError(t, err)
	for _, run := range []string{"one", "two", "asked", "three"} {
		require.NoError(t, r.CreateRun(ctx, testSpec(run)))
		require.NoError(t, r.CreateRun(ctx, testSpec(run)), "again")
	}
	require.Equal(t, []string{"b"}, s.at("asked"))
	count := map[string]int{}
	for _, run := range []string{"one", "two", "three"} {
		in := s.at(run)
		require.Len(t, in, 1)
		count[in[0]]++
	}
	require.GreaterOrEqual(t, count[replay.RootShard], 1)
	require.GreaterOrEqual(t, count["b"], 1)

	// Everything works on each, by a worker's router that was there before.
	w := s.route("w", RoleWorker)
	var logs []string
	for _, run := range []string{"one", "two", "asked"} {
		logs = append(logs, trainStep(t, r, run).LogIDs...)
		trainStep(t, r, run)
	}
	recs, err := w.Fetch(ctx, logs)
	require.NoError(t, err)
	for i := range recs {
		require.Equal(t, logs[i], recs[i].Item.LogID)
	}
	_, err = w.Fetch(ctx, append(logs, "nobody's"))
	require.ErrorIs(t, err, replay.ErrNotFound)
	mixed := []replay.Record{testRecord("one", "a1", 100), testRecord("asked", "a2", 100), testRecord("two", "a3", 100), testRecord("none", "a4", 100)}
	res, err := w.Append(ctx, mixed)
	require.ErrorIs(t, err, replay.ErrInvalid)
	require.Empty(t, res[0].Rejected+res[1].Rejected+res[2].Rejected)
	require.Contains(t, res[3].Rejected, "create it first")
	runs, err := w.Runs(ctx)
	require.NoError(t, err)
	require.Equal(t, []string{"asked", "one", "three", "two"}, runs)
	v, err := r.Verify(ctx)
	require.NoError(t, err)
	require.True(t, v.OK(), "%+v", v)
	require.Len(t, v.Nodes, 2)
	_, err = r.Snapshot(ctx)
	require.ErrorContains(t, err, "--shard")
	shard, nodes, err := r.Replicas(ctx, "a2")
	require.NoError(t, err)
	require.Equal(t, "b", shard)
	require.Equal(t, []NodeHoldings{{Node: "b0", Holds: []bool{true}}}, nodes)

	// A quota bounds every shard.
	_, err = r.SetQuota(ctx, "", replay.Quota{Logs: 3}, 0)
	require.NoError(t, err)
	for _, run := range []string{"one", "asked"} {
		_, err = w.Append(ctx, []replay.Record{testRecord(run, "late-"+run, 10)})
		require.ErrorIs(t, err, replay.ErrBusy)
	}
	ts, err := r.Tenants(ctx)
	require.NoError(t, err)
	require.Len(t, ts, 1)
	require.Equal(t, runs, ts[0].Runs)

	// Who joins by the shard finds the root.
	s.shards["b"].token = s.token
	viaB, err := Route(ctx, s.shards["b"].dial("w2", RoleWorker))
	require.NoError(t, err)
	defer viaB.Close()
	_, err = viaB.Latest(ctx, "one")
	require.NoError(t, err)
	list, err := r.Shards(ctx)
	require.NoError(t, err)
	require.Equal(t, []string{replay.RootShard, "b"}, []string{list.Shards[0].Name, list.Shards[1].Name})
	require.Len(t, list.Placed, 4)
	require.Equal(t, "b0", list.Shards[1].Nodes[0].ID)
}

func TestMoveRun(t *testing.T) {
	s := newShardedCluster(t, 1, "b")
	ctx, r := testCtx(t), s.router
	direct := s.dial("old", RoleWorker) // knows of no shards
	require.NoError(t, direct.CreateRun(ctx, testSpec("r")))
	first := trainStep(t, direct, "r")
	_, err := r.Append(ctx, []replay.Record{testRecord("r", "gone", 100), testRecord("r", "kept", 3000)})
	require.NoError(t, err)
	_, err = r.DeleteLogs(ctx, "r", []string{"gone"}, "test")
	require.NoError(t, err)
	tail, err := r.Tail(ctx, replay.TailRequest{Run: "r"})
	require.NoError(t, err)
	tks, err := r.TakeTickets(ctx, "r", "w1", replay.AnyVersion, 1, 0)
	require.NoError(t, err)
	require.Len(t, tks, 1)
	w := s.route("w1", RoleWorker) // it will hear of the move from the shard
	before, err := w.Status(ctx, "r")
	require.NoError(t, err)

	polled := make(chan error, 1) // a wait that begins before the move ends after it
	go func() {
		p, err := w.WaitPolicy(ctx, "r", 1, patience/2)
		if err == nil && p.Version != 2 {
			err = fmt.Errorf("policy version %d, not 2", p.Version)
		}
		polled <- err
	}()
	p, err := r.Place(ctx, "r", "b", nil)
	require.NoError(t, err)
	require.Equal(t, "b", p.Shard)
	require.Equal(t, replay.PlaceAtRest, p.Phase)
	require.Equal(t, []string{"b"}, s.at("r"))
	again, err := r.Place(ctx, "r", "b", nil)
	require.NoError(t, err)
	require.Equal(t, p, again)

	for _, f := range []func() error{
		func() error { _, err := direct.Status(ctx, "r"); return err },
		func() error { return direct.CreateRun(ctx, testSpec("r")) },
		func() error { _, err := direct.TakeTickets(ctx, "r", "w1", replay.AnyVersion, 1, 0); return err },
	} {
		require.ErrorIs(t, f(), replay.ErrMoved)
	}
	after, err := w.Status(ctx, "r")
	require.NoError(t, err)
	require.Equal(t, before, after)
	step, err := w.Step(ctx, "r", first.Step)
	require.NoError(t, err)
	require.Equal(t, first.LogIDs, step.LogIDs)
	adapter, err := w.GetBlob(ctx, first.Adapter)
	require.NoError(t, err)
	require.Equal(t, "adapter r 1", string(adapter))
	b, err := r.of("b")
	require.NoError(t, err)
	for _, d := range []string{first.Adapter, first.Checkpoint} {
		_, err := b.GetBlob(ctx, d)
		require.NoError(t, err)
	}
	recs, err := w.Fetch(ctx, []string{"kept"})
	require.NoError(t, err)
	require.Len(t, recs[0].Bytes, 3000)
	more, err := w.Tail(ctx, replay.TailRequest{Run: "r", Token: tail[len(tail)-1].Token})
	require.NoError(t, err, "a token from before the move")
	require.Empty(t, more)
	res, err := w.Append(ctx, []replay.Record{testRecord("r", "gone", 100)})
	require.NoError(t, err)
	require.True(t, res[0].Duplicate, "a deleted log stays out")
	_, err = w.Append(ctx, []replay.Record{rollout(tks[0], 0, "w1"), rollout(tks[0], 1, "w1")})
	require.NoError(t, err, "a ticket from before the move")
	lease, err := w.Lease(ctx, replay.LeaseRequest{Run: "r", Holder: "l", Groups: 1, LearnerVersion: 1, TTL: time.Minute})
	require.NoError(t, err)
	require.Equal(t, tks[0].Group, lease.Groups[0].Group)

	// A lease goes along.
	_, err = r.Place(ctx, "r", replay.RootShard, nil)
	require.NoError(t, err)
	require.Equal(t, []string{replay.RootShard}, s.at("r"))
	require.NoError(t, w.Extend(ctx, "r", lease.ID, time.Minute))
	require.NoError(t, w.Release(ctx, "r", lease.ID, ""))
	lease, err = w.Lease(ctx, replay.LeaseRequest{Run: "r", Holder: "l", Groups: 1, LearnerVersion: 1, TTL: time.Minute})
	require.NoError(t, err)
	second := replay.StepRecord{Run: "r", Step: 2, Version: 2, Lease: lease.ID, PrevCheckpoint: first.Checkpoint, Groups: []string{tks[0].Group}}
	for _, it := range lease.Groups[0].Items {
		second.LogIDs = append(second.LogIDs, it.LogID)
	}
	second.Checkpoint, err = r.PutBlob(ctx, []byte("checkpoint 2"))
	require.NoError(t, err)
	second.Adapter = first.Adapter
	require.NoError(t, w.Commit(ctx, second))
	require.NoError(t, <-polled)
	_, err = direct.Status(ctx, "r")
	require.NoError(t, err)

	_, err = r.Place(ctx, "r", "c", nil)
	require.ErrorIs(t, err, replay.ErrNotFound)
	_, err = w.Place(ctx, "r", "b", nil)
	require.ErrorIs(t, err, ErrDenied, "a worker moves nothing")
}

// TestMovesUnderLoad moves a run to and fro while it is trained and appended to:
// every step is committed once, every log acknowledged is there once.
func TestMovesUnderLoad(t *testing.T) {
	s := newShardedCluster(t, 1, "b")
	ctx, r := testCtx(t), s.router
	require.NoError(t, r.CreateRun(ctx, testSpec("r")))
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var mu sync.Mutex
	acked := map[string]bool{}
	trained := map[string]bool{}
	w, l := s.route("w", RoleWorker), s.route("l", RoleLearner)
	running := func() bool {
		select {
		case <-stop:
			return false
		default:
			return true
		}
	}
	wg.Go(func() {
		for i := 0; running(); i++ {
			rec := testRecord("r", fmt.Sprintf("log%d", i), 2000)
			if _, err := w.Append(ctx, []replay.Record{rec}); err != nil {
				t.Errorf("append: %v", err)
				return
			}
			mu.Lock()
			acked[rec.Item.LogID] = true
			mu.Unlock()
		}
	})
	wg.Go(func() {
		for running() {
			for _, id := range trainStep(t, l, "r").LogIDs {
				if trained[id] {
					t.Errorf("log %s trained twice", id)
				}
				trained[id] = true
			}
		}
	})
	for i := range 4 {
		to := []string{"b", replay.RootShard}[i%2]
		if p, err := r.Placement(ctx, "r"); err == nil && p.Shard == to {
			to = []string{"b", replay.RootShard}[(i+1)%2]
		}
		_, err := r.Place(ctx, "r", to, nil)
		require.NoError(t, err)
		require.Equal(t, []string{to}, s.at("r"))
	}
	close(stop)
	wg.Wait()
	require.NotEmpty(t, trained)
	require.NotEmpty(t, acked)
	for _, table := range []string{"audit", replay.TableTrain} {
		for cursor := ""; ; {
			items, next, err := r.Scan(ctx, "r", table, cursor, 1000)
			require.NoError(t, err)
			for _, it := range items {
				delete(acked, it.LogID)
				delete(trained, it.LogID)
			}
			if cursor = next; next == "" {
				break
			}
		}
	}
	require.Empty(t, acked)
	require.Empty(t, trained)
	v, err := r.Verify(ctx)
	require.NoError(t, err)
	require.True(t, v.OK(), "%+v", v)
}

// TestMoveCrashes ends movers anywhere, several at once: whoever comes next
// finishes the move or takes it back, and the run is whole in one place.
func TestMoveCrashes(t *testing.T) {
	s := newShardedCluster(t, 1, "b")
	ctx, r := testCtx(t), s.router
	require.NoError(t, r.CreateRun(ctx, testSpec("r")))
	trainStep(t, r, "r")
	var recs []replay.Record
	for i := range 700 {
		recs = append(recs, testRecord("r", fmt.Sprint("log", i), 200))
	}
	_, err := r.Append(ctx, recs)
	require.NoError(t, err)
	home, err := r.where(ctx, "r")
	require.NoError(t, err)
	want, n, err := digestRun(ctx, home, "r")
	require.NoError(t, err)
	rnd := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a test
	shards := []string{"b", replay.RootShard}
	crashed := 0
	for range 6 {
		var movers sync.WaitGroup
		for range 1 + rnd.IntN(2) {
			to, life := shards[rnd.IntN(2)], time.Duration(rnd.IntN(80))*time.Millisecond
			movers.Go(func() {
				ctx, cancel := context.WithTimeout(ctx, life)
				defer cancel()
				_, _ = r.Place(ctx, "r", to, nil)
			})
		}
		movers.Wait()
		p, err := r.Placement(ctx, "r")
		require.NoError(t, err)
		if p.Phase != replay.PlaceAtRest {
			crashed++
		}
		to := shards[rnd.IntN(2)]
		if p, err = r.Place(ctx, "r", to, nil); errors.Is(err, replay.ErrInvalid) && strings.Contains(err.Error(), "finish that first") {
			to = unfinished(p)
			p, err = r.Place(ctx, "r", to, nil)
		}
		require.NoError(t, err)
		require.Equal(t, to, p.Shard)
		require.Equal(t, replay.PlaceAtRest, p.Phase)
		require.Equal(t, []string{to}, s.at("r"))
		c, err := r.of(to)
		require.NoError(t, err)
		got, k, err := digestRun(ctx, c, "r")
		require.NoError(t, err)
		require.Equal(t, n, k)
		require.Equal(t, want, got)
	}
	require.Positive(t, crashed, "no mover was ended half way: give them less time")
	trainStep(t, r, "r")
}

func TestShardsRefuse(t *testing.T) {
	s := newShardedCluster(t, 1)
	ctx := testCtx(t)
	other := newTestCluster(t, 1)
	_, err := s.router.AddShard(ctx, "b", []string{other.nodes[0].Addr()})
	require.ErrorIs(t, err, ErrDenied, "another authority")
	_, err = s.router.AddShard(ctx, "b", []string{s.nodes[0].Addr()})
	require.ErrorIs(t, err, replay.ErrInvalid, "itself")
	_, err = s.router.Place(ctx, "r", "b", nil)
	require.ErrorIs(t, err, replay.ErrNotFound)

	conf := testConfig(t, t.TempDir())
	conf.Shard = "b"
	_, err = Open(ctx, conf)
	require.ErrorContains(t, err, "authority")
	conf.Shard = "Root"
	require.ErrorContains(t, conf.Validate(), "shard")
	_ = s.nodes[0].Close()
	again := testConfig(t, s.dirs[0])
	again.Shard = "b"
	_, err = Open(ctx, again)
	require.ErrorContains(t, err, `is of shard "root"`)
}
