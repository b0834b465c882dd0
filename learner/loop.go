package learner

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/skein-rl/skein/replay"
)

var (
	// ErrTooManyEmpty: MaxEmpty batches in a row had nothing to train.
	ErrTooManyEmpty = errors.New("learner: too many empty batches")
	// ErrIdle: no complete group within MaxIdle.
	ErrIdle = errors.New("learner: no complete groups")
	// ErrLost: MaxLost leases in a row were lost to another learner.
	ErrLost = errors.New("learner: another learner holds this run")
	// ErrTrainedTwice: the store leased a group this learner has trained.
	ErrTrainedTwice = errors.New("learner: group was trained before")
)

// Summary is how a loop ended.
type Summary struct {
	Steps       int    // committed by this call
	Step        uint64 // last committed step
	Version     uint64
	Checkpoint  string // blob digest; resume starts here
	Interrupted bool   // ctx ended it; the run can be resumed
}

// Loop leases, trains and commits until MaxSteps. One goroutine runs it; it
// owns one more, which extends the lease while a step is computed.
type Loop struct {
	cfg     LoopConfig
	store   Store
	l       *Learner
	hooks   Hooks
	prev    string            // digest of the checkpoint the state came from
	trained map[string]uint64 // group -> step, of this process
	status  replay.RunStatus
	waited  time.Duration // for the lease in training
	team    Team          // nil: alone
	lender  *Lender
	crew    crew
}

// NewLoop checks the configuration. The learner stays the loop's own.
func NewLoop(c LoopConfig, store Store, l *Learner, hooks Hooks) (*Loop, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("learner: loop: %w", err)
	}
	if l.ident.Run != c.Run {
		return nil, fmt.Errorf("learner: loop: run %q, but the learner's identity names %q", c.Run, l.ident.Run)
	}
	return &Loop{cfg: c, store: store, l: l, hooks: hooks, trained: map[string]uint64{}}, nil
}

// Run resumes from the last committed step and trains until the configured
// number of steps (nil error), until ctx ends (nil error, Interrupted; the
// lease is released), or until an error that waiting does not cure.
func (lp *Loop) Run(ctx context.Context) (sum Summary, err error) {
	defer func() {
		sum.Step, sum.Version, sum.Checkpoint = lp.l.step, lp.l.version, lp.prev
		if err != nil && ctx.Err() != nil {
			sum.Interrupted, err = true, nil
		}
	}()
	defer lp.crew.dismiss()
	resumed, err := lp.resume(ctx)
	if err != nil {
		return sum, err
	}
	if lp.hooks.OnStart != nil {
		lp.hooks.OnStart(lp.l.step, lp.l.version, resumed)
	}
	if lp.cfg.EvalStart && !resumed {
		lp.eval(ctx)
	}
	empty, lost := 0, 0
	for lp.l.step < uint64(lp.l.cfg.MaxSteps) {
		if err := ctx.Err(); err != nil {
			return sum, err
		}
		if lp.team != nil {
			waited, err := lp.team.Lead(ctx)
			if err == nil && waited {
				_, err = lp.resume(ctx)
			}
			if err != nil {
				return sum, err
			}
			if waited {
				continue
			}
		}
		t0 := time.Now()
		lease, err := lp.lease(ctx)
		lp.waited = time.Since(t0)
		if err == nil {
			err = lp.train(ctx, lease)
		}
		var none *EmptyBatchError
		switch {
		case err == nil:
			sum.Steps++
			empty, lost = 0, 0
		case ctx.Err() != nil:
			return sum, err
		case errors.As(err, &none):
			empty++
			if lp.hooks.OnEmpty != nil {
				lp.hooks.OnEmpty(empty, none.Excluded)
			}
			if empty >= lp.cfg.MaxEmpty {
				return sum, fmt.Errorf("%w: %d in a row, the last with %s; %s", ErrTooManyEmpty, empty, histogram(none.Excluded), lp.explain(ctx))
			}
			if err := sleep(ctx, lp.backoff(empty)); err != nil {
				return sum, err
			}
		case errors.Is(err, replay.ErrStale):
			lost++
			if lost >= lp.cfg.MaxLost {
				return sum, fmt.Errorf("%w: %d leases lost in a row: %w", ErrLost, lost, err)
			}
			if _, rerr := lp.resume(ctx); rerr != nil {
				return sum, errors.Join(err, rerr)
			}
			if lp.hooks.OnLost != nil {
				lp.hooks.OnLost(err, lp.l.step)
			}
		default:
			return sum, err
		}
	}
	return sum, nil
}

func (lp *Loop) backoff(empty int) time.Duration {
	d := lp.cfg.Backoff
	for range empty - 1 {
		if d *= 2; d >= lp.cfg.BackoffMax {
			return lp.cfg.BackoffMax
		}
	}
	return d
}

