package learner

import (
	"sync"
	"time"
)

// timer adds up what parts of a step take, of all computers together.
type timer struct {
	clock sync.Mutex
	time  StepTime
}

// spend adds the time until the returned function is called to a total.
func (t *timer) spend(on *time.Duration) func() {
	began := time.Now()
	return func() {
		t.clock.Lock()
		defer t.clock.Unlock()
		*on += time.Since(began)
	}
}
