package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/replay"
	"github.com/skein-rl/skein/replay/blob"
)

// onDisks counts the nodes that have bytes in a segment file.
func (c *testCluster) onDisks(b []byte) (n int) {
	c.t.Helper()
	for _, dir := range c.dirs {
		files, err := filepath.Glob(filepath.Join(dir, dirStore, "segments", "*.seg"))
		require.NoError(c.t, err)
		for _, f := range files {
			have, err := os.ReadFile(f)
			require.NoError(c.t, err)
			if bytes.Contains(have, b) {
				n++
				break
			}
		}
	}
	return n
}

// whole waits until no node lacks a payload.
func (c *testCluster) whole() {
	c.t.Helper()
	eventually(c.t, "every node has everything", func() bool {
		for _, n := range c.nodes {
			m, err := n.store.MissingPayloads(1)
			require.NoError(c.t, err)
			if len(m) > 0 {
				return false
			}
		}
		return true
	})
}

// TestOperatorsOnThreeNodes: what is deleted or redacted is gone from every
// disk after a compaction, damage is found and repaired, and the nodes agree.
func TestOperatorsOnThreeNodes(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 3)
	ctx := testCtx(t)
	cl := c.dial("op", RoleClient)
	require.NoError(t, cl.CreateRun(ctx, testSpec("r")))
	var recs []replay.Record
	for i := range 6 {
		recs = append(recs, testRecord("r", fmt.Sprint("log", i), 5000))
	}
	_, err := cl.Append(ctx, recs)
	require.NoError(t, err)
	_, err = cl.PutBlob(ctx, []byte("checkpoint"))
	require.NoError(t, err)
	eventually(t, "replicated", func() bool { return c.onDisks(recs[0].Bytes) == 3 && c.onDisks(recs[1].Bytes) == 3 })
	c.whole()

	n, err := cl.DeleteLogs(ctx, "r", []string{"log0"}, "asked")
	require.NoError(t, err)
	require.Equal(t, 1, n)
	twin := testRecord("r", "log1", 900)
	red := replay.Twin{LogID: "log1", OldDigest: recs[1].Item.Digest, Digest: twin.Item.Digest, Bytes: twin.Bytes}
	_, err = cl.Redact(ctx, "r", []replay.Twin{{LogID: "log1", OldDigest: "other", Digest: red.Digest, Bytes: red.Bytes}}, "asked")
	require.ErrorIs(t, err, replay.ErrStale)
	_, err = cl.Redact(ctx, "r", []replay.Twin{{LogID: "none"}}, "asked")
	require.ErrorIs(t, err, replay.ErrNotFound)
	n, err = cl.Redact(ctx, "r", []replay.Twin{red}, "asked")
	require.NoError(t, err)
	require.Equal(t, 1, n)
	got, err := cl.Fetch(ctx, []string{"log1", "log2"})
	require.NoError(t, err)
	require.Equal(t, twin.Bytes, got[0].Bytes)
	require.Equal(t, twin.Item.Digest, got[0].Item.Digest)

	res, err := cl.Compact(ctx, replay.CompactRequest{ForgetAfter: time.Nanosecond})
	require.NoError(t, err)
	require.Len(t, res.Nodes, 3)
	for _, x := range res.Nodes {
		require.Empty(t, x.Err)
		require.Equal(t, 2, x.Dropped)
		require.Zero(t, x.Held)
	}
	require.Zero(t, c.onDisks(recs[0].Bytes[:500]), "a deleted log is on a disk")
	require.Zero(t, c.onDisks(recs[1].Bytes[:500]), "what was redacted is on a disk")
	require.Equal(t, 3, c.onDisks(twin.Bytes))
	require.Equal(t, 1, res.Forgotten)
	got, err = cl.ReadExact(ctx, []replay.Exact{{LogID: "log1", Digest: recs[1].Item.Digest}, {LogID: "log2", Digest: recs[2].Item.Digest}})
	require.NoError(t, err)
	require.Len(t, got, 1)
	require.Equal(t, recs[2].Bytes, got[0].Bytes)

	v, err := cl.Verify(ctx)
	require.NoError(t, err)
	require.True(t, v.OK(), "%+v", v)
	require.Equal(t, 5, v.Nodes[0].Logs)
	require.NotZero(t, v.Index)

	// One node loses a log's bytes and does not know it.
	f := c.follower()
	files, err := filepath.Glob(filepath.Join(c.dirs[f], dirStore, "segments", "*.seg"))
	require.NoError(t, err)
	hurt := false
	for _, name := range files {
		b, err := os.ReadFile(name)
		require.NoError(t, err)
		if i := bytes.Index(b, recs[3].Bytes[100:200]); i >= 0 {
			copy(b[i:], "XXXXXXXX")
			require.NoError(t, os.WriteFile(name, b, 0o600))
			hurt = true
		}
	}
	require.True(t, hurt)
	rep, err := cl.Repair(ctx)
	require.NoError(t, err)
	require.Len(t, rep, 3)
	found := 0
	for _, x := range rep {
		require.Empty(t, x.Err)
		require.Zero(t, x.Left)
		found += x.Damaged
	}
	require.Equal(t, 1, found)
	res, err = cl.Compact(ctx, replay.CompactRequest{})
	require.NoError(t, err, "the damaged file goes with it")
	v, err = cl.Verify(ctx)
	require.NoError(t, err)
	require.True(t, v.OK(), "%+v %+v", v, res)

	// A node that cannot be reached is named, and ids are not forgotten.
	_, err = cl.DeleteLogs(ctx, "r", []string{"log5"}, "asked")
	require.NoError(t, err)
	down := c.follower()
	require.NoError(t, c.nodes[down].Close())
	res, err = cl.Compact(ctx, replay.CompactRequest{ForgetAfter: time.Nanosecond})
	require.NoError(t, err)
	require.Zero(t, res.Forgotten)
	failed := 0
	for _, x := range res.Nodes {
		if x.Err != "" {
			failed++
			require.Equal(t, c.nodes[down].ID(), x.Node)
		}
	}
	require.Equal(t, 1, failed)
	require.Equal(t, 1, c.onDisks(recs[5].Bytes[:500]))
	c.restart(down)
	eventually(t, "compacted everywhere", func() bool {
		res, err := cl.Compact(ctx, replay.CompactRequest{})
		if err != nil {
			return false
		}
		for _, x := range res.Nodes {
			if x.Err != "" {
				return false
			}
		}
		return true
	})
	require.Zero(t, c.onDisks(recs[5].Bytes[:500]))
}

