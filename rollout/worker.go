package rollout

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/replay"
)

// WorkerConfig says for which run a worker works and how eagerly.
type WorkerConfig struct {
	Run  string
	Name string // the same across restarts of this worker
	// Members is how many rollouts are kept in flight; tickets are taken while
	// fewer are. Somewhat more than the engine's slots, so that a rollout whose
	// tools run leaves no slot empty.
	Members int
	// Seed is the run's configured seed; it is mixed into every ticket's.
	Seed uint64
	// TakeWait and PolicyWait are how long one call waits for tickets and for a
	// newer policy.
	TakeWait, PolicyWait time.Duration
	// CallTimeout bounds every other call to the store.
	CallTimeout time.Duration
	// AppendMargin is kept free before a ticket expires, to append its logs:
	// the group's deadline is that much earlier, at most a quarter of the time
	// left.
	AppendMargin time.Duration
	// DrainTimeout bounds what happens after the worker is told to stop:
	// appending finished logs and returning tickets.
	DrainTimeout time.Duration
	// Heartbeat is the interval of Hooks.Heartbeat.
	Heartbeat time.Duration
	// Yield, when set, says how long to leave work to cheaper workers before
	// asking for tickets: while it is above 0 the worker pauses so long and then
	// takes what still waits, instead of waiting for what comes. nil = 0.
	Yield func() time.Duration
}

// DefaultWorkerConfig returns the defaults; Run, Name and Members are required.
func DefaultWorkerConfig() WorkerConfig {
	return WorkerConfig{
		TakeWait: 2 * time.Second, PolicyWait: 10 * time.Second, CallTimeout: 10 * time.Second,
		AppendMargin: 2 * time.Second, DrainTimeout: 10 * time.Second, Heartbeat: time.Second,
	}
}

// Validate reports every problem with field, value and remedy.
func (c WorkerConfig) Validate() error {
	var errs []error
	if c.Run == "" {
		errs = append(errs, errors.New("worker: Run is empty; name the training run"))
	}
	if c.Name == "" {
		errs = append(errs, errors.New("worker: Name is empty; give a name that stays the same across restarts"))
	}
	if c.Members < 1 {
		errs = append(errs, fmt.Errorf("worker: Members is %d; give at least 1, better a quarter more than the engine's slots", c.Members))
	}
	for _, f := range []struct {
		name  string
		value time.Duration
	}{
		{"TakeWait", c.TakeWait}, {"PolicyWait", c.PolicyWait}, {"CallTimeout", c.CallTimeout},
		{"AppendMargin", c.AppendMargin}, {"DrainTimeout", c.DrainTimeout}, {"Heartbeat", c.Heartbeat},
	} {
		if f.value <= 0 {
			errs = append(errs, fmt.Errorf("worker: %s is %v; give a positive duration", f.name, f.value))
		}
	}
	return errors.Join(errs...)
}

// Parts are what a worker is made of. All but Now, Seat, Judges and Policies are required.
type Parts struct {
	Store  replay.Store
	Source Source
	Engine Engine
	Chat   Chat
	Loop   LoopConfig
	Base   *model.Model     // for Digest and Config; weights are not touched
	Judges []Scorer         // of every episode, beside its task; nil = none
	Now    func() time.Time // nil = time.Now
	// Seat is the run's part of what the process keeps in flight, when it serves
	// several runs; nil: WorkerConfig.Members is all its own.
	Seat *Seat
	// Policies fetches adapters by another way than Store.GetBlob; nil = that.
	Policies interface {
		Get(ctx context.Context, p replay.Policy) ([]byte, error)
	}
}

// Worker takes tickets, rolls out their groups, and appends the logs; beside
// that it follows the policies of its run. See Run.
type Worker struct {
	cfg    WorkerConfig
	parts  Parts
	hooks  Hooks
	gate   *policyGate
	loop   *Loop
	out    *outbox
	freed  chan struct{} // a group ended
	back   chan struct{} // a group was given back
	groups sync.WaitGroup

	mu    sync.Mutex
	state Heartbeat
	last  struct {
		at     time.Time
		tokens uint64
	}
}

