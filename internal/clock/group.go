package clock

import (
	"slices"
	"sync"
	"time"
)

// Slew is the part of the elapsed time by which a group's time may run slower or
// faster while it approaches the wall clock: a lease of 64 s lasts between 63
// and 65 s whatever a wall clock does.
const Slew = 64

// Group is the time of a replicated group as one of its nodes knows it. It runs
// with the monotonic clock and drifts towards the node's wall clock at 1/64 at
// most, so that a wall clock that jumps (NTP, an operator) ends no lease early
// and holds none for long. A node that does not lead takes over the leader's
// time, and goes on from there when it comes to lead. When nobody knows the
// group's time, because all have just started, the median of their wall clocks
// is taken: one that is wrong decides nothing. Safe for concurrent use.
type Group struct {
	mu     sync.Mutex
	known  bool                     // base is the group's time, not only this node's wall clock
	base   time.Time                // the time at the moment at
	at     time.Time                // with a monotonic reading
	others map[string]time.Duration // how far the clocks of nodes that don't know either are ahead
	wall   func() time.Time
	mono   func() time.Time
}

// NewGroup starts at the wall clock.
func NewGroup() *Group { return newGroup(Wall, time.Now) }

func newGroup(wall, mono func() time.Time) *Group {
	return &Group{base: wall(), at: mono(), others: make(map[string]time.Duration), wall: wall, mono: mono}
}

// Now is the group's time as far as it is known here. It goes back only when
// the leader's time is taken over.
func (g *Group) Now() time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.now()
}

func (g *Group) now() time.Time {
	now := g.mono()
	elapsed := max(now.Sub(g.at), 0)
	t, most := g.base.Add(elapsed), elapsed/Slew
	t = t.Add(min(max(g.wall().Sub(t), -most), most))
	g.base, g.at = t, now
	return t
}

// Time is Now, and whether it is the group's: another node may take it over.
func (g *Group) Time() (t time.Time, known bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.now(), g.known
}

// Hear notes what another node said its Time is. The leader's counts; that of
// another one only while this node does not know the group's time.
func (g *Group) Hear(from string, t time.Time, known, leads bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case t.IsZero(): // a node of an earlier version
	case known && (leads || !g.known):
		g.base, g.at, g.known = t.Round(0), g.mono(), true
	case !known && !g.known:
		g.others[from] = t.Sub(g.now())
	}
}

// Lead makes this node's time the group's.
func (g *Group) Lead() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.known {
		return
	}
	g.known = true
	offs := []time.Duration{0}
	for _, d := range g.others {
		offs = append(offs, d)
	}
	slices.Sort(offs)
	g.base = g.now().Add(offs[(len(offs)-1)/2]) // of two the earlier: leases last longer
}
