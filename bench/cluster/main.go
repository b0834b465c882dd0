// Command cluster measures what a cluster's coordination costs and gives:
// asynchronous against synchronous training, dispatch against Ray's actor calls,
// weak scaling, and the fold with up to 4,000 simulated workers. It appends
// bench/results/cluster.jsonl. See bench/README.md for what the rows mean;
// `make bench-cluster` runs it.
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
	python  string // interpreter with ray
	results string
	dir     string // working folder, emptied before and after
	runs    int
	only    []string
}

// part is one piece of the benchmark, chosen by -only.
type part struct {
	name string
	f    func(context.Context, *session) error
}

var parts = []part{
	{"async", asyncPart}, {"overlap", overlapPart}, {"inflight", inflightPart}, {"oversample", oversamplePart},
	{"dispatch", dispatchPart}, {"scaling", scalingPart}, {"sim", simPart},
}

func partNames() string {
	var names []string
	for _, p := range parts {
		names = append(names, p.name)
	}
	return strings.Join(names, ", ")
}

func main() {
	var o options
	var only, node string
	flag.StringVar(&o.python, "python", "", "python `interpreter` with ray, for the part dispatch")
	flag.StringVar(&o.results, "results", "bench/results", "`directory` of the results")
	flag.StringVar(&o.dir, "dir", filepath.Join(os.TempDir(), "skein-bench-cluster"), "`directory` for the stores; emptied")
	flag.IntVar(&o.runs, "runs", 3, "runs of each, alternating; the best counts (at least 3)")
	flag.StringVar(&only, "only", "", "comma-separated `names` of parts to run: "+partNames()+"; all when empty")
	flag.StringVar(&node, "node", "", "be a replay node in this `directory`: the command's own use")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if node != "" {
		err = runNode(ctx, node)
	} else {
		if only != "" {
			o.only = strings.Split(only, ",")
		}
		err = run(ctx, o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

// session is one run of the command.
type session struct {
	options
	log *bench.Log
}

func run(ctx context.Context, o options) (err error) {
	if err := o.check(); err != nil {
		return err
	}
	if err := errors.Join(os.RemoveAll(o.dir), os.MkdirAll(o.dir, 0o700)); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(o.dir)) }()
	s := &session{options: o}
	if s.log, err = bench.Open(o.results, "cluster"); err != nil {
		return err
	}
	for _, p := range parts {
		if !o.wants(p.name) {
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

func (o options) wants(name string) bool { return len(o.only) == 0 || slices.Contains(o.only, name) }

func (o options) check() error {
	var errs []error
	if o.runs < 3 {
		errs = append(errs, fmt.Errorf("-runs is %d, want at least 3", o.runs))
	}
	if o.wants("dispatch") {
		if o.python == "" {
			errs = append(errs, errors.New("-python is missing (make peers-replay builds an environment with ray)"))
		} else if _, err := os.Stat(o.python); err != nil {
			errs = append(errs, fmt.Errorf("-python: %w (make peers-replay builds it)", err))
		}
	}
	for _, name := range o.only {
		if !slices.ContainsFunc(parts, func(p part) bool { return p.name == name }) {
			errs = append(errs, fmt.Errorf("-only: no part %q; there are %s", name, partNames()))
		}
	}
	return errors.Join(errs...)
}

// say tells the progress on stderr.
func say(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
