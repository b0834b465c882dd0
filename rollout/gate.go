package rollout

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/skein-rl/skein/eventlog"
	"github.com/skein-rl/skein/model"
)

// loadedPolicy is a policy whose adapter was fetched and verified.
type loadedPolicy struct {
	version uint64
	digest  string // of the adapter blob; "" = base
	adapter *model.Adapter
}

// errProbe: the probe says that the engine ignores the adapter it was given.
var errProbe = errors.New("policy: the adapter has no effect")

const probeTimeout = 30 * time.Second

// policyGate lets training and evaluation share one engine, which serves one
// policy at a time. Training calls run under the newest policy and don't mind a
// swap in flight; an evaluation rollout pins exactly its version from its first
// token to its last. A pinned version delays newer policies; an evaluation of
// another version waits for the training calls in flight (one turn each), and
// new ones wait for it.
type policyGate struct {
	engine Engine
	probe  func(context.Context, loadedPolicy) error // nil = none

	// lock guards what follows; a channel, so that waiting for it ends with the
	// context. It is held during a swap and its probe.
	lock    chan struct{}
	changed chan struct{} // closed and replaced when a waiter should look again
	latest  loadedPolicy
	serving loadedPolicy
	train   int // training calls in the engine
	pins    int // evaluation rollouts under way, all of version serving
	waiting int // evaluation rollouts that wait for another version
	bad     map[uint64]bool
}

func newPolicyGate(engine Engine, probe func(context.Context, loadedPolicy) error) *policyGate {
	g := &policyGate{
		engine: engine, probe: probe,
		lock: make(chan struct{}, 1), changed: make(chan struct{}), bad: map[uint64]bool{},
	}
	g.serving.version = engine.Version()
	g.latest = g.serving
	return g
}

// do calls f under the lock until it needs no more waiting.
func (g *policyGate) do(ctx context.Context, f func() (again bool, err error)) error {
	for {
		select {
		case g.lock <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		again, err := f()
		changed := g.changed
		<-g.lock
		if !again {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// change runs f under the lock, whatever the caller's context says: releases
// must not be lost. The lock is only ever held for bounded time.
func (g *policyGate) change(f func()) {
	g.lock <- struct{}{}
	f()
	g.notify()
	<-g.lock
}

func (g *policyGate) notify() {
	close(g.changed)
	g.changed = make(chan struct{})
}

// swap makes the engine serve p; the old policy stays when that fails. The
// caller holds the lock.
func (g *policyGate) swap(ctx context.Context, p loadedPolicy) error {
	old := g.serving
	if err := g.engine.SetPolicy(p.version, p.adapter); err != nil {
		return err
	}
	if g.probe != nil {
		// The verdict is about the policy, not about who happens to wait.
		probeCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeTimeout)
		err := g.probe(probeCtx, p)
		cancel()
		if err != nil {
			if errors.Is(err, errProbe) {
				g.bad[p.version] = true
			}
			return errors.Join(fmt.Errorf("policy version %d: %w; still serving version %d", p.version, err, old.version),
				g.engine.SetPolicy(old.version, old.adapter))
		}
	}
	delete(g.bad, p.version)
	g.serving = p
	g.notify()
	return nil
}

// publish announces a newer policy and swaps to it unless an evaluation holds
// another version; then the swap follows when that ends.
func (g *policyGate) publish(ctx context.Context, p loadedPolicy) error {
	return g.do(ctx, func() (bool, error) {
		if g.pins == 0 && g.waiting == 0 {
			if err := g.swap(ctx, p); err != nil {
				return false, err
			}
		}
		g.latest = p
		g.notify()
		return false, nil
	})
}

// beginTrain waits until the engine serves at least version minimum and no
// evaluation waits.
func (g *policyGate) beginTrain(ctx context.Context, minimum uint64) error {
	return g.do(ctx, func() (bool, error) {
		if g.waiting > 0 {
			return true, nil
		}
		if g.pins == 0 && g.serving.version != g.latest.version {
			if err := g.swap(ctx, g.latest); err != nil {
				g.latest = g.serving // the follower tries again and reports why
			}
		}
		if g.serving.version < minimum {
			return true, nil
		}
		g.train++
		return false, nil
	})
}

func (g *policyGate) endTrain() { g.change(func() { g.train-- }) }

// beginEval waits until the engine serves exactly p and pins it.
func (g *policyGate) beginEval(ctx context.Context, p loadedPolicy) error {
	queued := false
	err := g.do(ctx, func() (bool, error) {
		if g.serving.version != p.version {
			if !queued {
				queued = true
				g.waiting++
				g.notify()
			}
			if g.pins > 0 || g.train > 0 {
				return true, nil
			}
			if err := g.swap(ctx, p); err != nil {
				return false, err
			}
		}
		g.pins++
		return false, nil
	})
	if queued {
		g.change(func() { g.waiting-- })
	}
	return err
}

func (g *policyGate) endEval() { g.change(func() { g.pins-- }) }

// current returns what the engine serves and the newest policy known.
func (g *policyGate) current() (serving, latest loadedPolicy) {
	g.lock <- struct{}{}
	defer func() { <-g.lock }()
	return g.serving, g.latest
}

// vouch refuses a log with tokens of a version that failed its probe.
func (g *policyGate) vouch(ctx context.Context, log *eventlog.Log) error {
	return g.do(ctx, func() (bool, error) {
		for i := range log.Branches {
			for _, r := range log.Branches[i].Runs {
				if r.Writer == eventlog.Policy && g.bad[r.Version] {
					return false, fmt.Errorf("version %d: %w", r.Version, errProbe)
				}
			}
		}
		return false, nil
	})
}

// gatedEngine is the engine the tool loop samples from: training calls pass the
// gate one by one, evaluation rollouts hold it already.
type gatedEngine struct {
	Engine
	gate *policyGate
}

func (e gatedEngine) Generate(ctx context.Context, req GenerateRequest) (Generation, error) {
	if req.Version == nil {
		if err := e.gate.beginTrain(ctx, req.MinVersion); err != nil {
			return Generation{}, fmt.Errorf("policy: %w", err)
		}
		defer e.gate.endTrain()
	}
	return e.Engine.Generate(ctx, req)
}
