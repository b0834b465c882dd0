package project

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/skein-rl/skein/learner/watch"
	"github.com/skein-rl/skein/replay"
)

// health is one line about the nodes of a run, or "" in a single process.
type health func(ctx context.Context) string

// follow prints a line for every committed step, and every quiet interval a
// line about what the run is waiting for, until ctx ends; then it tells what is
// new since the last look. It only reads, so it can never stop training.
func follow(ctx context.Context, st replay.Store, c Config, out io.Writer, nodes health, preparing func() string) {
	const poll, quiet = 500 * time.Millisecond, 10 * time.Second
	tick := time.NewTicker(poll)
	defer tick.Stop()
	w := watcher{detector: watch.NewDetector(c.Watch.Config)}
	run, maxSteps := c.Run, c.Training.MaxSteps
	spoke := time.Now()
	for {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
			defer cancel()
			lines, _ := w.poll(last, st, run, maxSteps)
			for _, l := range lines {
				fmt.Fprintln(out, l)
			}
			return
		case <-tick.C:
		}
		call, cancel := context.WithTimeout(ctx, 5*time.Second)
		lines, idle := w.poll(call, st, run, maxSteps)
		if len(lines) > 0 || time.Since(spoke) > quiet {
			tail := ""
			if nodes != nil {
				tail = nodes(call)
			}
			if len(lines) == 0 {
				if w.missing && preparing != nil {
					idle = "preparing the run: " + preparing()
				}
				lines = []string{idle}
			}
			for _, l := range lines {
				fmt.Fprintln(out, strings.TrimRight(l+tail, " "))
			}
			spoke = time.Now()
		}
		cancel()
	}
}

// watcher remembers what was already told.
type watcher struct {
	step    uint64
	heldout map[uint64]bool
	success string
	// detector sees every step told.
	detector *watch.Detector
	missing  bool // the run does not exist yet
}

// poll returns lines for news, and a line for when there is none.
func (w *watcher) poll(ctx context.Context, st replay.Store, run string, maxSteps int) (news []string, idle string) {
	status, err := st.Status(ctx, run)
	w.missing = errors.Is(err, replay.ErrNotFound)
	if err != nil {
		return nil, fmt.Sprintf("waiting for the run: %v", err)
	}
	if w.heldout == nil {
		w.heldout, w.success = map[uint64]bool{}, "-"
	}
	evaluating := ""
	for v := uint64(0); v <= status.Latest.Version; v++ {
		if w.heldout[v] {
			continue
		}
		e, err := st.EvalStatus(ctx, run, v)
		if err != nil {
			if errors.Is(err, replay.ErrNotFound) && v < status.Latest.Version {
				w.heldout[v] = true // never asked for
			}
			continue
		}
		if e.Done < e.Requested {
			evaluating += fmt.Sprintf(", v%d evaluated on %d of %d", v, e.Done, e.Requested)
		}
		if e.Requested > 0 && e.Done == e.Requested {
			w.heldout[v] = true
			w.success = fmt.Sprintf("%.3f (v%d)", e.Success, v)
			news = append(news, fmt.Sprintf("held-out  v%-4d success %.3f  reward %.3f  %d tasks", v, e.Success, e.MeanReward, e.Done))
		}
	}
	if status.LastStep != nil {
		for n := w.step + 1; n <= status.LastStep.Step; n++ {
			rec, err := st.Step(ctx, run, n)
			if err != nil {
				break
			}
			m, kl := rec.Metrics, ""
			if x, ok := m["kl"]; ok {
				kl = fmt.Sprintf("  kl %.1e", x)
			}
			news = append(news, fmt.Sprintf("step %3d/%-3d reward %.3f  held-out %s  staleness %.2f  entropy %.3f%s  gap %.1e  %4.0f tok/s trained",
				n, maxSteps, m[rewardMetric], w.success, m["staleness/mean"], m["entropy"], kl, m["logprob_gap/mean_abs"], m["num_tokens"]/max(stepSeconds(m), 1e-9)))
			news = append(news, stepDetail(m))
			for _, warning := range w.detector.Add(watch.Step{Step: n, Metrics: m}) {
				news = append(news, "warning: "+warning.String())
			}
			w.step = n
		}
	}
	idle = fmt.Sprintf("step %3d/%-3d working: %d groups rolling out, %d ready, %d leased; %d rollouts stored, %d failed%s%s",
		w.step, maxSteps, status.RunningGroups, status.ReadyGroups, status.LeasedGroups, status.Appended, status.FailedRollouts, reasons(status), evaluating)
	return news, idle
}

func reasons(s replay.RunStatus) string {
	worst, n := "", 0
	for why, c := range s.FailureReasons {
		if c > n || c == n && why < worst {
			worst, n = why, c
		}
	}
	if worst == "" {
		return ""
	}
	return fmt.Sprintf(" (most often: %s)", worst)
}

// stepDetail is the rest of what is watched of a step: a line below its own.
func stepDetail(m map[string]float64) string {
	var b strings.Builder
	fmt.Fprintf(&b, "  loss %.4f  grad %.3g  advantage ±%.2f  clipped %.3f", m["loss"], m["grad_norm"], m["advantage/std"], m["clip_ratio/region_mean"])
	if p99, ok := m["engine_ratio/p99"]; ok {
		fmt.Fprintf(&b, "  ratio %.3f..%.3f  gap p99 %.1e", m["engine_ratio/p01"], p99, m["logprob_gap/p99"])
	}
	fmt.Fprintf(&b, "  truncated %.0f%%  calls %.1f", 100*m["completions/clipped_ratio"], m["tools/call_frequency"])
	for _, k := range slices.Sorted(maps.Keys(m)) {
		name, ok := strings.CutPrefix(k, "rewards/")
		if name, is := strings.CutSuffix(name, "/mean"); ok && is {
			fmt.Fprintf(&b, "  %s %.3f", name, m[k])
		}
	}
	b.WriteString("  time")
	for _, part := range []string{"wait", "fetch", "forward", "reference", "backward", "optimizer", "critic"} {
		if s, ok := m["time/"+part+"_s"]; ok && s >= .005 {
			fmt.Fprintf(&b, " %s %.2f", part, s)
		}
	}
	return b.String() + " s"
}

// stepSeconds is the learner's time inside one step.
func stepSeconds(m map[string]float64) float64 {
	return m["time/forward_s"] + m["time/reference_s"] + m["time/backward_s"] + m["time/optimizer_s"]
}
