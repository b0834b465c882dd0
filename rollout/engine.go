package rollout

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/skein-rl/skein/model"
)

// Errors of an engine that callers tell apart.
var (
	// ErrEngineClosed: the engine was closed before the request ended.
	ErrEngineClosed = errors.New("engine: closed")
	// ErrContextFull: prompt and MaxNew together exceed the context.
	ErrContextFull = errors.New("engine: request exceeds the context")
	// ErrVersion: the engine serves another policy version than the request
	// demands.
	ErrVersion = errors.New("engine: policy version differs")
	// ErrBusy: as many requests wait as may wait.
	ErrBusy = errors.New("engine: busy")
	// ErrNoAdapter: no adapter of that name is loaded, or it was unloaded before
	// the request ended.
	ErrNoAdapter = errors.New("engine: no such adapter")
	// ErrAdapterPlaces: every place for an adapter is taken.
	ErrAdapterPlaces = errors.New("engine: no place for another adapter")
)

// LocalEngine batches the requests of many rollouts over one decoder. One
// goroutine owns the decoder; requests join and leave between quanta, first
// come first served within a priority. It implements Engine.
//
// Prompts are computed in chunks between quanta, so that running requests keep
// their pace. Quanta adapt: several tokens a call, one while anybody streams.
//
// Caching: a finished request's tokens stay in its slot. The next turn of the
// same session, or any request that begins alike (the members of a group share
// their prompt, all groups the system prompt), computes only what is new. A
// cache serves only the adapter and the version it was computed under.
//
// Swaps happen between quanta, without draining; EngineConfig.OnSwap says what
// becomes of the requests in flight.
//
// Failures: a row that fails alone (DecodeOut.Err) fails its request. When a
// whole call fails, each of its rows is tried once more alone, so that one bad
// request harms no other; a row with a constraint is not, since nobody knows
// which tokens the constraint has accepted. The engine goes on after any of
// these, without the caches they left in doubt.
type LocalEngine struct {
	cfg  EngineConfig
	dec  model.Decoder
	stop context.CancelFunc
	wake chan struct{}
	done chan struct{}

	mu       sync.Mutex
	queue    []*request
	ended    []string
	commands []*command
	held     int // requests submitted and not delivered
	policy   *binding
	named    map[string]*binding
	closed   bool
	stats    EngineStats
	refused  uint64
	closing  error

	sched scheduler // owned by the goroutine
}

var _ Engine = (*LocalEngine)(nil)

// request is one completion on its way. The goroutine owns it from arrival to
// delivery.
type request struct {
	ctx    context.Context
	req    GenerateRequest
	bind   *binding
	seq    []int32 // prompt and emitted tokens
	out    Generation
	watch  *textWatch // nil without a text side
	stream *Stream    // nil unless streaming
	scores *Scores    // nil unless seq is to be scored, not continued
	since  time.Time  // arrival, then the newest token
	result chan error // buffered; out is complete when it delivers nil
}

// command runs between quanta on the engine's goroutine.
type command struct {
	do     func() error
	result chan error
}

// NewEngine starts an engine over a decoder, which it owns from then on: Close
// closes it. The policy is version 0, the base without adapter.
func NewEngine(dec model.Decoder, cfg EngineConfig) (*LocalEngine, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.defaults()
	ctx, cancel := context.WithCancel(context.Background())
	e := &LocalEngine{
		cfg: cfg, dec: dec, stop: cancel,
		wake: make(chan struct{}, 1), done: make(chan struct{}),
		policy: &binding{home: policyPlace}, named: map[string]*binding{},
		sched: newScheduler(dec, cfg.Slots),
	}
	e.sched.renew(e.policy, SwapRecompute)
	go e.run(ctx)
	return e, nil
}

// Generate implements Engine. It returns when the completion ends or ctx does;
// in the second case the request leaves the batch at the next quantum, and what
// the request points to is the engine's until then. Errors: ErrContextFull,
// ErrVersion, ErrBusy, ErrNoAdapter, ErrEngineClosed, ctx's error, a malformed
// request, sample's ErrConstraint, ErrNoToken and ErrNonFinite, or the decoder's
// own, all wrapped.
func (e *LocalEngine) Generate(ctx context.Context, req GenerateRequest) (Generation, error) {
	r, err := e.submit(ctx, req, nil)
	if err != nil {
		return Generation{}, err
	}
	if err := e.wait(r); err != nil {
		return Generation{}, err
	}
	return r.out, nil
}

// wait returns when a request has ended, or its context.
func (e *LocalEngine) wait(r *request) error {
	select {
	case err := <-r.result:
		return err
	case <-r.ctx.Done():
		e.nudge()
		return fmt.Errorf("engine: %w", context.Cause(r.ctx))
	}
}

