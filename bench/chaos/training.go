package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	skein "github.com/skein-rl/skein/cluster"
	"github.com/skein-rl/skein/project"
)

// trainingOptions describe runs of a whole cluster whose processes are killed.
type trainingOptions struct {
	Binary, Config    string
	Steps             int // target of each run
	Workers, Learners int
	Every             time.Duration // between two kills
	Patience          time.Duration // for one run: beyond it the target counts as missed
	Sets              []string
	Log               func(string, ...any)
}

// TrainingReport is a Report with what trainings show beside it.
type TrainingReport struct {
	Report
	Runs        int     `json:"runs"`
	Steps       int     `json:"steps"`        // committed, over all runs
	TargetSteps int     `json:"target_steps"` // of each run
	MedianStep  float64 `json:"median_step_s"`
	// Idle is of each kind of fault: how long after the kill the next step was
	// committed, and by how much the step in which it fell was longer than the
	// median one.
	Idle     map[Kind]*Idle     `json:"idle"`
	Policies map[string]float64 `json:"policies"` // how workers came by them, as far as they told
	Stale    map[uint64]int     `json:"staleness"`
	Refused  int                `json:"duplicates_refused"`
}

// Idle sums up what a kind of fault cost, in seconds.
type Idle struct {
	Faults  int     `json:"faults"`
	Mean    float64 `json:"next_step_mean_s"`
	Max     float64 `json:"next_step_max_s"`
	Extra   float64 `json:"longer_mean_s"`
	ExtraMx float64 `json:"longer_max_s"`
}

// Kinds of kills, in their order.
const (
	KillReplayLead    Kind = "kill9_replay_leader"
	KillWorker        Kind = "kill9_worker"
	KillLearner       Kind = "kill9_learner"
	KillReplayFollow  Kind = "kill9_replay_follower"
	KillLearnerHelper Kind = "kill9_learner_standby"
)

var killOrder = []Kind{KillLearner, KillReplayLead, KillWorker, KillReplayFollow, KillLearnerHelper}

// kill is one that was carried out.
type kill struct {
	kind Kind
	id   string
	at   time.Time
}

// trainings runs one training after the other until the time is over; each must
// reach its target.
func trainings(ctx context.Context, o trainingOptions, total time.Duration, seed uint64, out string) error {
	work, err := os.MkdirTemp("", "skein-chaos-training-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(work) }()
	bin, err := os.ReadFile(o.Binary)
	if err != nil {
		return fmt.Errorf("-binary: %w (make build makes it)", err)
	}
	o.Binary = filepath.Join(work, "skein") // others may build meanwhile
	if err := os.WriteFile(o.Binary, bin, 0o700); err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o700); err != nil {
		return err
	}
	sum := &TrainingReport{Report: *newReport(seed), TargetSteps: o.Steps, Idle: map[Kind]*Idle{}, Policies: map[string]float64{}, Stale: map[uint64]int{}}
	var gaps []float64
	for begin := time.Now(); time.Since(begin) < total && ctx.Err() == nil; {
		dir := filepath.Join(work, fmt.Sprint("run", sum.Runs))
		before := len(sum.Violations)
		g, err := o.training(ctx, dir, seed, sum)
		if err != nil {
			return err
		}
		gaps = append(gaps, g...)
		sum.MedianStep = median(gaps)
		if len(sum.Violations) > before {
			sum.Kept = append(sum.Kept, filepath.Join(out, filepath.Base(dir)))
			if err := keep(filepath.Join(dir, "logs"), sum.Kept[len(sum.Kept)-1]); err != nil {
				return err
			}
		}
		_ = os.RemoveAll(dir)
		fmt.Fprintf(os.Stderr, "chaos: %d runs, %.0f s, %d kills, %d steps, %d logs, %d lost, %d duplicated, %d violations\n",
			sum.Runs, sum.Seconds, sum.FaultCount, sum.Steps, sum.AckedLogs, sum.Lost, sum.Duplicated, len(sum.Violations))
		b, err := json.MarshalIndent(sum, "", "  ")
		if err != nil {
			return err
		}
		for _, name := range []string{"cluster-summary.json", "summary.json"} {
			if err := os.WriteFile(filepath.Join(out, name), append(b, '\n'), 0o644); err != nil {
				return err
			}
		}
	}
	if !sum.Clean() {
		return errors.New("promises were broken: see " + filepath.Join(out, "cluster-summary.json"))
	}
	return nil
}

// training is one run from its first process to the check of what it left.
func (o trainingOptions) training(ctx context.Context, dir string, seed uint64, sum *TrainingReport) (gaps []float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, o.Patience)
	defer cancel()
	args := []string{
		"up", "--config", o.Config, "--dir", dir, "--replay", "3", "--learners", strconv.Itoa(o.Learners),
		"--workers", strconv.Itoa(o.Workers), "--json", "--set", "training.max_steps=" + strconv.Itoa(o.Steps),
		"--set", "training.seed=" + strconv.FormatUint(seed+uint64(sum.Runs), 10),
	}
	for _, s := range o.Sets {
		args = append(args, "--set", s)
	}
	cmd := exec.Command(o.Binary, args...)
	var stdout bytes.Buffer
	cmd.Stdout = &stdout
	if cmd.Stderr = io.Discard; o.Log != nil {
		cmd.Stderr = os.Stderr
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	kills, werr := o.torture(ctx, cmd.Process, dir, ended, sum)
	sum.Seconds += time.Since(began).Seconds()
	sum.Runs++
	sum.Episodes++
	sum.Nodes = append(sum.Nodes, 3)
	if ctx.Err() != nil && context.Cause(ctx) != context.DeadlineExceeded {
		return nil, context.Cause(ctx)
	}
	f := findings{}
	if werr != nil {
		f.add("run %d did not reach step %d within %s: %v", sum.Runs, o.Steps, o.Patience, werr)
	}
	var s project.Summary
	lines := strings.Split(strings.TrimSpace(stdout.String()), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &s); werr == nil && (err != nil || s.Steps != o.Steps) {
		f.add("run %d told of %d steps, the target is %d: %v", sum.Runs, s.Steps, o.Steps, err)
	}
	look, stop := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Minute)
	defer stop()
	times, err := inspectTraining(look, dir, o.Steps, sum, &f)
	if err != nil {
		f.add("run %d: what it left cannot be read: %v", sum.Runs, err)
	}
	logs, _ := filepath.Glob(filepath.Join(dir, "logs", "*.log"))
	for _, l := range logs {
		f.addAll(panics(l))
	}
	sum.Lost += f.Lost
	sum.Duplicated += f.Duplicated
	sum.Violations = append(sum.Violations, f.Violations...)
	sum.Broken = len(sum.Violations)
	for i := 1; i < len(times); i++ {
		gaps = append(gaps, times[i].Sub(times[i-1]).Seconds())
	}
	sum.idle(kills, times, median(gaps))
	return gaps, nil
}

