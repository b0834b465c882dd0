package rollout

import (
	"context"
	"errors"
	"time"

	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/replay"
)

// retry calls f, each time with its own deadline, until it succeeds, ctx ends,
// or the error is one a retry can't cure.
func (w *Worker) retry(ctx context.Context, op string, f func(context.Context) error) error {
	wait := newBackoff()
	for {
		call, cancel := context.WithTimeout(ctx, w.cfg.CallTimeout)
		err := f(call)
		cancel()
		if err == nil || ctx.Err() != nil || errors.Is(err, replay.ErrInvalid) || errors.Is(err, model.ErrAdapter) || errors.Is(err, errProbe) {
			return err
		}
		w.report(op, err)
		wait.sleep(ctx)
	}
}

// backoff doubles from 50 ms to 5 s.
type backoff struct{ next time.Duration }

const minBackoff, maxBackoff = 50 * time.Millisecond, 5 * time.Second

// returnPause is how long a worker that gave a group back takes no other.
const returnPause = time.Second

func newBackoff() *backoff { return &backoff{minBackoff} }

func (b *backoff) reset() { b.next = minBackoff }

func (b *backoff) sleep(ctx context.Context) {
	t := time.NewTimer(b.next)
	defer t.Stop()
	b.next = min(2*b.next, maxBackoff)
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
