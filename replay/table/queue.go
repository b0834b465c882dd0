package table

import "fmt"

// queue admits a group while fewer than Size wait and gives each out once:
// Reverb's Queue and, newest first, Stack.
//
// Departure: groups that were dropped or removed make room too; in Reverb only
// samples do.
type queue struct{}

func (queue) insert(l Limiter, c Counts) string {
	if c.Open+c.Ready < l.Size {
		return ""
	}
	return fmt.Sprintf("%s: %d groups wait and %d are being collected, at most %d together", l.Kind, c.Ready, c.Open, l.Size)
}

func (queue) sample(l Limiter, c Counts, n uint64) (uint64, string) {
	if c.Ready >= n {
		return n, ""
	}
	return c.Ready, fmt.Sprintf("%s: %d groups wait, %d were asked for", l.Kind, c.Ready, n)
}

func (queue) problems(l Limiter) []error {
	out := l.unused(false, false, true)
	if l.Size < 1 {
		out = append(out, fmt.Errorf("limiter.size = %d: want at least 1", l.Size))
	}
	return out
}
