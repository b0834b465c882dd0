package cluster

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/skein-rl/skein/eventlog"
	"github.com/skein-rl/skein/replay"
	"github.com/skein-rl/skein/replay/blob"
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		os.Exit(runChild())
	}
	goleak.VerifyTestMain(m)
}

// patience bounds every wait of the tests; the machine may be busy.
const patience = 60 * time.Second

func testCtx(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// testLog shows the node's log when the test fails.
func testLog(t *testing.T) *slog.Logger {
	w := &testWriter{t: t}
	t.Cleanup(w.close)
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelInfo}))
}

type testWriter struct {
	mu sync.Mutex
	t  *testing.T
}

func (w *testWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.t != nil {
		w.t.Logf("%s", b)
	}
	return len(b), nil
}

func (w *testWriter) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.t = nil
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
		time.Sleep(5 * time.Millisecond) // poll
	}
}

// testConfig is a node with timeouts for tests.
func testConfig(t *testing.T, dir string) Config {
	c := DefaultConfig(dir)
	c.Heartbeat = 300 * time.Millisecond
	c.AppendTimeout = 5 * time.Second
	c.Tick = 50 * time.Millisecond
	c.Store.MinFreeBytes = 0
	c.Store.GCInterval = 0
	c.Store.SegmentBytes = 4 << 20
	c.Logger = testLog(t)
	return c
}

// testCluster is several nodes in this process.
type testCluster struct {
	t     *testing.T
	nodes []*Node
	dirs  []string
	token string
}

// newTestCluster starts n nodes and waits until all of them vote.
func newTestCluster(t *testing.T, n int, tweak ...func(i int, c *Config)) *testCluster {
	t.Helper()
	c := &testCluster{t: t}
	for i := range n {
		conf := testConfig(t, filepath.Join(t.TempDir(), fmt.Sprint("n", i)))
		conf.ID = fmt.Sprint("n", i)
		if i > 0 {
			conf.Join, conf.Token = []string{c.nodes[0].Addr()}, c.token
		}
		for _, f := range tweak {
			f(i, &conf)
		}
		node, err := Open(testCtx(t), conf)
		require.NoError(t, err)
		c.nodes, c.dirs = append(c.nodes, node), append(c.dirs, conf.Dir)
		if i == 0 {
			c.token = node.Identity().Token().Reveal()
		}
		t.Cleanup(func() { _ = c.nodes[i].Close() })
	}
	for _, node := range c.nodes {
		require.NoError(t, node.WaitReady(testCtx(t), n))
	}
	return c
}

// leader waits for a node that leads and returns its place.
func (c *testCluster) leader() int {
	c.t.Helper()
	at := -1
	eventually(c.t, "a leader", func() bool {
		for i, n := range c.nodes {
			if n.ready.Load() != 0 && n.ctx.Err() == nil {
				at = i
				return true
			}
		}
		return false
	})
	return at
}

// follower is some node that does not lead.
func (c *testCluster) follower() int { return (c.leader() + 1) % len(c.nodes) }

// restart opens a closed node again, with what the test changes.
func (c *testCluster) restart(i int, tweak ...func(*Config)) {
	c.t.Helper()
	conf := testConfig(c.t, c.dirs[i])
	for _, f := range tweak {
		f(&conf)
	}
	n, err := Open(testCtx(c.t), conf)
	require.NoError(c.t, err)
	c.nodes[i] = n
}

// dial makes a client with a certificate of its own.
func (c *testCluster) dial(id, role string) *Client {
	c.t.Helper()
	tok, err := ParseToken(c.token)
	require.NoError(c.t, err)
	var addrs []string
	for _, n := range c.nodes {
		addrs = append(addrs, n.Addr())
	}
	dir := c.t.TempDir()
	ident, err := Join(testCtx(c.t), JoinConfig{Addrs: addrs, Token: tok, ID: id, Role: role, Dir: dir})
	require.NoError(c.t, err)
	cl, err := Dial(testCtx(c.t), addrs, ident, dir)
	require.NoError(c.t, err)
	c.t.Cleanup(func() { _ = cl.Close() })
	return cl
}

// testSpec is a run with groups of two and one group a step.
func testSpec(run string) replay.RunSpec {
	return replay.RunSpec{
		Run: run, Config: []byte("x: 1\n"), GroupSize: 2, GroupsPerStep: 1, MaxStaleness: 3,
		TicketTTL: time.Minute, MaxAttempts: 3, BaseDigest: "blake3:00",
	}
}

// testRecord is a log in a table of its own, which needs no ticket.
func testRecord(run, id string, size int) replay.Record {
	b := make([]byte, size)
	_, _ = rand.Read(b)
	copy(b, id)
	return replay.Record{Bytes: b, Item: replay.Item{
		LogID: id, Run: run, Table: "audit", Group: id, GroupSize: 1, Status: uint8(eventlog.OK), Tokens: 1,
		Digest: blob.Digest(b), Size: uint32(size), Created: time.Unix(1, 0).UTC(),
	}}
}

// rollout is the log of one member of a ticket's group.
func rollout(tk replay.Ticket, member uint32, worker string) replay.Record {
	r := testRecord(tk.Run, fmt.Sprintf("%s/%d/%d/%s", tk.Group, member, tk.Attempt, worker), 500)
	r.Item.Table, r.Item.Group, r.Item.GroupSize = tk.Table, tk.Group, tk.GroupSize
	r.Item.Member, r.Item.Attempt, r.Item.Worker = member, tk.Attempt, worker
	r.Item.MinVersion, r.Item.MaxVersion = tk.Version, tk.Version
	r.Item.Reward, r.Item.HasReward = float64(member), true
	return r
}

// trainStep runs one whole step of a run with groups of two and one group a
// step: ticket, logs, lease, commit. It returns the step's record.
func trainStep(t *testing.T, s replay.Store, run string) replay.StepRecord {
	t.Helper()
	ctx := testCtx(t)
	st, err := s.Status(ctx, run)
	require.NoError(t, err)
	tks, err := s.TakeTickets(ctx, run, "w1", replay.AnyVersion, 1, time.Second)
	require.NoError(t, err)
	require.Len(t, tks, 1)
	_, err = s.Append(ctx, []replay.Record{rollout(tks[0], 0, "w1"), rollout(tks[0], 1, "w1")})
	require.NoError(t, err)
	v := st.Latest.Version
	lease, err := s.Lease(ctx, replay.LeaseRequest{Run: run, Holder: "learner", Groups: 1, LearnerVersion: v, TTL: time.Minute, Wait: time.Second})
	require.NoError(t, err)
	require.NotNil(t, lease)
	step := replay.StepRecord{Run: run, Step: v + 1, Version: v + 1, Lease: lease.ID, Metrics: map[string]float64{"loss": 0.5}}
	if st.LastStep != nil {
		step.PrevCheckpoint = st.LastStep.Checkpoint
	}
	for _, g := range lease.Groups {
		step.Groups = append(step.Groups, g.Group)
		for _, it := range g.Items {
			step.LogIDs = append(step.LogIDs, it.LogID)
		}
	}
	step.Checkpoint, err = s.PutBlob(ctx, fmt.Appendf(nil, "checkpoint %s %d", run, step.Step))
	require.NoError(t, err)
	step.Adapter, err = s.PutBlob(ctx, fmt.Appendf(nil, "adapter %s %d", run, step.Step))
	require.NoError(t, err)
	require.NoError(t, s.Commit(ctx, step))
	return step
}
