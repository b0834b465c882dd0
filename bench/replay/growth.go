package main

import (
	"context"
	"fmt"

	"github.com/skein-rl/skein/bench"
)

// growthPart shows how throughput and latency follow the number of producers and
// of nodes. The peer of a row is our own smallest size: a ratio of 1 means that
// growing costs nothing.
func growthPart(ctx context.Context, s *session) error {
	base := map[string]float64{}
	add := func(name, size, peer string, l load, detail map[string]any) error {
		if _, ok := base[name]; !ok {
			base[name] = l.rate()
		}
		say("%s %s: %.0f logs/s, p50 %.1f ms, p99 %.1f ms", name, size, l.rate(), l.quantile(0.5), l.quantile(0.99))
		detail["p50_ms"], detail["p99_ms"] = round2(l.quantile(0.5)), round2(l.quantile(0.99))
		return s.log.Add(bench.Row{
			Bench: name, Size: size, Ours: l.rate(), Peer: peer, PeerVersion: "own", Theirs: base[name], Unit: "logs/s", Runs: 1, Detail: detail,
		}, bench.Higher)
	}
	for _, n := range []int{1, 16, 256, 2000} {
		l, err := s.appends(ctx, 3, small, n, 0)
		if err != nil {
			return err
		}
		if err := add("grow_producers", fmt.Sprintf("%d-8KB-r3", n), "1 producer", l, map[string]any{"producers": n, "nodes": 3}); err != nil {
			return err
		}
	}
	for _, n := range []int{1, 3, 5} {
		l, err := s.appends(ctx, n, small, producers, 0)
		if err != nil {
			return err
		}
		if err := add("grow_nodes", fmt.Sprintf("%d-8KB", n), "1 node", l, map[string]any{"producers": producers, "nodes": n}); err != nil {
			return err
		}
	}
	return nil
}
