//go:build xla

package main

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/project"
)

// The whole loop on compiled programs: workers decode and the learner trains
// through PJRT, and both agree on every logprob.
func TestTrainOnXLA(t *testing.T) {
	needPlugin(t)
	var s project.Summary
	lastJSON(t, output(t, 8*time.Minute, "quickstart", "--json", "--dir", t.TempDir(), "--set", "backend=xla:cpu",
		"--set", "training.groups_per_step=4", "--set", "training.max_steps=3", "--set", "eval.every=0", "--set", "eval.tasks=8",
		"--set", "memory_limit_mb=0"), &s)
	require.Equal(t, "xla:cpu", s.Backend)
	require.Equal(t, 3, s.Steps)
	require.Zero(t, s.HeldoutFailed)
	for _, p := range s.StepsLog {
		require.Positive(t, p.Metrics["grad_norm"])
		require.LessOrEqual(t, p.Metrics["logprob_gap/same_version_max_abs"], 1e-4, "step %d", p.Step)
	}
}

func needPlugin(t *testing.T) {
	t.Helper()
	if os.Getenv("PJRT_PLUGIN_LIBRARY_PATH") == "" {
		t.Skip("PJRT_PLUGIN_LIBRARY_PATH is not set: make test-xla sets it")
	}
}

// The same with a critic: its values and their gradients come from compiled
// programs too.
func TestTrainPPOOnXLA(t *testing.T) {
	needPlugin(t)
	var s project.Summary
	lastJSON(t, output(t, 8*time.Minute, "train", "ppo", "--config", "../../recipes/store-ppo.yaml", "--json", "--dir", t.TempDir(),
		"--set", "backend=xla:cpu", "--set", "training.groups_per_step=2", "--set", "training.max_steps=2", "--set", "training.critic_warmup=0",
		"--set", "training.num_iterations=1", "--set", "training.num_mini_batches=1", "--set", "eval.every=0", "--set", "eval.tasks=8", "--set", "memory_limit_mb=0"), &s)
	require.Equal(t, "xla:cpu", s.Backend)
	require.Equal(t, 2, s.Steps)
	for _, p := range s.StepsLog {
		require.Positive(t, p.Metrics["grad_norm"])
		require.Positive(t, p.Metrics["critic/grad_norm"])
		require.LessOrEqual(t, p.Metrics["logprob_gap/same_version_max_abs"], 1e-4, "step %d", p.Step)
	}
	require.NotZero(t, s.StepsLog[1].Metrics["value/mean"])
}
