package rollout

import (
	"math"
	"slices"
	"sync"
)

// Shares divides the rollouts that one process keeps in flight among the runs it
// serves, in proportion to their weights. What a run has no tickets for goes to
// the others (max-min fairness), and every run may try one group when it has
// none, so that a run without tasks, or one that is stuck, holds up nobody. Safe
// for concurrent use.
type Shares struct {
	members int

	mu    sync.Mutex
	seats []*Seat
}

// NewShares divides that many rollouts; at least 1.
func NewShares(members int) *Shares { return &Shares{members: max(1, members)} }

// Seat is one run's part. Its worker tells what it has and asks what it may take.
type Seat struct {
	s      *Shares
	weight float64
	have   int
	hungry bool // it took all it was given when it last asked
	wake   chan struct{}
}

// Join adds a run with a weight above 0; Leave takes it out.
func (s *Shares) Join(weight float64) *Seat {
	seat := &Seat{s: s, weight: weight, wake: make(chan struct{}, 1)}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seats = append(s.seats, seat)
	s.notify()
	return seat
}

// Leave gives the run's part to the others.
func (t *Seat) Leave() {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	t.s.seats = slices.DeleteFunc(t.s.seats, func(x *Seat) bool { return x == t })
	t.s.notify()
}

// room is how many rollouts the run may take beside those in flight.
func (t *Seat) room(inFlight int) int {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	t.set(inFlight, t.hungry)
	room := t.s.part(t) - inFlight
	if inFlight == 0 {
		room = max(room, 1)
	}
	return room
}

// asked tells what became of a request for n groups.
func (t *Seat) asked(n, got int) {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	t.set(t.have, got >= n)
}

func (t *Seat) set(have int, hungry bool) {
	if have != t.have || hungry != t.hungry {
		t.have, t.hungry = have, hungry
		t.s.notify()
	}
}

// changed delivers when another run's need changed.
func (t *Seat) changed() <-chan struct{} { return t.wake }

func (s *Shares) notify() {
	for _, x := range s.seats {
		select {
		case x.wake <- struct{}{}:
		default:
		}
	}
}

// part is the max-min fair part of a run that wants all it can get: water is
// poured on the runs in proportion to their weights, and those that have what
// they want drop out.
func (s *Shares) part(of *Seat) int {
	left := float64(s.members)
	open := slices.Clone(s.seats)
	for {
		weights := 0.0
		for _, x := range open {
			weights += x.weight
		}
		full := func(x *Seat) bool {
			return x != of && !x.hungry && float64(x.have) <= left*x.weight/weights
		}
		i := slices.IndexFunc(open, full)
		if i < 0 {
			return int(math.Round(left * of.weight / weights))
		}
		left -= float64(open[i].have)
		open = slices.Delete(open, i, i+1)
	}
}
