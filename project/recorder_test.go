package project

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/internal/spread"
	"github.com/skein-rl/skein/internal/tfevents"
	"github.com/skein-rl/skein/learner"
	"github.com/skein-rl/skein/learner/watch"
	"github.com/skein-rl/skein/replay"
)

// pastSteps is a store of which only Step is asked.
type pastSteps struct {
	replay.Store
	steps []replay.StepRecord
	asked int
}

func (p *pastSteps) Step(_ context.Context, _ string, n uint64) (replay.StepRecord, error) {
	p.asked++
	if n == 0 || n > uint64(len(p.steps)) {
		return replay.StepRecord{}, replay.ErrNotFound
	}
	return p.steps[n-1], nil
}

func madeStep(n uint64, kl float64) replay.StepRecord {
	return replay.StepRecord{Step: n, Version: n, Committed: time.Unix(1700000000+int64(n), 0), Metrics: map[string]float64{"reward": .5, "kl": kl}}
}

func readLines(t *testing.T, dir string) (steps []uint64, warned []string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, metricsFile))
	require.NoError(t, err)
	for line := range bytes.Lines(b) {
		var l stepLineJSON
		require.NoError(t, json.Unmarshal(line, &l))
		steps = append(steps, l.Step)
		for _, w := range l.Warnings {
			warned = append(warned, fmt.Sprint(w.Step, w.Kind))
		}
	}
	return steps, warned
}

func readEvents(t *testing.T, dir string) (events []tfevents.Event) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, tensorboardDir, "*tfevents*"))
	require.NoError(t, err)
	for _, name := range names {
		f, err := os.Open(name)
		require.NoError(t, err)
		require.NoError(t, tfevents.Decode(f, func(e tfevents.Event) error { events = append(events, e); return nil }))
		require.NoError(t, f.Close())
	}
	return events
}

// A learner that was killed after a commit and goes on: every step is in the
// files once, every warning is given once.
func TestRecorderAcrossLives(t *testing.T) {
	dir := t.TempDir()
	var log bytes.Buffer
	life := func(start uint64, st *pastSteps, steps ...replay.StepRecord) {
		r := newRecorder(defaultWatch(), dir, "r", slog.New(slog.NewTextHandler(&log, nil)))
		h := r.hooks(context.Background(), st, learner.Hooks{})
		h.OnStart(start, start, start > 0)
		for _, s := range steps {
			h.OnStep(s, learner.StepResult{Histograms: map[string]spread.Histogram{"entropy": spread.Of([]float64{1, 2}).Histogram(2)}}, nil)
		}
		r.Close()
	}
	var all []replay.StepRecord
	for n := uint64(1); n <= 12; n++ {
		kl := .1
		if n >= 5 {
			kl = 3
		}
		all = append(all, madeStep(n, kl))
	}
	life(0, &pastSteps{}, all[:7]...)
	require.Equal(t, 1, strings.Count(log.String(), "warning=kl_explosion"))
	// step 8 was committed, but its life ended before it was written; and the file
	// ends in half a line
	f, err := os.OpenFile(filepath.Join(dir, metricsFile), os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteString(`{"step":8,"metr`)
	require.NoError(t, errors.Join(err, f.Close()))
	life(8, &pastSteps{steps: all[:8]}, all[8:]...)

	steps, warned := readLines(t, dir)
	require.Equal(t, []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, steps)
	require.Equal(t, []string{"5kl_explosion"}, warned)
	require.Equal(t, 1, strings.Count(log.String(), "warning=kl_explosion"), log.String())
	events := readEvents(t, dir)
	require.Len(t, events, 12)
	for i, e := range events {
		require.Equal(t, int64(i+1), e.Step)
		require.Equal(t, .5, e.Scalars["reward"])
		require.Equal(t, i+1 >= 5, e.Scalars["warnings/kl_explosion"] == 1, "step %d", i+1)
		require.Equal(t, all[i].Committed.Unix(), e.Wall.Unix())
		if i != 7 {
			require.Equal(t, []float64{1, 1}, e.Histograms["entropy"].Counts)
		}
	}
}

func TestRecorderReadsABoundedPast(t *testing.T) {
	st := &pastSteps{}
	for n := uint64(1); n <= 3*catchUp; n++ {
		st.steps = append(st.steps, madeStep(n, .1))
	}
	c := defaultWatch()
	r := newRecorder(c, t.TempDir(), "r", slog.New(slog.DiscardHandler))
	r.resume(context.Background(), st, 3*catchUp)
	r.Close()
	require.Equal(t, catchUp+c.Baseline, st.asked)
}

// Nothing about the folder can reach training.
func TestRecorderWithoutAFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(dir, nil, 0o600))
	var log bytes.Buffer
	r := newRecorder(defaultWatch(), dir, "r", slog.New(slog.NewTextHandler(&log, nil)))
	for n := range uint64(5) {
		r.step(madeStep(n+1, .1), nil)
	}
	r.Close()
	for _, a := range r.appenders() {
		require.Positive(t, a.failed.Load())
		require.Equal(t, uint64(5), a.dropped.Load())
	}
	require.Equal(t, 2, strings.Count(log.String(), "tried again"), "once a file")
}

