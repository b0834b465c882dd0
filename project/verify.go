package project

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/skein-rl/skein/learner"
	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/replay"
)

// VerifyStep recomputes a committed step with the run's own model and backend.
func VerifyStep(ctx context.Context, st replay.Store, run string, step uint64, log *slog.Logger) (rep *learner.VerifyReport, err error) {
	status, err := st.Status(ctx, run)
	if err != nil {
		return nil, err
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
	return learner.VerifyStep(ctx, st, run, step, func(context.Context, *learner.Checkpoint) (model.Trainer, error) {
		return p.backend.NewTrainer(model.TrainerConfig{LoRA: c.LoRA})
	})
}
