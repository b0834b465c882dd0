package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/replay"
)

// faultyStore is a node's storage whose payload writes can be made to hang or
// to fail.
type faultyStore struct {
	*replay.Local
	mu   sync.Mutex
	gate chan struct{} // not nil: PutChunk waits until it is closed
	err  error         // not nil: PutChunk fails
	fold error         // not nil: ApplyBatch fails
}

func (f *faultyStore) ApplyBatch(entries []replay.Entry) ([]replay.Result, error) {
	f.mu.Lock()
	err := f.fold
	f.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return f.Local.ApplyBatch(entries)
}

func (f *faultyStore) set(gate chan struct{}, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gate, f.err = gate, err
}

func (f *faultyStore) PutChunk(ctx context.Context, term uint64, recs []replay.Record) error {
	f.mu.Lock()
	gate, err := f.gate, f.err
	f.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if err != nil {
		return err
	}
	return f.Local.PutChunk(ctx, term, recs)
}

// faulty makes every node's storage a faultyStore.
func faulty(stores []*faultyStore) func(int, *Config) {
	return func(i int, c *Config) {
		c.wrapStore = func(l *replay.Local) storage {
			stores[i] = &faultyStore{Local: l}
			return stores[i]
		}
	}
}

// Damage that nobody has read is found by a scrub and repaired.
func TestScrubFindsWhatNobodyRead(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 3)
	ctx := testCtx(t)
	cl := c.dial("w1", RoleWorker)
	require.NoError(t, cl.CreateRun(ctx, testSpec("r")))
	rec := testRecord("r", "log", 50_000)
	_, err := cl.Append(ctx, []replay.Record{rec})
	require.NoError(t, err)
	f := c.follower()
	n := c.nodes[f]
	waitHolds(t, n, []string{"log"})
	segs, err := filepath.Glob(filepath.Join(c.dirs[f], dirStore, "segments", "*"))
	require.NoError(t, err)
	require.Len(t, segs, 1)
	file, err := os.OpenFile(segs[0], os.O_RDWR, 0)
	require.NoError(t, err)
	_, err = file.WriteAt([]byte("damage"), 25_000)
	require.NoError(t, errors.Join(err, file.Close()))
	missing, err := n.store.MissingPayloads(10)
	require.NoError(t, err)
	require.Empty(t, missing)
	n.repairs.scrub()
	missing, err = n.store.MissingPayloads(10)
	require.NoError(t, err)
	require.Len(t, missing, 1)
	eventually(t, "the record to be repaired", func() bool {
		got, missing, err := n.store.ReadPacked([]string{"log"})
		return err == nil && len(missing) == 0 && string(unpacked(got[0]).Bytes) == string(rec.Bytes)
	})
}

// A follower whose payloads are lost gets them back from its peers.
func TestMissingChunksAreRepaired(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 3)
	ctx := testCtx(t)
	cl := c.dial("w1", RoleWorker)
	require.NoError(t, cl.CreateRun(ctx, testSpec("r")))
	var recs []replay.Record
	var ids []string
	for i := range 30 {
		recs = append(recs, testRecord("r", fmt.Sprint("log", i), 50_000))
		ids = append(ids, recs[i].Item.LogID)
	}
	_, err := cl.Append(ctx, recs)
	require.NoError(t, err)
	f := c.follower()
	waitHolds(t, c.nodes[f], ids)
	require.NoError(t, c.nodes[f].Close())

	// Damage in the middle of its segments: some records are gone.
	segs, err := filepath.Glob(filepath.Join(c.dirs[f], dirStore, "segments", "*"))
	require.NoError(t, err)
	require.NotEmpty(t, segs)
	for _, s := range segs {
		b, err := os.ReadFile(s)
		require.NoError(t, err)
		for i := len(b) / 4; i < len(b)/2; i++ {
			b[i] ^= 0x55
		}
		require.NoError(t, os.WriteFile(s, b, 0o600))
	}
	c.restart(f)
	eventually(t, "damage to be noticed and repaired", func() bool {
		got, missing, err := c.nodes[f].store.ReadPacked(ids)
		if err != nil || len(missing) > 0 {
			return false
		}
		for i := range got {
			if string(unpacked(got[i]).Bytes) != string(recs[i].Bytes) {
				t.Fatalf("log %s differs", got[i].Item.LogID)
			}
		}
		return true
	})
}

