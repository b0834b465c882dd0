package cluster

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/internal/clock"
	"github.com/skein-rl/skein/replay"
)

// Commands carry the group's time: a wall clock in one of them would end leases
// early.
func TestCommandsCarryGroupTime(t *testing.T) {
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	require.Greater(t, len(files), 20)
	for _, f := range files {
		if strings.HasSuffix(f, "_test.go") {
			continue
		}
		b, err := os.ReadFile(f)
		require.NoError(t, err)
		require.NotContains(t, string(b), "Cmd{Now: time.Now()", f)
	}
}

// The leader's wall clock jumps ahead by days, another one's too, and they take
// turns in leading: a lease goes on for the time that was granted, and then
// ends.
func TestClockJumpEndsNoLease(t *testing.T) {
	file := filepath.Join(t.TempDir(), "offset")
	defer clock.SetOffsetFile(file)()
	c := newTestCluster(t, 3)
	ctx := testCtx(t)
	w, l := c.dial("w1", RoleWorker), c.dial("l1", RoleLearner)
	require.NoError(t, l.CreateRun(ctx, testSpec("r")))
	tks, err := w.TakeTickets(ctx, "r", "w1", replay.AnyVersion, 1, time.Second)
	require.NoError(t, err)
	require.Len(t, tks, 1)
	_, err = w.Append(ctx, []replay.Record{rollout(tks[0], 0, "w1"), rollout(tks[0], 1, "w1")})
	require.NoError(t, err)
	lease, err := l.Lease(ctx, replay.LeaseRequest{Run: "r", Holder: "l1", Groups: 1, TTL: 10 * time.Minute, Wait: time.Second})
	require.NoError(t, err)
	require.NotNil(t, lease)
	require.WithinDuration(t, time.Now().Add(10*time.Minute), lease.Expires, time.Minute)

	require.NoError(t, os.WriteFile(file, []byte("200000000000000"), 0o600)) // 55 hours
	eventually(t, "the clock is read again", func() bool { return time.Until(clock.Wall()) > 50*time.Hour })
	require.NoError(t, l.Extend(ctx, "r", lease.ID, 10*time.Minute))
	other, err := l.Lease(ctx, replay.LeaseRequest{Run: "r", Holder: "l2", Groups: 1, TTL: time.Minute})
	require.NoError(t, err)
	require.Nil(t, other, "held")

	lead := c.leader()
	require.NoError(t, c.nodes[lead].Close())
	require.NoError(t, l.Extend(ctx, "r", lease.ID, 10*time.Minute), "the next leader goes on with the time")
	c.restart(lead)
	next := c.leader()
	require.NoError(t, c.nodes[lead].WaitReady(ctx, 3))
	require.NoError(t, c.nodes[next].Close())
	require.NoError(t, l.Extend(ctx, "r", lease.ID, 10*time.Minute), "so does one that has just started")
	require.WithinDuration(t, time.Now(), c.nodes[c.leader()].now(), time.Minute)

	require.NoError(t, l.Extend(ctx, "r", lease.ID, 50*time.Millisecond))
	eventually(t, "the lease to end", func() bool {
		other, err = l.Lease(ctx, replay.LeaseRequest{Run: "r", Holder: "l2", Groups: 1, TTL: time.Minute, Wait: time.Second})
		require.NoError(t, err)
		return other != nil
	})
}
