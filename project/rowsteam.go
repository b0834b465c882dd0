package project

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/skein-rl/skein/cluster"
	"github.com/skein-rl/skein/learner"
)

// arithmetic names the kind of numbers a configuration computes with: learners of
// different kinds do not help each other.
func (c Config) arithmetic() string { return c.Backend + " " + c.Dtype }

// join makes a training on rows the leader of its run in a cluster: learners
// there that were started with its configuration (helpRows) compute micro-batches
// of its steps. leave ends that.
func (r *rowsRun) join(ctx context.Context, opt LocalOptions) (t learner.Team, leave func() error, err error) {
	o := *opt.Join
	o.Roles, o.Dir, o.Log = []string{cluster.RoleLearner}, filepath.Join(opt.Dir, "node"), opt.Log
	m, err := joinAs(ctx, o, cluster.RoleLearner, o.Join)
	if err != nil {
		return nil, nil, fmt.Errorf("project: joining the cluster for helpers: %w", err)
	}
	m.duty.Store(&duty{run: r.cfg.Run, leads: true})
	stop := m.beat(ctx)
	return &team{m, r.cfg.Run}, func() error { stop(); return m.Close() }, nil
}

// helpRows lends this learner's trainer to the training on rows that has its
// configuration, wherever that runs, until ctx ends. The rows stay with the
// leader; its tokens come with each micro-batch.
func (m *member) helpRows(ctx context.Context) (err error) {
	c := *m.opt.Config
	c.StartAdapter = "" // its folder need not be on this machine
	b := newBases()
	b.bound(c)
	mdl, unmodel, err := b.model(c.Model)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnusable, err)
	}
	defer func() { err = errors.Join(err, unmodel()) }()
	if err := c.checkFull(mdl); err != nil {
		return fmt.Errorf("%w: %w", ErrUnusable, err)
	}
	base, err := b.backend(c, mdl, m.opt.Log)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnusable, err)
	}
	defer func() { err = errors.Join(err, base.release()) }()
	lora, full := c.trained(mdl)
	tr, err := base.user(c.Share).NewTrainer(c.Training.Trainer(lora, full))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnusable, err)
	}
	defer func() { err = errors.Join(err, tr.Close()) }()
	// Its own parameters are never used: those of the leader come with the work.
	l, err := learner.New(c.Training, learner.Identity{Run: c.Run, Base: mdl.Digest, LoRA: lora, Full: full}, tr, make([]float32, tr.Layout().Size()))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnusable, err)
	}
	lender := l.Lend(c.arithmetic())
	m.duty.Store(&duty{run: c.Run, lender: lender})
	defer func() {
		m.duty.Store(&duty{})
		lender.Close()
	}()
	m.opt.Log.Info("ready to help a training on rows", "run", c.Run, "algorithm", c.Training.Algorithm, "model", c.Model)
	<-ctx.Done()
	return context.Cause(ctx)
}
