package project

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/skein-rl/skein/learner"
	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/replay"
	"github.com/skein-rl/skein/rollout/task"
)

// identity binds checkpoints to what they were trained from and on.
func (p *parts) identity(run string) learner.Identity {
	return learner.Identity{
		Run: run, Base: p.model.Digest, LoRA: p.cfg.LoRA,
		Dataset: learner.Dataset{Name: p.source.Name(), Digest: task.Identity(p.source)},
	}
}

// spec is how the run is registered.
func (p *parts) spec() (replay.RunSpec, error) {
	text, err := p.cfg.YAML()
	return replay.RunSpec{
		Run: p.cfg.Run, Config: text,
		GroupSize:     uint32(p.cfg.Training.NumGenerations),
		GroupsPerStep: uint32(p.cfg.Training.GroupsPerStep),
		MaxStaleness:  p.cfg.Training.MaxStaleness,
		TicketTTL:     p.cfg.Rollout.GroupTimeout,
		MaxAttempts:   p.cfg.Rollout.MaxAttempts,
		BaseDigest:    p.model.Digest,
	}, err
}

// ensureRun makes the run exist in the store, warming its start adapter up
// first when the configuration asks for it. Calling it again, from anywhere,
// finds the run.
func (p *parts) ensureRun(ctx context.Context, st replay.Store, dir string, log *slog.Logger, progress io.Writer) error {
	_, err := st.Status(ctx, p.cfg.Run)
	if err == nil || !errors.Is(err, replay.ErrNotFound) {
		return err
	}
	spec, err := p.spec()
	if err != nil {
		return err
	}
	if p.cfg.Warmup.Examples > 0 {
		if spec.StartAdapter, err = p.warmStart(ctx, st, dir, log, progress); err != nil {
			return fmt.Errorf("project: warm-up: %w", err)
		}
	}
	if err := st.CreateRun(ctx, spec); err != nil {
		return fmt.Errorf("project: creating run %s: %w", p.cfg.Run, err)
	}
	return nil
}

// startAdapter is where policy version 0 of the run stands.
func (p *parts) startAdapter(ctx context.Context, st replay.Store, spec replay.RunSpec) (*model.Adapter, error) {
	if spec.StartAdapter == "" {
		return model.NewAdapter(p.model.Config, p.cfg.LoRA, p.model.Digest, p.cfg.Training.Seed)
	}
	blob, err := st.GetBlob(ctx, spec.StartAdapter)
	if err != nil {
		return nil, fmt.Errorf("project: start adapter of run %s: %w", spec.Run, err)
	}
	a, err := model.DecodeAdapter(blob)
	if err != nil {
		return nil, fmt.Errorf("project: start adapter of run %s: %w", spec.Run, err)
	}
	return a, errors.Join(a.Check(p.model.Config), a.CheckBase(p.model.Digest))
}

// learn trains the run to its last step. The run exists.
func (p *parts) learn(ctx context.Context, st replay.Store, holder string, hooks learner.Hooks) error {
	status, err := st.Status(ctx, p.cfg.Run)
	if err != nil {
		return err
	}
	start, err := p.startAdapter(ctx, st, status.Spec)
	if err != nil {
		return err
	}
	tr, err := p.backend.NewTrainer(model.TrainerConfig{LoRA: p.cfg.LoRA})
	if err != nil {
		return err
	}
	defer tr.Close()
	l, err := learner.New(p.cfg.Training, p.identity(p.cfg.Run), tr, start.Params)
	if err != nil {
		return err
	}
	lc := learner.DefaultLoopConfig(p.cfg.Run, holder)
	lc.EvalEvery, lc.EvalCount, lc.EvalStart = uint64(p.cfg.Eval.Every), uint32(p.cfg.Eval.Tasks), p.cfg.Eval.Tasks > 0
	lc.MaxIdle, lc.MaxEmpty = p.cfg.Limits.MaxIdle, p.cfg.Limits.MaxEmpty
	if p.cfg.Eval.Tasks == 0 {
		lc.EvalEvery = 0
	} else if lc.EvalEvery == 0 {
		lc.EvalEvery = uint64(p.cfg.Training.MaxSteps) // the last step only
	}
	loop, err := learner.NewLoop(lc, st, l, hooks)
	if err != nil {
		return err
	}
	sum, err := loop.Run(ctx)
	if err == nil && sum.Interrupted {
		return context.Cause(ctx)
	}
	return err
}

// finishRun waits for the evaluation of the last version and closes the run.
// It is the scheduler's only duty: dispatch itself is a rule of the fold.
func finishRun(ctx context.Context, st replay.Store, c Config) error {
	tick := time.NewTicker(300 * time.Millisecond)
	defer tick.Stop()
	for {
		done, err := finished(ctx, st, c)
		if err != nil && !errors.Is(err, replay.ErrUnavailable) && !errors.Is(err, replay.ErrNotFound) {
			return err
		}
		if err == nil && done {
			return st.FinishRun(ctx, c.Run)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// finished says whether every step is made and the last version evaluated.
func finished(ctx context.Context, st replay.Store, c Config) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	s, err := st.Status(ctx, c.Run)
	if err != nil || s.Finished {
		return s.Finished, err
	}
	if s.LastStep == nil || s.LastStep.Step < uint64(c.Training.MaxSteps) {
		return false, nil
	}
	if c.Eval.Tasks == 0 {
		return true, nil
	}
	e, err := st.EvalStatus(ctx, c.Run, s.Latest.Version)
	return err == nil && e.Done == e.Requested, err
}