// A follower that hangs in its disk delays nobody; its chunks come later.
func TestFollowerWithStalledDisk(t *testing.T) {
	t.Parallel()
	stores := make([]*faultyStore, 3)
	c := newTestCluster(t, 3, faulty(stores), func(_ int, conf *Config) { conf.AppendTimeout = time.Second })
	ctx := testCtx(t)
	cl := c.dial("w1", RoleWorker)
	require.NoError(t, cl.CreateRun(ctx, testSpec("r")))
	f := c.follower()
	gate := make(chan struct{})
	stores[f].set(gate, nil)
	var ids []string
	for i := range 5 {
		rec := testRecord("r", fmt.Sprint("log", i), 1000)
		_, err := cl.Append(ctx, []replay.Record{rec})
		require.NoError(t, err)
		ids = append(ids, rec.Item.LogID)
	}
	// Without the third as well there is no majority: a deadline, and the
	// error names who is silent.
	third := 3 - f - c.leader()
	stores[third].set(gate, nil)
	short, cancel := context.WithTimeout(ctx, 2500*time.Millisecond)
	_, err := c.nodes[c.leader()].Store().Append(short, []replay.Record{testRecord("r", "late", 10)})
	cancel()
	require.ErrorIs(t, err, replay.ErrUnavailable)
	require.ErrorContains(t, err, "node "+c.nodes[f].id)
	require.ErrorContains(t, err, "node "+c.nodes[third].id)
	stores[f].set(nil, nil)
	stores[third].set(nil, nil)
	close(gate)
	waitHolds(t, c.nodes[f], ids)
	_, err = cl.Append(ctx, []replay.Record{testRecord("r", "late", 10)})
	require.NoError(t, err)
}

func TestDiskFull(t *testing.T) {
	t.Parallel()
	stores := make([]*faultyStore, 3)
	c := newTestCluster(t, 3, faulty(stores))
	ctx := testCtx(t)
	cl := c.dial("w1", RoleWorker)
	require.NoError(t, cl.CreateRun(ctx, testSpec("r")))
	full := fmt.Errorf("store: %w", replay.ErrDiskFull)
	f := c.follower()
	stores[f].set(nil, full)
	_, err := cl.Append(ctx, []replay.Record{testRecord("r", "a", 10)})
	require.NoError(t, err, "two of three are enough")
	stores[c.leader()].set(nil, full)
	_, err = cl.Append(ctx, []replay.Record{testRecord("r", "b", 10)})
	require.ErrorIs(t, err, replay.ErrDiskFull)
	require.ErrorContains(t, err, "node "+c.nodes[f].id)
	// Reads and decisions go on.
	_, err = cl.Fetch(ctx, []string{"a"})
	require.NoError(t, err)
	_, err = cl.TakeTickets(ctx, "r", "w1", replay.AnyVersion, 1, 0)
	require.NoError(t, err)
	stores[f].set(nil, nil)
	_, err = cl.Append(ctx, []replay.Record{testRecord("r", "b", 10)})
	require.NoError(t, err)
}

// A replica whose disk is full to the last byte can't apply: it says so, the
// others go on, and opened again it follows.
func TestFailedReplicaIsOpenedAgain(t *testing.T) {
	t.Parallel()
	stores := make([]*faultyStore, 3)
	c := newTestCluster(t, 3, faulty(stores))
	ctx := testCtx(t)
	cl := c.dial("w1", RoleWorker)
	require.NoError(t, cl.CreateRun(ctx, testSpec("r")))
	lead := c.leader()
	require.NoError(t, c.nodes[lead].Err())
	full := errors.New("no space left on device")
	stores[lead].mu.Lock()
	stores[lead].fold = full
	stores[lead].mu.Unlock()
	_, err := cl.Append(ctx, []replay.Record{testRecord("r", "a", 10)})
	require.NoError(t, err, "another one leads")
	select {
	case <-c.nodes[lead].Failed():
	case <-ctx.Done():
		t.Fatal("the failure is not shown")
	}
	require.ErrorIs(t, c.nodes[lead].Err(), full)
	require.NoError(t, c.nodes[lead].Close())
	c.restart(lead)
	waitHolds(t, c.nodes[lead], []string{"a"})
	require.NoError(t, c.nodes[lead].Err())
}