// torture kills a process every now and then until the run has ended.
func (o trainingOptions) torture(ctx context.Context, up *os.Process, dir string, ended <-chan error, sum *TrainingReport) (kills []kill, err error) {
	tick := time.NewTicker(o.Every)
	defer tick.Stop()
	look := time.NewTicker(time.Second)
	defer look.Stop()
	told := map[string]map[string]float64{} // of each life of a worker
	defer func() {
		for _, m := range told {
			for k, v := range m {
				sum.Policies[k] += v
			}
		}
	}()
	var st *project.Store
	defer func() {
		if st != nil {
			_ = st.Close()
		}
	}()
	for {
		select {
		case err := <-ended:
			return kills, err
		case <-ctx.Done():
			_ = up.Signal(syscall.SIGTERM)
			return kills, errors.Join(context.Cause(ctx), <-ended)
		case <-look.C:
			if st == nil {
				if st, err = joinRun(ctx, dir); err != nil {
					st = nil // it is not up yet
					continue
				}
			}
			if view, err := clusterOf(ctx, st); err == nil {
				for _, n := range view.Nodes {
					if n.Role == skein.RoleWorker {
						m := map[string]float64{}
						for k, v := range n.Metrics {
							if strings.HasPrefix(k, "policies_") {
								m[k] = v
							}
						}
						told[n.ID+n.Started.String()] = m
					}
				}
			}
		case <-tick.C:
			if st == nil {
				continue // it is not up yet
			}
			kind := killOrder[(sum.FaultCount+sum.Skipped["kill9"])%len(killOrder)]
			view, err := clusterOf(ctx, st)
			id := ""
			if err == nil {
				id = victim(view, kind, sum.FaultCount)
			}
			pid := childOf(up.Pid, id)
			if id == "" || pid == 0 || syscall.Kill(pid, syscall.SIGKILL) != nil {
				sum.Skipped["kill9"]++
				continue
			}
			kills = append(kills, kill{kind, id, time.Now()})
			sum.Faults[kind]++
			sum.FaultCount++
			if o.Log != nil {
				o.Log("chaos: %s: %s", kind, id)
			}
		}
	}
}

// joinRun connects to the cluster of a run. It never opens the nodes' files, which
// a node that starts at that moment needs.
func joinRun(ctx context.Context, dir string) (*project.Store, error) {
	at := filepath.Join(dir, "replay-0", "replay")
	addr, err := os.ReadFile(filepath.Join(at, "addr"))
	if err != nil {
		return nil, err
	}
	token, err := os.ReadFile(filepath.Join(at, "token"))
	if err != nil {
		return nil, err
	}
	return project.OpenStore(ctx, project.StoreOptions{Join: strings.TrimSpace(string(addr)), Token: strings.TrimSpace(string(token)), Log: slog.New(slog.DiscardHandler)})
}

func clusterOf(ctx context.Context, st *project.Store) (skein.ClusterStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	return st.Cluster(ctx)
}

// victim is a living process of the kind; n turns through equals.
func victim(view skein.ClusterStatus, kind Kind, n int) string {
	var ids []string
	for _, s := range view.Nodes {
		if !s.Alive && s.Role != skein.RoleReplay {
			continue
		}
		switch kind {
		case KillReplayLead:
			if s.Leader {
				ids = append(ids, s.ID)
			}
		case KillReplayFollow:
			if s.Role == skein.RoleReplay && !s.Leader {
				ids = append(ids, s.ID)
			}
		case KillWorker:
			if s.Role == skein.RoleWorker {
				ids = append(ids, s.ID)
			}
		case KillLearner, KillLearnerHelper:
			if s.Role == skein.RoleLearner && s.Leads == (kind == KillLearner) {
				ids = append(ids, s.ID)
			}
		}
	}
	if len(ids) == 0 {
		return ""
	}
	slices.Sort(ids)
	return ids[n%len(ids)]
}

// childOf is the process of that id among the children of a supervisor; 0 when it
// is not there.
func childOf(parent int, id string) int {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", parent))
	for _, t := range tasks {
		b, err := os.ReadFile(t)
		if err != nil {
			continue
		}
		for _, f := range strings.Fields(string(b)) {
			line, err := os.ReadFile("/proc/" + f + "/cmdline")
			if err == nil && bytes.Contains(line, []byte("--id\x00"+id+"\x00")) {
				pid, _ := strconv.Atoi(f)
				return pid
			}
		}
	}
	return 0
}
