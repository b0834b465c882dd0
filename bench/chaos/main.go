// Command chaos tortures a cluster of replay nodes and checks what it promised.
//
// Every node is a process of the real binary. Clients append logs, take and
// return tickets, lease, extend, commit and release groups, insert into tables
// and read, and every operation is recorded with the times of its call and its
// return and with what its caller was told. Meanwhile faults are injected by a
// schedule that follows from the seed alone. At the end the history must be
// linearizable, every acknowledged log must be on every node, intact and once,
// and no group may have been consumed too often. docs/chaos.md has the details.
//
//	make chaos CHAOS_SECONDS=3600 CHAOS_SEED=1
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
	"runtime/pprof"
	"strings"
	"syscall"
	"time"

	"github.com/skein-rl/skein/bench/chaos/disk"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	var opt options
	var seconds, each int
	var out, nodes, kinds, files string
	flag.StringVar(&opt.Binary, "binary", "bin/skein", "the skein binary to torture; it is copied first")
	flag.StringVar(&out, "out", "chaos", "folder for summary.json, and for history and logs of what failed")
	flag.IntVar(&seconds, "seconds", 600, "seconds under faults, over all episodes")
	flag.IntVar(&each, "episode", 150, "seconds of an episode: then a new cluster begins")
	flag.Uint64Var(&opt.Seed, "seed", 1, "seed of the schedules; episode i has seed + i")
	flag.StringVar(&nodes, "nodes", "3,5", "nodes of the episodes in turn")
	flag.StringVar(&kinds, "kinds", "", "kinds of faults, comma separated (default: all)")
	flag.StringVar(&files, "disk", "auto", "fuse: nodes live on a file system that can lose power (needs root); plain: they don't; auto: fuse where possible")
	flag.BoolVar(&opt.Strict, "strict", false, "folders are durable only when they are synced themselves (POSIX to the letter; ext4 and xfs are kinder)")
	plan := flag.Bool("plan", false, "print the schedule of the first episode and end")
	verbose := flag.Bool("v", false, "say what happens")
	train := flag.Bool("training", false, "kill the processes of whole trainings instead (make chaos-cluster): replay nodes, learners and workers in turn")
	var tr trainingOptions
	flag.StringVar(&tr.Config, "config", "recipes/demo-tiny.yaml", "with -training: what is trained")
	flag.IntVar(&tr.Steps, "steps", 60, "with -training: target of each run; runs follow each other until -seconds are over")
	flag.IntVar(&tr.Workers, "workers", 3, "with -training: workers")
	flag.DurationVar(&tr.Every, "every", 20*time.Second, "with -training: time between two kills")
	flag.DurationVar(&tr.Patience, "patience", 20*time.Minute, "with -training: how long one run may take")
	flag.Parse()
	opt.Heartbeat = time.Second
	opt.Load = load{Workers: 3, Learners: 2, Writers: 3, Readers: 1, Keeper: 12 * time.Second, Think: 40 * time.Millisecond, Patience: 8 * time.Second}
	for _, k := range strings.Split(kinds, ",") {
		if k != "" {
			opt.Kinds = append(opt.Kinds, Kind(k))
		}
	}
	avail := disk.Available()
	switch {
	case files == "fuse" && avail != nil:
		return fmt.Errorf("-disk fuse: %w", avail)
	case files == "fuse", files == "auto" && avail == nil:
		opt.Disk = true
	case files == "auto":
		fmt.Fprintf(os.Stderr, "chaos: no faults of disks: %v\n", avail)
	case files != "plain":
		return fmt.Errorf("-disk = %q: want fuse, plain or auto", files)
	}
	var counts []int
	for _, s := range strings.Split(nodes, ",") {
		var n int
		if _, err := fmt.Sscan(s, &n); err != nil || n < 1 || n > 5 {
			return fmt.Errorf("-nodes = %q: want numbers from 1 to 5", nodes)
		}
		counts = append(counts, n)
	}
	if *plan {
		enc := json.NewEncoder(os.Stdout)
		for _, f := range Schedule(opt.Seed, time.Duration(each)*time.Second, counts[0], opt.Disk, opt.Kinds) {
			if err := enc.Encode(f); err != nil {
				return err
			}
		}
		return nil
	}
	if *verbose {
		opt.Log = func(f string, a ...any) { fmt.Fprintf(os.Stderr, f+"\n", a...) }
	}
	go profileOnSignal(ctx, out)
	if *train {
		tr.Binary, tr.Log, tr.Learners = opt.Binary, opt.Log, 2
		tr.Sets = []string{"training.groups_per_step=4", "eval.every=0", "eval.tasks=16"}
		if tr.Steps < 1 || tr.Workers < 1 || tr.Every <= 0 || tr.Patience <= 0 {
			return fmt.Errorf("-steps = %d, -workers = %d, -every = %v, -patience = %v: want more than 0", tr.Steps, tr.Workers, tr.Every, tr.Patience)
		}
		return trainings(ctx, tr, time.Duration(seconds)*time.Second, opt.Seed, out)
	}
	return episodes(ctx, opt, counts, time.Duration(seconds)*time.Second, time.Duration(each)*time.Second, out)
}