// sleep waits or returns ctx's error.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}

// call runs one store call with the call timeout, again while the store is
// unavailable, for RetryFor at most.
func (lp *Loop) call(ctx context.Context, what string, f func(context.Context) error) error {
	return lp.callFor(ctx, what, lp.cfg.CallTimeout, f)
}

func (lp *Loop) callFor(ctx context.Context, what string, timeout time.Duration, f func(context.Context) error) error {
	deadline := time.Now().Add(lp.cfg.RetryFor)
	for pause := lp.cfg.Backoff; ; pause = min(2*pause, lp.cfg.BackoffMax) {
		cctx, cancel := context.WithTimeout(ctx, timeout)
		err := f(cctx)
		late := cctx.Err() != nil
		cancel()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("learner: %s: %w", what, context.Cause(ctx))
		}
		if !errors.Is(err, replay.ErrUnavailable) && !late || !time.Now().Add(pause).Before(deadline) {
			return fmt.Errorf("learner: %s: %w", what, err)
		}
		lp.hooks.warn(fmt.Errorf("learner: %s: %w (retrying in %v)", what, err, pause))
		if err := sleep(ctx, pause); err != nil {
			return fmt.Errorf("learner: %s: %w", what, err)
		}
	}
}

// resume loads the last committed state, or begins at step 0.
func (lp *Loop) resume(ctx context.Context) (resumed bool, err error) {
	if err := lp.call(ctx, "status of run "+lp.cfg.Run, func(ctx context.Context) (err error) {
		lp.status, err = lp.store.Status(ctx, lp.cfg.Run)
		return err
	}); err != nil {
		return false, err
	}
	if err := lp.checkSpec(lp.status.Spec); err != nil {
		return false, err
	}
	last := lp.status.LastStep
	if last == nil {
		return false, lp.begin()
	}
	var data []byte
	size := 16*len(lp.l.params) + 12*len(lp.l.CriticParams()) // what it holds a parameter
	if err := lp.callFor(ctx, fmt.Sprintf("checkpoint of step %d", last.Step), lp.cfg.CallTimeout+blobTime(size), func(ctx context.Context) (err error) {
		data, err = lp.store.GetBlob(ctx, last.Checkpoint)
		return err
	}); err != nil {
		return false, err
	}
	c, err := DecodeCheckpoint(data)
	if err != nil {
		return false, fmt.Errorf("learner: checkpoint of step %d (%s): %w", last.Step, last.Checkpoint, err)
	}
	if c.Step != last.Step || c.Version != last.Version {
		return false, fmt.Errorf("%w: blob %s holds step %d version %d, the registry says step %d version %d", ErrCheckpoint, last.Checkpoint, c.Step, c.Version, last.Step, last.Version)
	}
	if err := lp.l.Restore(c); err != nil {
		return false, err
	}
	if diff := DiffConfig(c.Config, lp.l.cfg); len(diff) > 0 {
		lp.hooks.warn(fmt.Errorf("learner: the configuration differs from step %d's: %s", c.Step, strings.Join(diff, ", ")))
	}
	lp.prev = last.Checkpoint
	for g, step := range lp.trained {
		if step > c.Step {
			delete(lp.trained, g) // its step was never committed
		}
	}
	for _, g := range last.Groups {
		lp.trained[g] = last.Step
	}
	return true, nil
}

// begin starts at step 0. The start state is stored with the first step and not
// before: the store collects blobs that nothing refers to, and the first groups
// may take hours.
func (lp *Loop) begin() error {
	if lp.l.step != 0 {
		return fmt.Errorf("learner: the store has no step of run %q but this learner is at step %d; resume it with the store it trained with", lp.cfg.Run, lp.l.step)
	}
	if err := lp.checkStart(lp.status.Spec); err != nil {
		return err
	}
	var err error
	lp.prev, err = lp.l.Checkpoint().Digest()
	return err
}

// checkSpec refuses a run whose dispatch rules contradict the configuration.
func (lp *Loop) checkSpec(s replay.RunSpec) error {
	c := lp.l.cfg
	var errs []error
	differ := func(field string, here, there any) {
		errs = append(errs, fmt.Errorf("learner: run %q was created with %s %v, this learner has %v; use the run's configuration or a new run", lp.cfg.Run, field, there, here))
	}
	if s.BaseDigest != lp.l.ident.Base {
		differ("base", lp.l.ident.Base, s.BaseDigest)
	}
	if int(s.GroupSize) != c.NumGenerations {
		differ("num_generations", c.NumGenerations, s.GroupSize)
	}
	if int(s.GroupsPerStep) != c.GroupsPerStep {
		differ("groups_per_step", c.GroupsPerStep, s.GroupsPerStep)
	}
	if s.MaxStaleness != c.MaxStaleness {
		differ("max_staleness", c.MaxStaleness, s.MaxStaleness)
	}
	return errors.Join(errs...)
}