// NewWorker checks and joins the parts.
func NewWorker(cfg WorkerConfig, parts Parts, hooks Hooks) (*Worker, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if parts.Store == nil || parts.Source == nil || parts.Engine == nil || parts.Chat == nil || parts.Base == nil {
		return nil, errors.New("worker: a part is missing; Store, Source, Engine, Chat and Base are required")
	}
	if parts.Now == nil {
		parts.Now = time.Now
	}
	w := &Worker{cfg: cfg, parts: parts, hooks: hooks, freed: make(chan struct{}, 1), back: make(chan struct{}, 1)}
	w.gate = newPolicyGate(parts.Engine, nil)
	loop, err := NewLoop(gatedEngine{parts.Engine, w.gate}, parts.Chat, parts.Loop, parts.Now)
	if err != nil {
		return nil, err
	}
	loop.JudgeWith(parts.Judges...)
	w.loop = loop
	w.state = Heartbeat{Worker: cfg.Name, Run: cfg.Run}
	w.out = newOutbox(w)
	return w, nil
}

// Run works until ctx ends or the run is finished, then drains: rollouts in
// flight are abandoned, finished logs appended, unfinished groups returned, all
// within DrainTimeout. It returns nil then. An error means that the worker
// can't work for this run at all: it has another base model, or its engine does
// not answer. It neither closes the engine nor the store.
func (w *Worker) Run(ctx context.Context) error {
	spec, err := w.join(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	work, stop := context.WithCancel(ctx)
	defer stop()
	var side sync.WaitGroup
	side.Go(func() { w.follow(work) })
	side.Go(func() { w.beat(work) })
	outCtx, stopOut := context.WithCancel(context.WithoutCancel(ctx))
	defer stopOut()
	side.Go(func() { w.out.run(outCtx) })

	w.dispatch(work, spec)
	stop()
	drain := time.AfterFunc(w.cfg.DrainTimeout, stopOut)
	w.groups.Wait()
	drain.Stop()
	stopOut()
	side.Wait()
	return nil
}

// join looks up the run, gives back what an earlier life of this worker held,
// loads the newest policy, and prepares the probe. It retries what a retry can
// cure until ctx ends.
func (w *Worker) join(ctx context.Context) (replay.RunSpec, error) {
	var spec replay.RunSpec
	err := w.retry(ctx, "join", func(ctx context.Context) error {
		st, err := w.parts.Store.Status(ctx, w.cfg.Run)
		if err != nil {
			return err
		}
		spec = st.Spec
		return w.parts.Store.ReturnTicket(ctx, w.cfg.Run, "", w.cfg.Name)
	})
	if err != nil {
		return spec, err
	}
	if spec.BaseDigest != "" && spec.BaseDigest != w.parts.Base.Digest {
		return spec, fmt.Errorf("worker %s: run %s trains base %s; the loaded model is %s; load that model", w.cfg.Name, w.cfg.Run, spec.BaseDigest, w.parts.Base.Digest)
	}
	if err := w.prepareProbe(ctx); err != nil {
		return spec, err
	}
	return spec, w.retry(ctx, "policy", func(ctx context.Context) error {
		p, err := w.parts.Store.Latest(ctx, w.cfg.Run)
		if err != nil {
			return err
		}
		return w.adopt(ctx, p)
	})
}

func (w *Worker) prepareProbe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	if err := w.parts.Engine.SetPolicy(0, nil); err != nil {
		return fmt.Errorf("worker %s: %w", w.cfg.Name, err)
	}
	t, err := w.parts.Source.Train(0)
	if err != nil {
		return fmt.Errorf("worker %s: first task: %w", w.cfg.Name, err)
	}
	p, err := newProber(ctx, w.parts.Engine, w.parts.Base, w.parts.Chat, Opening(t))
	if err != nil {
		return fmt.Errorf("worker %s: probe of the base model: %w", w.cfg.Name, err)
	}
	w.gate.change(func() {
		w.gate.probe = p.check
		w.gate.serving, w.gate.latest = loadedPolicy{}, loadedPolicy{}
	})
	return nil
}

// fetchPolicy gets the bytes of a policy's adapter.
func (w *Worker) fetchPolicy(ctx context.Context, p replay.Policy) ([]byte, error) {
	if w.parts.Policies != nil {
		return w.parts.Policies.Get(ctx, p)
	}
	return w.parts.Store.GetBlob(ctx, p.Adapter)
}

// adopt loads, verifies and serves a policy.
func (w *Worker) adopt(ctx context.Context, p replay.Policy) error {
	l, err := loadPolicy(ctx, w.fetchPolicy, w.parts.Base, p)
	if err != nil {
		return err
	}
	if err := w.gate.publish(ctx, l); err != nil {
		return err
	}
	if w.hooks.Policy != nil {
		w.hooks.Policy(l.version, l.digest)
	}
	return nil
}

