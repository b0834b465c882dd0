package actors

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/asynkron/protoactor-go/actor"
)

// System owns the actors of one process. Close stops them all and waits.
type System struct {
	ctx    context.Context
	cancel context.CancelFunc
	sys    *actor.ActorSystem
	log    *slog.Logger

	mu      sync.Mutex
	handles []*Handle
	timers  map[*time.Timer]struct{}
}

// NewSystem makes an empty system. Supervision events go to log.
func NewSystem(log *slog.Logger) *System {
	ctx, cancel := context.WithCancel(context.Background())
	quiet := func(*actor.ActorSystem) *slog.Logger { return slog.New(slog.DiscardHandler) }
	return &System{
		ctx:    ctx,
		cancel: cancel,
		// A dead letter starts a goroutine that lives for the throttle
		// interval; a short one lets Close be complete.
		sys:    actor.NewActorSystem(actor.WithLoggerFactory(quiet), actor.WithDeadLetterThrottleInterval(time.Millisecond)),
		log:    log,
		timers: map[*time.Timer]struct{}{},
	}
}

// Restart bounds the restarts of a failing role.
type Restart struct {
	// Max failures within Within before the role is given up. Zero: the first
	// failure is final.
	Max    int
	Within time.Duration // zero: counts failures for ever
	// Backoff is the delay before the first restart; it doubles with every
	// failure up to MaxBackoff. Zero: 100 ms, and 10 s.
	Backoff, MaxBackoff time.Duration
}

// DefaultRestart keeps a role alive through a cluster's short absences and
// gives up on one that fails at once, again and again.
var DefaultRestart = Restart{Max: 20, Within: 5 * time.Minute, Backoff: 200 * time.Millisecond, MaxBackoff: 10 * time.Second}

// Handle is the outside of a spawned role.
type Handle struct {
	role Role
	pid  *actor.PID
	out  *outcome
	sys  *System
}

// Spawn starts a role under supervision. Names must be unique in the system.
func (s *System) Spawn(r Role, restart Restart) (*Handle, error) {
	if r.Name == "" || r.Run == nil {
		return nil, fmt.Errorf("actors: a role needs a name and a loop")
	}
	h := &Handle{role: r, out: &outcome{done: make(chan struct{})}, sys: s}
	props := actor.PropsFromProducer(
		func() actor.Actor { return &roleActor{role: r, out: h.out, sys: s} },
		actor.WithGuardian(&supervisor{sys: s, name: r.Name, restart: restart}),
	)
	pid, err := s.sys.Root.SpawnNamed(props, r.Name)
	if err != nil {
		return nil, fmt.Errorf("actors: spawning role %q: %w", r.Name, err)
	}
	h.pid = pid
	s.mu.Lock()
	s.handles = append(s.handles, h)
	s.mu.Unlock()
	return h, nil
}

// Done is closed when the role has ended for good.
func (h *Handle) Done() <-chan struct{} { return h.out.done }

// Err is the result after Done: nil when the loop finished its work,
// ErrDrained after Drain, else the failure that exhausted the restarts. Before
// Done it is the latest failure, or nil.
func (h *Handle) Err() error { return h.out.last() }

// Drain asks the loop to stop at its next safe point and waits for it.
func (h *Handle) Drain(ctx context.Context) error {
	h.sys.sys.Root.Send(h.pid, &drain{})
	select {
	case <-h.out.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("actors: draining role %s: %w", h.role.Name, ctx.Err())
	}
}

// Query asks the role for its report.
func (h *Handle) Query(timeout time.Duration) (Report, error) {
	res, err := h.sys.sys.Root.RequestFuture(h.pid, &query{}, timeout).Result()
	if err != nil {
		return nil, fmt.Errorf("actors: asking role %s: %w", h.role.Name, err)
	}
	return res.(Report), nil
}

// await waits for a stopped role's end, a little longer than its actor waits
// for the loop.
func (h *Handle) await() {
	t := time.NewTimer(h.role.drainLimit() + time.Second)
	defer t.Stop()
	select {
	case <-h.out.done:
	case <-t.C:
	}
}

// Close drains every role, each within its DrainTimeout, and shuts the system
// down. A loop that is later than that is abandoned.
func (s *System) Close() error {
	s.cancel()
	s.mu.Lock()
	handles := s.handles
	for t := range s.timers {
		t.Stop()
	}
	clear(s.timers)
	s.mu.Unlock()
	for _, h := range handles {
		s.sys.Root.Stop(h.pid)
	}
	for _, h := range handles {
		h.await()
	}
	s.sys.Shutdown()
	return nil
}

func (s *System) closing() bool { return s.ctx.Err() != nil }

// after runs f later unless the system closes first.
func (s *System) after(d time.Duration, f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing() {
		return
	}
	var t *time.Timer
	t = time.AfterFunc(d, func() {
		s.mu.Lock()
		_, live := s.timers[t]
		delete(s.timers, t)
		s.mu.Unlock()
		if live {
			f()
		}
	})
	s.timers[t] = struct{}{}
}
