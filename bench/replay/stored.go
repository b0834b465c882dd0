package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/skein-rl/skein/bench"
	"github.com/skein-rl/skein/replay"
	"github.com/skein-rl/skein/replay/table"
)

// storedSizes are the numbers of stored logs, by name.
var storedSizes = map[string]int{"1k": 1000, "100k": 100_000, "1M": 1_000_000}

// The bounds that the rows of stored compare with.
const (
	rssBound  = 500 // MB
	openBound = 5   // seconds
	tiny      = 512 // bytes of a stored log: the index is what is measured
)

// storedPart measures one node that holds more and more logs: memory, appends of
// 8 KB and samples beside them, and how long it takes to open again after
// kill -9.
func storedPart(ctx context.Context, s *session) (err error) {
	g, err := s.startGroup(ctx, 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.close()) }()
	cfg := table.Default()
	cfg.Sampler, cfg.MaxTimesSampled, cfg.GroupSize = table.Selector{Kind: table.Uniform}, 0, members
	if _, err := g.cl.SetTable(ctx, runName, "bench", cfg, 0); err != nil {
		return err
	}
	single := table.Default()
	if _, err := g.cl.SetTable(ctx, runName, "single", single, 0); err != nil {
		return err
	}
	probe, err := records(small, 64, 1, 1)
	if err != nil {
		return err
	}
	for i := range probe {
		probe[i].Item.Table = "single"
	}
	names := []string{"1k", "100k", "1M"}
	var base load
	stored := 0
	for _, name := range names[:slices.Index(names, s.stored)+1] {
		start := time.Now()
		if err := g.store(ctx, storedSizes[name]-stored); err != nil {
			return err
		}
		if name != "1k" {
			say("stored %s: %.0f logs/s", name, float64(storedSizes[name]-stored)/time.Since(start).Seconds())
		}
		stored = storedSizes[name]
		l, err := g.produce(ctx, probe, producers, s.seconds/3, s.seconds, 0)
		if err != nil {
			return err
		}
		if base.logs == 0 {
			base = l
		}
		p := g.nodes[0]
		peak, err := p.proc("status", "VmHWM")
		if err != nil {
			return err
		}
		rss, err := p.proc("status", "VmRSS")
		if err != nil {
			return err
		}
		anon, err := p.proc("status", "RssAnon")
		if err != nil {
			return err
		}
		if err := g.crash(ctx, s); err != nil {
			return err
		}
		p = g.nodes[0]
		say("stored %s: %.0f MB (peak %.0f, anonymous %.0f), %.0f logs/s, p99 %.1f ms, opens in %.2f s, serves after %.2f s", name, rss/1024, peak/1024, anon/1024, l.rate(), l.quantile(0.99), p.opened, p.ready)
		add := func(row bench.Row, better bench.Better) {
			row.Size, row.PeerVersion, row.Runs = name+"-r1", "own", 1
			err = errors.Join(err, s.log.Add(row, better))
		}
		add(bench.Row{Bench: "stored_rss", Ours: peak / 1024, Peer: "bound", Theirs: rssBound, Unit: "MB",
			Detail: map[string]any{"now_mb": round2(rss / 1024), "anonymous_mb": round2(anon / 1024), "log_bytes": tiny}}, bench.Lower)
		add(bench.Row{Bench: "open_after_crash", Ours: p.ready, Peer: "bound", Theirs: openBound, Unit: "s",
			Detail: map[string]any{"opened_s": round2(p.opened)}}, bench.Lower)
		add(bench.Row{Bench: "grow_stored", Ours: l.rate(), Peer: "1k stored", Theirs: base.rate(), Unit: "logs/s",
			Detail: map[string]any{"p50_ms": round2(l.quantile(0.5)), "p99_ms": round2(l.quantile(0.99)), "producers": producers}}, bench.Higher)
		if err != nil {
			return err
		}
	}
	return nil
}

// store appends n small logs in groups.
func (g *group) store(ctx context.Context, n int) error {
	recs, err := records(tiny, 64, members, 3)
	if err != nil {
		return err
	}
	work := make(chan int)
	done := make(chan error, 8)
	for range cap(done) {
		go func() {
			var err error
			for k := range work {
				if err != nil {
					continue
				}
				var batch []replay.Record
				for range k {
					name := fmt.Sprintf("g%016x", serial.Add(1))
					for m := range members {
						r := recs[m]
						r.Item.Group, r.Item.LogID, r.Item.Member = name, fmt.Sprintf("%s-%d", name, m), uint32(m)
						batch = append(batch, r)
					}
				}
				_, err = g.cl.Append(ctx, batch)
			}
			done <- err
		}()
	}
	for left := n / members; left > 0; left -= 32 {
		work <- min(left, 32)
	}
	close(work)
	for range cap(done) {
		err = errors.Join(err, <-done)
	}
	return err
}

// crash kills the only node with signal 9 and starts it again.
func (g *group) crash(ctx context.Context, s *session) error {
	old := g.nodes[0]
	g.nodes = nil
	if err := errors.Join(old.kill(), g.cl.Close()); err != nil {
		return err
	}
	g.cl = nil
	p, err := s.startNode(old.dir, "", strings.TrimSuffix(old.dir, "n0")+"n0/token")
	if err != nil {
		return err
	}
	g.nodes = []*process{p}
	return g.connect(ctx)
}