// TestVerifyFindsAnotherState: a replica whose state differs by one key is found.
func TestVerifyFindsAnotherState(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 3)
	ctx := testCtx(t)
	cl := c.dial("op", RoleClient)
	require.NoError(t, cl.CreateRun(ctx, testSpec("r")))
	f := c.follower()
	eventually(t, "applied", func() bool { return c.nodes[f].store.AppliedIndex() == c.nodes[c.leader()].store.AppliedIndex() })
	// The same index with another command in it.
	local := c.nodes[f].store.(*replay.Local)
	cmd, err := replay.EncodeCommand(replay.CreateRunCmd{Now: time.Now(), Spec: testSpec("ghost")})
	require.NoError(t, err)
	_, err = local.ApplyBatch([]replay.Entry{{Index: local.AppliedIndex() + 1, Cmd: cmd}})
	require.NoError(t, err)
	require.NoError(t, cl.FinishRun(ctx, "r")) // the index that it has taken
	require.NoError(t, cl.CreateRun(ctx, testSpec("r2")))
	v, err := cl.Verify(ctx)
	require.NoError(t, err)
	require.False(t, v.OK())
	states := map[string]int{}
	for _, n := range v.Nodes {
		require.Empty(t, n.Err)
		require.Equal(t, v.Index, n.Index)
		states[n.State]++
	}
	require.Len(t, states, 2)
}

// TestTailAcrossLeaders: every log is listed exactly once behind a token while
// the leader changes under the follower and the writers.
func TestTailAcrossLeaders(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 3)
	ctx := testCtx(t)
	cl := c.dial("op", RoleClient)
	require.NoError(t, cl.CreateRun(ctx, testSpec("r")))
	const all = 120
	seen := make(chan map[string]int, 1)
	go func() {
		got := map[string]int{}
		defer func() { seen <- got }()
		token := ""
		for len(got) < all && ctx.Err() == nil {
			items, err := cl.Tail(ctx, replay.TailRequest{Run: "r", Token: token, Limit: 7, Wait: time.Second})
			if errors.Is(err, replay.ErrUnavailable) {
				continue
			}
			if err != nil {
				t.Errorf("tail: %v", err)
				return
			}
			for _, x := range items {
				got[x.Item.LogID]++
				token = x.Token
			}
		}
	}()
	for i := range all {
		r := testRecord("r", fmt.Sprint("log", i), 300)
		r.Item.Table = []string{"audit", "other"}[i%2]
		_, err := cl.Append(ctx, []replay.Record{r})
		require.NoError(t, err)
		if i%40 == 20 {
			require.NoError(t, c.nodes[c.leader()].raft.LeadershipTransfer().Error())
		}
	}
	got := <-seen
	require.Len(t, got, all)
	for id, n := range got {
		require.Equal(t, 1, n, id)
	}
	names, err := cl.TablesWithLogs(ctx, "r")
	require.NoError(t, err)
	require.Equal(t, []string{"audit", "other"}, names)
}

