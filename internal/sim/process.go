package sim

import (
	"errors"
	"time"

	"github.com/skein-rl/skein/replay"
)

// process is a worker or a learner: something that can die, and whose messages
// can be lost.
type process struct {
	w    *world
	run  *run
	name string
	up   bool
	life uint64        // what was scheduled in an earlier one does not happen
	cut  time.Duration // no message passes until then
}

// after does f so much later, if this life lasts.
func (p *process) after(d time.Duration, f func()) {
	life := p.life
	p.w.after(d, func() {
		if p.up && p.life == life {
			f()
		}
	})
}

func (p *process) here() bool { return p.up && p.cut <= p.w.now }

func (p *process) die() {
	p.up = false
	p.life++
}

// attemptTime is how long a client waits for an answer beyond what the leader
// may think, and retryPause before it asks again.
const (
	attemptTime = 3 * time.Second
	retryPause  = 100 * time.Millisecond
)

// call is a request that is repeated until it is answered or its time is over,
// as cluster.Client does.
type call struct {
	from *process
	life uint64
	end  time.Duration // then the caller gives up
	wait time.Duration // until then the leader may wait for ready
	// ready says whether cmd may have something to give; nil = always.
	ready func(kv replay.Reader, now time.Time) (bool, error)
	parks func(*run) *[]*attempt // where it waits
	// cmd makes the command; nil: read is all.
	cmd   func(now time.Time) replay.Command
	read  func(kv replay.Reader) error
	empty func(replay.Result) bool // nothing came of it: it may wait on
	done  func(replay.Result, error)
	tries int
	over  bool
}

// attempt is one arrival of a call at a leader.
type attempt struct {
	*call
	retry  bool
	term   uint64
	parked bool // it waits at the leader
}

// ask sends a call; done is called once in this life.
func (p *process) ask(c *call, timeout time.Duration) {
	c.from, c.life = p, p.life
	c.end = max(p.w.now, c.wait) + timeout
	p.after(c.end-p.w.now, func() { c.answer(replay.Result{}, replay.ErrUnavailable) })
	c.send()
}

func (c *call) send() {
	p, w := c.from, c.from.w
	if c.over || !p.up || p.life != c.life {
		return
	}
	c.tries++
	try := c.tries
	w.deliver(p, func() { w.store.arrive(&attempt{call: c, retry: try > 1, term: w.store.term}) })
	p.after(max(c.wait-w.now, 0)+attemptTime, func() {
		if try == c.tries {
			c.send()
		}
	})
}

// reply carries the leader's answer back.
func (c *call) reply(res replay.Result, err error) {
	try := c.tries
	c.from.w.deliver(c.from, func() {
		switch {
		case c.over || !c.from.up || c.from.life != c.life:
		case !errors.Is(err, replay.ErrUnavailable):
			c.answer(res, err)
		case try == c.tries:
			c.from.after(retryPause+c.from.w.rng.exp(retryPause), func() {
				if try == c.tries {
					c.send()
				}
			})
		}
	})
}

func (c *call) answer(res replay.Result, err error) {
	if !c.over {
		c.over = true
		c.done(res, err)
	}
}

// deliver takes a message to or from p, perhaps never, perhaps twice.
func (w *world) deliver(p *process, f func()) {
	n := &w.cfg.Net
	for first := true; first || w.rng.chance(n.Repeat); first = false {
		w.rep.Messages++
		if p.cut > w.now || w.rng.chance(n.Loss) {
			w.rep.Lost++
			continue
		}
		w.after(w.rng.draw(n.Delay), f)
	}
}
