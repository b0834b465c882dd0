package rollout

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestSharesByWeight(t *testing.T) {
	s := NewShares(12)
	a, b, c := s.Join(1), s.Join(2), s.Join(1)
	for _, x := range []*Seat{a, b, c} {
		x.asked(1, 1)
	}
	require.Equal(t, []int{3, 6, 3}, []int{a.room(0), b.room(0), c.room(0)})
	b.asked(4, 0) // nothing to do: the others have it all
	require.Equal(t, []int{6, 1}, []int{a.room(0), b.room(0) - 5}, "b may still ask for its share")
	b.room(2) // two in flight and no more to do
	require.Equal(t, []int{5, 5}, []int{a.room(0), c.room(0)})
	c.Leave()
	require.Equal(t, 10, a.room(0))
	require.Equal(t, 2, a.room(8))
	b.asked(1, 1)
	require.Equal(t, -4, a.room(8), "over its part: it takes no more until some end")
	require.Equal(t, 8, b.room(0))
}

func TestSharesWakeTheOthers(t *testing.T) {
	s := NewShares(4)
	a := s.Join(1)
	<-a.changed()
	b := s.Join(1)
	<-a.changed()
	<-b.changed()
	b.asked(2, 2)
	<-a.changed()
	b.Leave()
	<-a.changed()
	select {
	case <-a.changed():
		t.Fatal("nothing changed")
	default:
	}
}

// Whatever the runs do: with all hungry the parts add up to what there is, every
// run without rollouts may try one, and what idle runs leave is not lost.
func TestSharesProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		members := rapid.IntRange(1, 64).Draw(t, "members")
		s := NewShares(members)
		var seats []*Seat
		for range rapid.IntRange(1, 6).Draw(t, "runs") {
			x := s.Join(float64(rapid.IntRange(1, 5).Draw(t, "weight")))
			x.have = rapid.IntRange(0, members).Draw(t, "have")
			x.hungry = rapid.Bool().Draw(t, "hungry")
			seats = append(seats, x)
		}
		sum, idle, hungry := 0, 0, 0
		for _, x := range seats {
			require.GreaterOrEqual(t, s.part(x), 0)
			if x.have == 0 {
				require.GreaterOrEqual(t, x.room(0), 1)
			}
			if x.hungry {
				sum += s.part(x)
				hungry++
			} else {
				idle += x.have
			}
		}
		if hungry > 0 {
			require.GreaterOrEqual(t, sum+idle, members-hungry, "work conserving, up to rounding")
			if idle == 0 {
				require.LessOrEqual(t, sum, members+hungry)
			}
		}
	})
}
