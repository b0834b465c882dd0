package project

import (
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/learner"
)

// scrapingWriter reads the metrics and the status after a line of progress.
type scrapingWriter struct {
	t     *testing.T
	dir   string
	after string
	seen  map[string]string
	state RowsStatus       // of a training on files
	keep  *strings.Builder // everything; nil = nothing
}

func (s *scrapingWriter) Write(p []byte) (int, error) {
	if s.keep != nil {
		s.keep.Write(p)
	}
	if s.seen == nil && strings.Contains(string(p), s.after) {
		addr, err := readFirstLine(filepath.Join(s.dir, metricsAddrFile))
		require.NoError(s.t, err)
		_, s.seen = scrape(s.t, addr)
		if IsRows(s.dir) {
			s.state, err = RowsStatusOf(s.dir)
			require.NoError(s.t, err)
		}
	}
	return len(p), nil
}

// A training on files has what one on rollouts has: metrics to scrape, a status,
// and steps that can be verified from the rows.
func TestRowsRunCanBeWatchedAndVerified(t *testing.T) {
	rows, err := os.ReadFile("../testdata/recipes/pairs.jsonl")
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "pairs.jsonl")
	require.NoError(t, os.WriteFile(file, rows, 0o600))
	c := rowsConfig(t, learner.DPO, "training.max_steps=5", "training.save_steps=2", "training.eval_steps=2", "data.train="+file)
	dir := t.TempDir()
	log := slog.New(slog.DiscardHandler)

	_, err = RowsStatusOf(dir)
	require.ErrorContains(t, err, "its training has not begun")
	out := &scrapingWriter{t: t, dir: dir, after: "step    4/5"}
	sum, err := TrainRows(t.Context(), c, LocalOptions{Dir: dir, Log: log, Progress: out, Metrics: "127.0.0.1:0"})
	require.NoError(t, err)
	require.NoFileExists(t, filepath.Join(dir, metricsAddrFile))
	for name, want := range map[string]string{"skein_learner_step": "3", "skein_learner_policy_version": "3"} {
		require.Equal(t, want, out.seen[name], name)
	}
	for _, name := range []string{"skein_learner_loss", "skein_learner_grad_norm", "skein_learner_learning_rate", "skein_learner_tokens_per_second",
		"skein_learner_chosen_reward", "skein_learner_rejected_reward", "skein_learner_preference_accuracy_ratio", "skein_learner_epoch",
		`skein_learner_eval{metric="loss"}`, `skein_learner_step_seconds{part="forward"}`, `skein_learner_step_seconds{part="backward"}`,
		`skein_learner_step_seconds{part="reference"}`, `skein_learner_step_seconds{part="optimizer"}`, `skein_learner_step_seconds{part="step"}`,
		`skein_learner_metric_records_total{file="jsonl",result="dropped"}`} {
		require.Contains(t, out.seen, name)
	}
	require.True(t, out.state.Running)
	require.False(t, out.state.Finished)

	require.True(t, IsRows(dir))
	s, err := RowsStatusOf(dir)
	require.NoError(t, err)
	require.Equal(t, [2]uint64{5, 5}, [2]uint64{s.Step, s.Steps})
	require.True(t, s.Finished && !s.Running)
	require.Equal(t, []uint64{2, 4, 5}, s.Saved)
	require.Equal(t, sum.AdapterDigest, s.Adapter)
	require.Equal(t, sum.DatasetDigest, s.Dataset.Digest)
	require.Equal(t, sum.Last, s.Metrics)
	require.Contains(t, s.Eval, "eval_loss")
	require.WithinRange(t, *s.At, s.At.Add(-1), s.At.Add(1))

	for step := uint64(1); step <= 5; step++ {
		r, err := VerifyRows(t.Context(), dir, step, log)
		require.NoError(t, err)
		require.True(t, r.OK, "step %d: %s, recorded %s", step, r.AdapterRecomputed, r.AdapterRecorded)
		require.Empty(t, r.Metrics)
		require.Positive(t, r.Rows)
	}
	_, err = VerifyRows(t.Context(), dir, 6, log)
	require.ErrorContains(t, err, "it is not committed: the last saved step is 5")

	// one word of one row is another dataset
	require.NoError(t, os.WriteFile(file, []byte(strings.Replace(string(rows), "pens", "cups", 1)), 0o600))
	_, err = VerifyRows(t.Context(), dir, 3, log)
	require.ErrorIs(t, err, learner.ErrCheckpoint)
	require.ErrorContains(t, err, "dataset digest")
}

// What a dry run tells of every algorithm: the resolved configuration, what a step
// costs, and the memory it takes.
func TestPlanOfEveryAlgorithm(t *testing.T) {
	for _, algorithm := range learner.Algorithms() {
		c, _, err := Load("", []string{"training.algorithm=" + algorithm})
		if learner.DefaultConfigOf(algorithm).Offline() {
			c, err = rowsConfig(t, algorithm), nil
		}
		require.NoError(t, err, algorithm)
		p, err := MakePlan(t.Context(), c, slog.New(slog.DiscardHandler))
		require.NoError(t, err, algorithm)
		require.Positive(t, p.Steps, algorithm)
		require.Positive(t, p.StepTokens, algorithm)
		require.Positive(t, p.FLOPs, algorithm)
		require.Positive(t, p.Memory.Total(), algorithm)
		require.Positive(t, p.Host, algorithm)
		require.Equal(t, algorithm == learner.PPO, p.Checkpoint > 16*int64(p.Trained)/2 && p.Checkpoint < 16*int64(p.Trained), algorithm)
		text, err := c.YAML()
		require.NoError(t, err)
		require.Contains(t, string(text), "algorithm: "+algorithm)
		for _, part := range []string{"steps: ", "memory: ", "a step: up to ", "a checkpoint: "} {
			require.Contains(t, p.String(), part, algorithm)
		}
	}
	_, err := TrainRows(t.Context(), rowsConfig(t, learner.SFT), LocalOptions{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler), Progress: io.Discard, Metrics: "nowhere"})
	require.ErrorContains(t, err, "--metrics")
}