// All nodes stop; all come back, every one on a new port but the first, whose
// address the others know.
func TestWholeClusterRestarts(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 3)
	ctx := testCtx(t)
	cl := c.dial("w1", RoleWorker)
	require.NoError(t, cl.CreateRun(ctx, testSpec("r")))
	rec := testRecord("r", "a", 1000)
	_, err := cl.Append(ctx, []replay.Record{rec})
	require.NoError(t, err)
	for _, n := range c.nodes {
		require.NoError(t, n.Close())
	}
	for i := range c.nodes {
		c.restart(i, func(conf *Config) {
			if i > 0 {
				conf.Listen = "127.0.0.1:0"
			}
		})
	}
	for _, n := range c.nodes {
		require.NoError(t, n.WaitReady(ctx, 3))
	}
	got, err := cl.Fetch(ctx, []string{"a"}) // the old client finds them
	require.NoError(t, err)
	require.Equal(t, []replay.Record{rec}, got)
	_, err = cl.Append(ctx, []replay.Record{testRecord("r", "b", 1000)})
	require.NoError(t, err)
	for _, n := range c.nodes {
		waitHolds(t, n, []string{"a", "b"})
	}
	// And the client finds them when it knows an old address only.
	old, err := Dial(ctx, []string{c.nodes[0].Addr()}, cl.id, "")
	require.NoError(t, err)
	defer func() { require.NoError(t, old.Close()) }()
	_, err = old.Latest(ctx, "r")
	require.NoError(t, err)
}

// A new node gets a snapshot when the log is gone, then the payloads.
func TestNewNodeCatchesUpFromSnapshot(t *testing.T) {
	t.Parallel()
	small := func(_ int, c *Config) { c.SnapshotEvery = 16 }
	c := newTestCluster(t, 1, small)
	ctx := testCtx(t)
	cl := c.dial("w1", RoleWorker)
	require.NoError(t, cl.CreateRun(ctx, testSpec("r")))
	var ids []string
	for i := range 100 {
		rec := testRecord("r", fmt.Sprint("log", i), 1000)
		_, err := cl.Append(ctx, []replay.Record{rec})
		require.NoError(t, err)
		ids = append(ids, rec.Item.LogID)
	}
	require.NoError(t, c.nodes[0].raft.Snapshot().Error())
	first, err := c.nodes[0].wal.FirstIndex()
	require.NoError(t, err)
	require.Greater(t, first, uint64(1), "log truncated")
	require.NoError(t, cl.CreateRun(ctx, testSpec("s")))
	step := trainStep(t, cl, "s")
	trainStep(t, cl, "s")

	conf := testConfig(t, filepath.Join(t.TempDir(), "n1"))
	conf.ID, conf.Join, conf.Token = "n1", []string{c.nodes[0].Addr()}, c.token
	n, err := Open(ctx, conf)
	require.NoError(t, err)
	c.nodes, c.dirs = append(c.nodes, n), append(c.dirs, conf.Dir)
	t.Cleanup(func() { _ = c.nodes[1].Close() })
	require.NoError(t, n.WaitReady(ctx, 2), "it votes only when it holds everything")
	_, missing, err := n.store.ReadPacked(ids)
	require.NoError(t, err)
	require.Empty(t, missing)
	eventually(t, "blobs to be pulled", func() bool {
		return n.store.HasBlob(step.Adapter) && n.store.HasBlob(step.Checkpoint)
	})

	// A restart does not apply twice what the snapshot and the log hold.
	before, err := cl.Status(ctx, "r")
	require.NoError(t, err)
	require.NoError(t, c.nodes[0].Close())
	c.restart(0, func(conf *Config) { conf.SnapshotEvery = 16 })
	require.NoError(t, c.nodes[0].WaitReady(ctx, 2))
	after, err := cl.Status(ctx, "r")
	require.NoError(t, err)
	require.Equal(t, before, after)
}

// A node that lacks thousands of logs gets them as fast as its disk takes them,
// not a handful a round.
func TestNewNodeCatchesUpFast(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 1)
	ctx := testCtx(t)
	cl := c.dial("w1", RoleWorker)
	require.NoError(t, cl.CreateRun(ctx, testSpec("r")))
	const logs = 2*repairLook + 512
	var recs []replay.Record
	for i := range logs {
		recs = append(recs, testRecord("r", fmt.Sprint("log", i), 20))
	}
	_, err := cl.Append(ctx, recs)
	require.NoError(t, err)
	conf := testConfig(t, filepath.Join(t.TempDir(), "n1"))
	conf.ID, conf.Join, conf.Token = "n1", []string{c.nodes[0].Addr()}, c.token
	n, err := Open(ctx, conf)
	require.NoError(t, err)
	c.nodes, c.dirs = append(c.nodes, n), append(c.dirs, conf.Dir)
	t.Cleanup(func() { _ = c.nodes[1].Close() })
	// At 256 logs every second round it would take longer than ctx gives.
	require.NoError(t, n.WaitReady(ctx, 2), "it votes when it holds everything")
	missing, err := n.store.MissingPayloads(1)
	require.NoError(t, err)
	require.Empty(t, missing)
}