// submit checks a request and puts it in the queue.
func (e *LocalEngine) submit(ctx context.Context, req GenerateRequest, stream *Stream) (*request, error) {
	if err := e.check(req); err != nil {
		return nil, err
	}
	r := &request{ctx: ctx, req: req, stream: stream, since: time.Now(), result: make(chan error, 1)}
	r.seq = append(make([]int32, 0, len(req.Prompt)+req.MaxNew), req.Prompt...)
	r.req.Prompt = r.seq[:len(req.Prompt):len(req.Prompt)]
	r.req.Stop, r.req.StopText, r.req.Bias = slices.Clone(req.Stop), slices.Clone(req.StopText), slices.Clone(req.Bias)
	if e.cfg.Text != nil {
		r.watch = &textWatch{stream: e.cfg.Text(r.req.Prompt), stops: r.req.StopText}
	}
	return r, e.admit(r)
}

// admit puts a request in the queue if there is room and its adapter is known.
func (e *LocalEngine) admit(r *request) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return ErrEngineClosed
	}
	if limit := e.cfg.MaxWaiting; limit > 0 && e.held >= e.cfg.Slots+limit {
		e.refused++
		return fmt.Errorf("%w: %d requests run and %d wait, which is the limit; try again later", ErrBusy, e.cfg.Slots, e.held-e.cfg.Slots)
	}
	b, err := e.lookup(r.req.Adapter)
	if err != nil {
		return err
	}
	r.bind = b
	e.queue = append(e.queue, r)
	e.held++
	e.nudge()
	return nil
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

// OnSwap is what a swap does to requests in flight.
func (e *LocalEngine) OnSwap() SwapMode { return e.cfg.OnSwap }

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

// run owns the decoder: take what arrived, place it, compute a chunk of the
// prompts, decode one quantum.
func (e *LocalEngine) run(ctx context.Context) {
	defer close(e.done)
	s := &e.sched
	for {
		e.arrivals()
		if ctx.Err() != nil {
			break
		}
		left := s.place()
		if s.active() == 0 {
			e.deliver(ctx, left)
			select {
			case <-e.wake:
			case <-ctx.Done():
			}
			continue
		}
		start := time.Now()
		left = append(left, s.fill(ctx, e.cfg.Chunk)...)
		left = append(left, s.score(ctx, e.cfg.Chunk)...)
		left = append(left, s.step(ctx, e.cfg.Quantum)...)
		s.counts.Busy += time.Since(start)
		e.deliver(ctx, left)
	}
	// Nothing can arrive any more: closed was set before ctx ended.
	e.mu.Lock()
	queue, commands := e.queue, e.commands
	e.queue, e.commands = nil, nil
	e.mu.Unlock()
	var left []outcome
	for _, r := range append(s.drain(), queue...) {
		left = append(left, outcome{r, ErrEngineClosed})
	}
	e.deliver(ctx, left)
	for _, c := range commands {
		c.result <- ErrEngineClosed
	}
	e.closing = e.dec.Close()
}

// arrivals moves what callers left under the lock to the scheduler and runs
// their commands.
func (e *LocalEngine) arrivals() {
	e.mu.Lock()
	queue, ended, commands := e.queue, e.ended, e.commands
	e.queue, e.ended, e.commands = nil, nil, nil
	e.mu.Unlock()
	for _, r := range queue {
		e.sched.enqueue(r)
	}
	for _, session := range ended {
		e.sched.endSession(session)
	}
	for _, c := range commands {
		c.result <- c.do()
	}
}

// do runs f on the engine's goroutine between two quanta.
func (e *LocalEngine) do(f func() error) error {
	c := &command{do: f, result: make(chan error, 1)}
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return ErrEngineClosed
	}
	e.commands = append(e.commands, c)
	e.mu.Unlock()
	e.nudge()
	return <-c.result // run answers every command, the late ones when it ends
}

// deliver publishes the counters, then the outcomes they include.
func (e *LocalEngine) deliver(ctx context.Context, left []outcome) {
	s := &e.sched
	for i := range left {
		o := &left[i]
		if o.err != nil && ctx.Err() != nil {
			o.err = ErrEngineClosed
		}
		s.counts.Requests++
		o.bind.counts.Requests++
		if o.err != nil {
			s.counts.Failed++
		}
	}
	e.mu.Lock()
	e.held -= len(left)
	e.publish()
	e.mu.Unlock()
	for _, o := range left {
		if o.stream != nil {
			o.stream.end(o.request, o.err)
		}
		o.result <- o.err
	}
}
