package rollout

import (
	"math/bits"
	"time"
)

// EngineStats counts what a LocalEngine did since it started. Tokens per second
// over a window is the difference of two readings.
type EngineStats struct {
	Requests  uint64        // finished, whatever the outcome
	Failed    uint64        // of them, with an error; cancelled ones included
	Refused   uint64        // answered ErrBusy
	Generated uint64        // tokens sampled
	Prefilled uint64        // prompt tokens computed
	Scored    uint64        // tokens scored
	Reused    uint64        // prompt tokens taken from a cache instead
	Swaps     uint64        // policies and adapters set
	Refilled  uint64        // tokens computed again because of a swap (part of Prefilled)
	Busy      time.Duration // time inside the decoder
	Active    int           // requests holding a slot now
	Waiting   int           // requests without a slot now
	// FirstToken is the time from a request's arrival to its first token;
	// BetweenTokens that from one token to the next, the time of a quantum shared
	// evenly by the tokens it gave.
	FirstToken, BetweenTokens Histogram
	// Adapters has the policy (named "") first, then those loaded now by name.
	Adapters []AdapterStats
}

// AdapterStats is the part of one adapter since it was loaded.
type AdapterStats struct {
	Name      string
	Version   uint64
	Requests  uint64 // finished
	Generated uint64
	Active    int
}

// Histogram counts durations in buckets that double: bucket i holds those up to
// HistogramBound(i) and above the bound before; the last one everything longer.
type Histogram struct {
	Count   uint64
	Sum     time.Duration
	Buckets [24]uint64
}

const histogramUnit = 64 * time.Microsecond

// HistogramBound is the upper bound of a bucket: 64 µs doubled i times.
func HistogramBound(i int) time.Duration { return histogramUnit << i }

// Quantile is the upper bound of the bucket in which the share q of the
// durations ends; 0 when there are none.
func (h Histogram) Quantile(q float64) time.Duration {
	seen := uint64(0)
	for i, n := range h.Buckets {
		if seen += n; n > 0 && float64(seen) >= q*float64(h.Count) {
			return HistogramBound(i)
		}
	}
	return 0
}

// observe counts n durations that take d together.
func (h *Histogram) observe(d time.Duration, n int) {
	d = max(d, 0)
	h.Count += uint64(n)
	h.Sum += d
	each := d / time.Duration(n)
	i := 0
	if each > histogramUnit {
		i = bits.Len64(uint64((each - 1) / histogramUnit))
	}
	h.Buckets[min(i, len(h.Buckets)-1)] += uint64(n)
}