func TestRemoveNode(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 3)
	ctx := testCtx(t)
	cl := c.dial("op", RoleClient)
	f := c.follower()
	id := c.nodes[f].id
	require.ErrorIs(t, c.dial("w1", RoleWorker).RemoveNode(ctx, id), ErrDenied)
	require.NoError(t, cl.RemoveNode(ctx, id))
	require.ErrorIs(t, cl.RemoveNode(ctx, id), replay.ErrNotFound)
	lead := c.nodes[c.leader()]
	voters, others := lead.servers()
	require.Len(t, voters, 2)
	require.Empty(t, others)
	eventually(t, "the removed node to learn it", func() bool { return c.nodes[f].book.removed(id) })
	st, err := cl.ClusterStatus(ctx)
	require.NoError(t, err)
	for _, n := range st.Nodes {
		require.NotEqual(t, id, n.ID, "a removed node is no dead node")
	}
	eventually(t, "nobody to dial it any more", func() bool {
		lead.peers.mu.Lock()
		defer lead.peers.mu.Unlock()
		return lead.peers.conns[id] == nil
	})
	require.NoError(t, c.nodes[f].Close())
	_, err = Open(ctx, testConfig(t, c.dirs[f]))
	require.ErrorContains(t, err, "was removed")
	tok, err := ParseToken(c.token)
	require.NoError(t, err)
	_, err = Join(ctx, JoinConfig{Addrs: []string{lead.Addr()}, Token: tok, ID: id, Role: RoleReplay, Dir: t.TempDir()})
	require.ErrorContains(t, err, "taken")
}

// An operator can't take the majority away by mistake.
func TestRemoveNodeKeepsAMajority(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 3, func(_ int, conf *Config) { conf.AliveFor = time.Second })
	ctx := testCtx(t)
	cl := c.dial("op", RoleClient)
	dead := c.follower()
	third := c.nodes[3-dead-c.leader()].id
	require.NoError(t, c.nodes[dead].Close())
	eventually(t, "the dead node to be seen", func() bool {
		s, err := cl.ClusterStatus(ctx)
		require.NoError(t, err)
		for _, n := range s.Nodes {
			if n.ID == c.nodes[dead].id {
				return !n.Alive
			}
		}
		return false
	})
	err := cl.RemoveNode(ctx, third)
	require.ErrorIs(t, err, replay.ErrInvalid)
	require.ErrorContains(t, err, "no majority")
	require.NoError(t, cl.RemoveNode(ctx, c.nodes[dead].id))
}

// A node whose snapshots are gone, and whose log begins behind them, says so
// instead of panicking.
func TestLostSnapshotIsNoticed(t *testing.T) {
	t.Parallel()
	small := func(_ int, c *Config) { c.SnapshotEvery = 16 }
	c := newTestCluster(t, 1, small)
	cl := c.dial("w", RoleWorker)
	require.NoError(t, cl.CreateRun(testCtx(t), testSpec("r")))
	for i := range 60 {
		_, err := cl.Append(testCtx(t), []replay.Record{testRecord("r", fmt.Sprint("log", i), 10)})
		require.NoError(t, err)
	}
	require.NoError(t, c.nodes[0].raft.Snapshot().Error())
	require.NoError(t, c.nodes[0].Close())
	require.NoError(t, os.RemoveAll(filepath.Join(c.dirs[0], dirSnapshots)))
	_, err := Open(testCtx(t), testConfig(t, c.dirs[0]))
	require.ErrorContains(t, err, "newest snapshot")
	require.ErrorContains(t, err, "is lost")
}

