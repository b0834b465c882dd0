package project

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/skein-rl/skein/cluster"
	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/replay"
	"github.com/skein-rl/skein/rollout"
)

// work rolls out groups of the run under its newest policy, on an engine of its
// own or the one it shares, until the run is finished or ctx ends. The run exists.
func (p *parts) work(ctx context.Context, st replay.Store, name string, log *slog.Logger, beat func(rollout.Heartbeat)) (err error) {
	if p.base.of.many {
		at, leave, err := p.base.seat(p.cfg, nil)
		if err != nil {
			return err
		}
		return errors.Join(p.workOn(ctx, st, name, at, log, beat), leave())
	}
	r := p.cfg.Rollout
	engine, err := newEngine(p.backend, rollout.EngineConfig{Slots: r.Slots, MaxLen: r.MaxLen, Adapters: 1, OnSwap: r.onSwap()})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, engine.Close()) }()
	return p.workOn(ctx, st, name, place{engine: engine, members: membersOf(r.Slots)}, log, beat)
}

func newEngine(b model.Backend, c rollout.EngineConfig) (*rollout.LocalEngine, error) {
	dec, err := b.NewDecoder(model.DecoderConfig{Slots: c.Slots, MaxLen: c.MaxLen, Adapters: c.Adapters})
	if err != nil {
		return nil, err
	}
	engine, err := rollout.NewEngine(dec, c)
	if err != nil {
		return nil, errors.Join(err, dec.Close())
	}
	return engine, nil
}

// membersOf is how many rollouts keep that many slots busy: a quarter more, so
// that one whose tools run leaves no slot empty.
func membersOf(slots int) int { return slots + (slots+3)/4 }

// place is where a run's rollouts run.
type place struct {
	engine  rollout.Engine
	members int
	seat    *rollout.Seat // nil: alone
	// policies fetches adapters; nil: from the store.
	policies *cluster.Policies
	yield    func() time.Duration // to cheaper workers; nil: never
}

// workOn is work on an engine that is there.
func (p *parts) workOn(ctx context.Context, st replay.Store, name string, at place, log *slog.Logger, beat func(rollout.Heartbeat)) (err error) {
	r := p.cfg.Rollout
	source, err := p.cfg.pool(p.source)
	if err != nil {
		return err
	}
	judges, closeJudges, err := p.judges(ctx, st, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeJudges()) }()
	loop := rollout.DefaultLoopConfig()
	loop.Temperature, loop.TopP, loop.TopK = p.cfg.Training.Temperature, r.TopP, r.TopK
	loop.MaxCompletionLength = p.cfg.Training.MaxCompletionLength
	loop.MaxToolCallingIterations = r.MaxToolCallingIterations
	loop.ToolTimeout, loop.TurnTimeout, loop.RolloutTimeout = r.ToolTimeout, r.TurnTimeout, r.RolloutTimeout
	wc := rollout.DefaultWorkerConfig()
	wc.Run, wc.Name, wc.Seed = p.cfg.Run, name, p.cfg.Training.Seed
	wc.Members, wc.Yield = at.members, at.yield
	own := rollout.Parts{
		Store: st, Source: source, Engine: at.engine, Chat: p.chat, Loop: loop, Base: p.model, Now: time.Now, Seat: at.seat, Judges: judges,
	}
	if at.policies != nil {
		own.Policies = at.policies
	}
	w, err := rollout.NewWorker(wc, own, p.trace.rolling(rollout.Hooks{
		Heartbeat: beat,
		Policy: func(version uint64, adapter string) {
			log.Info("worker serves policy", "run", p.cfg.Run, "policy_version", version, "adapter", adapter)
		},
		Error: func(op string, err error) { log.Warn("worker", "run", p.cfg.Run, "op", op, "error", err) },
	}, name))
	if err != nil {
		return err
	}
	defer p.metrics.working(w.Snapshot)()
	return w.Run(ctx)
}
