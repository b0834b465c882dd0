package f32

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// crew are helpers that stay ready between the calls of one goroutine: a
// product takes tens of microseconds, and waking a goroutine as long again.
// A helper that finds nothing to do polls for about 0.1 ms, then sleeps.
type crew struct {
	seq  atomic.Uint64 // counts jobs; the last one ends the helpers
	job  atomic.Pointer[job]
	busy atomic.Bool

	asleep atomic.Int32
	mu     sync.Mutex
	wake   *sync.Cond
	wg     sync.WaitGroup
}

// job is one call of For. Helpers that come late find nothing left of it.
type job struct {
	f      func(int)
	n      int64
	next   atomic.Int64 // next index to start
	_      [48]byte
	done   atomic.Int64 // indexes finished, told by each goroutine at its end
	caught atomic.Pointer[any]
	end    bool
}

const (
	pollRounds = 400 // polls before a helper sleeps
	pollPause  = 16  // pauses between two polls
)

// Crew returns a pool of as many threads whose For has helpers standing by, for
// the use of one goroutine, and what ends the helpers and waits for them. A For
// inside a For of the same crew runs on its caller.
func (p *Pool) Crew() (held *Pool, release func()) {
	if p.Threads() == 1 || p.crew != nil {
		return p, func() {}
	}
	c := &crew{}
	c.wake = sync.NewCond(&c.mu)
	for range p.threads - 1 {
		c.wg.Go(c.help)
	}
	return &Pool{threads: p.threads, crew: c}, func() {
		c.publish(&job{end: true})
		c.wg.Wait()
	}
}

func (c *crew) publish(j *job) {
	c.job.Store(j)
	c.seq.Add(1)
	if c.asleep.Load() > 0 {
		c.mu.Lock()
		c.wake.Broadcast()
		c.mu.Unlock()
	}
}

func (c *crew) help() {
	for seen := uint64(0); ; {
		seen = c.wait(seen)
		j := c.job.Load()
		if j.end {
			return
		}
		j.work()
	}
}

// wait returns once there is a job newer than seen.
func (c *crew) wait(seen uint64) uint64 {
	for range pollRounds {
		if s := c.seq.Load(); s != seen {
			return s
		}
		pause(pollPause)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asleep.Add(1)
	defer c.asleep.Add(-1)
	for c.seq.Load() == seen {
		c.wake.Wait()
	}
	return c.seq.Load()
}

// work takes part until no index is left to start.
func (j *job) work() {
	var ran int64
	for j.run(&ran) {
	}
	if ran > 0 {
		j.done.Add(ran)
	}
}

// run calls f until no index is left, or for more when one panicked.
func (j *job) run(ran *int64) (more bool) {
	defer func() {
		if r := recover(); r != nil {
			j.caught.CompareAndSwap(nil, &r)
			more = true
		}
	}()
	for {
		i := j.next.Add(1) - 1
		if i >= j.n {
			return false
		}
		*ran++
		j.f(int(i))
	}
}

// do is For with helpers; false when the crew is at work already.
func (c *crew) do(n int, f func(int)) bool {
	if !c.busy.CompareAndSwap(false, true) {
		return false
	}
	defer c.busy.Store(false)
	j := &job{f: f, n: int64(n)}
	c.publish(j)
	j.work()
	for round := 0; j.done.Load() < j.n; round++ {
		if round < pollRounds {
			pause(pollPause)
		} else {
			runtime.Gosched() // a helper lost its processor in the middle of an index
		}
	}
	if r := j.caught.Load(); r != nil {
		panic(*r)
	}
	return true
}
