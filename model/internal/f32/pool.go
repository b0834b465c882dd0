package f32

import (
	"sync"
	"sync/atomic"
)

// Pool runs index ranges on up to a fixed number of goroutines. It keeps no
// goroutine between calls (but see Crew): the caller works too and waits for
// the rest, so there is nothing to close. A nil Pool runs everything on the
// caller. Safe for concurrent use.
type Pool struct {
	threads int
	crew    *crew // nil: goroutines start with every call
}

// NewPool returns a pool of n goroutines, the caller included (n < 1 is 1).
func NewPool(n int) *Pool { return &Pool{threads: max(n, 1)} }

// Threads is the number of goroutines a call may use, at least 1.
func (p *Pool) Threads() int {
	if p == nil {
		return 1
	}
	return p.threads
}

// serial is the number of multiply-adds under which one goroutine is faster.
func (p *Pool) serial() int {
	if p.crew != nil {
		return crewOp
	}
	return serialOp
}

// For calls f(i) for every i in [0, n), in no particular order and possibly at
// the same time. It returns when all calls have returned. A panic in f on
// another goroutine is raised again on the caller's.
func (p *Pool) For(n int, f func(i int)) {
	workers := min(p.Threads(), n)
	if workers > 1 && p.crew != nil {
		if p.crew.do(n, f) {
			return
		}
		workers = 1
	}
	if workers <= 1 {
		for i := range n {
			f(i)
		}
		return
	}
	var next atomic.Int64
	var caught atomic.Pointer[any]
	var wg sync.WaitGroup
	work := func() {
		defer func() {
			if r := recover(); r != nil {
				caught.CompareAndSwap(nil, &r)
			}
		}()
		for {
			i := int(next.Add(1)) - 1
			if i >= n {
				return
			}
			f(i)
		}
	}
	for range workers - 1 {
		wg.Go(work)
	}
	work()
	wg.Wait()
	if r := caught.Load(); r != nil {
		panic(*r)
	}
}

// Rows splits n rows into blocks of at least grain rows and calls f on each
// block, as For does.
func (p *Pool) Rows(n, grain int, f func(lo, hi int)) {
	if n <= grain || p.Threads() == 1 {
		if n > 0 {
			f(0, n)
		}
		return
	}
	block := max(grain, (n+4*p.Threads()-1)/(4*p.Threads()))
	p.For((n+block-1)/block, func(i int) { f(i*block, min(n, (i+1)*block)) })
}