func episodes(ctx context.Context, opt options, counts []int, total, each time.Duration, out string) error {
	work, err := os.MkdirTemp("", "skein-chaos-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(work) }()
	bin, err := os.ReadFile(opt.Binary)
	if err != nil {
		return fmt.Errorf("-binary: %w (make build makes it)", err)
	}
	opt.Binary = filepath.Join(work, "skein") // others may build meanwhile
	if err := os.WriteFile(opt.Binary, bin, 0o700); err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o700); err != nil {
		return err
	}
	sum := newReport(opt.Seed)
	for i := 0; time.Duration(sum.Seconds*float64(time.Second)) < total-time.Second && ctx.Err() == nil; i++ {
		o := opt
		o.Seed = opt.Seed + uint64(i)
		o.Nodes = counts[i%len(counts)]
		o.Length = min(each, total-time.Duration(sum.Seconds*float64(time.Second)))
		o.Base = filepath.Join(work, fmt.Sprintf("episode%d", o.Seed))
		if err := os.MkdirAll(o.Base, 0o700); err != nil {
			return err
		}
		rep, err := episode(ctx, o)
		if err != nil {
			return fmt.Errorf("episode with seed %d: %w", o.Seed, err)
		}
		if !rep.Clean() {
			rep.Kept = []string{filepath.Join(out, filepath.Base(o.Base))}
			if err := keep(o.Base, rep.Kept[0]); err != nil {
				return err
			}
		}
		_ = os.RemoveAll(o.Base)
		sum.add(rep)
		fmt.Fprintf(os.Stderr, "chaos: seed %d, %d nodes, %.0f s, %d faults, %d operations, %d logs acknowledged, %d parts linearizable, %d lost, %d duplicated, %d violations\n",
			o.Seed, o.Nodes, rep.Seconds, rep.FaultCount, rep.Operations, rep.AckedLogs, rep.Checked-rep.Unchecked, rep.Lost, rep.Duplicated, len(rep.Violations))
		if err := write(sum, out); err != nil {
			return err
		}
	}
	if !sum.Clean() {
		return errors.New("promises were broken: see " + filepath.Join(out, "summary.json"))
	}
	return nil
}

func write(sum *Report, out string) error {
	b, err := json.MarshalIndent(sum, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(out, "summary.json"), append(b, '\n'), 0o644)
}

// keep copies what tells of a failure: histories, notes and logs.
func keep(from, to string) error {
	if err := os.MkdirAll(to, 0o700); err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(from, "*.*"))
	for _, f := range files {
		b, rerr := os.ReadFile(f)
		if rerr != nil {
			continue // a folder
		}
		err = errors.Join(err, os.WriteFile(filepath.Join(to, filepath.Base(f)), b, 0o600))
	}
	return err
}

// profileOnSignal writes what the memory is used for when SIGUSR1 comes.
func profileOnSignal(ctx context.Context, out string) {
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, syscall.SIGUSR1)
	defer signal.Stop(ch)
	for {
		select {
		case <-ctx.Done():
			return
		case <-ch:
			f, err := os.Create(filepath.Join(out, "heap.pprof"))
			if err == nil {
				_ = errors.Join(pprof.WriteHeapProfile(f), f.Close())
			}
		}
	}
}
