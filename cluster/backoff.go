package cluster

import (
	"context"
	"math/rand/v2"
	"time"
)

// backoffTimer waits longer each time, up to a second, with full jitter, so
// that many clients do not come back together.
type backoffTimer struct{ n int }

// sleep waits once; false = ctx ended first.
func (b *backoffTimer) sleep(ctx context.Context) bool {
	limit := min(20*time.Millisecond<<min(b.n, 6), time.Second)
	b.n++
	t := time.NewTimer(limit/2 + rand.N(limit/2))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
