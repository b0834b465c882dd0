package gobackend

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/model/internal/f32"
)

// Together implements model.Joiner. Every pass goes on as it would alone, on a
// goroutine of its own; where several of them need a product with the same base
// weights at the same place, it is computed once over all their rows. A row's
// product does not depend on the other rows, so nothing else changes.
func (b *backend) Together(calls []model.JointCall) []error {
	return b.together(calls, &meeting{passes: len(calls)})
}

func (b *backend) together(calls []model.JointCall, m *meeting) []error {
	errs := make([]error, len(calls))
	m.bs.pool = b.pool
	trainers := make([]*trainer, len(calls))
	for i, c := range calls {
		t, ok := c.Trainer.(*trainer)
		if !ok || t.b != b || slices.Contains(trainers[:i], t) {
			return fill(errs, fmt.Errorf("gobackend: joint pass %d: %w", i, errJoint))
		}
		trainers[i] = t
	}
	var wg sync.WaitGroup
	for i, t := range trainers {
		if len(calls) > 1 {
			t.bs.meet = m
		}
		wg.Go(func() {
			defer m.leave()
			errs[i] = calls[i].Do()
		})
	}
	wg.Wait()
	for _, t := range trainers {
		t.bs.meet = nil
	}
	return errs
}

var errJoint = errors.New("its trainer is another backend's, or another pass's as well")

func fill(errs []error, err error) []error {
	for i := range errs {
		errs[i] = err
	}
	return errs
}

// meeting is where passes that go on together hand in their products with base
// weights. When every pass that still goes on has handed one in, those of the
// earliest place are computed, together where the weights are the same; the
// passes they belong to go on until they come with the next. So passes of unlike
// length, and such as compute a layer again, fall into step by themselves.
type meeting struct {
	mu      sync.Mutex
	passes  int
	waiting []*ticket
	bs      backwardScratch
	x, y    []float32

	handed, computed int // products
}

// ticket is a product that waits for the others.
type ticket struct {
	product
	at   spot
	done chan struct{}
}

// spot is where in a pass a product stands: equal for equal steps of passes of
// one kind.
type spot struct{ stage, n int }

func (s spot) before(o spot) bool { return s.stage < o.stage || s.stage == o.stage && s.n < o.n }

// enter begins a stage of a pass; stages ascend.
func (ex *exec) enter(stage int) { ex.at = spot{stage: stage} }

// compute does a product, with those of the other passes if there are.
func (ex *exec) compute(p product) {
	if ex.meet == nil {
		p.compute(ex)
		return
	}
	t := &ticket{product: p, at: ex.at, done: make(chan struct{})}
	ex.at.n++
	ex.meet.hand(t)
	<-t.done
}

func (m *meeting) hand(t *ticket) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.waiting = append(m.waiting, t)
	m.handed++
	m.round()
}

// leave ends a pass.
func (m *meeting) leave() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.passes--
	m.round()
}

// round computes the products of the earliest place once all passes wait.
func (m *meeting) round() {
	if len(m.waiting) < m.passes || len(m.waiting) == 0 {
		return
	}
	first := m.waiting[0].at
	for _, t := range m.waiting {
		if t.at.before(first) {
			first = t.at
		}
	}
	var now []*ticket
	m.waiting = slices.DeleteFunc(m.waiting, func(t *ticket) bool {
		if t.at == first {
			now = append(now, t)
		}
		return t.at == first
	})
	for len(now) > 0 {
		var same []*ticket
		lead := now[0]
		now = slices.DeleteFunc(now, func(t *ticket) bool {
			if t.like(lead.product) {
				same = append(same, t)
			}
			return t.like(lead.product)
		})
		m.compute(same)
	}
}

// compute does like products as one.
func (m *meeting) compute(ts []*ticket) {
	lead := ts[0].product
	m.computed++
	if len(ts) > 1 {
		k, out := lead.k(), lead.out()
		all := lead
		all.rows = 0
		for _, t := range ts {
			all.rows += t.rows
		}
		m.x, m.y = resize(m.x, all.rows*k), resize(m.y, all.rows*out)
		all.x, all.y, all.stride = f32.A{Data: m.x, RowStride: k, ColStride: 1}, m.y, out
		m.each(ts, func(t *ticket, row, at int) {
			copy(m.x[at*k:(at+1)*k], t.x.Data[row*t.x.RowStride:])
			if t.add {
				copy(m.y[at*out:(at+1)*out], t.y[row*t.stride:])
			}
		})
		all.compute(&m.bs.exec)
		m.each(ts, func(t *ticket, row, at int) { copy(t.y[row*t.stride:row*t.stride+out], m.y[at*out:]) })
	} else {
		lead.compute(&m.bs.exec)
	}
	for _, t := range ts {
		close(t.done)
	}
}

// each calls f with every row of the products: its number there, and among all.
func (m *meeting) each(ts []*ticket, f func(t *ticket, row, at int)) {
	from := 0
	for _, t := range ts {
		m.bs.pool.Rows(t.rows, rowGrain(t.k()+t.out()), func(lo, hi int) {
			for i := lo; i < hi; i++ {
				f(t, i, from+i)
			}
		})
		from += t.rows
	}
}
