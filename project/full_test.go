package project

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/learner"
	"github.com/skein-rl/skein/model"
)

// A run that trains all weights publishes them, samples with them, stops, goes on
// from its checkpoint, and can be verified.
func TestRunLocalFull(t *testing.T) {
	c := DefaultConfig()
	c.Train, c.Threads = TrainFull, 1
	c.Training.MaxSteps, c.Training.GroupsPerStep, c.Training.NumGenerations, c.Training.LearningRate = 2, 2, 4, 1e-4
	c.Training.Beta, c.Training.ScaleRewards, c.Eval.Tasks = .01, "none", 0 // so that every step has a gradient
	c.Training.EntropyCoef = .01
	c.Training.MaxCompletionLength, c.Rollout.MaxLen = 64, 288
	require.NoError(t, c.Validate())
	log := slog.New(slog.DiscardHandler)
	opt := LocalOptions{Dir: filepath.Join(t.TempDir(), "run"), Log: log}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	opt.Progress = stopAt{"step   1/2", stop}
	if _, err := RunLocal(ctx, c, opt); err != nil { // else it was faster than the cancellation
		require.True(t, errors.Is(err, context.Canceled), err)
	}
	opt.Progress = io.Discard
	_, err := RunLocal(t.Context(), c, opt)
	require.NoError(t, err)

	st, err := OpenStore(t.Context(), StoreOptions{Dir: opt.Dir, Log: log})
	require.NoError(t, err)
	defer st.Close()
	m, err := OpenModel(c.Model)
	require.NoError(t, err)
	for n := uint64(1); n <= 2; n++ {
		rep, err := VerifyStep(t.Context(), st, c.Run, n, log)
		require.NoError(t, err)
		require.True(t, rep.OK)
		rec, err := st.Step(t.Context(), c.Run, n)
		require.NoError(t, err)
		blob, err := st.GetBlob(t.Context(), rec.Adapter)
		require.NoError(t, err)
		a, err := model.DecodeAdapter(blob)
		require.NoError(t, err)
		require.True(t, a.Full)
		require.NoError(t, a.Check(m.Config))
		base, err := m.Weights.Flatten(m.Config)
		require.NoError(t, err)
		require.NotEqual(t, base, a.Params)
		if n > 1 { // sampled by workers that had the weights of step 1, or before
			require.LessOrEqual(t, rec.Metrics["logprob_gap/same_version_max_abs"], 1e-4)
		}
	}
}

// Training on files leaves the whole model, which opens and is what was trained.
func TestTrainRowsFull(t *testing.T) {
	dir := t.TempDir()
	c := rowsConfig(t, learner.SFT, "train=full", "training.max_steps=3", "training.learning_rate=2e-4")
	sum, err := TrainRows(t.Context(), c, rowsOptions(dir, io.Discard))
	require.NoError(t, err)
	require.Equal(t, filepath.Join(dir, modelDir), sum.Adapter)
	require.Less(t, sum.EvalLast["eval_loss"], sum.EvalFirst["eval_loss"])
	base, err := OpenModel(c.Model)
	require.NoError(t, err)
	m, err := OpenModel(sum.Adapter)
	require.NoError(t, err)
	defer m.Close()
	a, err := model.FullOf(m)
	require.NoError(t, err)
	a.BaseDigest = base.Digest
	require.Equal(t, sum.AdapterDigest, a.Digest())
}

func TestFullConfig(t *testing.T) {
	for want, set := range map[string][]string{
		`train: "everything": use "lora" (an adapter) or "full"`:           {"train=everything"},
		"train: full: backend xla:cpu trains adapters only":                {"train=full", "backend=xla:cpu"},
		"start_adapter: a: with train: full":                               {"train=full", "start_adapter=a", "warmup.examples=0"},
		"training.lora_dropout: 0.1: with train: full":                     {"train=full", "training.lora_dropout=0.1"},
		"train: full: a reward model is an adapter with a value head":      {"train=full", "training.algorithm=reward", "data.train=x.jsonl"},
		"training.lora_dropout: 1 is outside [0, 1); use e.g. 0.05, or 0 ": {"training.lora_dropout=1"},
	} {
		_, _, err := Load("testdata/minimal.good.yml", set)
		require.ErrorContains(t, err, want)
	}
	c := DefaultConfig()
	c.Train = TrainFull
	big := &model.Model{Config: model.Config{ModelType: "llama", VocabSize: 49152, HiddenSize: 576, IntermediateSize: 1536, NumHiddenLayers: 30, NumAttentionHeads: 9, NumKeyValueHeads: 3, HeadDim: 64,
		MaxPositionEmbeddings: 2048, RMSNormEps: 1e-5, RopeTheta: 1e5, TieWordEmbeddings: true, BOSTokenID: 1, EOSTokenID: 2}}
	require.ErrorContains(t, c.checkFull(big), "has 134515008 parameters, a checkpoint of them is 2052 MiB, and the replay store takes blobs of at most 1024 MiB (67108864 parameters): set train: lora, or take a smaller model")
	c.Training = learner.DefaultSFTConfig()
	require.NoError(t, c.checkFull(big), "files have no such limit")
	big.Config.ModelType = "unheard-of"
	require.ErrorContains(t, c.checkFull(big), "the trained model could not be written")
	c.Train = TrainLoRA
	require.NoError(t, c.checkFull(big))
}
