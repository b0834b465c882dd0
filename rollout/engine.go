package rollout

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/skein-rl/skein/model"
)

// Errors of an engine that callers tell apart.
var (
	// ErrEngineClosed: the engine was closed before the request ended.
	ErrEngineClosed = errors.New("engine: closed")
	// ErrContextFull: the prompt leaves no room for a new token.
	ErrContextFull = errors.New("engine: prompt fills the context")
	// ErrVersion: the engine serves another policy version than the request
	// demands.
	ErrVersion = errors.New("engine: policy version differs")
)

// EngineConfig sizes a LocalEngine. Slots and MaxLen must be those the decoder
// was made with.
type EngineConfig struct {
	// Slots is the number of sequences decoded together.
	Slots int
	// MaxLen is the context limit of one sequence in tokens, prompt included.
	MaxLen int
	// Quantum is the number of tokens decoded between two looks at the queue:
	// arrivals, cancellations and policy swaps wait for at most that many.
	// 0 means 8.
	Quantum int
}

const defaultQuantum = 8

// Validate reports every problem with field, value and remedy.
func (c EngineConfig) Validate() error {
	var errs []error
	if c.Slots < 1 {
		errs = append(errs, fmt.Errorf("engine: Slots is %d; give at least 1", c.Slots))
	}
	if c.MaxLen < 2 {
		errs = append(errs, fmt.Errorf("engine: MaxLen is %d; give at least 2 tokens", c.MaxLen))
	}
	if c.Quantum < 0 {
		errs = append(errs, fmt.Errorf("engine: Quantum is %d; give 0 for the default of %d, or more", c.Quantum, defaultQuantum))
	}
	return errors.Join(errs...)
}

// EngineStats counts what a LocalEngine did since it started. Tokens per second
// over a window is the difference of two readings.
type EngineStats struct {
	Requests  uint64        // finished, whatever the outcome
	Generated uint64        // tokens sampled
	Prefilled uint64        // prompt tokens computed
	Reused    uint64        // prompt tokens taken from a cache instead
	Swaps     uint64        // policies set
	Refilled  uint64        // tokens computed again because of a swap (part of Prefilled)
	Busy      time.Duration // time inside the decoder
	Active    int           // requests holding a slot now
	Waiting   int           // requests without a slot now
}

// LocalEngine batches the requests of many rollouts over one decoder. One
// goroutine owns the decoder; requests join and leave between quanta, first
// come first served. It implements Engine.
//
// Caching: a finished request's tokens stay in its slot. The next turn of the
// same session, or any request that begins alike (the members of a group share
// their prompt, all groups the system prompt), computes only what is new.
//
// Policy swaps: a swap happens between quanta and invalidates every cache.
// Requests in flight go on under the new policy after their whole sequence is
// computed again, so each token's logprob is the one a cold cache would give
// under the version recorded for it.
type LocalEngine struct {
	cfg  EngineConfig
	dec  model.Decoder
	stop context.CancelFunc
	wake chan struct{}
	done chan struct{}

	mu      sync.Mutex
	queue   []*request
	ended   []string
	swaps   []*swap
	version uint64
	closed  bool
	stats   EngineStats
	closing error

	sched scheduler // owned by the goroutine
}

var _ Engine = (*LocalEngine)(nil)

type request struct {
	ctx    context.Context
	req    GenerateRequest
	seq    []int32 // prompt and emitted tokens
	out    Generation
	result chan error // buffered; out is complete when it delivers nil
}

type swap struct {
	version uint64
	adapter *model.Adapter
	result  chan error
}

// NewEngine starts an engine over a decoder, which it owns from then on: Close
// closes it. The policy is version 0, the base without adapter.
func NewEngine(dec model.Decoder, cfg EngineConfig) (*LocalEngine, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Quantum == 0 {
		cfg.Quantum = defaultQuantum
	}
	ctx, cancel := context.WithCancel(context.Background())
	e := &LocalEngine{
		cfg: cfg, dec: dec, stop: cancel,
		wake: make(chan struct{}, 1), done: make(chan struct{}),
		sched: newScheduler(dec, cfg.Slots),
	}
	go e.run(ctx)
	return e, nil
}

// Generate implements Engine. It returns when the completion ends or ctx does;
// in the second case the request leaves the batch at the next quantum. Errors:
// ErrContextFull, ErrVersion, ErrEngineClosed, ctx's error, a malformed request,
// or the decoder's own, all wrapped.
func (e *LocalEngine) Generate(ctx context.Context, req GenerateRequest) (Generation, error) {
	if err := e.check(req); err != nil {
		return Generation{}, err
	}
	r := &request{ctx: ctx, req: req, result: make(chan error, 1)}
	r.seq = append(make([]int32, 0, len(req.Prompt)+min(req.MaxNew, e.cfg.MaxLen)), req.Prompt...)
	r.req.Prompt = r.seq[:len(req.Prompt):len(req.Prompt)]
	r.req.Stop = slices.Clone(req.Stop)
	r.req.MaxNew = min(req.MaxNew, e.cfg.MaxLen-len(req.Prompt))

	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return Generation{}, ErrEngineClosed
	}
	e.queue = append(e.queue, r)
	e.stats.Waiting++
	e.mu.Unlock()
	e.nudge()

	select {
	case err := <-r.result:
		if err != nil {
			return Generation{}, err
		}
		return r.out, nil
	case <-ctx.Done():
		e.nudge()
		return Generation{}, fmt.Errorf("engine: %w", context.Cause(ctx))
	}
}

