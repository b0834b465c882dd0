package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skein-rl/skein/bench"
	"github.com/skein-rl/skein/cluster"
	"github.com/skein-rl/skein/eventlog"
	"github.com/skein-rl/skein/project"
	"github.com/skein-rl/skein/replay"
	"github.com/skein-rl/skein/rollout"
)

// runNode is a replay node with the settings of `skein node`, until stdin ends,
// which it does when the parent dies. It prints its address.
func runNode(ctx context.Context, dir string) error {
	project.TuneReplay()
	cfg := cluster.DefaultConfig(dir)
	cfg.ID = filepath.Base(dir)
	cfg.Store.Verify = func(it replay.Item, data []byte) error {
		l, err := eventlog.Decode(data)
		if err == nil && l.Digest() != it.Digest {
			err = fmt.Errorf("log %s has digest %s, its item says %s", it.LogID, l.Digest(), it.Digest)
		}
		return err
	}
	cfg.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	n, err := cluster.Open(ctx, cfg)
	if err != nil {
		return err
	}
	if err := n.WaitReady(ctx, 1); err != nil {
		return errors.Join(err, n.Close())
	}
	fmt.Println(n.Addr())
	_, _ = io.Copy(io.Discard, os.Stdin)
	return n.Close()
}

// node is a replay node's process and a client of it.
type node struct {
	dir string
	cmd *exec.Cmd
	in  io.WriteCloser
	cl  *cluster.Client
}

func (s *session) startNode(ctx context.Context) (n *node, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(s.dir, "node-")
	if err != nil {
		return nil, err
	}
	n = &node{dir: dir, cmd: exec.Command(self, "-node", filepath.Join(dir, "n0"))}
	n.cmd.Stderr = os.Stderr
	if n.in, err = n.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := n.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := n.cmd.Start(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.close())
		}
	}()
	addr, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return n, fmt.Errorf("the node did not start: %w", err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "n0", "token"))
	if err != nil {
		return n, err
	}
	token, err := cluster.ParseToken(strings.TrimSpace(string(text)))
	if err != nil {
		return n, err
	}
	n.cl, err = cluster.Connect(ctx, cluster.JoinConfig{Addrs: []string{strings.TrimSpace(addr)}, Token: token, ID: "bench",
		Role: cluster.RoleWorker, Dir: filepath.Join(dir, "client")})
	if err != nil {
		return n, err
	}
	return n, n.cl.CreateRun(ctx, replay.RunSpec{
		Run: runName, GroupSize: dispatchGroup, GroupsPerStep: 4096, MaxStaleness: 1000, TicketTTL: time.Hour, MaxAttempts: 2, BaseDigest: "base",
	})
}

func (n *node) close() error {
	var errs []error
	if n.cl != nil {
		errs = append(errs, n.cl.Close())
	}
	_ = n.in.Close()
	done := make(chan error, 1)
	go func() { done <- n.cmd.Wait() }()
	select {
	case err := <-done:
		errs = append(errs, err)
	case <-time.After(20 * time.Second):
		_ = n.cmd.Process.Kill()
		<-done
		errs = append(errs, errors.New("the node did not stop within 20 s"))
	}
	return errors.Join(append(errs, os.RemoveAll(n.dir))...)
}

const (
	dispatchGroup   = 8  // rollouts of a ticket
	dispatchTickets = 8  // a call; their logs are one append, the most that a worker's outbox sends at once
	dispatchWorkers = 64 // callers at once
	dispatchGroups  = 40_000
	dispatchTime    = 3 * time.Second
	dispatchSeconds = 8 * time.Second // of Ray, in four forms
)

