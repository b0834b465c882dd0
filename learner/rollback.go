package learner

import (
	"context"
	"errors"
	"fmt"

	"github.com/skein-rl/skein/replay"
)

// metricRollback of a step's record names the step whose state it took up again.
const metricRollback = "rolled_back_to"

// rollbackTries bounds how often a learner's own commit may come in between.
const rollbackTries = 5

// Rollback makes the state after a committed step the newest of its run: its
// adapter is published as the next policy version, and training goes on from
// its checkpoint, optimizer included. What versions in between have sampled is
// not trained any more; their steps stay on record. It is itself a step, which
// trained nothing, so a run in the middle of its work takes it as another
// learner's commit. ErrNotFound when the step's checkpoint is not kept.
func Rollback(ctx context.Context, store replay.Store, run string, to uint64) (replay.StepRecord, error) {
	for try := 1; ; try++ {
		rec, err := rollback(ctx, store, run, to)
		if err == nil || !errors.Is(err, replay.ErrStale) || try == rollbackTries {
			return rec, err
		}
	}
}

func rollback(ctx context.Context, store replay.Store, run string, to uint64) (rec replay.StepRecord, err error) {
	fail := func(err error) (replay.StepRecord, error) {
		return rec, fmt.Errorf("learner: roll run %q back to step %d: %w", run, to, err)
	}
	status, err := store.Status(ctx, run)
	if err != nil {
		return fail(err)
	}
	last := status.LastStep
	switch {
	case last == nil:
		return fail(fmt.Errorf("%w: it has no step yet", replay.ErrInvalid))
	case status.Finished:
		return fail(fmt.Errorf("%w: it is finished: start a new run from that step's adapter (skein model export, start_adapter)", replay.ErrInvalid))
	case to == 0 || to >= last.Step:
		return fail(fmt.Errorf("%w: choose a committed step before the last one, 1 to %d", replay.ErrInvalid, last.Step-1))
	}
	old, err := store.Step(ctx, run, to)
	if err != nil {
		return fail(err)
	}
	data, err := store.GetBlob(ctx, old.Checkpoint)
	if errors.Is(err, replay.ErrNotFound) {
		err = fmt.Errorf("%w: its checkpoint is not kept: limits.save_total_limit says for how many steps they are", err)
	}
	if err != nil {
		return fail(err)
	}
	c, err := DecodeCheckpoint(data)
	if err != nil {
		return fail(err)
	}
	c.Step, c.Version, c.Lease = last.Step+1, status.Latest.Version+1, 0
	if data, err = c.Encode(); err != nil {
		return fail(err)
	}
	rec = replay.StepRecord{
		Run: run, Step: c.Step, Version: c.Version, PrevCheckpoint: last.Checkpoint, Adapter: old.Adapter,
		Metrics: map[string]float64{metricRollback: float64(to)},
	}
	if rec.Checkpoint, err = store.PutBlob(ctx, data); err != nil {
		return fail(err)
	}
	if err := store.Commit(ctx, rec); err != nil {
		return fail(err)
	}
	return rec, nil
}

// verifyRollback checks that a rollback published what it says.
func verifyRollback(ctx context.Context, store VerifyStore, rec replay.StepRecord) (*VerifyReport, error) {
	to := uint64(rec.Metrics[metricRollback])
	old, err := store.Step(ctx, rec.Run, to)
	if err != nil {
		return nil, fmt.Errorf("learner: verify step %d, a rollback to step %d: %w", rec.Step, to, err)
	}
	return &VerifyReport{
		Run: rec.Run, Step: rec.Step, Version: rec.Version, OK: old.Adapter == rec.Adapter,
		AdapterRecorded: rec.Adapter, AdapterRecomputed: old.Adapter, CheckpointRecorded: rec.Checkpoint, From: &to,
	}, nil
}
