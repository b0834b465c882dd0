package remote

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"

	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/rollout"
)

// kept is how many adapters that are no longer the policy stay loaded, idle ones
// included: evaluations go back to the one before.
const kept = 1

// Engine is the rollout.Engine of one run on a server. Requests in flight keep
// the adapter and the version they began with.
type Engine struct {
	s      *Server
	run    string
	base   *model.Model
	maxLen int

	swapping sync.Mutex // one SetPolicy, reload or Close at a time

	mu      sync.Mutex
	closed  bool
	version uint64
	serving *loaded
	old     []*loaded // no longer the policy, newest last
	stats   rollout.EngineStats
}

// loaded is an adapter at the server, or the base.
type loaded struct {
	target
	flights int
	// epoch counts loadings, so that of many requests that found it gone one loads
	// it again.
	epoch int
}

var _ rollout.Engine = (*Engine)(nil)

// ForRun is the engine of a run with that context limit in tokens; it serves the
// base as version 0. Trains says that the run's policy will change. Errors:
// ErrNoFollow, a context that is too small.
func (s *Server) ForRun(ctx context.Context, run string, base *model.Model, maxLen int, trains bool) (*Engine, error) {
	if s.facts.maxLen > 0 && s.facts.maxLen < maxLen {
		return nil, fmt.Errorf("%s: its context is %d tokens, run %s needs rollout.max_len %d: raise the server's (--max-model-len, --ctx-size, --max-len) or lower the run's",
			s.cfg, s.facts.maxLen, run, maxLen)
	}
	if trains {
		if err := s.proto.follows(ctx); err != nil {
			return nil, fmt.Errorf("%s: %w", s.cfg, err)
		}
	}
	return &Engine{s: s, run: run, base: base, maxLen: maxLen, serving: &loaded{}}, nil
}

// Generate implements rollout.Engine. Errors: ErrContextFull, ErrVersion,
// ErrEngineClosed, ErrUnreachable, ErrRawLogprobs, ErrAnswer, a Refusal, ctx's.
func (e *Engine) Generate(ctx context.Context, req rollout.GenerateRequest) (rollout.Generation, error) {
	if err := e.check(req); err != nil {
		return rollout.Generation{}, err
	}
	l, version, err := e.begin(req)
	if err != nil {
		return rollout.Generation{}, err
	}
	if req.Session != "" {
		req.Session = e.run + "/" + req.Session
	}
	ctx, cancel := context.WithTimeoutCause(ctx, e.s.cfg.Timeout, fmt.Errorf("%s: no answer within %v", e.s.cfg, e.s.cfg.Timeout))
	defer cancel()
	a, err := e.complete(ctx, l, req)
	e.end(l, len(a.ids), err)
	if err != nil {
		return rollout.Generation{}, err
	}
	g := rollout.Generation{
		IDs: a.ids, Logprobs: a.logprobs, Finish: rollout.FinishStop,
		Versions: []rollout.VersionRun{{End: len(a.ids), Version: version}},
	}
	if a.length {
		g.Finish = rollout.FinishLength
	}
	return g, nil
}

func (e *Engine) check(req rollout.GenerateRequest) error {
	switch {
	case len(req.Prompt) == 0:
		return errors.New("engine: Prompt is empty; give at least one token")
	case req.MaxNew < 1:
		return fmt.Errorf("engine: MaxNew is %d; give at least 1", req.MaxNew)
	case req.MaxNew > e.maxLen-len(req.Prompt):
		return fmt.Errorf("%w: a prompt of %d tokens and %d new ones, limit %d; shorten the prompt, ask for fewer, or raise the context limit",
			rollout.ErrContextFull, len(req.Prompt), req.MaxNew, e.maxLen)
	case req.Adapter != "":
		return fmt.Errorf("engine: adapter %q: a run's requests are for its policy", req.Adapter)
	case req.Constraint != nil || len(req.Bias) > 0 || len(req.StopText) > 0 || req.Raw || req.Top > 0:
		return errors.New("engine: Constraint, Bias, StopText, Raw and Top are not sent to servers; leave them out or use the local engine")
	}
	return nil
}

// begin binds a request to the weights served now.
func (e *Engine) begin(req rollout.GenerateRequest) (*loaded, uint64, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.closed:
		return nil, 0, rollout.ErrEngineClosed
	case req.Version != nil && *req.Version != e.version:
		return nil, 0, fmt.Errorf("%w: version %d is served, the request needs exactly %d", rollout.ErrVersion, e.version, *req.Version)
	case e.version < req.MinVersion:
		return nil, 0, fmt.Errorf("%w: version %d is served, the request needs at least %d", rollout.ErrVersion, e.version, req.MinVersion)
	}
	e.serving.flights++
	e.stats.Active++
	return e.serving, e.version, nil
}

func (e *Engine) end(l *loaded, tokens int, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	l.flights--
	e.stats.Active--
	e.stats.Requests++
	if err != nil {
		e.stats.Failed++
		return
	}
	e.stats.Generated += uint64(tokens)
}

