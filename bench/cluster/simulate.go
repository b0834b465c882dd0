package main

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/skein-rl/skein/bench"
	"github.com/skein-rl/skein/internal/sim"
	"github.com/skein-rl/skein/replay"
)

// simSizes are workers; there is a machine for ten of them.
var simSizes = []int{1000, 4000}

// simSetup keeps every worker busy: groups of 4 rollouts, 5 groups on their way
// for 4 workers; five groups for four workers are trained in all. Faults come as often for each
// worker whatever their number.
func simSetup(workers int) sim.Config {
	c := sim.Default()
	c.Seed, c.Workers, c.Nodes, c.Groups = 1, workers, workers/10, 1
	c.Spec.GroupsPerStep, c.Spec.MaxStaleness, c.Steps = uint32(workers*5/16), 3, 4
	c.Rollout = sim.Spread{Median: 20 * time.Second, Sigma: 1}
	c.Spec.TicketTTL = 10 * time.Minute
	c.Net.Loss, c.Net.Repeat = .001, .001
	often := func(each time.Duration) time.Duration { return each / time.Duration(workers) }
	c.Faults = sim.Faults{Worker: often(4 * time.Hour), Slow: often(4 * time.Hour), Partition: often(4 * time.Hour),
		Node: often(48 * time.Hour), Leader: 2 * time.Minute, Down: sim.Spread{Median: 30 * time.Second, Sigma: 1}}
	return c
}

// simOutcome is what folding a simulated history cost.
type simOutcome struct {
	cpu      time.Duration            // of the fold
	by       map[string]time.Duration // by command
	tickets  int
	taking   time.Duration // of the commands that handed one out
	quarters [4]float64    // microseconds of fold a ticket, by quarters of the tickets
	heap     uint64        // bytes that the state and the audit's books hold at the end
	virtual  time.Duration
	wall     time.Duration
	rep      sim.Report
}

func (o simOutcome) perTicket() float64 { return float64(o.cpu.Microseconds()) / float64(o.tickets) }

// simulate folds one history with a stopwatch around the fold.
func simulate(ctx context.Context, workers int) (o simOutcome, err error) {
	c := simSetup(workers)
	o.by = map[string]time.Duration{}
	type mark struct {
		tickets int
		cpu     time.Duration
	}
	var marks []mark
	var state replay.KV
	c.Apply = func(kv replay.KV, cmd replay.Command) (replay.Result, error) {
		if err := ctx.Err(); err != nil {
			return replay.Result{}, err
		}
		state = kv
		start := time.Now()
		res, err := replay.Apply(kv, cmd)
		d := time.Since(start)
		o.cpu += d
		o.by[fmt.Sprintf("%T", cmd)[len("replay."):]] += d
		if len(res.Tickets) > 0 {
			o.taking += d
			o.tickets += len(res.Tickets)
			marks = append(marks, mark{o.tickets, o.cpu})
		}
		return res, err
	}
	before := heap()
	start := time.Now()
	if o.rep, err = sim.Run(c); err != nil {
		return o, err
	}
	o.wall, o.virtual = time.Since(start), o.rep.Virtual
	o.heap = heap() - before
	runtime.KeepAlive(state)
	last := mark{}
	for q := range o.quarters {
		for _, m := range marks {
			if m.tickets >= o.tickets*(q+1)/4 {
				o.quarters[q] = float64((m.cpu - last.cpu).Microseconds()) / float64(max(m.tickets-last.tickets, 1))
				last = m
				break
			}
		}
	}
	return o, nil
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// simPart: what the fold costs with 4,000 workers against 1,000, and late in a
// history against early.
func simPart(ctx context.Context, s *session) error {
	best := map[int]simOutcome{}
	for r := range s.runs {
		for _, n := range simSizes {
			if err := ctx.Err(); err != nil {
				return err
			}
			o, err := simulate(ctx, n)
			if err != nil {
				return err
			}
			say("run %d sim %d workers: %v virtual in %.1f s, %d tickets, %.1f us of fold a ticket (%.1f by quarters), %.1f MB; faults %v; load %.1f", r+1, n,
				o.virtual.Round(time.Second), o.wall.Seconds(), o.tickets, o.perTicket(), o.quarters, float64(o.heap)/1e6, o.rep.Faults, bench.LoadAverage())
			if b, ok := best[n]; !ok || o.perTicket() < b.perTicket() {
				best[n] = o
			}
		}
	}
	small, large := simSizes[0], simSizes[1]
	a, b := best[small], best[large]
	size := fmt.Sprintf("%dw-%dn", large, large/10)
	peer := fmt.Sprintf("%d-workers", small)
	by := map[string]float64{}
	for k, d := range b.by {
		by[k] = round3(float64(d.Microseconds()) / float64(b.rep.Commands[k]))
	}
	detail := map[string]any{
		"virtual_seconds": round3(b.virtual.Seconds()), "wall_seconds": round3(b.wall.Seconds()), "tickets": b.tickets, "commands": b.rep.Commands,
		"faults": b.rep.Faults, "us_per_command": by, "fold_share_of_a_core": round3(b.cpu.Seconds() / b.virtual.Seconds()),
		"us_by_quarter_of_history": []float64{round3(b.quarters[0]), round3(b.quarters[1]), round3(b.quarters[2]), round3(b.quarters[3])},
	}
	take := func(o simOutcome) float64 { return float64(o.tickets) / o.taking.Seconds() }
	for _, row := range []struct {
		r      bench.Row
		better bench.Better
	}{
		{bench.Row{Bench: "sim_dispatch", Ours: take(b), Peer: peer, Theirs: take(a), Unit: "tickets/s of fold"}, bench.Higher},
		{bench.Row{Bench: "sim_fold", Ours: b.perTicket(), Peer: peer, Theirs: a.perTicket(), Unit: "us/ticket", Detail: detail}, bench.Lower},
		{bench.Row{Bench: "sim_history", Ours: b.quarters[3], Peer: "second-quarter", Theirs: b.quarters[1], Unit: "us/ticket"}, bench.Lower},
		{bench.Row{Bench: "sim_memory", Ours: float64(b.heap) / float64(large), Peer: peer, Theirs: float64(a.heap) / float64(small), Unit: "bytes/worker"}, bench.Lower},
	} {
		row.r.Size, row.r.PeerVersion, row.r.Runs = size, "skein", s.runs
		if err := s.log.Add(row.r, row.better); err != nil {
			return err
		}
	}
	return nil
}
