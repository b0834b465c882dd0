package table

import "fmt"

// minSize never holds inserts back and serves samples once enough groups are
// there: Reverb's MinSize.
type minSize struct{}

func (minSize) insert(Limiter, Counts) string { return "" }

func (minSize) sample(l Limiter, c Counts, n uint64) (uint64, string) {
	if c.size() < l.MinSize {
		return 0, fmt.Sprintf("min_size: the table has %d of the %d groups it wants first", c.size(), l.MinSize)
	}
	return n, ""
}

func (minSize) problems(l Limiter) []error {
	out := l.unused(true, false, false)
	if l.MinSize < 1 {
		out = append(out, fmt.Errorf("limiter.min_size = %d: want at least 1", l.MinSize))
	}
	return out
}
