package actors

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/asynkron/protoactor-go/actor"
)

// Report is what a role tells about itself when asked. Values are small and
// JSON-able: counts, versions, rates.
type Report map[string]any

// Role is one long-running loop of a node.
type Role struct {
	// Name is unique in the system and appears in logs: "worker", "learner".
	Name string
	// Run is the loop. It returns when ctx ends; nil before that means done.
	Run func(ctx context.Context) error
	// Report describes the loop's present state; nil answers an empty report.
	// It is called from the actor's mailbox and must not block.
	Report func() Report
	// DrainTimeout bounds the time between Drain and the loop's return; then
	// the actor is stopped without waiting further. Zero means 30 s.
	DrainTimeout time.Duration
}

func (r Role) drainLimit() time.Duration {
	if r.DrainTimeout == 0 {
		return 30 * time.Second
	}
	return r.DrainTimeout
}

// Messages understood by a role's actor. Drain is sent by the process that
// shuts the node down, Query by status collectors; ended only by the actor's
// own loop goroutine.
type (
	drain struct{}
	query struct{}
	ended struct{ err error }
)

// ErrDrained is what Handle.Err returns for a role stopped by Drain.
var ErrDrained = errors.New("actors: drained")

// outcome is shared by all incarnations of a role's actor.
type outcome struct {
	once sync.Once
	done chan struct{}
	mu   sync.Mutex
	err  error // last failure, or the final result once done is closed
}

func (o *outcome) finish(err error) {
	o.once.Do(func() {
		o.mu.Lock()
		o.err = err
		o.mu.Unlock()
		close(o.done)
	})
}

func (o *outcome) fail(err error) {
	o.mu.Lock()
	o.err = err
	o.mu.Unlock()
}

func (o *outcome) last() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

// roleActor is one incarnation of a role. Supervision makes a new one for
// every restart, so its fields need no locking beyond the mailbox.
type roleActor struct {
	role     Role
	out      *outcome
	sys      *System
	cancel   context.CancelFunc
	loop     chan struct{} // closed when the loop goroutine has returned
	draining bool
}

// failure carries a loop's error through panic to the supervisor, which is how
// Proto.Actor reports a failed child.
type failure struct{ err error }

// Receive implements actor.Actor.
func (a *roleActor) Receive(c actor.Context) {
	switch m := c.Message().(type) {
	case *actor.Started:
		a.start(c)
	case *drain:
		a.draining = true
		a.cancel()
	case *query:
		rep := Report{}
		if a.role.Report != nil {
			rep = a.role.Report()
		}
		c.Respond(rep)
	case *ended:
		a.finished(c, m.err)
	case *actor.Stopping:
		a.cancel()
		a.await()
		if a.draining || a.sys.closing() {
			a.out.finish(ErrDrained)
		} else {
			a.out.finish(a.out.last())
		}
	case *actor.Restarting:
		a.cancel()
		a.await()
	}
}

func (a *roleActor) start(c actor.Context) {
	ctx, cancel := context.WithCancel(a.sys.ctx)
	a.cancel = cancel
	a.loop = make(chan struct{})
	self, root := c.Self(), c.ActorSystem().Root
	go func() {
		err := runGuarded(ctx, a.role)
		close(a.loop)
		root.Send(self, &ended{err: err})
	}()
}

func (a *roleActor) finished(c actor.Context, err error) {
	switch {
	case a.draining || a.sys.closing():
		a.out.finish(ErrDrained)
		c.Stop(c.Self())
	case err == nil:
		a.out.finish(nil)
		c.Stop(c.Self())
	default:
		a.out.fail(err)
		panic(failure{err})
	}
}

// await waits for the loop, but not longer than the role's drain bound (P8).
func (a *roleActor) await() {
	limit := a.role.drainLimit()
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-a.loop:
	case <-t.C:
		a.sys.log.Error("role did not stop in time; abandoning its loop", "role", a.role.Name, "limit", limit)
	}
}

// runGuarded turns a panic of the loop into an error, so that one broken role
// cannot take the node's other roles with it.
func runGuarded(ctx context.Context, r Role) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("actors: role %s panicked: %v\n%s", r.Name, p, debug.Stack())
		}
	}()
	return r.Run(ctx)
}
