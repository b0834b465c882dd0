// Command decode measures how fast the pure-Go backend generates, against
// llama.cpp and transformers, and appends bench/results/decode.jsonl. See
// bench/README.md for what the rows mean; `make bench-decode` runs it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/skein-rl/skein/bench"
)

// options are the command's flags.
type options struct {
	file    string // the model as published, quantised, GGUF
	model   string // the same in f16, GGUF: ours and llama.cpp's
	f32     string // the same in f32, GGUF: llama.cpp's other form
	hf      string // the same as a HF directory: transformers'
	llama   string // directory of llama-batched-bench
	python  string
	results string
	threads int
	runs    int
	sizes   []int
	groups  []int
	peers   []string
	worker  string // a job: this process measures ours once
}

func main() {
	var o options
	var sizes, groups, peers string
	flag.StringVar(&o.file, "file", "", "GGUF `file` of the model as published")
	flag.StringVar(&o.model, "f16", "", "GGUF `file` of the model in f16")
	flag.StringVar(&o.f32, "f32", "", "GGUF `file` of the model in f32")
	flag.StringVar(&o.hf, "hf", "", "HF `directory` of the model")
	flag.StringVar(&o.llama, "llama", "", "`directory` of llama-batched-bench")
	flag.StringVar(&o.python, "python", "", "python `interpreter` with transformers")
	flag.StringVar(&o.results, "results", "bench/results", "`directory` of the results")
	flag.IntVar(&o.threads, "threads", runtime.NumCPU(), "threads of ours and of the peers")
	flag.IntVar(&o.runs, "runs", 3, "runs of each, alternating; the best counts (at least 3)")
	flag.StringVar(&sizes, "sizes", "1,8,16,32,64", "batches against llama.cpp")
	flag.StringVar(&groups, "groups", "1,8,32", "batches against transformers, in whole groups of 8 above 1")
	flag.StringVar(&peers, "peers", "llama.cpp,transformers", "peers")
	flag.StringVar(&o.worker, "worker", "", "measure this `job` (JSON) and print its result: the command's own use")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var err error
	if o.worker != "" {
		err = work(ctx, o.worker)
	} else {
		o.sizes, err = ints(sizes)
		if err == nil {
			o.groups, err = ints(groups)
		}
		o.peers = strings.Split(peers, ",")
		if err == nil {
			err = run(ctx, o)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "decode:", err)
		os.Exit(1)
	}
}

func ints(list string) ([]int, error) {
	var out []int
	for s := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%q in %q is no positive number", s, list)
		}
		out = append(out, n)
	}
	return out, nil
}

func run(ctx context.Context, o options) error {
	if o.runs < 3 {
		return fmt.Errorf("runs is %d, want at least 3", o.runs)
	}
	log, err := bench.Open(o.results, "decode")
	if err != nil {
		return err
	}
	for _, p := range o.peers {
		switch p {
		case "llama.cpp":
			err = againstLlama(ctx, o, log)
		case "transformers":
			err = againstTransformers(ctx, o, log)
		default:
			err = fmt.Errorf("peer %q is unknown (have llama.cpp, transformers)", p)
		}
		if err != nil {
			return err
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
			errs = append(errs, fmt.Errorf("-%s: %w (make peers-decode builds it)", name, err))
		}
	}
	return errors.Join(errs...)
}

// say tells the progress on stderr.
func say(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

func name(path string) string { return filepath.Base(path) }

func mustJSON(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // structs of numbers and strings
	}
	return string(text)
}
