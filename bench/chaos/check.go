package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/skein-rl/skein/replay"
)

// findings is what an episode's end shows.
type findings struct {
	Lost       int // acknowledged logs that some view lacks
	Duplicated int // logs listed twice, or consumed more often than allowed
	Violations []string
}

func (f *findings) add(format string, args ...any) {
	f.Violations = append(f.Violations, fmt.Sprintf(format, args...))
}

// inspect looks at the healed cluster through a client: every acknowledged log
// is there and intact, nothing is there twice or was never sent, steps are
// whole and in order, and no group was consumed more often than its table allows.
func inspect(ctx context.Context, c replay.Store, h *history) (f findings) {
	fetchAll(ctx, c, h, &f)
	for _, t := range [][2]string{{runTrain, "train"}, {runFresh, "train"}, {runTable, tableAudit}, {runTable, tableBuf}} {
		scanAll(ctx, c, h, t[0], t[1], &f)
	}
	for _, run := range []string{runTrain, runFresh, runTable} {
		stepsOf(ctx, c, h, run, &f)
	}
	return f
}

func (h *history) ackedIDs() (ids []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id := range h.acked {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// fits says whether a record is what was appended.
func (h *history) fits(r replay.Record) bool {
	f := h.facts(r.Item.LogID)
	return f != nil && f.sum == xxhash.Sum64(r.Bytes) && f.digest == r.Item.Digest
}

func fetchAll(ctx context.Context, c replay.Store, h *history, f *findings) {
	for ids := range slices.Chunk(h.ackedIDs(), 256) {
		recs, err := c.Fetch(ctx, ids)
		if err == nil {
			for _, r := range recs {
				if !h.fits(r) {
					f.Lost++
					f.add("log %s has other bytes than were appended", r.Item.LogID)
				}
			}
			continue
		}
		for _, id := range ids { // which
			if _, err := c.Fetch(ctx, []string{id}); err != nil {
				f.Lost++
				f.add("acknowledged log %s: %v", id, err)
				if ctx.Err() != nil {
					return
				}
			}
		}
	}
}

func scanAll(ctx context.Context, c replay.Store, h *history, run, table string, f *findings) {
	seen := map[string]bool{}
	for cursor := ""; ; {
		items, next, err := c.Scan(ctx, run, table, cursor, 1000)
		if err != nil {
			f.add("scan of %s/%s: %v", run, table, err)
			return
		}
		for _, it := range items {
			if seen[it.LogID] {
				f.Duplicated++
				f.add("log %s is listed twice", it.LogID)
			}
			seen[it.LogID] = true
			if h.facts(it.LogID) == nil {
				f.add("log %s is listed and was never sent", it.LogID)
			}
		}
		if next == "" {
			break
		}
		cursor = next
	}
	for _, id := range h.ackedOf(run, table) {
		if !seen[id] {
			f.Lost++
			f.add("acknowledged log %s is not listed", id)
		}
	}
}

// stepsOf reads all steps of a run.
func stepsOf(ctx context.Context, c replay.Store, h *history, run string, f *findings) {
	p, err := c.Latest(ctx, run)
	if err != nil {
		f.add("latest of %s: %v", run, err)
		return
	}
	acked := map[uint64]*Op{}
	tried := map[string]bool{}
	h.mu.Lock()
	for i := range h.ops {
		op := &h.ops[i]
		if op.Kind != "commit" || op.Run != run {
			continue
		}
		tried[op.Checkpoint] = true
		if op.Outcome == OK {
			if o := acked[op.Version]; o != nil {
				f.add("run %s: version %d was acknowledged to %s and to %s", run, op.Version, o.Client, op.Client)
			}
			acked[op.Version] = op
		}
	}
	h.mu.Unlock()
	used := map[string]uint32{}
	prev := ""
	for v := uint64(1); v <= p.Version; v++ {
		s, err := c.Step(ctx, run, v)
		if err != nil {
			f.add("step %d of %s: %v", v, run, err)
			return
		}
		if s.Version != v || s.PrevCheckpoint != prev {
			f.add("step %d of %s has version %d and follows checkpoint %q, not %q", v, run, s.Version, s.PrevCheckpoint, prev)
		}
		prev = s.Checkpoint
		if !tried[s.Checkpoint] {
			f.add("step %d of %s has a checkpoint nobody committed", v, run)
		}
		if op := acked[v]; op != nil && (op.Checkpoint != s.Checkpoint || op.Lease != s.Lease) {
			f.add("step %d of %s was acknowledged to %s with lease %d, and is now that of lease %d", v, run, op.Client, op.Lease, s.Lease)
		}
		delete(acked, v)
		if b, err := c.GetBlob(ctx, s.Checkpoint); err != nil || len(b) == 0 {
			f.add("checkpoint of step %d of %s: %v", v, run, err)
		}
		for _, g := range s.Groups {
			used[g]++
		}
	}
	for v, op := range acked {
		f.Lost++
		f.add("run %s: version %d was acknowledged to %s and is not there", run, v, op.Client)
	}
	for g, n := range used {
		most := uint32(1)
		if run == runTable && g[0] == 'b' {
			most = maxBuf
		}
		if n > most {
			f.Duplicated++
			f.add("group %s of %s was consumed %d times, at most %d are allowed", g, run, n, most)
		}
	}
}

// dissect stops every node in order and opens its files: each replica must
// hold every acknowledged log by itself, and all must have the same state.
func dissect(c *cluster, h *history) (f findings) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	for _, n := range c.list() {
		wg.Go(func() {
			if !n.stop(syscall.SIGTERM, 40*time.Second) {
				mu.Lock()
				f.add("node %s did not stop within 40 s of SIGTERM:\n%s", n.id, tail(n.logFile(), 30))
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	states := map[uint64]string{}
	ids := h.ackedIDs()
	for _, n := range c.list() {
		if n.isGone() {
			continue
		}
		if d := n.theDisk(); d != nil { // this process must not map files of its own file system
			if err := d.Close(); err != nil {
				f.add("disk of %s: %v", n.id, err)
			}
		}
		if err := openAlone(n, ids, h, states, &f); err != nil {
			f.add("folder of %s: %v", n.id, err)
		}
		f.addAll(panics(n.logFile()))
	}
	return f
}

func (f *findings) addAll(s []string) { f.Violations = append(f.Violations, s...) }

func openAlone(n *node, ids []string, h *history, states map[uint64]string, f *findings) error {
	opts := replay.DefaultLocalOptions()
	opts.MinFreeBytes, opts.GCInterval = 0, 0
	l, err := replay.OpenLocal(filepath.Join(n.back(), "replay", "store"), opts)
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }()
	for part := range slices.Chunk(ids, 256) {
		recs, missing, err := l.ReadRecords(part)
		if err != nil {
			if errors.Is(err, replay.ErrNotFound) {
				f.Lost++
			}
			f.add("node %s: %v", n.id, err)
			continue
		}
		for _, it := range missing {
			f.Lost++
			f.add("node %s lacks the bytes of log %s", n.id, it.LogID)
		}
		for _, r := range recs {
			if r.Bytes != nil && !h.fits(r) {
				f.Lost++
				f.add("node %s has other bytes of log %s", n.id, r.Item.LogID)
			}
		}
	}
	s := l.Snapshot()
	defer s.Close()
	sum := sha256.New()
	if _, err := s.WriteTo(sum); err != nil {
		return err
	}
	got := fmt.Sprintf("%x", sum.Sum(nil))
	if want, ok := states[s.Applied]; ok && want != got {
		f.add("node %s has another state at raft index %d than the others", n.id, s.Applied)
	}
	states[s.Applied] = got
	return nil
}

func (n *node) isGone() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.gone
}

// panics are the places in a log where a process died of a bug of ours.
func panics(path string) (out []string) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	for _, mark := range []string{"\npanic: ", "\nfatal error: ", "WARNING: DATA RACE", "[signal SIG"} {
		if i := bytes.Index(b, []byte(mark)); i >= 0 {
			out = append(out, fmt.Sprintf("%s: %s", filepath.Base(path), b[i:min(i+3000, len(b))]))
		}
	}
	return out
}
