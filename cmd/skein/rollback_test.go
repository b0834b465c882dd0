package main

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/project"
)

// A run at work is rolled back by one command: the workers take up the old
// adapter, the learner goes on from its checkpoint, and no log is trained twice
// or from a version that was left. The run has every policy for stragglers.
func TestRollbackOfARunAtWork(t *testing.T) {
	dir := t.TempDir()
	cmd := skein(t, 4*time.Minute, "up", "--config", "../../recipes/demo-tiny.yaml", "--dir", dir, "--replay", "1", "--workers", "2",
		"--set", "training.groups_per_step=4", "--set", "training.max_steps=9", "--set", "eval.every=0", "--set", "eval.tasks=8",
		"--set", "rollout.oversample=2", "--set", "rollout.duplicate_after=1s", "--set", "rollout.on_timeout=drop")
	var stderr lockedBuffer
	cmd.Stderr = &stderr
	require.NoError(t, cmd.Start())
	defer func() { _ = cmd.Process.Signal(syscall.SIGTERM); _ = cmd.Wait() }()
	require.Eventually(t, func() bool { return strings.Contains(stderr.String(), stepLine(3)) }, 2*time.Minute, pollEvery, "%v", &stderr)
	var got struct {
		Step, To uint64
		Version  uint64 `json:"policy_version"`
		Adapter  string
	}
	lastJSON(t, output(t, time.Minute, "rollback", "1", "--dir", dir, "--json"), &got)
	require.NoError(t, cmd.Wait(), stderr.String())

	checkExactlyOnce(t, dir, "demo")
	all := adapters(t, dir, "demo")
	require.Len(t, all, 9)
	require.Equal(t, all[0], all[got.Step-1], "step 1's adapter again")
	require.Equal(t, all[0], got.Adapter)
	require.Contains(t, output(t, time.Minute, "verify", "step", "5", "--dir", dir), "equal, bit for bit")
	st, err := project.OpenStore(t.Context(), project.StoreOptions{Dir: dir, Log: (&globals{}).logger()})
	require.NoError(t, err)
	defer st.Close()
	for n := got.Step + 1; n <= 9; n++ {
		rec, err := st.Step(t.Context(), "demo", n)
		require.NoError(t, err)
		recs, err := st.Fetch(t.Context(), rec.LogIDs)
		require.NoError(t, err)
		for _, r := range recs {
			require.GreaterOrEqual(t, r.Item.MinVersion, got.Version, "step %d trained a log of a version that was left", n)
			require.Equal(t, uint32(10), r.Item.GroupSize)
		}
	}
	last, err := st.Step(t.Context(), "demo", 9)
	require.NoError(t, err)
	byGroup := map[string]int{}
	for _, id := range last.LogIDs {
		recs, err := st.Fetch(t.Context(), []string{id})
		require.NoError(t, err)
		byGroup[recs[0].Item.Group]++
	}
	for g, n := range byGroup {
		require.LessOrEqual(t, n, 8, "group %s has more than num_generations", g)
	}
}