// checkStart makes sure that the workers' version 0 is what the learner starts
// from.
func (lp *Loop) checkStart(s replay.RunSpec) error {
	a := lp.l.Adapter()
	if s.StartAdapter != "" {
		if d := a.Digest(); d != s.StartAdapter {
			return fmt.Errorf("learner: run %q starts from adapter %s, this learner from %s; load the run's start adapter", lp.cfg.Run, s.StartAdapter, d)
		}
		return nil
	}
	for _, p := range lp.l.tr.Layout() {
		if !strings.Contains(p.Name, "lora_B") {
			continue
		}
		for _, x := range a.Params[p.Offset : p.Offset+p.Len()] {
			if x != 0 {
				return fmt.Errorf("learner: run %q starts from the base but this learner from an adapter whose %s is not zero; create the run with StartAdapter %s", lp.cfg.Run, p.Name, a.Digest())
			}
		}
	}
	return nil
}

// wait leases the next groups, exactly so many.
func (lp *Loop) wait(ctx context.Context, groups int) (*replay.Lease, error) {
	began := time.Now()
	// Groups whose every rollout failed never become ready; they count as empty
	// batches.
	before, err := lp.store.Status(ctx, lp.cfg.Run)
	if err != nil {
		before.DroppedGroups = math.MaxInt // unknown: nothing counts until it is
	}
	req := replay.LeaseRequest{Run: lp.cfg.Run, Holder: lp.cfg.Holder, Groups: groups,
		LearnerVersion: lp.l.version, TTL: lp.cfg.LeaseTTL, Wait: lp.cfg.LeaseWait}
	for {
		asked := time.Now()
		var lease *replay.Lease
		err := lp.callFor(ctx, "lease", lp.cfg.LeaseWait+lp.cfg.CallTimeout, func(ctx context.Context) (err error) {
			lease, err = lp.store.Lease(ctx, req)
			return err
		})
		if err != nil || lease != nil && len(lease.Groups) > 0 {
			return lease, err
		}
		waited := time.Since(began)
		if waited >= lp.cfg.MaxIdle {
			return nil, fmt.Errorf("%w for %v (max_idle): %s", ErrIdle, waited.Round(time.Second), lp.explain(ctx))
		}
		if early := lp.cfg.Backoff - time.Since(asked); early > 0 { // a store that does not wait is not asked in a tight loop
			if err := sleep(ctx, early); err != nil {
				return nil, err
			}
		}
		st, err := lp.store.Status(ctx, lp.cfg.Run)
		if err != nil {
			continue // the next lease call reports what lasts
		}
		before.DroppedGroups = min(before.DroppedGroups, st.DroppedGroups)
		if lost := st.DroppedGroups - before.DroppedGroups; lost >= lp.cfg.MaxEmpty*lp.l.cfg.GroupsPerStep {
			return nil, fmt.Errorf("%w: the rollouts of %d groups in a row, %d batches, came to nothing; %s", ErrTooManyEmpty, lost, lp.cfg.MaxEmpty, lp.explain(ctx))
		}
		if lp.hooks.OnWait != nil {
			lp.hooks.OnWait(waited, st)
		}
	}
}

// explain says what the store knows about missing or failing rollouts.
func (lp *Loop) explain(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, lp.cfg.CallTimeout)
	defer cancel()
	st, err := lp.store.Status(ctx, lp.cfg.Run)
	if err != nil {
		return fmt.Sprintf("and the store does not answer: %v", err)
	}
	return fmt.Sprintf("the store has ready=%d, running=%d, dropped=%d groups and failed=%d rollouts (%s); see `skein status` and the workers' logs",
		st.ReadyGroups, st.RunningGroups, st.DroppedGroups, st.FailedRollouts, histogram(st.FailureReasons))
}

// eval asks for an evaluation of the current version. It is a request: failing
// to place it does not stop training.
func (lp *Loop) eval(ctx context.Context) {
	req := replay.EvalRequest{Run: lp.cfg.Run, Version: lp.l.version, From: lp.cfg.EvalFrom, Count: lp.cfg.EvalCount}
	err := lp.call(ctx, fmt.Sprintf("ask for the evaluation of version %d", req.Version), func(ctx context.Context) error {
		return lp.store.RequestEval(ctx, req)
	})
	if err != nil {
		lp.hooks.warn(err)
		return
	}
	if lp.hooks.OnEval != nil {
		lp.hooks.OnEval(req)
	}
}
