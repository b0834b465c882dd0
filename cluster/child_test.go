package cluster

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/replay"
)

// The test binary run again with childEnv set is a replay node.
const (
	childEnv      = "SKEIN_CLUSTER_CHILD" // the node's directory
	childJoinEnv  = "SKEIN_CLUSTER_JOIN"
	childTokenEnv = "SKEIN_CLUSTER_TOKEN"
)

// runChild is a node until stdin ends, which it does when the parent dies.
func runChild() int {
	fail := func(err error) int {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	c := DefaultConfig(os.Getenv(childEnv))
	c.ID = filepath.Base(c.Dir)
	c.Heartbeat = 500 * time.Millisecond
	c.Store.MinFreeBytes = 0
	c.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	if j := os.Getenv(childJoinEnv); j != "" {
		c.Join, c.Token = []string{j}, os.Getenv(childTokenEnv)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	n, err := Open(ctx, c)
	if err != nil {
		return fail(err)
	}
	fmt.Println(n.Addr())
	_, _ = io.Copy(io.Discard, os.Stdin)
	if err := n.Close(); err != nil {
		return fail(err)
	}
	return 0
}

// child is a replay node in a process of its own.
type child struct {
	dir, addr string
	cmd       *exec.Cmd
	in        io.WriteCloser
}

func startChild(t *testing.T, dir, join, token string) *child {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	c := &child{dir: dir, cmd: exec.Command(exe, "-test.run=^$")}
	c.cmd.Env = append(os.Environ(), childEnv+"="+dir, childJoinEnv+"="+join, childTokenEnv+"="+token)
	var errs strings.Builder
	c.cmd.Stderr = &errs
	c.in, err = c.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := c.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		_ = c.cmd.Wait()
		t.Fatalf("child %s: %v: %s", dir, err, errs.String())
	}
	c.addr = strings.TrimSpace(line)
	t.Cleanup(func() { c.kill9() })
	return c
}

func (c *child) kill9() {
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
}

// Real processes: the leader is killed with signal 9 while producers append,
// twice, and comes back on its directory. Nothing acknowledged is lost,
// nothing is there twice.
func TestKill9OfLeaderProcess(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	kids := []*child{startChild(t, filepath.Join(base, "n0"), "", "")}
	raw, err := os.ReadFile(filepath.Join(base, "n0", fileToken))
	require.NoError(t, err)
	for _, name := range []string{"n1", "n2"} {
		kids = append(kids, startChild(t, filepath.Join(base, name), kids[0].addr, string(raw)))
	}
	tok, err := ParseToken(string(raw))
	require.NoError(t, err)
	ctx := testCtx(t)
	dir := filepath.Join(base, "w")
	ident, err := Join(ctx, JoinConfig{Addrs: []string{kids[0].addr}, Token: tok, ID: "w", Role: RoleWorker, Dir: dir})
	require.NoError(t, err)
	cl, err := Dial(ctx, []string{kids[0].addr}, ident, dir)
	require.NoError(t, err)
	defer func() { require.NoError(t, cl.Close()) }()
	status := func() ClusterStatus {
		s, err := cl.ClusterStatus(ctx)
		require.NoError(t, err)
		return s
	}
	voters := func() (n int) {
		for _, x := range status().Nodes {
			if x.Voter && x.Alive {
				n++
			}
		}
		return n
	}
	eventually(t, "three voters", func() bool { return voters() == 3 })
	require.NoError(t, cl.CreateRun(ctx, testSpec("r")))

	var mu sync.Mutex
	acked := make(map[string]replay.Record)
	var stop atomic.Bool
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop.Store(true)
	for w := range 3 {
		wg.Go(func() {
			for i := 0; !stop.Load(); i++ {
				rec := testRecord("r", fmt.Sprintf("w%d-%d", w, i), 3000)
				if _, err := cl.Append(ctx, []replay.Record{rec}); err != nil {
					t.Errorf("append: %v", err)
					return
				}
				mu.Lock()
				acked[rec.Item.LogID] = rec
				mu.Unlock()
			}
		})
	}
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(acked)
	}
	for range 2 {
		before := count()
		eventually(t, "appends", func() bool { return count() > before+30 })
		var lead string
		eventually(t, "a leader", func() bool { lead = status().Leader; return lead != "" })
		at := int(lead[1] - '0')
		kids[at].kill9()
		before = count()
		eventually(t, "appends after the kill", func() bool { return count() > before+30 })
		kids[at] = startChild(t, kids[at].dir, "", "")
		eventually(t, "all voters alive again", func() bool { return voters() == 3 })
	}
	stop.Store(true)
	wg.Wait()
	if t.Failed() {
		return
	}
	var ids []string
	for id := range acked {
		ids = append(ids, id)
	}
	got, err := cl.Fetch(ctx, ids)
	require.NoError(t, err)
	for _, r := range got {
		require.Equal(t, acked[r.Item.LogID], r)
	}
	st, err := cl.Status(ctx, "r")
	require.NoError(t, err)
	var items []replay.Item
	for cursor, more := "", true; more; more = cursor != "" {
		var page []replay.Item
		page, cursor, err = cl.Scan(ctx, "r", "audit", cursor, 1<<30)
		require.NoError(t, err)
		items = append(items, page...)
	}
	require.Len(t, items, st.Appended)
	seen := make(map[string]bool)
	for _, it := range items {
		require.False(t, seen[it.LogID])
		seen[it.LogID] = true
	}
	for _, k := range kids {
		require.NoError(t, k.in.Close()) // ends it in order
		require.NoError(t, k.cmd.Wait())
	}
}
