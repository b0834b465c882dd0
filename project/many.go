package project

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// ManyRun is one of several runs that train in one process.
type ManyRun struct {
	Config Config
	Dir    string // of the run, as LocalOptions.Dir
}

// States of a run among several.
const (
	StateFinished = "finished"
	StateStopped  = "stopped" // by ctx or its file; the same call goes on from there
	StateFailed   = "failed"
)

// ManyOutcome is how one of several runs ended.
type ManyOutcome struct {
	Run   string `json:"run"`
	Dir   string `json:"dir"`
	State string `json:"state"`
	Error string `json:"error,omitempty"`
	// Summary is that of a run on rollouts, Rows that of one on files; of one that
	// did not finish as far as it got.
	Summary *Summary     `json:"summary,omitempty"`
	Rows    *RowsSummary `json:"rows,omitempty"`
}

// StopFile, put into a run's folder, stops that run alone at a safe point.
const StopFile = "stop"

// errStopFile is why such a run ended.
var errStopFile = fmt.Errorf("project: stopped by the file %q: %w", StopFile, context.Canceled)

// TrainMany trains several runs at once, each in a folder of its own as RunLocal
// and TrainRows do. Runs on equal base models share one copy of the weights, one
// batch of rollouts and passes of training, by Config.Share; what each gets is to
// the bit what it gets alone. One that fails leaves the others alone. Problems
// that can be seen before are all reported at once, and then nothing is started.
// The outcomes are in the order of runs; the error joins those of failed runs,
// and is ctx's when it stopped them.
func TrainMany(ctx context.Context, runs []ManyRun, opt LocalOptions) ([]ManyOutcome, error) {
	if err := checkMany(runs, opt); err != nil {
		return nil, err
	}
	shared := newBases()
	shared.many, shared.runs = true, len(runs)
	out := make([]ManyOutcome, len(runs))
	errs := make([]error, len(runs))
	var wg sync.WaitGroup
	tell := &prefixed{to: opt.Progress}
	for _, r := range runs {
		if !r.Config.Training.Offline() {
			shared.likes = append(shared.likes, r.Config)
		}
	}
	for i, r := range runs {
		o := LocalOptions{Dir: r.Dir, Log: opt.Log.With("run", r.Config.Run), Progress: tell.by(r.Config.Run), bases: shared}
		wg.Go(func() { out[i], errs[i] = trainOne(ctx, r, o) })
	}
	wg.Wait()
	if ctx.Err() != nil {
		return out, errors.Join(append(errs, context.Cause(ctx))...)
	}
	return out, errors.Join(errs...)
}

func checkMany(runs []ManyRun, opt LocalOptions) error {
	var errs []error
	if opt.Metrics != "" {
		errs = append(errs, fmt.Errorf("project: metrics address %q with %d runs: metrics are those of one run: leave it out, or train them in processes of their own", opt.Metrics, len(runs)))
	}
	names, dirs := map[string]bool{}, map[string]string{}
	for _, r := range runs {
		if err := r.Config.Validate(); err != nil {
			errs = append(errs, err)
		}
		run := r.Config.Run
		if names[run] {
			errs = append(errs, fmt.Errorf("project: run: %q is the name of two runs: give each configuration its own", run))
		}
		names[run] = true
		dir, err := filepath.Abs(r.Dir)
		if err == nil && dirs[dir] != "" {
			err = fmt.Errorf("project: runs %s and %s would share the folder %s: give each its own", dirs[dir], run, r.Dir)
		}
		dirs[dir] = run
		errs = append(errs, err)
	}
	for run := range names {
		if names[BaseRun(run)] {
			errs = append(errs, fmt.Errorf("project: run %q has the name under which the base model of run %q is evaluated: choose another", BaseRun(run), run))
		}
	}
	return errors.Join(errs...)
}

// trainOne trains one run to its end and says how that was.
func trainOne(ctx context.Context, r ManyRun, o LocalOptions) (out ManyOutcome, err error) {
	out = ManyOutcome{Run: r.Config.Run, Dir: r.Dir, State: StateFinished}
	ctx, stop := context.WithCancelCause(ctx)
	defer watchStop(filepath.Join(r.Dir, StopFile), func() { stop(errStopFile) })()
	if r.Config.Training.Offline() {
		var sum RowsSummary
		sum, err = TrainRows(ctx, r.Config, o)
		out.Rows = &sum
	} else {
		var sum Summary
		sum, err = RunLocal(ctx, r.Config, o)
		out.Summary = &sum
	}
	switch {
	case err == nil:
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		out.State = StateStopped
		fmt.Fprintln(o.Progress, "stopped; the same command goes on from there")
		return out, nil
	default:
		out.State, out.Error = StateFailed, err.Error()
		fmt.Fprintf(o.Progress, "failed: %v\n", err)
		err = fmt.Errorf("run %s: %w", out.Run, err)
	}
	return out, err
}

// watchStop calls f when the file appears, until the returned function is called.
// A file of an earlier time is taken away first, and so is one that was obeyed.
func watchStop(path string, f func()) (done func()) {
	_ = os.Remove(path) // mostly there is none
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(500 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-quit:
				return
			case <-tick.C:
			}
			if _, err := os.Stat(path); err == nil {
				_ = os.Remove(path) // else it stops the next start, which removes it too
				f()
				return
			}
		}
	}()
	return func() {
		close(quit)
		<-ended
	}
}

// prefixed writes whole lines of several runs, each with its run's name.
type prefixed struct {
	mu sync.Mutex
	to io.Writer
}

func (p *prefixed) by(run string) io.Writer { return &prefixedRun{p: p, name: run} }

type prefixedRun struct {
	p    *prefixed
	name string
	part []byte // of a line
}

// Write implements io.Writer.
func (w *prefixedRun) Write(b []byte) (int, error) {
	w.p.mu.Lock()
	defer w.p.mu.Unlock()
	w.part = append(w.part, b...)
	for {
		line, rest, ok := bytes.Cut(w.part, []byte("\n"))
		if !ok {
			return len(b), nil
		}
		if _, err := fmt.Fprintf(w.p.to, "%s: %s\n", w.name, line); err != nil {
			return 0, err
		}
		w.part = rest
	}
}
