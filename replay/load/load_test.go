package load_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/skein-rl/skein/cluster"
	"github.com/skein-rl/skein/replay"
	"github.com/skein-rl/skein/replay/load"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestRun: the load finds every log it appended, each once, and leaves none.
func TestRun(t *testing.T) {
	cfg := cluster.DefaultConfig(t.TempDir())
	cfg.Heartbeat = 0
	cfg.Store.MinFreeBytes, cfg.Store.GCInterval = 0, 0
	n, err := cluster.OpenLocal(cfg)
	require.NoError(t, err)
	defer func() { require.NoError(t, n.Close()) }()
	st := struct {
		replay.Store
		replay.Operator
	}{n.Store(), n.Operator()}
	o := load.DefaultOptions()
	o.Run, o.For, o.Producers, o.Bytes = "bench", 200*time.Millisecond, 2, 512
	rep, err := load.Run(t.Context(), st, o)
	require.NoError(t, err)
	require.Positive(t, rep.Append.Logs)
	require.Equal(t, rep.Append.Calls*o.Batch, rep.Append.Logs)
	require.Positive(t, rep.Sample.Logs)
	require.LessOrEqual(t, rep.Sample.Logs, rep.Append.Logs)
	require.Equal(t, rep.Sample.Logs, rep.Commit.Logs)
	require.LessOrEqual(t, rep.Append.P50Ms, rep.Append.P99Ms)
	s, err := st.Status(t.Context(), "bench")
	require.NoError(t, err)
	require.True(t, s.Finished)
	require.Equal(t, rep.Append.Logs, s.DeletedLogs)
	names, err := st.TablesWithLogs(t.Context(), "bench")
	require.NoError(t, err)
	require.Empty(t, names)

	o.Producers, o.Bytes = 0, 1
	_, err = load.Run(t.Context(), st, o)
	require.ErrorIs(t, err, replay.ErrInvalid)
	require.ErrorContains(t, err, "producers = 0")
	require.ErrorContains(t, err, "bytes = 1")
}
