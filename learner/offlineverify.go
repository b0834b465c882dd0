package learner

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/skein-rl/skein/learner/data"
	"github.com/skein-rl/skein/model"
)

// OfflineRecord is what a training on rows recorded of a step.
type OfflineRecord struct {
	Step    uint64
	Adapter string // digest of the parameters as an adapter; "" = not recorded
	Metrics map[string]float64
}

// OfflineParts are what a step on rows is recomputed with.
type OfflineParts struct {
	// Base is the digest of the base model that NewTrainer's trainers have.
	Base       string
	NewTrainer func(model.TrainerConfig) (model.Trainer, error)
	// Adapter gives parameters their digest, as records have it.
	Adapter func(params []float32) (string, error)
}

// VerifyOffline recomputes a step of a training on rows from the sealed
// checkpoint before it, or from the start where none is kept, and compares it
// with its record and, where it was saved, with its checkpoint. dir holds the
// checkpoints. A step counts as committed when it, or a later one, was saved.
//
// Rows other than those trained, another base, a step that was not committed or
// of which nothing was recorded are errors: the first two wrap [ErrCheckpoint].
func VerifyOffline(ctx context.Context, dir string, rec OfflineRecord, set *data.Set, p OfflineParts) (*VerifyReport, error) {
	fail := func(err error) (*VerifyReport, error) {
		return nil, fmt.Errorf("learner: verify step %d: %w", rec.Step, err)
	}
	saved, err := Checkpoints(dir)
	if err != nil {
		return fail(err)
	}
	if len(saved) == 0 {
		return fail(fmt.Errorf("%w: no sealed checkpoint under %s: nothing is committed", ErrCheckpoint, dir))
	}
	last := saved[len(saved)-1]
	if rec.Step == 0 || rec.Step > last {
		return fail(fmt.Errorf("it is not committed: the last saved step is %d", last))
	}
	newest, err := LoadCheckpoint(stepPath(dir, last))
	if err != nil {
		return fail(err)
	}
	ident := newest.Identity
	ident.Base, ident.Dataset = p.Base, DatasetOf(set)
	if err := newest.Fits(ident); err != nil {
		return fail(err)
	}
	l, done, err := rowsVerifier(newest, p.NewTrainer)
	if err != nil {
		return fail(err)
	}
	defer done()
	from, err := restoreBefore(l, dir, saved, rec.Step)
	if err != nil {
		return fail(err)
	}
	s, err := recompute(ctx, l, set, rec.Step)
	if err != nil {
		return fail(err)
	}
	r := &VerifyReport{Run: newest.Run, Step: rec.Step, Version: l.version, From: &from, Rows: s.Rows, Params: len(l.params), AdapterRecorded: rec.Adapter}
	if slices.Contains(saved, rec.Step) {
		if err := r.saved(stepPath(dir, rec.Step), l, p); err != nil {
			return fail(err)
		}
	}
	if r.AdapterRecorded == "" {
		return fail(fmt.Errorf("its adapter was not recorded; saved, and so verifiable, are the steps %v", saved))
	}
	if r.AdapterRecomputed, err = p.Adapter(l.params); err != nil {
		return fail(err)
	}
	if r.CheckpointRecomputed, err = l.Checkpoint().Digest(); err != nil {
		return fail(err)
	}
	if rec.Metrics != nil {
		r.Metrics = diffMetrics(s.Metrics, rec.Metrics)
	}
	r.OK = r.AdapterRecorded == r.AdapterRecomputed
	return r, nil
}

// saved compares the learner with the checkpoint of its step.
func (r *VerifyReport) saved(path string, l *Learner, p OfflineParts) error {
	after, err := LoadCheckpoint(path)
	if err != nil {
		return err
	}
	if len(after.Params) != len(l.params) {
		return fmt.Errorf("%w: %s has %d parameters, its start %d", ErrCheckpoint, path, len(after.Params), len(l.params))
	}
	r.Different, r.MaxAbsDiff = differences(l.params, after.Params)
	if r.CheckpointRecorded, err = after.Digest(); err != nil {
		return err
	}
	r.AdapterRecorded, err = p.Adapter(after.Params)
	return err
}

// rowsVerifier makes a learner of a checkpoint's shape at step 0; done closes its
// trainer.
func rowsVerifier(c *Checkpoint, newTrainer func(model.TrainerConfig) (model.Trainer, error)) (l *Learner, done func(), err error) {
	tr, err := newTrainer(c.Config.Trainer(c.LoRA, c.Full))
	if err != nil {
		return nil, nil, fmt.Errorf("trainer: %w", err)
	}
	if l, err = New(c.Config, c.Identity, tr, c.Start); err != nil {
		return nil, nil, errors.Join(err, tr.Close())
	}
	return l, func() { tr.Close() }, nil
}

// restoreBefore brings a learner at step 0 to the last intact checkpoint before a
// step, if there is one, and says where it stands then.
func restoreBefore(l *Learner, dir string, saved []uint64, step uint64) (from uint64, err error) {
	for _, n := range slices.Backward(saved) {
		if n >= step {
			continue
		}
		c, err := LoadCheckpoint(stepPath(dir, n))
		if err != nil {
			continue // damaged since: an earlier one, or the start, does too
		}
		return n, l.Restore(c)
	}
	return 0, nil
}

// recompute makes steps, and nothing beside them, up to one of them.
func recompute(ctx context.Context, l *Learner, set *data.Set, step uint64) (s OfflineStep, err error) {
	r, err := newOffline(l, set, OfflineOptions{})
	if err != nil {
		return s, err
	}
	if err := r.precompute(ctx); err != nil {
		return s, err
	}
	for l.step < step {
		if err := ctx.Err(); err != nil {
			return s, err
		}
		if s, err = r.step(ctx); err != nil {
			return s, err
		}
	}
	return s, nil
}

func stepPath(dir string, step uint64) string {
	return filepath.Join(dir, fmt.Sprintf("%s%08d", stepDir, step))
}