func TestLostRaftDirectoryIsNoticed(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 1)
	require.NoError(t, c.dial("w", RoleWorker).CreateRun(testCtx(t), testSpec("r")))
	require.NoError(t, c.nodes[0].Close())
	require.NoError(t, os.RemoveAll(filepath.Join(c.dirs[0], dirRaft)))
	_, err := Open(testCtx(t), testConfig(t, c.dirs[0]))
	require.ErrorContains(t, err, dirRaft)
	require.ErrorContains(t, err, "lost")
	// Nor may the founder start a second group when all of it is gone.
	require.NoError(t, os.RemoveAll(filepath.Join(c.dirs[0], dirRaft)))
	require.NoError(t, os.RemoveAll(filepath.Join(c.dirs[0], dirStore)))
	_, err = Open(testCtx(t), testConfig(t, c.dirs[0]))
	require.ErrorContains(t, err, "lost")
}

// stalledLog is a raft log whose writes wait for the gate.
type stalledLog struct {
	*raft.InmemStore
	mu   sync.Mutex
	gate chan struct{}
}

func (s *stalledLog) stall(gate chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gate = gate
}

func (s *stalledLog) StoreLogs(l []*raft.Log) error {
	s.mu.Lock()
	g := s.gate
	s.mu.Unlock()
	if g != nil {
		<-g
	}
	return s.InmemStore.StoreLogs(l)
}

func TestStalledLogWriteEnds(t *testing.T) {
	t.Parallel()
	s := &stalledLog{InmemStore: raft.NewInmemStore()}
	d := newDeadlineLog(s, 30*time.Millisecond, testLog(t))
	require.NoError(t, d.StoreLog(&raft.Log{Index: 1}))
	gate := make(chan struct{})
	s.stall(gate)
	err := d.StoreLogs([]*raft.Log{{Index: 2}, {Index: 3}})
	require.ErrorIs(t, err, errDiskStalled)
	require.ErrorContains(t, err, "append 2..3")
	require.ErrorIs(t, d.StoreLog(&raft.Log{Index: 2}), errDiskStalled, "refused at once")
	s.stall(nil)
	close(gate)
	d.wait()
	last, err := s.LastIndex()
	require.NoError(t, err)
	require.Equal(t, uint64(1), last, "the late entries are cut off")
	require.NoError(t, d.StoreLog(&raft.Log{Index: 2}))
}

func TestStalledLogThatFailsStaysRefused(t *testing.T) {
	t.Parallel()
	s := &stalledLog{InmemStore: raft.NewInmemStore()}
	d := newDeadlineLog(s, 10*time.Millisecond, testLog(t))
	gate := make(chan struct{})
	err := d.bounded("x", func() error { <-gate; return errors.New("io") }, func() error { return nil })
	require.ErrorIs(t, err, errDiskStalled)
	close(gate)
	d.wait()
	require.ErrorContains(t, d.StoreLog(&raft.Log{Index: 1}), "restart")
}

// A leader whose raft log stalls steps down, and another one commits.
func TestLeaderWithStalledLogStepsDown(t *testing.T) {
	t.Parallel()
	gates := make([]*gatedWAL, 3)
	c := newTestCluster(t, 3, func(i int, conf *Config) {
		conf.DiskTimeout = 300 * time.Millisecond
		conf.wrapLog = func(s raft.LogStore) raft.LogStore {
			gates[i] = &gatedWAL{LogStore: s}
			return gates[i]
		}
	})
	ctx := testCtx(t)
	cl := c.dial("w1", RoleWorker)
	require.NoError(t, cl.CreateRun(ctx, testSpec("r")))
	old := c.leader()
	gate := make(chan struct{})
	gates[old].stall(gate)
	_, err := cl.Append(ctx, []replay.Record{testRecord("r", "a", 10)})
	require.NoError(t, err)
	require.NotEqual(t, old, c.leader())
	gates[old].stall(nil)
	close(gate)
	waitHolds(t, c.nodes[old], []string{"a"})
}

type gatedWAL struct {
	raft.LogStore
	mu   sync.Mutex
	gate chan struct{}
}

func (g *gatedWAL) IsMonotonic() bool { return true }

func (g *gatedWAL) stall(gate chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.gate = gate
}

func (g *gatedWAL) StoreLogs(l []*raft.Log) error {
	g.mu.Lock()
	gate := g.gate
	g.mu.Unlock()
	if gate != nil {
		<-gate
	}
	return g.LogStore.StoreLogs(l)
}

// unpacked is a record as its reader gets it.
func unpacked(r replay.Record) replay.Record {
	r, err := r.Unpack()
	if err != nil {
		panic(err) // the checksum held
	}
	return r
}
