package main

import (
	"context"
	"fmt"
	"time"

	"github.com/skein-rl/skein/bench"
)

// The learner of the part scaling takes 5 ms a sequence, 20 ms a group; a worker
// rolls out a group in about a second. So the learner is saturated by 50 workers
// at most: larger sizes show where the curve bends.
const scalingSequence = 5 * time.Millisecond

var scalingSizes = []int{1, 4, 16, 32, 64}

// scalingSetup has a group a step for each worker: the work grows with them.
func scalingSetup(workers int) setup {
	return setup{
		workers: workers, slots: 4, groupSize: 4, groupsPerStep: workers, staleness: 4, steps: 5,
		token: 5 * time.Millisecond, lengths: lengths{median: 200, sigma: 0, most: 400}, sequence: scalingSequence,
	}
}

// scalingPart: tokens per second as workers are added, against one worker times
// their number, or what the learner takes when that is less.
func scalingPart(ctx context.Context, s *session) error {
	best := map[int]outcome{}
	for r := range s.runs {
		for _, n := range scalingSizes {
			o, err := s.train(ctx, scalingSetup(n))
			if err != nil {
				return fmt.Errorf("%d workers: %w", n, err)
			}
			say("run %d scaling %d workers: %.3f s a step, %.0f tokens/s, slots %.0f %% busy, the learner waits %.3f s; load %.1f", r+1, n,
				o.stepSeconds, o.trained(n), 100*o.busy, o.waited, bench.LoadAverage())
			if o.trained(n) > best[n].trained(n) {
				best[n] = o
			}
		}
	}
	one := best[1].trained(1)
	for _, n := range scalingSizes[1:] {
		o, c := best[n], scalingSetup(n)
		limit := c.lengths.median / c.sequence.Seconds()
		d := o.detail()
		d["linear"], d["learner_limit"] = round3(one*float64(n)), round3(limit)
		d["efficiency"], d["bound_by"] = round3(o.trained(n)/one/float64(n)), "workers"
		ideal := one * float64(n)
		if limit < ideal {
			ideal, d["bound_by"] = limit, "learner"
		}
		if err := s.log.Add(bench.Row{
			Bench: "scaling", Size: fmt.Sprintf("%d-workers", n), Ours: o.trained(n), Peer: "ideal", PeerVersion: "skein, 1 worker",
			Theirs: ideal, Unit: "tokens/s", Runs: s.runs, Detail: d,
		}, bench.Higher); err != nil {
			return err
		}
	}
	return nil
}

// trained is how many tokens a second were trained: all rollouts are as long.
func (o outcome) trained(workers int) float64 {
	if o.stepSeconds == 0 {
		return 0
	}
	c := scalingSetup(workers)
	return float64(c.groupSize*c.groupsPerStep) * c.lengths.median / o.stepSeconds
}
