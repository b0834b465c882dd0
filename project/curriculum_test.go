package project

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/replay"
	"github.com/skein-rl/skein/rollout/task"
)

// A run with a curriculum rolls out tasks of its pool, the easiest first while the
// phase says so, and one that was stopped goes on with what was measured.
func TestRunWithCurriculum(t *testing.T) {
	sets := []string{"training.max_steps=12", "task.curriculum={tasks: 40, order: difficulty, candidates: 2, phases: [{at: 0.5, share: 0.1}, {at: 1, share: 1}]}"}
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	_, err := RunLocal(ctx, quickRun(t, sets...), LocalOptions{Dir: dir, Log: slog.New(slog.DiscardHandler), Progress: stopper{"step ", cancel}})
	if err != nil { // else it was done before the first look at its progress
		require.ErrorIs(t, err, context.Canceled)
	}
	sum, err := RunLocal(t.Context(), quickRun(t, sets...), LocalOptions{Dir: dir, Log: slog.New(slog.DiscardHandler), Progress: io.Discard})
	require.NoError(t, err)
	require.Equal(t, 12, sum.Steps)

	src := task.NewStore(0)
	pool, err := task.Pool(src, 40, true)
	require.NoError(t, err)
	easy := map[string]bool{}
	for i := range uint64(4) {
		k, err := pool.Train(i)
		require.NoError(t, err)
		easy[k.ID] = true
	}
	// another curriculum is another run
	other := quickRun(t, append(sets[:1:1], "task.curriculum={tasks: 41}")...)
	_, err = RunLocal(t.Context(), other, LocalOptions{Dir: dir, Log: slog.New(slog.DiscardHandler), Progress: io.Discard})
	require.ErrorIs(t, err, ErrOtherConfig)

	st := openedStore(t, dir)
	defer st.Close()
	byGroup := map[string]string{}
	items, _, err := st.Scan(t.Context(), "small", "train", "", 1000)
	require.NoError(t, err)
	for _, it := range items {
		if had, ok := byGroup[it.Group]; ok {
			require.Equal(t, had, it.Task, "one task a group")
		}
		byGroup[it.Group] = it.Task
	}
	for n := range 12 { // handed out before the sixth step
		require.True(t, easy[byGroup[fmt.Sprintf("small/train/%d", n)]], "group %d", n)
	}
}

func TestCurriculumOfAConfig(t *testing.T) {
	require.Nil(t, DefaultConfig().curriculum(), "off by default")
	c, _, err := Load("testdata/rewards.good.yml", nil)
	require.NoError(t, err)
	require.Equal(t, &replay.Curriculum{Tasks: 200, Target: 500_000, Candidates: 4, Phases: []replay.CurriculumPhase{{Step: 20, Share: 300_000}, {Step: 70, Share: 1_000_000}}}, c.curriculum())
	_, _, err = LoadRecipe("store-sft", []string{"data.train=../testdata/recipes/demonstrations.jsonl", "task.curriculum={tasks: 3}"})
	require.ErrorContains(t, err, "use data.curriculum")
}