// complete asks the server, and once more when it had lost the adapter.
func (e *Engine) complete(ctx context.Context, l *loaded, req rollout.GenerateRequest) (answer, error) {
	t, epoch := e.targetOf(l)
	a, err := e.s.complete(ctx, t, req)
	if t.name == "" || !gone(err) {
		return a, err
	}
	if err := e.reload(ctx, l, epoch); err != nil {
		return answer{}, err
	}
	t, _ = e.targetOf(l)
	return e.s.complete(ctx, t, req)
}

func (e *Engine) targetOf(l *loaded) (target, int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return l.target, l.epoch
}

// gone: the server does not know the adapter, as after a restart.
func gone(err error) bool {
	var r *Refusal
	return errors.As(err, &r) && r.Status == http.StatusNotFound
}

// reload gives a restarted server an adapter again, unless somebody did since
// epoch.
func (e *Engine) reload(ctx context.Context, l *loaded, epoch int) error {
	e.swapping.Lock()
	defer e.swapping.Unlock()
	t, now := e.targetOf(l)
	if now != epoch {
		return nil
	}
	t, err := e.load(ctx, t)
	if err != nil {
		return fmt.Errorf("engine: the server had lost adapter %s: %w", t.name, err)
	}
	e.s.cfg.Log.Warn("the server had lost an adapter and has it again", "server", e.s.cfg.URL, "adapter", t.name)
	e.mu.Lock()
	defer e.mu.Unlock()
	l.target = t
	l.epoch++
	return nil
}

func (e *Engine) load(ctx context.Context, t target) (target, error) {
	limit := e.s.cfg.AdapterTimeout
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("%s: adapter %s was not loaded within %v", e.s.cfg, t.name, limit))
	defer cancel()
	return e.s.proto.load(ctx, t, e.base)
}

// SetPolicy implements rollout.Engine: it returns once the server has the
// adapter; later requests are for it. On an error the old policy stays.
func (e *Engine) SetPolicy(version uint64, adapter *model.Adapter) error {
	e.swapping.Lock()
	defer e.swapping.Unlock()
	next, err := e.find(version, adapter)
	if err != nil {
		return fmt.Errorf("engine: set policy version %d: %w", version, err)
	}
	idle, err := e.serve(version, next)
	e.unload(idle)
	return err
}

// serve makes next the policy and returns the adapters to unload.
func (e *Engine) serve(version uint64, next *loaded) ([]*loaded, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return []*loaded{next}, rollout.ErrEngineClosed
	}
	e.version = version
	if e.serving != next {
		if e.serving.name != "" {
			e.old = append(e.old, e.serving)
		}
		e.old = slices.DeleteFunc(e.old, func(l *loaded) bool { return l == next })
		e.serving = next
		e.stats.Swaps++
	}
	return e.idle(kept), nil
}

// find is the adapter if it is loaded, or loads it.
func (e *Engine) find(version uint64, adapter *model.Adapter) (*loaded, error) {
	if adapter == nil {
		return &loaded{}, nil
	}
	if adapter.Full {
		return nil, errors.New("it holds all weights, and servers load LoRA adapters only: train with LoRA, or roll out on local engines")
	}
	t := target{name: adapterName(e.run, version, adapter), adapter: adapter}
	e.mu.Lock()
	for _, l := range append(slices.Clone(e.old), e.serving) {
		if l.name == t.name {
			e.mu.Unlock()
			return l, nil
		}
	}
	e.mu.Unlock()
	t, err := e.load(context.Background(), t)
	return &loaded{target: t}, err
}

// idle takes the adapters that nobody uses, but the newest, off the list. The
// caller holds the lock.
func (e *Engine) idle(keep int) (out []*loaded) {
	for i := 0; i < len(e.old)-keep; {
		if e.old[i].flights > 0 {
			i++
			continue
		}
		out = append(out, e.old[i])
		e.old = slices.Delete(e.old, i, i+1)
	}
	return out
}

// unload forgets adapters at the server. It is housekeeping: a server that does
// not answer now has lost them, and one that refuses drops the least used itself.
func (e *Engine) unload(all []*loaded) {
	for _, l := range all {
		if l.name == "" {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), e.s.cfg.ConnectTimeout)
		if err := e.s.proto.unload(ctx, l.target); err != nil {
			e.s.cfg.Log.Warn("adapter stays loaded", "server", e.s.cfg.URL, "adapter", l.name, "error", err)
		}
		cancel()
	}
}

// Version implements rollout.Engine.
func (e *Engine) Version() uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.version
}

// EndSession implements rollout.Engine: servers keep and drop prefixes on their
// own.
func (e *Engine) EndSession(string) {}

// MaxLen implements rollout.Engine.
func (e *Engine) MaxLen() int { return e.maxLen }

// ProbeFloor is the size of a LoRA B below which an adapter may be too small to be
// seen in a server's bfloat16 logprobs.
func (e *Engine) ProbeFloor() float64 { return 1e-3 }

// Stats counts the run's requests.
func (e *Engine) Stats() rollout.EngineStats {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.stats
}

// Close unloads the run's adapters, waiting for the server at most a short time
// for each. The server's other runs go on.
func (e *Engine) Close() error {
	e.swapping.Lock()
	defer e.swapping.Unlock()
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return nil
	}
	e.closed = true
	if e.serving.name != "" {
		e.old = append(e.old, e.serving)
	}
	all := e.old
	e.old, e.serving = nil, &loaded{}
	e.mu.Unlock()
	e.unload(all)
	return nil
}
