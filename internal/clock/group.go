package clock

import (
	"sync"
	"time"
)

// slew is how much slower or faster than real time a group's time may run
// while it approaches the wall clock: by a 16th, so that a lease of 60 s lasts
// between 56 and 64 s whatever a wall clock does.
const slew = 16

// Group is the time of a replicated group as one of its nodes knows it. It
// starts at the node's wall clock, runs with the monotonic clock, and drifts
// towards the wall clock at 1/16 at most, so that a wall clock that jumps (a
// wrong start, NTP, an operator) ends no lease early and holds none for long.
// A node that does not lead takes over the leader's time with Observe, and goes
// on from there when it comes to lead. Safe for concurrent use.
type Group struct {
	mu   sync.Mutex
	set  bool      // base is somebody's time, not only this node's wall clock
	base time.Time // the group's time at the moment at
	at   time.Time // with a monotonic reading
	wall func() time.Time
	mono func() time.Time
}

// NewGroup starts at the wall clock.
func NewGroup() *Group { return newGroup(Wall, time.Now) }

func newGroup(wall, mono func() time.Time) *Group {
	return &Group{base: wall(), at: mono(), wall: wall, mono: mono}
}

// Now is the group's time. It never goes back except by Observe.
func (g *Group) Now() time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.mono()
	elapsed := max(now.Sub(g.at), 0)
	t, most := g.base.Add(elapsed), elapsed/slew
	switch off := g.wall().Sub(t); {
	case off > most:
		t = t.Add(most)
	case off < -most:
		t = t.Add(-most)
	default:
		t = t.Add(off)
	}
	g.base, g.at = t, now
	return t
}

// Observe takes over what another node said the group's time is. Of nodes
// other than the leader (sure = false) it counts only while nothing better is
// known.
func (g *Group) Observe(t time.Time, sure bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if t.IsZero() || g.set && !sure {
		return
	}
	g.base, g.at, g.set = t.Round(0), g.mono(), true
}

// Known: the time is the group's, not only this node's own.
func (g *Group) Known() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.set
}

// Lead notes that this node's time is the group's from now on.
func (g *Group) Lead() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.set = true
}
