package project

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/skein-rl/skein/learner/watch"
	"github.com/skein-rl/skein/replay"
)

// Summary is the outcome of a run: what scripts read (summary.json) and what
// the before/after table shows. Rates are shares in [0,1].
type Summary struct {
	Run     string `json:"run"`
	Model   string `json:"model"`
	Backend string `json:"backend"`
	Task    string `json:"task"`
	// Chat is how the chat template was used, with the call format that was chosen.
	Chat  ChatConfig `json:"chat"`
	Steps int        `json:"steps"`
	// RewardFirst and RewardLast are mean training rewards over the first and
	// the last Window steps: one step alone is too noisy to compare.
	RewardFirst float64 `json:"reward_first"`
	RewardLast  float64 `json:"reward_last"`
	Window      int     `json:"reward_window"`
	// HeldoutBefore and HeldoutAfter are greedy success on the held-out tasks
	// under the first and the last evaluated policy version.
	HeldoutBefore float64 `json:"heldout_before"`
	HeldoutAfter  float64 `json:"heldout_after"`
	// HeldoutBase is the base model's, for a run with a supervised warm-up, whose
	// HeldoutBefore is already the warmed-up model's.
	HeldoutBase   *float64 `json:"heldout_base,omitempty"`
	HeldoutTasks  int      `json:"heldout_tasks"`
	HeldoutFailed int      `json:"heldout_failed"` // evaluations that broke, not counted as wrong
	Seconds       float64  `json:"seconds"`
	// PeakRSSMB is the peak resident memory in MiB: of this process in a
	// single-process run, the sum over all processes in a local cluster.
	PeakRSSMB float64 `json:"peak_rss_mb"`
	// Warnings are those of the whole run, in order.
	Warnings []watch.Warning `json:"warnings"`
	StepsLog []StepPoint     `json:"steps_log"`
	Evals    []EvalPoint     `json:"evals"`
}

// StepPoint is one committed step's metrics.
type StepPoint struct {
	Step    uint64             `json:"step"`
	Version uint64             `json:"version"`
	Metrics map[string]float64 `json:"metrics"`
}

// EvalPoint is one finished evaluation.
type EvalPoint struct {
	Version uint64  `json:"version"`
	Success float64 `json:"success"`
	Reward  float64 `json:"reward"`
	Done    int     `json:"done"`
	Failed  int     `json:"failed"`
}

// rewardMetric is the name the learner gives the mean training reward.
const rewardMetric = "reward"

// Summarize reads a run's committed steps and evaluations from the store.
func Summarize(ctx context.Context, st replay.Store, run string) (Summary, error) {
	status, err := st.Status(ctx, run)
	if err != nil {
		return Summary{}, fmt.Errorf("project: reading run %s: %w", run, err)
	}
	c, err := Parse(status.Spec.Config)
	if err != nil {
		return Summary{}, fmt.Errorf("project: configuration of run %s: %w", run, err)
	}
	s := Summary{Run: run, Chat: c.Chat}
	for n := uint64(1); status.LastStep != nil && n <= status.LastStep.Step; n++ {
		rec, err := st.Step(ctx, run, n)
		if err != nil {
			return Summary{}, fmt.Errorf("project: reading step %d of run %s: %w", n, run, err)
		}
		s.StepsLog = append(s.StepsLog, StepPoint{Step: rec.Step, Version: rec.Version, Metrics: rec.Metrics})
	}
	s.Steps = len(s.StepsLog)
	for v := uint64(0); v <= status.Latest.Version; v++ {
		e, err := st.EvalStatus(ctx, run, v)
		if err != nil && !errors.Is(err, replay.ErrNotFound) {
			return Summary{}, fmt.Errorf("project: reading the evaluation of version %d of run %s: %w", v, run, err)
		}
		if e.Requested == 0 || e.Done < e.Requested {
			continue // not evaluated, or unfinished
		}
		s.Evals = append(s.Evals, EvalPoint{Version: v, Success: e.Success, Reward: e.MeanReward, Done: e.Done, Failed: e.Failed})
	}
	s.Window = max(1, min(5, s.Steps/3))
	s.RewardFirst = meanReward(s.StepsLog[:min(s.Window, s.Steps)])
	s.RewardLast = meanReward(s.StepsLog[s.Steps-min(s.Window, s.Steps):])
	if n := len(s.Evals); n > 0 {
		s.HeldoutBefore, s.HeldoutAfter = s.Evals[0].Success, s.Evals[n-1].Success
		s.HeldoutTasks, s.HeldoutFailed = s.Evals[n-1].Done, s.Evals[n-1].Failed
	}
	if e, err := st.EvalStatus(ctx, BaseRun(run), 0); err == nil && e.Requested > 0 && e.Done == e.Requested {
		s.HeldoutBase = &e.Success
	}
	return s, nil
}

// warn fills Warnings.
func (s *Summary) warn(c watch.Config) {
	history := make([]watch.Step, len(s.StepsLog))
	for i, p := range s.StepsLog {
		history[i] = watch.Step{Step: p.Step, Metrics: p.Metrics}
	}
	s.Warnings = watch.Detect(c, history)
}

func meanReward(points []StepPoint) float64 {
	sum, n := 0.0, 0
	for _, p := range points {
		if r, ok := p.Metrics[rewardMetric]; ok && !math.IsNaN(r) {
			sum, n = sum+r, n+1
		}
	}
	if n == 0 {
		return 0
	}
	return sum / float64(n)
}

// Improved says whether the run taught anything: both the training reward and
// the held-out success rose.
func (s Summary) Improved() bool {
	return s.RewardLast > s.RewardFirst && s.HeldoutAfter > s.HeldoutBefore
}

// Save writes summary.json into dir.
func (s Summary) Save(dir string) error {
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("project: encoding the summary: %w", err)
	}
	return writeFile(filepath.Join(dir, "summary.json"), append(b, '\n'))
}

// writeFile replaces path at once, so that a reader never sees half of it.
func writeFile(path string, data []byte) error {
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, data, 0o644); err != nil {
		return fmt.Errorf("project: writing %s: %w", path, err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return fmt.Errorf("project: writing %s: %w", path, err)
	}
	return nil
}

// Table is the before/after table printed at the end of a run.
func (s Summary) Table() string {
	row := func(name string, before, after float64) string {
		return fmt.Sprintf("  %-28s %8.3f %8.3f  %+8.3f\n", name, before, after, after-before)
	}
	warmup := ""
	if s.HeldoutBase != nil {
		warmup = row("held-out success of warm-up", *s.HeldoutBase, s.HeldoutBefore)
	}
	return fmt.Sprintf("  %-28s %8s %8s  %8s\n", "", "before", "after", "change") + warmup +
		row(fmt.Sprintf("held-out success (%d tasks)", s.HeldoutTasks), s.HeldoutBefore, s.HeldoutAfter) +
		row(fmt.Sprintf("training reward (%d steps)", s.Window), s.RewardFirst, s.RewardLast) +
		fmt.Sprintf("  %d steps of %s on %s (%s) in %s, peak memory %.0f MB\n", s.Steps, s.Model, s.Task, s.Backend,
			time.Duration(s.Seconds*float64(time.Second)).Round(time.Second), s.PeakRSSMB) + s.warnings()
}

// warnings are one line each.
func (s Summary) warnings() string {
	out := ""
	for _, w := range s.Warnings {
		out += fmt.Sprintf("  warning from step %d: %s\n", w.Step, w)
	}
	return out
}
