package project

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/eventlog"
	"github.com/skein-rl/skein/learner"
	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/replay"
	"github.com/skein-rl/skein/rollout"
)

// trainedReward trains a reward model on pairs of trajectories.
func trainedReward(t *testing.T) (dir, digest string) {
	t.Helper()
	dir = t.TempDir()
	sum, err := TrainRows(t.Context(), rowsConfig(t, learner.Reward, "training.max_steps=2", "training.warmup_steps=0", "data.eval_split=0"), rowsOptions(dir, io.Discard))
	require.NoError(t, err)
	return dir, sum.AdapterDigest
}

// quickRun is a run of two steps that ends in a second.
func quickRun(t *testing.T, sets ...string) Config {
	t.Helper()
	c, _, err := LoadRecipe("quickstart", append([]string{
		"run=small", "training.max_steps=2", "training.num_generations=4", "training.groups_per_step=2", "training.max_completion_length=96",
		"eval.tasks=0", "rollout.slots=8", "rollout.max_len=200", "limits.max_empty=1"}, sets...))
	require.NoError(t, err)
	return c
}

func openedStore(t *testing.T, dir string) *Store {
	t.Helper()
	st, err := OpenStore(t.Context(), StoreOptions{Dir: dir, Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	return st
}

func logsOf(t *testing.T, st replay.Store, run string) (out []*eventlog.Log) {
	t.Helper()
	items, _, err := st.Scan(t.Context(), run, "train", "", 1000)
	require.NoError(t, err)
	for _, it := range items {
		recs, err := st.Fetch(t.Context(), []string{it.LogID})
		require.NoError(t, err)
		l, err := eventlog.Decode(recs[0].Bytes)
		require.NoError(t, err)
		out = append(out, l)
	}
	return out
}

// A trained reward model is a component of a run's reward: recorded in every log,
// weighed by the learner, named by digest in the run's record, and no longer
// needed on disk: the run goes on, and its steps verify, without the folder.
func TestRewardModelIsAComponent(t *testing.T) {
	rm, digest := trainedReward(t)
	sets := []string{"training.reward_weights={task: 1, quality: 0.5}", "reward_models=[{name: quality, path: " + rm + ", of: trajectory}]"}
	dir := t.TempDir()
	log := slog.New(slog.DiscardHandler)
	opt := LocalOptions{Dir: dir, Log: log, Progress: io.Discard}
	c := quickRun(t, sets...)
	sum, err := RunLocal(t.Context(), c, opt)
	require.NoError(t, err)
	require.Equal(t, 2, sum.Steps)
	for _, s := range sum.StepsLog {
		for _, name := range []string{"rewards/task/mean", "rewards/task/std", "rewards/quality/mean", "rewards/quality/std"} {
			require.Contains(t, s.Metrics, name)
		}
		require.InDelta(t, s.Metrics["rewards/task/mean"]+.5*s.Metrics["rewards/quality/mean"], s.Metrics["reward"], 1e-9)
	}
	require.NoError(t, os.RemoveAll(rm))

	st := openedStore(t, dir)
	status, err := st.Status(t.Context(), "small")
	require.NoError(t, err)
	require.Equal(t, []string{digest}, status.Spec.Blobs)
	recorded, err := Parse(status.Spec.Config)
	require.NoError(t, err)
	require.Equal(t, digest, recorded.RewardModels[0].Digest)
	logs := logsOf(t, st, "small")
	require.GreaterOrEqual(t, len(logs), 16)
	values := map[float64]bool{}
	for _, l := range logs {
		for _, e := range l.History() {
			if e.Kind == eventlog.Reward {
				parts, ok := e.Payload["components"].(map[string]any)
				require.True(t, ok)
				quality, err := parts["quality"].(json.Number).Float64()
				require.NoError(t, err)
				values[quality] = true
				require.Equal(t, e.Payload["value"], parts[rollout.TaskComponent], "held-out success stays the task's")
			}
		}
	}
	require.Greater(t, len(values), 4)
	rep, err := VerifyStep(t.Context(), st, "small", 2, log)
	require.NoError(t, err)
	require.True(t, rep.OK)
	require.NoError(t, st.Close())

	// the same command goes on; another digest is another run
	_, err = RunLocal(t.Context(), quickRun(t, sets...), opt)
	require.NoError(t, err)
	other := quickRun(t, append(sets, "reward_models=[{name: quality, path: "+rm+", of: trajectory, digest: 'blake3:other'}]")...)
	_, err = RunLocal(t.Context(), other, opt)
	require.ErrorIs(t, err, ErrOtherConfig)
	require.ErrorContains(t, err, "reward_models[0].digest")
}

// The score is that of the trained model on what it was trained on: the rendering
// of the task and the text, and nothing else of the rollout.
func TestRewardJudgeScoresAsTrained(t *testing.T) {
	rm, digest := trainedReward(t)
	c := quickRun(t, "training.reward_weights={q: 1}", "reward_models=[{name: q, path: "+rm+"}]")
	p, err := openParts(c, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	defer p.Close()
	st := &blobStore{}
	require.NoError(t, p.storeRewardModels(t.Context(), st))
	require.Equal(t, digest, p.cfg.RewardModels[0].Digest)
	text, err := p.cfg.YAML()
	require.NoError(t, err)
	st.spec = replay.RunSpec{Run: c.Run, Config: text}
	judges, done, err := p.judges(t.Context(), st, p.log)
	require.NoError(t, err)
	defer func() { require.NoError(t, done()) }()
	task, err := p.source.Train(0)
	require.NoError(t, err)
	score := func(e rollout.Episode) float64 {
		x, err := judges[0].Score(t.Context(), task, e)
		require.NoError(t, err)
		return x
	}
	a, err := model.LoadScoreAdapter(filepath.Join(rm, adapterDir), p.model.Config)
	require.NoError(t, err)
	direct, err := learner.NewRewardModel(p.backend, p.model.Config, a, 4096)
	require.NoError(t, err)
	defer direct.Close()
	ids, written, err := rollout.EncodeDemo(p.chat, task.Tools, append(rollout.Opening(task), rollout.Message{Role: "assistant", Content: "59"}))
	require.NoError(t, err)
	start := slices.Index(written, true)
	want, err := direct.Score(t.Context(), []learner.RewardRow{{Prompt: ids[:start], Tokens: ids[start:]}})
	require.NoError(t, err)
	require.Equal(t, want[0], score(rollout.Episode{Final: "59"}))
	require.Equal(t, want[0], score(rollout.Episode{Final: "59", Malformed: 3, Truncated: true}))
	require.NotEqual(t, want[0], score(rollout.Episode{Final: "60"}))
	require.False(t, math.IsNaN(score(rollout.Episode{})), "an empty answer is judged, too")
}

// blobStore keeps blobs and one spec.
type blobStore struct {
	replay.Store
	blobs map[string][]byte
	spec  replay.RunSpec
}

func (b *blobStore) PutBlob(_ context.Context, data []byte) (string, error) {
	if b.blobs == nil {
		b.blobs = map[string][]byte{}
	}
	d := model.BlobDigest(data)
	b.blobs[d] = data
	return d, nil
}

func (b *blobStore) GetBlob(_ context.Context, digest string) ([]byte, error) {
	if data, ok := b.blobs[digest]; ok {
		return data, nil
	}
	return nil, replay.ErrNotFound
}

func (b *blobStore) Status(context.Context, string) (replay.RunStatus, error) {
	return replay.RunStatus{Spec: b.spec}, nil
}

// What cannot be used is refused before the run exists.
func TestRewardModelRefusals(t *testing.T) {
	rm, digest := trainedReward(t)
	policy := t.TempDir()
	_, err := TrainRows(t.Context(), rowsConfig(t, learner.SFT, "training.max_steps=1", "training.warmup_steps=0", "data.eval_split=0"), rowsOptions(policy, io.Discard))
	require.NoError(t, err)
	m, err := OpenModel(EmbeddedTiny)
	require.NoError(t, err)
	a, err := model.LoadScoreAdapter(filepath.Join(rm, adapterDir), m.Config)
	require.NoError(t, err)
	a.BaseDigest = "blake3:another"
	foreign := t.TempDir()
	require.NoError(t, a.Save(foreign, m.Config, "other"))
	plain, err := model.LoadAdapter(filepath.Join(policy, adapterDir), m.Config)
	require.NoError(t, err)
	st := &blobStore{}
	noHead, err := st.PutBlob(t.Context(), plain.Encode())
	require.NoError(t, err)
	for entry, want := range map[string]string{
		"path: " + foreign:                          "set model to the base it was trained over",
		"path: " + policy:                           "a reward model is what skein train reward leaves",
		"path: /nowhere":                            "/nowhere",
		"path: " + rm + ", digest: 'blake3:other'":  "has digest " + digest + ", the configuration says blake3:other",
		"digest: 'blake3:gone'":                     "the store has no such blob: give path too",
		"digest: '" + noHead + "'":                  "it has no value head",
		"path: " + rm + ", model: 'embedded:other'": "not in this binary",
	} {
		p, err := openParts(quickRun(t, "training.reward_weights={q: 1}", "reward_models=[{name: q, "+entry+"}]"), slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		err = p.storeRewardModels(t.Context(), st)
		require.ErrorContains(t, err, want, entry)
		require.ErrorContains(t, err, "reward_models[0] q: ", entry)
		require.NoError(t, p.Close())
	}
	_, _, err = LoadRecipe("store-sft", []string{"data.train=../testdata/recipes/demonstrations.jsonl", "reward_models=[{name: q, path: x}]"})
	require.ErrorContains(t, err, "sft trains on rows, which have no rollouts to score")
}

// A reward model that cannot score in time makes the rollouts failed with their
// cause; none is zero, and the run says why it ends: after a lease's wait of 10 s.
func TestRewardModelThatFailsIsRecorded(t *testing.T) {
	if os.Getenv("SKEIN_SLOW") == "" {
		t.Skip("waits for 10 s: SKEIN_SLOW=1 runs it; rollout's TestBrokenScorerFailsTheRollout has the rollout's part")
	}
	rm, _ := trainedReward(t)
	c := quickRun(t, "training.reward_weights={task: 1, quality: 1}", "reward_models=[{name: quality, path: "+rm+", timeout: 1ns}]")
	dir := t.TempDir()
	_, err := RunLocal(t.Context(), c, LocalOptions{Dir: dir, Log: slog.New(slog.DiscardHandler), Progress: io.Discard})
	require.ErrorIs(t, err, learner.ErrTooManyEmpty)
	require.ErrorContains(t, err, "reward: quality: ")
	st := openedStore(t, dir)
	defer st.Close()
	logs := logsOf(t, st, "small")
	require.NotEmpty(t, logs)
	for _, l := range logs {
		require.Equal(t, eventlog.Failed, l.Meta.Status)
		require.Contains(t, l.Meta.Cause, "reward: quality: ")
		_, scored := l.EpisodeReward()
		require.False(t, scored)
	}
}