// TestWhoMayOperate: workers change nothing that is stored, and only replay
// nodes speak to each other.
func TestWhoMayOperate(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 1)
	ctx := testCtx(t)
	w := c.dial("w", RoleWorker)
	op := c.dial("op", RoleClient)
	require.NoError(t, op.CreateRun(ctx, testSpec("r")))
	_, err := w.Redact(ctx, "r", []replay.Twin{{LogID: "x"}}, "asked")
	require.ErrorIs(t, err, ErrDenied)
	require.ErrorIs(t, w.DropTable(ctx, "r", "x"), ErrDenied)
	_, err = w.Import(ctx, replay.Import{Run: "r", Groups: []replay.ImportGroup{{Table: "x", Group: "g", State: "ready"}}})
	require.ErrorIs(t, err, ErrDenied)
	_, err = w.Compact(ctx, replay.CompactRequest{})
	require.ErrorIs(t, err, ErrDenied)
	_, err = w.Verify(ctx)
	require.ErrorIs(t, err, ErrDenied)
	_, err = w.Snapshot(ctx)
	require.ErrorIs(t, err, ErrDenied)
	_, err = w.ReadExact(ctx, []replay.Exact{{LogID: "x", Digest: "y"}})
	require.ErrorIs(t, err, ErrDenied)
	_, err = op.Compact(ctx, replay.CompactRequest{Grace: time.Millisecond})
	require.ErrorIs(t, err, replay.ErrInvalid)
	_, err = op.Tail(ctx, replay.TailRequest{Run: "none"})
	require.ErrorIs(t, err, replay.ErrNotFound)
}

// source is a backup in memory.
type source struct {
	state []byte
	recs  []replay.Record
	blobs [][]byte
}

func (s *source) State() io.Reader { return bytes.NewReader(s.state) }
func (s *source) Records(fn func([]replay.Record) error) error {
	return fn(s.recs)
}
func (s *source) Blobs(fn func([]byte) error) error {
	for _, b := range s.blobs {
		if err := fn(b); err != nil {
			return err
		}
	}
	return nil
}

// backUp reads everything of a cluster as a backup does.
func backUp(t *testing.T, ctx context.Context, cl *Client) *source {
	t.Helper()
	r, err := cl.Snapshot(ctx)
	require.NoError(t, err)
	s := &source{}
	s.state, err = io.ReadAll(r)
	require.NoError(t, err)
	require.NoError(t, r.Close())
	var logs []replay.Exact
	_, blobs, err := replay.SnapshotContents(s.State(), func(x replay.Exact, _ uint32) error {
		logs = append(logs, x)
		return nil
	})
	require.NoError(t, err)
	s.recs, err = cl.ReadExact(ctx, logs)
	require.NoError(t, err)
	for _, d := range blobs {
		b, err := cl.GetBlob(ctx, d)
		require.NoError(t, err)
		s.blobs = append(s.blobs, b)
	}
	return s
}

// TestRestoreMakesACluster: a backup becomes a node that leads, keeps the state,
// takes others in and goes on; the old token does not open it.
func TestRestoreMakesACluster(t *testing.T) {
	t.Parallel()
	old := newTestCluster(t, 1)
	ctx := testCtx(t)
	cl := old.dial("op", RoleClient)
	require.NoError(t, cl.CreateRun(ctx, testSpec("r")))
	first := trainStep(t, cl, "r")
	want, err := cl.Status(ctx, "r")
	require.NoError(t, err)
	src := backUp(t, ctx, cl)

	conf := testConfig(t, filepath.Join(t.TempDir(), "new"))
	conf.ID = "fresh"
	rep, err := Restore(ctx, conf, false, src)
	require.NoError(t, err)
	require.Equal(t, RestoreReport{Node: "fresh", Index: rep.Index, Logs: 2, Blobs: 2}, rep)
	_, err = Restore(ctx, conf, false, src)
	require.ErrorContains(t, err, "is not empty")

	c := &testCluster{t: t, dirs: []string{conf.Dir}}
	node, err := Open(ctx, testConfig(t, conf.Dir))
	require.NoError(t, err)
	c.nodes = []*Node{node}
	c.token = node.Identity().Token().Reveal()
	require.NotEqual(t, old.token, c.token)
	t.Cleanup(func() { _ = c.nodes[0].Close() })
	require.NoError(t, node.WaitReady(ctx, 1))
	require.GreaterOrEqual(t, node.store.AppliedIndex(), rep.Index)

	join := testConfig(t, filepath.Join(t.TempDir(), "second"))
	join.ID, join.Join, join.Token = "second", []string{node.Addr()}, c.token
	second, err := Open(ctx, join)
	require.NoError(t, err)
	defer func() { _ = second.Close() }()
	require.NoError(t, second.WaitReady(ctx, 2))
	c.nodes, c.dirs = append(c.nodes, second), append(c.dirs, join.Dir)

	ncl := c.dial("op", RoleClient)
	got, err := ncl.Status(ctx, "r")
	require.NoError(t, err)
	require.Equal(t, want, got)
	next := trainStep(t, ncl, "r")
	require.Equal(t, first.Version+1, next.Version)
	require.Equal(t, first.Checkpoint, next.PrevCheckpoint)
	v, err := ncl.Verify(ctx)
	require.NoError(t, err)
	require.True(t, v.OK(), "%+v", v)
	require.Len(t, v.Nodes, 2)
	// After a restart it is the same.
	require.NoError(t, ncl.Close())
	require.NoError(t, second.Close())
	require.NoError(t, c.nodes[0].Close())

	// What the backup lacks is said.
	bad := *src
	bad.recs = bad.recs[:1]
	_, err = Restore(ctx, testConfig(t, filepath.Join(t.TempDir(), "x")), true, &bad)
	require.ErrorContains(t, err, "lacks, or has damaged, 1 of 2 logs")
	bad = *src
	bad.state = bad.state[:len(bad.state)-4]
	_, err = Restore(ctx, testConfig(t, filepath.Join(t.TempDir(), "y")), true, &bad)
	require.ErrorIs(t, err, replay.ErrBadSnapshot)
}

