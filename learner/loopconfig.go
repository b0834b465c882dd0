package learner

import (
	"errors"
	"fmt"
	"time"

	"github.com/skein-rl/skein/replay"
)

// LoopConfig bounds the loop around the learner: nothing in it waits without a
// deadline.
type LoopConfig struct {
	Run string
	// Holder names this learner to the store. A restarted learner of the same
	// name gets its groups back at once.
	Holder string
	// LeaseTTL is how long the store keeps groups for a silent learner; leases
	// are extended every third of it. LeaseWait is how long one call waits.
	LeaseTTL, LeaseWait time.Duration
	// CallTimeout bounds every other call; RetryFor all retries of one while
	// the store is unavailable.
	CallTimeout, RetryFor time.Duration
	// Backoff is the pause after an empty batch, doubling to BackoffMax.
	Backoff, BackoffMax time.Duration
	// MaxEmpty consecutive batches without a trainable token end the loop with
	// an error, as do MaxIdle without a complete group and MaxLost consecutive
	// leases lost to another learner.
	MaxEmpty int
	MaxIdle  time.Duration
	MaxLost  int
	// EvalEvery asks for an evaluation of held-out tasks [EvalFrom,
	// EvalFrom+EvalCount) after every so many steps and after the last; 0 never.
	// EvalStart asks for one of version 0 too.
	EvalEvery uint64
	EvalFrom  uint64
	EvalCount uint32
	EvalStart bool
}

// DefaultLoopConfig has bounds for a learner beside its store or across a
// cluster.
func DefaultLoopConfig(run, holder string) LoopConfig {
	return LoopConfig{
		Run: run, Holder: holder,
		LeaseTTL: time.Minute, LeaseWait: 10 * time.Second, CallTimeout: 30 * time.Second, RetryFor: 2 * time.Minute,
		Backoff: time.Second, BackoffMax: 30 * time.Second,
		MaxEmpty: 10, MaxIdle: 15 * time.Minute, MaxLost: 10,
	}
}

// Validate reports every problem with field, value and remedy.
func (c LoopConfig) Validate() error {
	var errs []error
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	if c.Run == "" {
		bad("run: empty; name the training run")
	}
	if c.Holder == "" {
		bad("holder: empty; name this learner (its node id)")
	}
	for _, d := range []struct {
		name string
		v    time.Duration
	}{
		{"lease_ttl", c.LeaseTTL}, {"lease_wait", c.LeaseWait}, {"call_timeout", c.CallTimeout}, {"retry_for", c.RetryFor},
		{"backoff", c.Backoff}, {"backoff_max", c.BackoffMax}, {"max_idle", c.MaxIdle},
	} {
		if d.v <= 0 {
			bad("%s: %v is not above 0; nothing may wait for ever", d.name, d.v)
		}
	}
	if c.MaxEmpty < 1 {
		bad("max_empty: %d is below 1", c.MaxEmpty)
	}
	if c.MaxLost < 1 {
		bad("max_lost: %d is below 1", c.MaxLost)
	}
	if (c.EvalEvery > 0 || c.EvalStart) && c.EvalCount == 0 {
		bad("eval_count: 0 though evaluations are asked for; set it or eval_every: 0")
	}
	return errors.Join(errs...)
}

// Hooks see the loop's moments, on its goroutine. Every field may be nil.
type Hooks struct {
	// OnStart: the learner is ready at a step and version; resumed says that it
	// came from the registry.
	OnStart func(step, version uint64, resumed bool)
	// OnWait: no complete group yet, after so long.
	OnWait func(waited time.Duration, status replay.RunStatus)
	// OnStep: a step is committed. ckpt is what Checkpoint in rec holds.
	OnStep func(rec replay.StepRecord, res StepResult, ckpt *Checkpoint)
	// OnEmpty: a batch had nothing to train; its groups are dropped.
	OnEmpty func(consecutive int, reasons map[string]int)
	// OnLost: the lease was lost or another learner committed; the work is
	// dropped and the last committed state loaded.
	OnLost func(err error, step uint64)
	// OnEval: an evaluation of a version was asked for.
	OnEval func(req replay.EvalRequest)
	// OnWarning: something to tell the user that does not stop the loop.
	OnWarning func(err error)
}

func (h Hooks) warn(err error) {
	if h.OnWarning != nil && err != nil {
		h.OnWarning(err)
	}
}
