package project

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/learner"
	"github.com/skein-rl/skein/model"
)

// ppoRun is two small steps of ppo on the embedded model.
func ppoRun() Config {
	c := DefaultConfig()
	c.Training = learner.DefaultPPOConfig()
	c.Training.MaxSteps, c.Training.GroupsPerStep, c.Training.NumGenerations, c.Training.NumMiniBatches, c.Training.NumIterations = 2, 2, 2, 2, 1
	c.Training.LearningRate, c.Eval.Tasks, c.Threads = 1e-4, 0, 1
	c.Training.MaxCompletionLength, c.Rollout.MaxLen = 64, 288
	c.Critic.LoRA = &model.LoRAConfig{Rank: 2, Alpha: 4, Targets: []string{"q_proj", "down_proj"}}
	return c
}

// stopAt cancels a run once it prints a line with the given words.
type stopAt struct {
	words string
	stop  context.CancelFunc
}

func (s stopAt) Write(p []byte) (int, error) {
	if strings.Contains(string(p), s.words) {
		s.stop()
	}
	return len(p), nil
}

// A run with a critic stops, goes on from its checkpoint, and can be verified.
func TestRunLocalPPO(t *testing.T) {
	c := ppoRun()
	require.NoError(t, c.Validate())
	log := slog.New(slog.DiscardHandler)
	opt := LocalOptions{Dir: filepath.Join(t.TempDir(), "run"), Log: log}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	opt.Progress = stopAt{"step   1/2", stop}
	sum, err := RunLocal(ctx, c, opt)
	if err != nil { // else it was faster than the cancellation
		require.True(t, errors.Is(err, context.Canceled), err)
	}
	require.GreaterOrEqual(t, sum.Steps, 1)
	opt.Progress = io.Discard
	_, err = RunLocal(t.Context(), c, opt)
	require.NoError(t, err)

	st, err := OpenStore(t.Context(), StoreOptions{Dir: opt.Dir, Log: log})
	require.NoError(t, err)
	defer st.Close()
	for n := uint64(1); n <= 2; n++ {
		rep, err := VerifyStep(t.Context(), st, c.Run, n, log)
		require.NoError(t, err)
		require.True(t, rep.OK)
		require.Equal(t, rep.CheckpointRecorded, rep.CheckpointRecomputed)
		require.NotNil(t, rep.Critic)
	}
}

// PPO makes the embedded model better: the recipe's first steps (SKEIN_SLOW=1,
// about two minutes on two idle cores).
func TestPPOImprovesTheTinyModel(t *testing.T) {
	if os.Getenv("SKEIN_SLOW") != "1" {
		t.Skip("SKEIN_SLOW=1 trains for minutes")
	}
	c, _, err := Load("../recipes/store-ppo.yaml", []string{"training.max_steps=16", "eval.every=16", "eval.tasks=128"})
	require.NoError(t, err)
	sum, err := RunLocal(t.Context(), c, LocalOptions{Dir: filepath.Join(t.TempDir(), "run"), Log: slog.New(slog.DiscardHandler), Progress: io.Discard})
	require.NoError(t, err)
	require.Greater(t, sum.HeldoutAfter, sum.HeldoutBefore+.1)
}

func TestCriticConfig(t *testing.T) {
	c := ppoRun()
	p, err := MakePlan(t.Context(), c, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	c.Training, c.Critic = learner.DefaultConfig(), CriticConfig{}
	q, err := MakePlan(t.Context(), c, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	require.Greater(t, p.Trained, q.Trained)
	require.Greater(t, p.Checkpoint, q.Checkpoint)

	c.Critic.StartAdapter = "x"
	require.ErrorContains(t, c.Validate(), "only ppo has a critic")
	c = ppoRun()
	c.Critic.LoRA.Rank = 0
	require.ErrorContains(t, c.Validate(), "critic.lora")

	cfg, notes, err := Load("../recipes/store-ppo.yaml", []string{"training.num_ppo_epochs=3"})
	require.NoError(t, err)
	require.Len(t, notes, 1)
	require.Equal(t, 3, cfg.Training.NumIterations)
	require.Equal(t, "k1", cfg.Training.KLEstimator, "ppo's defaults")
	require.Equal(t, 8, cfg.Critic.LoRA.Rank)
}
