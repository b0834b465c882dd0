// Command learner measures training steps of both backends against torch and TRL
// and appends bench/results/learner.jsonl. See bench/README.md for what the rows
// mean; `make bench-learner` runs it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// options are the command's flags.
type options struct {
	model   string // GGUF: ours
	hf      string // the same as a HF directory: the peer's
	plugin  string // folder of the PJRT CPU plugin
	python  string // interpreter with torch, transformers, peft and trl
	results string
	threads int
	runs    int
	only    []string
}

func main() {
	var o options
	var only, worker string
	flag.StringVar(&o.model, "model", "", "GGUF `file` of the model in f16")
	flag.StringVar(&o.hf, "hf", "", "HF `directory` of the model")
	flag.StringVar(&o.plugin, "plugin", os.Getenv("PJRT_PLUGIN_LIBRARY_PATH"), "`folder` of the PJRT CPU plugin")
	flag.StringVar(&o.python, "python", "", "python `interpreter` with trl")
	flag.StringVar(&o.results, "results", "bench/results", "`directory` of the results")
	flag.IntVar(&o.threads, "threads", runtime.NumCPU(), "threads of ours and of the peers")
	flag.IntVar(&o.runs, "runs", 3, "runs of each, alternating; the best counts (at least 3)")
	flag.StringVar(&only, "only", "", "comma-separated `names` of parts to run: update, tree, step, sft, dpo, growth; all when empty")
	flag.StringVar(&worker, "worker", "", "measure this `job` (JSON) and print its result: the command's own use")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var err error
	if worker != "" {
		err = work(ctx, worker)
	} else {
		if only != "" {
			o.only = strings.Split(only, ",")
		}
		err = run(ctx, o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "learner:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	if o.runs < 3 {
		return fmt.Errorf("runs is %d, want at least 3", o.runs)
	}
	if err := needs(map[string]string{"model": o.model, "hf": o.hf, "python": o.python, "plugin": o.plugin}); err != nil {
		return err
	}
	parts := []struct {
		name string
		f    func(context.Context, options) error
	}{{"update", updates}, {"tree", trees}, {"step", grpoSteps}, {"sft", rowSteps("sft")}, {"dpo", rowSteps("dpo")}, {"growth", growth}}
	for _, name := range o.only {
		if !slices.ContainsFunc(parts, func(p struct {
			name string
			f    func(context.Context, options) error
		}) bool {
			return p.name == name
		}) {
			return fmt.Errorf("only: no part %q; use update, tree, step, sft, dpo or growth", name)
		}
	}
	for _, p := range parts {
		if len(o.only) > 0 && !slices.Contains(o.only, p.name) {
			continue
		}
		if err := p.f(ctx, o); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return nil
}

// needs reports the flags that are empty or name nothing.
func needs(flags map[string]string) error {
	var errs []error
	for name, path := range flags {
		if path == "" {
			errs = append(errs, fmt.Errorf("-%s is missing", name))
		} else if _, err := os.Stat(path); err != nil {
			errs = append(errs, fmt.Errorf("-%s: %w (make peers-learner builds it)", name, err))
		}
	}
	return errors.Join(errs...)
}

// say tells the progress on stderr.
func say(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

func mustJSON(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // structs of numbers and strings
	}
	return string(text)
}

// usage is what this process has spent and holds.
type usage struct {
	cpu  float64 // seconds, all threads
	wall time.Time
}

func now() usage {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return usage{wall: time.Now()}
	}
	s := func(t syscall.Timeval) float64 { return float64(t.Sec) + float64(t.Usec)/1e6 }
	return usage{s(r.Utime) + s(r.Stime), time.Now()}
}

// since is the cost of a step that began at u.
func (u usage) since() (wall, cpu float64) {
	n := now()
	return n.wall.Sub(u.wall).Seconds(), n.cpu - u.cpu
}