func (e *LocalEngine) check(req GenerateRequest) error {
	s := req.Sampling
	switch {
	case len(req.Prompt) == 0:
		return errors.New("engine: Prompt is empty; give at least one token")
	case len(req.Prompt) >= e.cfg.MaxLen:
		return fmt.Errorf("%w: %d tokens, limit %d; shorten the prompt or raise the context limit", ErrContextFull, len(req.Prompt), e.cfg.MaxLen)
	case req.MaxNew < 1:
		return fmt.Errorf("engine: MaxNew is %d; give at least 1", req.MaxNew)
	case !(s.Temperature >= 0) || math.IsInf(s.Temperature, 0):
		return fmt.Errorf("engine: Temperature is %v; give 0 (greedy) or a positive number", s.Temperature)
	case !(s.TopP >= 0 && s.TopP <= 1):
		return fmt.Errorf("engine: TopP is %v; give a share in [0,1]", s.TopP)
	case s.TopK < 0:
		return fmt.Errorf("engine: TopK is %d; give 0 (off) or more", s.TopK)
	}
	return nil
}

// SetPolicy implements Engine: it returns once later tokens are sampled under
// the new policy. On an error (an adapter that does not fit) the old policy
// stays.
func (e *LocalEngine) SetPolicy(version uint64, adapter *model.Adapter) error {
	s := &swap{version: version, adapter: adapter, result: make(chan error, 1)}
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return ErrEngineClosed
	}
	e.swaps = append(e.swaps, s)
	e.mu.Unlock()
	e.nudge()
	select {
	case err := <-s.result:
		return err
	case <-e.done:
		select {
		case err := <-s.result:
			return err
		default:
			return ErrEngineClosed
		}
	}
}

// Version implements Engine.
func (e *LocalEngine) Version() uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.version
}

// EndSession implements Engine. The cache stays as a prefix others may copy
// until the slot is needed.
func (e *LocalEngine) EndSession(session string) {
	e.mu.Lock()
	e.ended = append(e.ended, session)
	e.mu.Unlock()
	e.nudge()
}

// MaxLen implements Engine.
func (e *LocalEngine) MaxLen() int { return e.cfg.MaxLen }

// Slots is the number of sequences decoded together.
func (e *LocalEngine) Slots() int { return e.cfg.Slots }

// Stats returns the counters so far.
func (e *LocalEngine) Stats() EngineStats {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.stats
}

// Close fails the requests in flight with ErrEngineClosed, waits for the
// engine's goroutine and closes the decoder. Later calls return the same error.
func (e *LocalEngine) Close() error {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	e.stop()
	e.nudge()
	<-e.done
	return e.closing
}

func (e *LocalEngine) nudge() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// run owns the decoder: take what arrived, place it, bring every cache up to
// date, decode one quantum.
func (e *LocalEngine) run(ctx context.Context) {
	defer close(e.done)
	s := &e.sched
	for {
		e.arrivals()
		if ctx.Err() != nil {
			break
		}
		left := s.place(e.Version())
		if s.active() == 0 {
			e.deliver(ctx, left)
			select {
			case <-e.wake:
			case <-ctx.Done():
			}
			continue
		}
		start := time.Now()
		left = append(left, s.fill(ctx)...)
		left = append(left, s.step(ctx, e.cfg.Quantum, e.Version())...)
		s.counts.Busy += time.Since(start)
		e.deliver(ctx, left)
	}
	// Nothing can arrive any more: closed was set before ctx ended.
	e.mu.Lock()
	queue, swaps := e.queue, e.swaps
	e.queue, e.swaps = nil, nil
	e.mu.Unlock()
	var left []outcome
	for _, r := range append(s.drain(), queue...) {
		left = append(left, outcome{r, ErrEngineClosed})
	}
	e.deliver(ctx, left)
	for _, w := range swaps {
		w.result <- ErrEngineClosed
	}
	e.closing = e.dec.Close()
}

// arrivals moves what callers left under the lock to the scheduler and applies
// policy swaps.
func (e *LocalEngine) arrivals() {
	e.mu.Lock()
	queue, ended, swaps := e.queue, e.ended, e.swaps
	e.queue, e.ended, e.swaps = nil, nil, nil
	e.mu.Unlock()
	e.sched.waiting = append(e.sched.waiting, queue...)
	for _, session := range ended {
		e.sched.endSession(session)
	}
	for _, w := range swaps {
		err := e.dec.SetAdapter(1, w.adapter)
		if err != nil {
			err = fmt.Errorf("engine: set policy version %d: %w", w.version, err)
		} else {
			e.sched.epoch++
			e.sched.counts.Swaps++
			e.mu.Lock()
			e.version = w.version
			e.mu.Unlock()
		}
		w.result <- err
	}
}

// deliver publishes the counters, then the outcomes they include.
func (e *LocalEngine) deliver(ctx context.Context, left []outcome) {
	s := &e.sched
	s.counts.Requests += uint64(len(left))
	e.mu.Lock()
	waiting := len(e.queue)
	e.stats = s.counts
	e.stats.Active = s.active()
	e.stats.Waiting = waiting + len(s.waiting)
	e.mu.Unlock()
	for _, o := range left {
		if o.err != nil && ctx.Err() != nil {
			o.err = ErrEngineClosed
		}
		o.result <- o.err
	}
}
