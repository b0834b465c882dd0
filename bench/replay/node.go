package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"strings"
	"time"

	"github.com/skein-rl/skein/cluster"
	"github.com/skein-rl/skein/eventlog"
	"github.com/skein-rl/skein/project"
	"github.com/skein-rl/skein/replay"
)

// nodeOptions make this process a replay node: the command's own use.
type nodeOptions struct{ dir, join, token, profile string }

func (n *nodeOptions) flags() {
	flag.StringVar(&n.dir, "node", "", "be a replay node in this `directory`: the command's own use")
	flag.StringVar(&n.join, "join", "", "`address` of a running node, for -node")
	flag.StringVar(&n.token, "token", "", "`file` of the join token, for -node")
	flag.StringVar(&n.profile, "cpuprofile", "", "write a CPU profile to this `file`, for -node")
}

// runNode is a node with the settings of `skein node`, until stdin ends, which it
// does when the parent dies. It prints its address, then the seconds it took
// to open and lead or follow.
func runNode(ctx context.Context, o nodeOptions) error {
	if o.profile != "" {
		f, err := os.Create(o.profile)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	project.TuneReplay()
	cfg := cluster.DefaultConfig(o.dir)
	cfg.ID = filepath.Base(o.dir)
	cfg.Store.Verify = verify
	cfg.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	if o.join != "" {
		token, err := os.ReadFile(o.token)
		if err != nil {
			return err
		}
		cfg.Join, cfg.Token = []string{o.join}, string(token)
	}
	start := time.Now()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	n, err := cluster.Open(ctx, cfg)
	if err != nil {
		return err
	}
	opened := time.Since(start)
	if err := n.WaitReady(ctx, 1); err != nil {
		return err
	}
	fmt.Println(n.Addr())
	fmt.Println(opened.Seconds(), time.Since(start).Seconds())
	_, _ = io.Copy(io.Discard, os.Stdin)
	if o.profile != "" {
		if err := writeHeap(strings.TrimSuffix(o.profile, ".prof") + ".heap"); err != nil {
			return err
		}
	}
	return n.Close()
}

func writeHeap(file string) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	runtime.GC()
	return errors.Join(pprof.WriteHeapProfile(f), f.Close())
}

// verify is what `skein node` checks of every log: its digest.
func verify(it replay.Item, data []byte) error {
	l, err := eventlog.Decode(data)
	if err != nil {
		return err
	}
	if d := l.Digest(); d != it.Digest {
		return fmt.Errorf("log %s has digest %s, its item says %s", it.LogID, d, it.Digest)
	}
	return nil
}
