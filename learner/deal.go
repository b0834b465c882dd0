package learner

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skein-rl/skein/model"
)

// computer is what micro-batches are dealt to: the learner's own trainers, or
// those of a learner in another process that helps. A vector's place says which
// trainer is meant, the policy's or the critic's. One goroutine at a time.
type computer interface {
	score(ctx context.Context, groups []model.PrefixGroup, temperature float64, v *paramVector) (model.Scores, error)
	forward(ctx context.Context, groups []model.PrefixGroup, temperature float64, v *paramVector) (model.Scores, error)
	// gradient is that of the last forward alone, valid until the next call.
	gradient(ctx context.Context, d model.Scores) ([]float32, error)
}

// paramVector is a parameter vector that does not change while it is in use; nil
// data is the model without adapter. ids are never used again in a learner's
// life. A helper holds one vector a place.
type paramVector struct {
	place int
	id    uint64
	data  []float32
}

// Places of parameter vectors. The critic's is of the critic's trainer, the others
// are of the policy's.
const (
	placePolicy    = 0
	placeReference = 1
	placeCritic    = 2
	places         = 3
)

// errHelperLost marks an error of a helper, whose micro-batch others compute
// then.
var errHelperLost = errors.New("learner: helper lost")

// own is this process's trainers.
type own struct {
	trainers
	set  [places]*paramVector // that the place's trainer has
	last model.Trainer        // of the last forward
}

// trainers are a learner's, of which critic may be nil.
type trainers struct{ policy, critic model.Trainer }

// at is the trainer that a place's vectors are of; nil without one.
func (t trainers) at(place int) model.Trainer {
	if place == placeCritic {
		return t.critic
	}
	return t.policy
}

func (l *Learner) trainers() trainers {
	t := trainers{policy: l.tr}
	if l.critic != nil {
		t.critic = l.critic.tr
	}
	return t
}

func (o *own) score(ctx context.Context, groups []model.PrefixGroup, temperature float64, v *paramVector) (model.Scores, error) {
	return o.at(v.place).Score(ctx, groups, temperature, v.data)
}

func (o *own) forward(ctx context.Context, groups []model.PrefixGroup, temperature float64, v *paramVector) (model.Scores, error) {
	o.last = o.at(v.place)
	if o.set[v.place] != v {
		if err := o.last.SetParams(v.data); err != nil {
			return model.Scores{}, err
		}
		o.set[v.place] = v
	}
	return o.last.Forward(ctx, groups, temperature)
}

func (o *own) gradient(ctx context.Context, d model.Scores) ([]float32, error) {
	o.last.ZeroGrad()
	err := o.last.Backward(ctx, d)
	return o.last.Grad(), err
}

// A helper that is slower than this many times the own trainer's slowest
// micro-batch so far, plus helpSlack, is given up; helpFirst bounds it while
// there is nothing to compare with.
const (
	helpFactor = 5
	helpSlack  = 10 * time.Second
	helpFirst  = 5 * time.Minute
)

// dealer deals the micro-batches of a step.
type dealer struct {
	ctx     context.Context // the step's
	own     *own
	helpers []*helper
	helped  atomic.Int64 // micro-batches that other learners computed
}

func (l *Learner) dealer(ctx context.Context) *dealer {
	return &dealer{ctx: ctx, own: &own{trainers: l.trainers()}, helpers: l.helpers}
}

// deal calls f for micro-batches 0 to n-1, each once with success, on whichever
// computer is free: the own trainer on this goroutine, helpers beside it. What a
// lost helper had is dealt again. Which computer gets which must not matter: f
// keeps results by micro-batch, and sums are taken in their order afterwards.
func (d *dealer) deal(n int, f func(ctx context.Context, c computer, k int) error) error {
	ctx, cancel := context.WithCancel(d.ctx)
	defer cancel()
	q := newQueue(ctx, n)
	var wg sync.WaitGroup
	for _, h := range d.helpers {
		if h.lost() {
			continue
		}
		wg.Go(func() {
			for {
				k, ok := q.take()
				if !ok {
					return
				}
				limit, done := context.WithTimeout(ctx, q.limit())
				err := f(limit, h, k)
				done()
				switch {
				case err == nil:
					d.helped.Add(1)
					q.done()
				case errors.Is(err, errHelperLost):
					q.back(k)
					return
				default:
					q.fail(err)
					return
				}
			}
		})
	}
	for {
		k, ok := q.take()
		if !ok {
			break
		}
		began := time.Now()
		if err := f(ctx, d.own, k); err != nil {
			q.fail(err)
			break
		}
		q.took(time.Since(began))
		q.done()
	}
	cancel() // helpers have nothing left to do, or must stop
	wg.Wait()
	return q.err()
}

// queue deals out 0 to n-1 in order; what comes back goes first.
type queue struct {
	ctx     context.Context
	stop    func() bool
	mu      sync.Mutex
	changed *sync.Cond
	waiting []int
	out     int // taken and neither done nor back
	failed  error
	slowest time.Duration // of the own trainer
}

func newQueue(ctx context.Context, n int) *queue {
	q := &queue{ctx: ctx}
	q.changed = sync.NewCond(&q.mu)
	for k := range n {
		q.waiting = append(q.waiting, k)
	}
	q.stop = context.AfterFunc(ctx, q.change(func() {}))
	return q
}

func (q *queue) change(f func()) func() {
	return func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		f()
		q.changed.Broadcast()
	}
}

// take waits for a micro-batch; ok is false when all are done or the step ends.
func (q *queue) take() (k int, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		switch {
		case q.failed != nil || q.ctx.Err() != nil || len(q.waiting)+q.out == 0:
			return 0, false
		case len(q.waiting) > 0:
			k, q.waiting = q.waiting[0], q.waiting[1:]
			q.out++
			return k, true
		}
		q.changed.Wait()
	}
}

func (q *queue) done() { q.change(func() { q.out-- })() }
func (q *queue) back(k int) {
	q.change(func() { q.out--; q.waiting = slices.Insert(q.waiting, 0, k) })()
}
func (q *queue) fail(err error) {
	q.change(func() {
		q.out--
		if q.failed == nil {
			q.failed = err
		}
	})()
}

func (q *queue) took(d time.Duration) { q.change(func() { q.slowest = max(q.slowest, d) })() }

// limit is how long a helper may take for its next micro-batch.
func (q *queue) limit() time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.slowest == 0 {
		return helpFirst
	}
	return helpFactor*q.slowest + helpSlack
}

// err is how the dealing ended: nil when everything was done.
func (q *queue) err() error {
	q.stop()
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.failed == nil && len(q.waiting)+q.out > 0 {
		return context.Cause(q.ctx)
	}
	return q.failed
}

// gradSum adds micro-batches' gradients in their order, whenever they come, so
// that the sum's bits depend on nothing else.
type gradSum struct {
	mu    sync.Mutex
	sum   []float32
	next  int
	early map[int][]float32
}

func newGradSum(n int) *gradSum {
	return &gradSum{sum: make([]float32, n), early: map[int][]float32{}}
}

func (g *gradSum) add(k int, grad []float32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if k != g.next {
		g.early[k] = slices.Clone(grad)
		return
	}
	for ok := true; ok; grad, ok = g.early[g.next] {
		delete(g.early, g.next)
		for i, x := range grad {
			g.sum[i] += x
		}
		g.next++
	}
}
