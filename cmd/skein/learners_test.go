package main

import (
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/project"
	"github.com/skein-rl/skein/replay"
)

// Three learner processes share every step's micro-batches and make the very
// parameters that one process makes, while one of them is killed with a
// micro-batch in its hands and later the leading one in the middle of a step.
func TestLearnersHelpEachOtherAndSurviveKilling(t *testing.T) {
	learnersHelp(t, "--config", "../../recipes/demo-tiny.yaml")
}

// The same with a critic, whose values and gradients are shared too.
func TestLearnersHelpPPOAndSurviveKilling(t *testing.T) {
	if os.Getenv("SKEIN_SLOW") == "" {
		t.Skip("SKEIN_SLOW is not set: the same code with GRPO is tested; learner's tests have the critic in one process")
	}
	learnersHelp(t, "--config", "../../recipes/demo-tiny.yaml", "--set", "training.algorithm=ppo", "--set", "training.num_generations=4",
		"--set", "training.num_iterations=2", "--set", "training.num_mini_batches=2")
}

func learnersHelp(t *testing.T, config ...string) {
	config = append(config, "--set", "training.groups_per_step=4", "--set", "training.max_steps=6",
		"--set", "eval.every=0", "--set", "eval.tasks=8",
		"--set", "training.max_staleness=0", // what is sampled does not depend on timing
		"--set", "training.token_budget=300")
	alone := t.TempDir()
	output(t, 4*time.Minute, append([]string{"train", "--dir", alone}, config...)...)

	dir := t.TempDir()
	cmd := skein(t, 8*time.Minute, append([]string{"up", "--dir", dir, "--replay", "1", "--workers", "1", "--learners", "3"}, config...)...)
	var stderr lockedBuffer
	cmd.Stderr = &stderr
	require.NoError(t, cmd.Start())
	defer func() { _ = cmd.Process.Signal(syscall.SIGTERM); _ = cmd.Wait() }()
	step := func(n int) {
		require.Eventually(t, func() bool { return strings.Contains(stderr.String(), stepLine(n)) }, 3*time.Minute, pollEvery, "no step %d:\n%s", n, stderr.String())
	}
	step(1)
	st, err := project.OpenStore(t.Context(), project.StoreOptions{Dir: dir, Log: (&globals{}).logger()})
	require.NoError(t, err)
	defer st.Close()
	training := func() bool {
		s, err := st.Status(t.Context(), "demo")
		return err == nil && s.LeasedGroups > 0
	}
	helped := func(n uint64) float64 {
		var rec replay.StepRecord
		require.Eventually(t, func() bool { rec, err = st.Step(t.Context(), "demo", n); return err == nil }, time.Minute, pollEvery)
		return rec.Metrics["time/helped_micro_batches"]
	}
	// By now all three may be there, or join in a later step.
	at := uint64(1)
	for ; helped(at) == 0; at++ {
		require.Less(t, at, uint64(4), "no learner helped")
		step(int(at) + 1)
	}
	// A helper that stands still keeps the micro-batch it was dealt; then it dies.
	victim := childPID(t, cmd.Process.Pid, "learner-1")
	require.NoError(t, syscall.Kill(victim, syscall.SIGSTOP))
	require.Eventually(t, training, time.Minute, pollEvery)
	require.NoError(t, syscall.Kill(victim, syscall.SIGKILL))
	step(int(at) + 2)
	// The leader dies with a lease; started again, it gets the groups back.
	require.Eventually(t, training, time.Minute, time.Millisecond)
	require.NoError(t, syscall.Kill(childPID(t, cmd.Process.Pid, "learner-0"), syscall.SIGKILL))
	require.NoError(t, cmd.Wait(), stderr.String())

	require.Equal(t, adapters(t, alone, "demo"), adapters(t, dir, "demo"))
	checkExactlyOnce(t, dir, "demo")
	require.Contains(t, output(t, time.Minute, "verify", "step", "2", "--dir", dir), "equal, bit for bit")
}