// dispatchPart: rollouts per second that are handed out as parts of tickets and
// whose logs are acknowledged, against calls per second of a Ray actor in another
// process: with the bytes of a log, which is what ours carry, and without any.
// Ours are verified and durable when they are acknowledged.
func dispatchPart(ctx context.Context, s *session) (err error) {
	peer, err := s.startRay()
	if err != nil {
		return err
	}
	defer peer.Close()
	logs, err := newShelf(dispatchGroups)
	if err != nil {
		return err
	}
	size := len(logs[0][0].Bytes)
	rows := []struct {
		bench, kind, what string
		theirs            float64
		form              string
	}{
		{"dispatch", "log", "a call with the log's bytes and its reply, in memory", 0, ""},
		{"dispatch_empty", "call", "a call without arguments and its reply", 0, ""},
	}
	var best float64
	var version string
	for r := range s.runs {
		n, err := s.dispatch(ctx, logs)
		if err != nil {
			return err
		}
		best = max(best, n*dispatchGroup)
		a, err := peer.ask(ctx, size, dispatchSeconds)
		if err != nil {
			return err
		}
		version = a.Version
		for i := range rows {
			if rate, form := a.best(rows[i].kind); rate > rows[i].theirs {
				rows[i].theirs, rows[i].form = rate, form
			}
		}
		say("run %d dispatch: %.0f rollouts/s (%.0f tickets/s); ray %v; load %.1f", r+1, n*dispatchGroup, n, a.Forms, bench.LoadAverage())
	}
	for _, row := range rows {
		if err := s.log.Add(bench.Row{
			Bench: row.bench, Size: "1-node", Ours: best, Peer: "ray", PeerVersion: version, Theirs: row.theirs, Unit: "calls/s", Runs: s.runs,
			Detail: map[string]any{
				"what": fmt.Sprintf("a rollout handed out (%d a ticket, %d tickets a call) and its log of %d bytes appended (%d a call) and acknowledged, on disk; %d workers, one client process, one replay node, TLS",
					dispatchGroup, dispatchTickets, size, dispatchGroup*dispatchTickets, dispatchWorkers),
				"tickets_per_second": round3(best / dispatchGroup), "ray": row.what + ", " + row.form,
			},
		}, bench.Higher); err != nil {
			return err
		}
	}
	return nil
}

// dispatch measures ours once, on a new node, in tickets per second.
func (s *session) dispatch(ctx context.Context, logs shelf) (rate float64, err error) {
	n, err := s.startNode(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	start := time.Now()
	from, end := start.Add(dispatchTime/6), start.Add(dispatchTime/6+dispatchTime)
	var tickets atomic.Int64
	var wg sync.WaitGroup
	failed := make(chan error, dispatchWorkers)
	for i := range dispatchWorkers {
		wg.Go(func() {
			for time.Now().Before(end) {
				t, err := work(ctx, n.cl, fmt.Sprintf("w%d", i), logs)
				if err != nil {
					failed <- err
					cancel()
					return
				}
				if now := time.Now(); now.After(from) && now.Before(end) {
					tickets.Add(int64(t))
				}
			}
		})
	}
	wg.Wait()
	select {
	case err := <-failed:
		return 0, err
	default:
	}
	return float64(tickets.Load()) / dispatchTime.Seconds(), nil
}

// shelf holds the logs of the first groups' members, made before the clock runs:
// what a rollout is takes its worker's time, not dispatch's.
type shelf [][]replay.Record

func newShelf(groups int) (shelf, error) {
	out := make(shelf, groups)
	for g := range out {
		for m := range uint32(dispatchGroup) {
			b := eventlog.NewBuilder(eventlog.Meta{Run: runName, Group: fmt.Sprintf("%s/train/%d", runName, g), Member: m, GroupSize: dispatchGroup,
				Table: replay.TableTrain, Source: "bench", Task: fmt.Sprint(g), Attempt: 1, Worker: "w", Created: time.Unix(1_800_000_000, 0)})
			span, err := b.AppendTokens(0, []int32{1, 2, 3, 4, 5, 6, 7, 8}, []float32{-1, -1, -1, -1, -1, -1, -1, -1}, eventlog.Policy, 0)
			if err != nil {
				return nil, err
			}
			if _, err := b.Append(eventlog.NewText("done").In(0, span)); err != nil {
				return nil, err
			}
			l, err := b.Finish(eventlog.OK, "")
			if err != nil {
				return nil, err
			}
			data, err := eventlog.Encode(l)
			if err != nil {
				return nil, err
			}
			out[g] = append(out[g], replay.Record{Item: rollout.ItemOf(l, len(data)), Bytes: data})
		}
	}
	return out, nil
}

// work takes tickets and appends the log of each of their members.
func work(ctx context.Context, st replay.Store, worker string, logs shelf) (tickets int, err error) {
	taken, err := st.TakeTickets(ctx, runName, worker, replay.AnyVersion, dispatchTickets, time.Second)
	if err != nil {
		return 0, err
	}
	var recs []replay.Record
	for _, t := range taken {
		if t.Index >= uint64(len(logs)) {
			return 0, fmt.Errorf("%d groups were handed out within %v: prepare more logs", t.Index, dispatchTime)
		}
		recs = append(recs, logs[t.Index]...)
	}
	if len(recs) == 0 {
		return 0, errors.New("the store gave no tickets: its capacity is used up")
	}
	results, err := st.Append(ctx, recs)
	if err != nil {
		return 0, err
	}
	for i, r := range results {
		if r.Duplicate || r.Rejected != "" || r.Busy != "" {
			return 0, fmt.Errorf("log %s was not taken: %+v", recs[i].Item.LogID, r)
		}
	}
	return len(taken), nil
}
