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
	lora, full := p.cfg.trained(p.model)
	return learner.Identity{
		Run: run, Base: p.model.Digest, LoRA: lora, Full: full, Critic: p.criticLoRA(),
		Dataset: learner.Dataset{Name: p.source.Name(), Digest: task.Identity(p.source)},
	}
}

// spec is how the run is registered.
func (p *parts) spec() (replay.RunSpec, error) {
	text, err := p.cfg.YAML()
	var blobs []string
	for _, r := range p.cfg.RewardModels {
		blobs = append(blobs, r.Digest)
	}
	return replay.RunSpec{
		Run: p.cfg.Run, Config: text,
		GroupSize:     uint32(p.cfg.Training.NumGenerations),
		GroupsPerStep: uint32(p.cfg.Training.GroupsPerStep),
		MaxStaleness:  p.cfg.Training.MaxStaleness,
		TicketTTL:     p.cfg.Rollout.GroupTimeout,
		MaxAttempts:   p.cfg.Rollout.attempts(),
		Stragglers: replay.Stragglers{
			Oversample:     uint32(p.cfg.Rollout.Oversample),
			DuplicateAfter: p.cfg.Rollout.DuplicateAfter,
			Drop:           p.cfg.Rollout.OnTimeout == OnTimeoutDrop,
		},
		BaseDigest: p.model.Digest,

		Blobs:      blobs,
		Curriculum: p.cfg.curriculum(),

		KeepCheckpoints: p.cfg.Limits.SaveTotalLimit,
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
	if _, err := p.cfg.pool(p.source); err != nil {
		return err
	}
	if err := p.storeRewardModels(ctx, st); err != nil {
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
	if p.cfg.StartAdapter != "" {
		a, err := startOf(p.cfg, p.model, false)
		if err != nil {
			return err
		}
		if spec.StartAdapter, err = st.PutBlob(ctx, a.Encode()); err != nil {
			return fmt.Errorf("project: storing the start adapter: %w", err)
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
		return p.cfg.fresh(p.model)
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

// learn trains the run to its last step, together with the cluster's other
// learners of it when m is one of them. The run exists.
func (p *parts) learn(ctx context.Context, st replay.Store, holder string, hooks learner.Hooks, m *member) error {
	status, err := st.Status(ctx, p.cfg.Run)
	if err != nil {
		return err
	}
	start, err := p.startAdapter(ctx, st, status.Spec)
	if err != nil {
		return err
	}
	l, done, err := p.learner(start, status.LastStep != nil)
	if err != nil {
		return err
	}
	defer done()
	lc := learner.DefaultLoopConfig(p.cfg.Run, holder)
	lc.EvalEvery, lc.EvalCount, lc.EvalStart = uint64(p.cfg.Eval.Every), uint32(p.cfg.Eval.Tasks), p.cfg.Eval.Tasks > 0
	lc.MaxIdle, lc.MaxEmpty = p.cfg.Limits.MaxIdle, p.cfg.Limits.MaxEmpty
	if p.cfg.Eval.Tasks == 0 {
		lc.EvalEvery = 0
	} else if lc.EvalEvery == 0 {
		lc.EvalEvery = uint64(p.cfg.Training.MaxSteps) // the last step only
	}
	rec := p.recorder()
	defer rec.Close()
	if rec != nil {
		defer p.metrics.recording(rec)()
	}
	loop, err := learner.NewLoop(lc, st, l, p.metrics.learning(p.trace.learning(rec.hooks(ctx, st, hooks))))
	if err != nil {
		return err
	}
	if m != nil {
		defer m.share(p.cfg.Run, loop, l.Lend(p.cfg.arithmetic()))()
	}
	sum, err := loop.Run(ctx)
	if err == nil && sum.Interrupted {
		return context.Cause(ctx)
	}
	return err
}

// recorder of this process's steps; nil without a folder.
func (p *parts) recorder() *recorder {
	if p.dir == "" {
		return nil
	}
	r := newRecorder(p.cfg.Watch, p.dir, p.cfg.Run, p.log.With("component", "watch"))
	if p.told {
		r.level = slog.LevelInfo
	}
	return r
}

// finishRun waits for the last step and its evaluation and closes the run. It is
// the scheduler's only duty: dispatch itself is a rule of the fold.
func finishRun(ctx context.Context, st replay.Store, c Config) error {
	var s replay.RunStatus
	err := poll(ctx, func(ctx context.Context) (done bool, err error) {
		s, err = st.Status(ctx, c.Run)
		if errors.Is(err, replay.ErrNotFound) {
			return false, nil
		}
		return s.Finished || s.LastStep != nil && s.LastStep.Step >= uint64(c.Training.MaxSteps), err
	})
	if err != nil || s.Finished {
		return err
	}
	if c.Eval.Tasks > 0 {
		if err := evaluate(ctx, st, c.Run, s.Latest.Version, c); err != nil {
			return err
		}
	}
	return st.FinishRun(ctx, c.Run)
}

// evaluate waits until a version of a run is evaluated. It asks for that as
// well: a learner may have died between its last commit and its asking. It ends
// with ErrNotEvaluated when no task is done for limits.max_idle.
func evaluate(ctx context.Context, st replay.Store, run string, version uint64, c Config) error {
	asked, last, moved := false, -1, time.Now()
	return poll(ctx, func(ctx context.Context) (done bool, err error) {
		if !asked {
			err = st.RequestEval(ctx, replay.EvalRequest{Run: run, Version: version, Count: uint32(c.Eval.Tasks)})
			asked = err == nil
		}
		var e replay.EvalStatus
		if err == nil {
			e, err = st.EvalStatus(ctx, run, version)
		}
		switch {
		case err == nil && e.Done == e.Requested:
			return true, nil
		case err == nil && e.Done > last:
			last, moved = e.Done, time.Now()
		case time.Since(moved) >= c.Limits.MaxIdle:
			return false, errors.Join(fmt.Errorf("%w: version %d of run %s: %d of %d tasks done, none for %s (limits.max_idle): is a worker running? see the workers' logs",
				ErrNotEvaluated, version, run, max(last, 0), c.Eval.Tasks, c.Limits.MaxIdle), err)
		}
		return false, err
	})
}

// ErrNotEvaluated ends a run whose evaluation stands still.
var ErrNotEvaluated = errors.New("project: evaluation does not go on")

// poll calls try, each time within 10 s, until it is done or fails for good; an
// unavailable store is asked again.
func poll(ctx context.Context, try func(context.Context) (done bool, err error)) error {
	tick := time.NewTicker(300 * time.Millisecond)
	defer tick.Stop()
	for {
		call, cancel := context.WithTimeout(ctx, 10*time.Second)
		done, err := try(call)
		late := call.Err() != nil
		cancel()
		if err == nil && done {
			return nil
		}
		if err != nil && (isVerdict(err) || !late && !errors.Is(err, replay.ErrUnavailable)) {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}
