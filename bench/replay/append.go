package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/skein-rl/skein/bench"
	"github.com/skein-rl/skein/replay/table"
)

// producers of the rows whose size names none.
const producers = 256

// appends measures producers on n fresh nodes.
func (s *session) appends(ctx context.Context, nodes, size, producers int, rate float64) (l load, err error) {
	recs, err := records(size, 64, 1, 1)
	if err != nil {
		return l, err
	}
	g, err := s.startGroup(ctx, nodes)
	if err != nil {
		return l, err
	}
	defer func() { err = errors.Join(err, g.close()) }()
	if _, err := g.cl.SetTable(ctx, runName, "bench", table.Default(), 0); err != nil {
		return l, err
	}
	return g.produce(ctx, recs, producers, s.seconds/3, s.seconds, rate)
}

func appendPart(ctx context.Context, s *session) error {
	for _, c := range []struct{ size, nodes int }{{small, 3}, {large, 3}, {small, 1}} {
		var best load
		theirs := map[string]answer{}
		for i := range s.runs {
			l, err := s.appends(ctx, c.nodes, c.size, producers, 0)
			if err != nil {
				return err
			}
			say("run %d append %s r%d: ours %.0f logs/s, p50 %.1f ms, p99 %.1f ms; load %.1f", i+1, sizeName(c.size), c.nodes, l.rate(), l.quantile(0.5), l.quantile(0.99), bench.LoadAverage())
			if l.rate() > best.rate() {
				best = l
			}
			if err := s.appendPeers(ctx, i+1, c.size, c.nodes > 1, theirs); err != nil {
				return err
			}
		}
		size := fmt.Sprintf("%s-r%d", sizeName(c.size), c.nodes)
		for _, peer := range appendRows {
			a, ok := theirs[peer]
			if !ok {
				continue
			}
			err := s.log.Add(bench.Row{
				Bench: "append", Size: size, Ours: best.rate(), Peer: peer, PeerVersion: a.Version, Theirs: a.Rate, Unit: "logs/s", Runs: s.runs,
				Detail: map[string]any{
					"producers": producers, "durable_on": c.nodes/2 + 1, "p50_ms": round2(best.quantile(0.5)), "p99_ms": round2(best.quantile(0.99)), "cpu_us_per_log": round2(best.cpu), "mb_s": round2(best.rate() * float64(c.size) / 1e6),
					"peer": a.What, "peer_all": a.All,
				},
			}, bench.Higher)
			if err != nil {
				return err
			}
		}
	}
	return nil
}

func round2(x float64) float64 { return float64(int(x*100+0.5)) / 100 }
