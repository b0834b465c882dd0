package main

import (
	"context"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The short form: three processes of the real binary, killed, stopped and cut
// off while clients work. The long form is make chaos.
func TestChaos(t *testing.T) {
	dir := t.TempDir()
	bin := filepath.Join(dir, "skein")
	out, err := exec.Command("go", "build", "-o", bin, "../../cmd/skein").CombinedOutput()
	require.NoError(t, err, string(out))
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	rep, err := episode(ctx, options{
		Binary: bin, Base: dir, Nodes: 3, Length: 9 * time.Second, Seed: 205, Kinds: quick, Heartbeat: 400 * time.Millisecond, Log: t.Logf,
		Load: load{Workers: 3, Learners: 1, Writers: 2, Readers: 1, Think: 50 * time.Millisecond, Patience: 6 * time.Second},
	})
	require.NoError(t, err)
	require.Empty(t, rep.Violations)
	require.True(t, rep.Clean())
	require.GreaterOrEqual(t, rep.FaultCount, 4)
	require.Greater(t, rep.AckedLogs, 100)
	require.Greater(t, rep.Checked, 50)
	require.Zero(t, rep.Unchecked)
}