func TestNoRecorder(t *testing.T) {
	var r *recorder
	require.Nil(t, r.hooks(context.Background(), nil, learner.Hooks{}).OnStep)
	r.Close()
	c := WatchConfig{ReportTo: nil, Config: watch.DefaultConfig()}
	r = newRecorder(c, "/nowhere", "r", slog.New(slog.DiscardHandler))
	require.Empty(t, r.appenders())
	r.Close()
	c.ReportTo = []string{"wandb"}
	require.ErrorContains(t, c.Validate(), `report_to: unknown "wandb"`)
}

func TestWarningsAndRecordsAreMetrics(t *testing.T) {
	m := startMetrics(t)
	r := newRecorder(defaultWatch(), t.TempDir(), "r", slog.New(slog.DiscardHandler))
	done := m.recording(r)
	h := m.learning(r.hooks(context.Background(), &pastSteps{}, learner.Hooks{}))
	for n := uint64(1); n <= 4; n++ {
		s := madeStep(n, 5)
		for k, v := range map[string]float64{"logprob_gap/p99": .25, "engine_ratio/p01": .5, "time/forward_s": 2, "time/tokens_per_second": 100, "rewards/format/mean": .75} {
			s.Metrics[k] = v
		}
		h.OnStep(s, learner.StepResult{}, nil)
	}
	r.Close()
	text, samples := scrape(t, m.addr)
	checkNames(t, text)
	for name, want := range map[string]string{
		`skein_learner_warning{kind="kl_explosion"}`: "1", `skein_learner_warning{kind="entropy_collapse"}`: "0",
		`skein_learner_logprob_gap_percentile{percentile="99"}`: "0.25", `skein_learner_engine_ratio_percentile{percentile="01"}`: "0.5",
		`skein_learner_step_seconds{part="forward"}`: "2", `skein_learner_tokens_per_second`: "100",
		`skein_learner_reward_component{component="format"}`:                      "0.75",
		`skein_learner_metric_records_total{file="jsonl",result="written"}`:       "4",
		`skein_learner_metric_records_total{file="tensorboard",result="dropped"}`: "0",
	} {
		require.Equal(t, want, samples[name], name)
	}
	done()
	_, samples = scrape(t, m.addr)
	require.NotContains(t, samples, `skein_learner_warning{kind="kl_explosion"}`)
}

func TestSummaryAndReportWarn(t *testing.T) {
	s := Summary{Run: "r"}
	for n := uint64(1); n <= 6; n++ {
		s.StepsLog = append(s.StepsLog, StepPoint{Step: n, Version: n, Metrics: madeStep(n, 2).Metrics})
	}
	s.warn(watch.DefaultConfig())
	require.Len(t, s.Warnings, 1)
	require.Equal(t, uint64(3), s.Warnings[0].Step)
	require.Contains(t, s.Table(), "warning from step 3: kl_explosion")
	dir := t.TempDir()
	require.NoError(t, WriteReport(dir, s, nil))
	require.NoError(t, s.Save(dir))
	for name, want := range map[string]string{"report.html": "nats a token away from the reference", "summary.json": `"kind": "kl_explosion"`} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		require.Contains(t, string(b), want)
	}
}

// Training on files: steps and the evaluations after them, once each, across
// lives; a life that goes back to its checkpoint computes lines again.
func TestRowsLogAcrossLives(t *testing.T) {
	dir := t.TempDir()
	log := slog.New(slog.DiscardHandler)
	life := func(from, to uint64) {
		l := openRowsLog(defaultWatch(), dir, from, log)
		if from == 0 {
			l.eval(learner.OfflineEval{Metrics: map[string]float64{"eval_loss": 9}})
		}
		for n := from + 1; n <= to; n++ {
			l.step(learner.OfflineStep{Step: n, Metrics: map[string]float64{"loss": float64(n)}}, "blake3:a")
			if n%2 == 0 {
				l.eval(learner.OfflineEval{Step: n, Metrics: map[string]float64{"eval_loss": float64(n)}})
			}
		}
		l.close()
		require.Zero(t, l.jsonl.failed.Load())
	}
	life(0, 5)
	life(4, 6) // its last checkpoint was of step 4
	points, err := readRowsLog(filepath.Join(dir, metricsFile))
	require.NoError(t, err)
	var got []string
	for _, p := range points {
		got = append(got, fmt.Sprint(p.order()))
	}
	want := "1 2 4 5 6 8 9 10 12 13"
	require.Equal(t, want, strings.Join(got, " "))
	got = nil
	for _, e := range readEvents(t, dir) {
		got = append(got, fmt.Sprint(rowsPoint{Step: uint64(e.Step), Metrics: e.Scalars}.order()))
	}
	require.Equal(t, want, strings.Join(got, " "))
}
