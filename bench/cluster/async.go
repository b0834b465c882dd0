package main

import (
	"context"
	"fmt"

	"time"

	"github.com/skein-rl/skein/bench"
)

// longTail is what async, overlap, inflight and oversample train: 32 groups of 4
// a step on 8 workers of 4 slots, so that a slot rolls out four of a batch; half
// of the rollouts are below 100 tokens and a hundredth above 1,000. The learner
// needs about two thirds of the time in which all slots together sample a batch.
func longTail() setup {
	return setup{
		workers: 8, slots: 4, groupSize: 4, groupsPerStep: 32, steps: 6,
		token: 750 * time.Microsecond, lengths: lengths{median: 100, sigma: 1, most: 1600}, sequence: 2500 * time.Microsecond,
	}
}

// compare measures two setups alternately and writes a row in steps per hour.
func (s *session) compare(ctx context.Context, row, peer string, ours, theirs setup) error {
	var best, other outcome
	for r := range s.runs {
		for _, side := range []struct {
			name string
			c    setup
			best *outcome
		}{{row, ours, &best}, {peer, theirs, &other}} {
			o, err := s.train(ctx, side.c)
			if err != nil {
				return fmt.Errorf("%s: %w", side.name, err)
			}
			say("run %d %s: %.3f s a step, slots %.0f %% busy, the learner waits %.3f s, mean staleness %.2f, %d groups dropped; load %.1f", r+1, side.name,
				o.stepSeconds, 100*o.busy, o.waited, o.lag, o.stale, bench.LoadAverage())
			if side.best.stepSeconds == 0 || o.stepSeconds < side.best.stepSeconds {
				*side.best = o
			}
		}
	}
	d := best.detail()
	d["peer"], d["what"] = other.detail(), describe(ours)+" against "+describe(theirs)
	d["lengths"] = fmt.Sprintf("log-normal, median %.0f, sigma %.1f, at most %d, mean %.0f tokens", ours.lengths.median, ours.lengths.sigma, ours.lengths.most, ours.lengths.mean())
	d["learner_seconds"] = round3(float64(ours.groupSize*ours.groupsPerStep) * ours.sequence.Seconds())
	return s.log.Add(bench.Row{
		Bench: row, Size: fmt.Sprintf("%dx%d-w%dx%d-sigma%.0f", ours.groupsPerStep, ours.groupSize, ours.workers, ours.slots, ours.lengths.sigma),
		Ours: 3600 / best.stepSeconds, Peer: peer, PeerVersion: "skein", Theirs: 3600 / other.stepSeconds, Unit: "steps/h", Runs: s.runs, Detail: d,
	}, bench.Higher)
}

func describe(c setup) string {
	out := fmt.Sprintf("staleness %d", c.staleness)
	if c.oversample > 0 {
		out += fmt.Sprintf(", %d members oversampled", c.oversample)
	}
	if c.idleSwap {
		out += ", adapters change when the engine is idle"
	}
	return out
}

// asyncPart: fully asynchronous against synchronous, at equal updates.
func asyncPart(ctx context.Context, s *session) error {
	ours := longTail()
	ours.staleness = 4
	return s.compare(ctx, "async_over_sync", "sync", ours, longTail())
}

// overlapPart: one step off, which hides the learner's time and some of the tail.
func overlapPart(ctx context.Context, s *session) error {
	ours := longTail()
	ours.staleness = 1
	return s.compare(ctx, "overlap", "sync", ours, longTail())
}

// inflightPart: adapters that change in the middle of rollouts, against engines
// that finish what they have first.
func inflightPart(ctx context.Context, s *session) error {
	ours, theirs := longTail(), longTail()
	ours.staleness, theirs.staleness, theirs.idleSwap = 4, 4, true
	return s.compare(ctx, "inflight", "idle-swap", ours, theirs)
}

// oversamplePart: a synchronous run that begins a member more than it needs.
func oversamplePart(ctx context.Context, s *session) error {
	ours := longTail()
	ours.oversample = 1
	return s.compare(ctx, "oversample", "sync", ours, longTail())
}
