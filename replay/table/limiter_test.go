package table

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLimiters: the definitions of Reverb's rate limiters, case by case.
func TestLimiters(t *testing.T) {
	ratio := Limiter{Kind: SamplesPerInsert, MinSize: 2, SamplesPerInsert: 4, ErrorBuffer: 5} // d in [3, 13]
	for _, c := range []struct {
		name   string
		l      Limiter
		c      Counts
		insert bool
		sample uint64 // of 10
	}{
		{"min_size below", Limiter{Kind: MinSize, MinSize: 3}, Counts{Ready: 2, Inserted: 2}, true, 0},
		{"min_size there", Limiter{Kind: MinSize, MinSize: 3}, Counts{Ready: 2, Leased: 1, Inserted: 3}, true, 10},
		{"queue empty", Limiter{Kind: Queue, Size: 2}, Counts{}, true, 0},
		{"queue with one", Limiter{Kind: Queue, Size: 2}, Counts{Ready: 1}, true, 1},
		{"queue full", Limiter{Kind: Queue, Size: 2}, Counts{Ready: 2}, false, 2},
		{"queue full of groups being collected", Limiter{Kind: Queue, Size: 2}, Counts{Open: 2}, false, 0},
		{"stack full", Limiter{Kind: Stack, Size: 2}, Counts{Ready: 2}, false, 2},
		{"ratio: free up to min_size", ratio, Counts{Ready: 1, Inserted: 100}, true, 0},
		{"ratio: d = 12 after the third, 5 samples down to 3", ratio, Counts{Ready: 2, Inserted: 2}, true, 5},
		{"ratio: d would be 16", ratio, Counts{Ready: 3, Inserted: 3}, false, 9},
		{"ratio: samples made room: d = 16 - 3", ratio, Counts{Ready: 3, Inserted: 3, Sampled: 3}, true, 6},
		{"ratio: leased counts as sampled", ratio, Counts{Leased: 3, Inserted: 3}, true, 6},
		{"ratio: groups being collected count", ratio, Counts{Open: 1, Ready: 2, Inserted: 2}, false, 5},
		{"ratio: nothing left to sample", ratio, Counts{Ready: 2, Inserted: 2, Sampled: 5}, true, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			why := c.l.Insert(c.c)
			require.Equal(t, c.insert, why == "", why)
			n, why := c.l.Sample(c.c, 10)
			require.Equal(t, c.sample, n, why)
			require.Equal(t, n == 10, why == "", why)
		})
	}
}