// TestRebuildIndexOfANode: a follower whose index is broken is rebuilt while it
// is stopped, joins again by its own log, and holds everything.
func TestRebuildIndexOfANode(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 3, func(_ int, conf *Config) { conf.SnapshotEvery = 16 })
	ctx := testCtx(t)
	cl := c.dial("op", RoleClient)
	require.NoError(t, cl.CreateRun(ctx, testSpec("r")))
	for i := range 20 {
		_, err := cl.Append(ctx, []replay.Record{testRecord("r", fmt.Sprint("log", i), 400)})
		require.NoError(t, err)
	}
	f := c.follower()
	_, err := RebuildIndex(testConfig(t, c.dirs[f]))
	require.ErrorContains(t, err, "in use", "it is running")
	require.NoError(t, c.nodes[f].Close())
	require.NoError(t, os.WriteFile(filepath.Join(c.dirs[f], dirStore, "index", "MANIFEST"), []byte("x"), 0o600))
	conf := testConfig(t, c.dirs[f])
	_, err = Open(ctx, conf)
	require.Error(t, err)
	rep, err := RebuildIndex(conf)
	require.NoError(t, err)
	require.Equal(t, 20, rep.Records)
	c.restart(f)
	var v replay.VerifyResult
	eventually(t, "all nodes agree", func() bool {
		var err error
		v, err = cl.Verify(ctx)
		return err == nil && v.OK()
	})
	require.Equal(t, 20, v.Nodes[f].Logs)
	_, err = RebuildIndex(testConfig(t, t.TempDir()))
	require.ErrorContains(t, err, "is no directory of a node")
}

// TestImportBetweenClusters is idempotent, and its bytes are durable.
func TestImportBetweenClusters(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 1)
	ctx := testCtx(t)
	cl := c.dial("op", RoleClient)
	require.NoError(t, cl.CreateRun(ctx, testSpec("r")))
	recs := []replay.Record{testRecord("r", "a", 600_000), testRecord("r", "b", 700_000)}
	for i := range recs {
		recs[i].Item.Table, recs[i].Item.Group, recs[i].Item.GroupSize, recs[i].Item.Member = "train", "r/train/0", 2, uint32(i)
		recs[i].Item.MinVersion, recs[i].Item.MaxVersion = 5, 6
	}
	broken := testRecord("r", "c", 10)
	broken.Item.Size = 11
	in := replay.Import{Run: "r", Records: append(recs, broken), Policy: replay.Policy{Run: "r", Version: 6, Adapter: blob.Digest([]byte("x"))},
		Groups: []replay.ImportGroup{{Table: "train", Group: "r/train/0", State: "consumed", Size: 2, LogIDs: []string{"a", "b"}}}}
	for _, again := range []bool{false, true} {
		res, err := cl.Import(ctx, in)
		require.NoError(t, err)
		require.Equal(t, []bool{again, again, false}, []bool{res.Records[0].Duplicate, res.Records[1].Duplicate, res.Records[2].Duplicate})
		require.Contains(t, res.Records[2].Rejected, "size = 11")
		require.Equal(t, []replay.AppendResult{{Duplicate: again}}, res.Groups)
		got, err := cl.Fetch(ctx, []string{"a", "b"})
		require.NoError(t, err)
		require.Equal(t, recs, got)
	}
	gs, _, err := cl.TableGroups(ctx, "r", "train", "", 10)
	require.NoError(t, err)
	require.Equal(t, []replay.TableGroup{{Group: "r/train/0", State: "consumed", Size: 2, LogIDs: []string{"a", "b"}, TimesSampled: 1}}, gs)
}
