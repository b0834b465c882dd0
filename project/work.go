package project

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/replay"
	"github.com/skein-rl/skein/rollout"
)

// work rolls out groups of the run under its newest policy until the run is
// finished or ctx ends. The run exists.
func (p *parts) work(ctx context.Context, st replay.Store, name string, log *slog.Logger, beat func(rollout.Heartbeat)) (err error) {
	r := p.cfg.Rollout
	dec, err := p.backend.NewDecoder(model.DecoderConfig{Slots: r.Slots, MaxLen: r.MaxLen})
	if err != nil {
		return err
	}
	engine, err := rollout.NewEngine(dec, rollout.EngineConfig{Slots: r.Slots, MaxLen: r.MaxLen})
	if err != nil {
		return errors.Join(err, dec.Close())
	}
	defer func() { err = errors.Join(err, engine.Close()) }()
	loop := rollout.DefaultLoopConfig()
	loop.Temperature, loop.TopP, loop.TopK = p.cfg.Training.Temperature, r.TopP, r.TopK
	loop.MaxCompletionLength = p.cfg.Training.MaxCompletionLength
	loop.MaxToolCallingIterations = r.MaxToolCallingIterations
	loop.ToolTimeout, loop.TurnTimeout, loop.RolloutTimeout = r.ToolTimeout, r.TurnTimeout, r.RolloutTimeout
	wc := rollout.DefaultWorkerConfig()
	wc.Run, wc.Name, wc.Seed = p.cfg.Run, name, p.cfg.Training.Seed
	// A quarter more rollouts than slots: one whose tools run leaves no slot
	// empty.
	wc.Members = r.Slots + (r.Slots+3)/4
	w, err := rollout.NewWorker(wc, rollout.Parts{
		Store: st, Source: p.source, Engine: engine, Chat: p.chat, Loop: loop, Base: p.model, Now: time.Now,
	}, rollout.Hooks{
		Heartbeat: beat,
		Policy: func(version uint64, adapter string) {
			log.Info("worker serves policy", "policy_version", version, "adapter", adapter)
		},
		Error: func(op string, err error) { log.Warn("worker", "op", op, "error", err) },
	})
	if err != nil {
		return err
	}
	defer p.metrics.working(w.Snapshot)()
	return w.Run(ctx)
}
