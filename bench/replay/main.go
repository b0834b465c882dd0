// Command replay measures the replay store against Redis streams, Reverb and Ray
// and appends bench/results/replay.jsonl. See bench/README.md for what the rows
// mean; `make bench-replay` runs it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/skein-rl/skein/bench"
)

// options are the command's flags.
type options struct {
	redis   string // redis-server
	python  string // interpreter with reverb, redis and ray
	results string
	dir     string // working folder, emptied before and after
	runs    int
	seconds time.Duration // of one measurement of throughput
	stored  string        // most logs of the part stored
	profile string
	only    []string
}

// part is one piece of the benchmark, chosen by -only.
type part struct {
	name string
	f    func(context.Context, *session) error
}

var parts = []part{
	{"append", appendPart}, {"latency", latencyPart}, {"bytes", bytesPart}, {"sample", samplePart},
	{"growth", growthPart}, {"stored", storedPart},
}

func main() {
	var o options
	var only string
	var n nodeOptions
	flag.StringVar(&o.redis, "redis", "", "redis-server `program`")
	flag.StringVar(&o.python, "python", "", "python `interpreter` with dm-reverb, redis and ray")
	flag.StringVar(&o.results, "results", "bench/results", "`directory` of the results")
	flag.StringVar(&o.dir, "dir", filepath.Join(os.TempDir(), "skein-bench-replay"), "`directory` for the stores, on the device to measure; emptied")
	flag.IntVar(&o.runs, "runs", 3, "runs of each, alternating; the best counts (at least 3)")
	flag.DurationVar(&o.seconds, "seconds", 2*time.Second, "`time` of one measurement of throughput")
	flag.StringVar(&o.stored, "stored", "1M", "most stored `logs` to measure with: 1k, 100k or 1M")
	flag.StringVar(&o.profile, "profile", "", "measure ours only, once, without rows, and write CPU profiles of our processes to this `directory`")
	flag.StringVar(&only, "only", "", "comma-separated `names` of parts to run: append, latency, bytes, sample, growth, stored; all when empty")
	n.flags()
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if n.dir != "" {
		err = runNode(ctx, n)
	} else {
		if only != "" {
			o.only = strings.Split(only, ",")
		}
		err = run(ctx, o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "replay:", err)
		os.Exit(1)
	}
}

// session is one run of the command.
type session struct {
	options
	log   *bench.Log
	peers peers
}

func run(ctx context.Context, o options) (err error) {
	if err := o.check(); err != nil {
		return err
	}
	if err := os.RemoveAll(o.dir); err != nil {
		return err
	}
	if err := os.MkdirAll(o.dir, 0o700); err != nil {
		return err
	}
	s := &session{options: o}
	if o.profile != "" {
		if err := os.MkdirAll(o.profile, 0o755); err != nil {
			return err
		}
	}
	if s.log, err = bench.Open(o.results, "replay"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.peers.close(), os.RemoveAll(o.dir)) }()
	if o.profile != "" {
		return s.profiles(ctx)
	}
	for _, p := range parts {
		if len(o.only) > 0 && !slices.Contains(o.only, p.name) {
			continue
		}
		start := time.Now()
		if err := p.f(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		say("%s took %.0f s", p.name, time.Since(start).Seconds())
	}
	return nil
}

func (o options) check() error {
	var errs []error
	if o.runs < 3 {
		errs = append(errs, fmt.Errorf("-runs is %d, want at least 3", o.runs))
	}
	if o.seconds < 100*time.Millisecond {
		errs = append(errs, fmt.Errorf("-seconds is %v, want at least 100ms", o.seconds))
	}
	for _, f := range [][2]string{{"redis", o.redis}, {"python", o.python}} {
		if o.profile != "" {
			continue
		}
		if f[1] == "" {
			errs = append(errs, fmt.Errorf("-%s is missing (make peers-replay builds it)", f[0]))
		} else if _, err := os.Stat(f[1]); err != nil {
			errs = append(errs, fmt.Errorf("-%s: %w (make peers-replay builds it)", f[0], err))
		}
	}
	if _, ok := storedSizes[o.stored]; !ok {
		errs = append(errs, fmt.Errorf("-stored is %q, want 1k, 100k or 1M", o.stored))
	}
	for _, name := range o.only {
		if o.profile == "" && !slices.ContainsFunc(parts, func(p part) bool { return p.name == name }) {
			errs = append(errs, fmt.Errorf("-only: no part %q", name))
		}
	}
	return errors.Join(errs...)
}

// say tells the progress on stderr.
func say(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
