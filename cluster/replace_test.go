package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/replay"
)

// TestReplaceUnderLoad replaces the leader of a group while logs are appended,
// then moves the data of one to another folder. Nothing acknowledged is lost.
func TestReplaceUnderLoad(t *testing.T) {
	c := newTestCluster(t, 3)
	cl := c.dial("w", RoleClient)
	ctx := testCtx(t)
	require.NoError(t, cl.CreateRun(ctx, testSpec("r")))
	st, err := cl.ClusterStatus(ctx)
	require.NoError(t, err)
	why, err := st.mayReplace("n0", "n3", st.Commit)
	require.NoError(t, err)
	require.Contains(t, why, "has not joined")
	var wg sync.WaitGroup
	var acked []string
	stop := make(chan struct{})
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			rec := testRecord("r", fmt.Sprint("log", i), 1000)
			if _, err := cl.Append(ctx, []replay.Record{rec}); err != nil {
				t.Errorf("append: %v", err)
				return
			}
			acked = append(acked, rec.Item.LogID)
		}
	})
	at := c.leader()
	old := c.nodes[at].ID()
	conf := testConfig(t, filepath.Join(t.TempDir(), "n3"))
	conf.ID, conf.Join, conf.Token = "n3", []string{c.nodes[1].Addr()}, c.token
	n, err := Open(ctx, conf)
	require.NoError(t, err)
	c.nodes, c.dirs = append(c.nodes, n), append(c.dirs, conf.Dir)
	t.Cleanup(func() { _ = n.Close() })
	require.NoError(t, cl.ReplaceNode(ctx, old, "n3", func(s string) { t.Log(s) }))
	require.NoError(t, c.nodes[at].Close())
	require.ErrorIs(t, cl.ReplaceNode(ctx, old, "n3", nil), replay.ErrNotFound)
	require.ErrorIs(t, cl.ReplaceNode(ctx, "n3", "n3", nil), replay.ErrInvalid)
	close(stop)
	wg.Wait()

	// A node's data moves to another disk: stop, move the folder, start.
	require.NoError(t, c.nodes[3].Close())
	moved := filepath.Join(t.TempDir(), "elsewhere")
	require.NoError(t, os.Rename(c.dirs[3], moved))
	c.dirs[3] = moved
	c.restart(3)
	t.Cleanup(func() { _ = c.nodes[3].Close() })
	require.NoError(t, c.nodes[3].WaitReady(ctx, 3))

	require.NotEmpty(t, acked)
	eventually(t, "every log on every node", func() bool {
		nodes, err := cl.Replicas(ctx, acked)
		if err != nil || len(nodes) != 3 {
			return false
		}
		for _, n := range nodes {
			for _, holds := range n.Holds {
				if !holds || n.Err != "" {
					return false
				}
			}
		}
		return true
	})
	_, err = cl.Replicas(ctx, []string{"nobody's"})
	require.ErrorIs(t, err, replay.ErrNotFound)
}
