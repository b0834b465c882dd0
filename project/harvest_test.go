package project

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/learner"
	"github.com/skein-rl/skein/rollout"
)

// Rows are taken from the rollouts of a run that is over: the same again gives
// the same, whatever the algorithm makes of them.
func TestTrainRowsOnRollouts(t *testing.T) {
	run := t.TempDir()
	c := DefaultConfig()
	c.Run, c.Training.MaxSteps, c.Training.GroupsPerStep, c.Training.NumGenerations = "first", 1, 6, 4
	c.Rollout.MaxLen, c.Training.MaxCompletionLength, c.Eval.Tasks = 288, 192, 0
	c.Warmup.Examples, c.Warmup.Epochs = 8, 1
	_, err := RunLocal(t.Context(), c, rowsOptions(run, io.Discard))
	require.NoError(t, err)

	rows := func(algorithm string, sets ...string) (RowsSummary, error) {
		cfg, _, err := LoadRecipe("store-"+algorithm, append([]string{"data.train=[]", "data.rollouts.dir=" + run, "data.eval_split=0", "data.curriculum.column=", "training.max_steps=2"}, sets...))
		require.NoError(t, err)
		return TrainRows(t.Context(), cfg, rowsOptions(t.TempDir(), io.Discard))
	}
	dpo, err := rows(learner.DPO)
	require.NoError(t, err)
	require.Equal(t, "rollouts of first/train", dpo.Dataset)
	require.Positive(t, dpo.Data.Pairs)
	again, err := rows(learner.DPO)
	require.NoError(t, err)
	require.Equal(t, dpo.DatasetDigest, again.DatasetDigest)
	require.Equal(t, dpo.AdapterDigest, again.AdapterDigest)
	kto, err := rows(learner.KTO)
	require.NoError(t, err)
	require.GreaterOrEqual(t, kto.Data.Rows, 24)
	require.Positive(t, kto.Data.Desirable)
	sft, err := rows(learner.SFT, "data.rollouts.table="+rollout.TableDemonstrations, "data.rollouts.run="+BaseRun("first"))
	require.NoError(t, err)
	require.Equal(t, 8, sft.Data.Rows, "demonstrations need no reward")

	_, err = rows(learner.DPO, "data.rollouts.form=steps")
	require.ErrorContains(t, err, "no rows to train", "rollouts without rejected branches")
	_, err = rows(learner.DPO, "data.rollouts.run=none")
	require.ErrorContains(t, err, `there is no "none"`)
	_, _, err = LoadRecipe("store-dpo", []string{"data.rollouts.dir=x"})
	require.ErrorContains(t, err, "use one of the two")
	_, _, err = LoadRecipe("store-dpo", []string{"data.train=[]", "data.rollouts={dir: x, form: y, margin: 0}"})
	require.ErrorContains(t, err, "data.rollouts.form")
	require.ErrorContains(t, err, "data.rollouts.margin")
}
