package project

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/skein-rl/skein/learner"
	"github.com/skein-rl/skein/replay"
)

// VerifyStep recomputes a committed step with the run's own model and backend.
func VerifyStep(ctx context.Context, st replay.Store, run string, step uint64, log *slog.Logger) (rep *learner.VerifyReport, err error) {
	status, err := st.Status(ctx, run)
	if err != nil {
		return nil, err
	}
	if keep := uint64(status.Spec.KeepCheckpoints); keep > 0 && status.LastStep != nil && step > 0 && step+keep <= status.LastStep.Step {
		return nil, fmt.Errorf("project: verify step %d of run %s: the run keeps the checkpoints of its last %d steps (limits.save_total_limit), %d to %d: verify one of those: %w",
			step, run, keep, status.LastStep.Step-keep+1, status.LastStep.Step, replay.ErrNotFound)
	}
	c, err := Parse(status.Spec.Config)
	if err != nil {
		return nil, fmt.Errorf("project: configuration of run %s: %w", run, err)
	}
	p, err := openParts(c, log)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	return learner.VerifyStep(ctx, st, run, step, p.backend.NewTrainer)
}