// follow keeps the engine at the newest policy. While that fails the old one
// stays, and tickets that demand a newer one are given back.
func (w *Worker) follow(ctx context.Context) {
	wait := newBackoff()
	for ctx.Err() == nil {
		_, latest := w.gate.current()
		err := func() error {
			call, cancel := context.WithTimeout(ctx, w.cfg.PolicyWait+w.cfg.CallTimeout)
			defer cancel()
			p, err := w.parts.Store.WaitPolicy(call, w.cfg.Run, latest.version, w.cfg.PolicyWait)
			if err != nil || p.Version <= latest.version {
				return err
			}
			if newest, err := w.parts.Store.Latest(call, w.cfg.Run); err == nil && newest.Version > p.Version {
				p = newest // several behind: the ones between are of no use
			}
			return w.adopt(call, p)
		}()
		if err != nil && ctx.Err() == nil {
			w.report("policy", err)
			wait.sleep(ctx)
			continue
		}
		wait.reset()
	}
}

// dispatch takes tickets while there is room, until ctx ends or the run is
// finished.
func (w *Worker) dispatch(ctx context.Context, spec replay.RunSpec) {
	size := max(1, int(spec.GroupSize))
	wait := newBackoff()
	for ctx.Err() == nil {
		free := w.room()
		if free < 1 {
			select {
			case <-w.freed:
			case <-w.changed():
			case <-ctx.Done():
			}
			continue
		}
		select {
		case <-w.back:
			// It may be the next to be handed out: don't pass it to and fro.
			(&backoff{returnPause}).sleep(ctx)
		default:
		}
		takeWait, n := w.cfg.TakeWait, (free+size-1)/size
		if w.cfg.Yield != nil {
			if pause := w.cfg.Yield(); pause > 0 {
				// One at a time: with many it would leave cheaper ones nothing.
				(&backoff{pause}).sleep(ctx)
				takeWait, n = 0, 1
			}
		}
		asked := w.parts.Now()
		call, cancel := context.WithTimeout(ctx, takeWait+w.cfg.CallTimeout)
		serving, latest := w.gate.current() // an evaluation may pin an old one
		tickets, err := w.parts.Store.TakeTickets(call, w.cfg.Run, w.cfg.Name, max(serving.version, latest.version), n, takeWait)
		cancel()
		if w.parts.Seat != nil {
			w.parts.Seat.asked(n, len(tickets))
		}
		if err != nil {
			if ctx.Err() == nil {
				w.report("take", err)
				wait.sleep(ctx)
			}
			continue
		}
		wait.reset()
		for _, t := range tickets {
			// The store's clock may differ from this one: its tickets live
			// for TicketTTL from some moment after the asking.
			t.Expires = asked.Add(spec.TicketTTL)
			w.start(ctx, t, spec)
		}
		if len(tickets) == 0 && w.finished(ctx) {
			return
		}
	}
}

// room is how many rollouts the worker may begin now.
func (w *Worker) room() int {
	have := w.members()
	if w.parts.Seat != nil {
		return min(w.parts.Seat.room(have), w.cfg.Members-have)
	}
	return w.cfg.Members - have
}

// changed delivers when room may have grown for another reason than an ended
// group; nil never does.
func (w *Worker) changed() <-chan struct{} {
	if w.parts.Seat != nil {
		return w.parts.Seat.changed()
	}
	return nil
}

func (w *Worker) finished(ctx context.Context) bool {
	call, cancel := context.WithTimeout(ctx, w.cfg.CallTimeout)
	defer cancel()
	st, err := w.parts.Store.Status(call, w.cfg.Run)
	if err != nil && ctx.Err() == nil {
		w.report("take", err)
	}
	return err == nil && st.Finished
}

func (w *Worker) members() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state.Members
}

// report notes an error that is handled: retried, or recorded in a log.
func (w *Worker) report(op string, err error) {
	w.mu.Lock()
	w.state.LastError, w.state.LastErrorAt = op+": "+err.Error(), w.parts.Now()
	w.mu.Unlock()
	if w.hooks.Error != nil {
		w.hooks.Error(op, err)
	}
}

func (w *Worker) count(f func(*Heartbeat)) {
	w.mu.Lock()
	f(&w.state)
	w.mu.Unlock()
}
