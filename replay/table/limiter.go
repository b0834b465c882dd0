package table

import (
	"fmt"
	"math"
)

// LimiterKind names a rule of when to insert and when to sample.
type LimiterKind string

// The limiters, each in its own file.
const (
	MinSize          LimiterKind = "min_size"
	SamplesPerInsert LimiterKind = "samples_per_insert"
	Queue            LimiterKind = "queue"
	Stack            LimiterKind = "stack"
)

// Limiter configures the rule. A table asks it before a group is admitted and
// before groups are sampled.
type Limiter struct {
	Kind LimiterKind `json:"kind"`
	// MinSize is how many groups must be there before any is sampled; min_size
	// and samples_per_insert, at least 1.
	MinSize uint64 `json:"min_size"`
	// SamplesPerInsert is how often each group is sampled on average;
	// samples_per_insert only, above 0.
	SamplesPerInsert float64 `json:"samples_per_insert"`
	// ErrorBuffer is how far, in samples, the two sides may stray from that
	// before one waits; samples_per_insert only, at least
	// max(1, SamplesPerInsert).
	ErrorBuffer float64 `json:"error_buffer"`
	// Size is how many groups wait at most; queue and stack, at least 1.
	Size uint64 `json:"size"`
}

// Counts is what a limiter decides by, in groups.
type Counts struct {
	Open     uint64 // admitted, incomplete
	Ready    uint64 // can be sampled
	Leased   uint64 // sampled, neither consumed nor returned
	Inserted uint64 // completed, ever, less those lost before any sample
	Sampled  uint64 // consumed samples, ever; what is leased comes on top
}

func (c Counts) size() uint64 { return c.Ready + c.Leased }

type limiter interface {
	// insert says why one more group cannot be admitted; "" = it can.
	insert(l Limiter, c Counts) string
	// sample returns how many of n may be sampled, and why not more.
	sample(l Limiter, c Counts, n uint64) (uint64, string)
	problems(l Limiter) []error
}

var limiters = map[LimiterKind]limiter{MinSize: minSize{}, SamplesPerInsert: ratio{}, Queue: queue{}, Stack: queue{}}

// Insert says why one more group cannot be admitted now; "" = it can.
func (l Limiter) Insert(c Counts) string {
	if r, ok := limiters[l.Kind]; ok {
		return r.insert(l, c)
	}
	return fmt.Sprintf("rate limiter %q is unknown", l.Kind)
}

// Sample returns how many of n groups may be sampled now, and when it is fewer,
// why.
func (l Limiter) Sample(c Counts, n uint64) (uint64, string) {
	if r, ok := limiters[l.Kind]; ok {
		return r.sample(l, c, n)
	}
	return 0, fmt.Sprintf("rate limiter %q is unknown", l.Kind)
}

func (l Limiter) problems() []error {
	r, ok := limiters[l.Kind]
	if !ok {
		return []error{fmt.Errorf("limiter.kind = %q: want one of %s, %s, %s, %s", l.Kind, MinSize, SamplesPerInsert, Queue, Stack)}
	}
	return r.problems(l)
}

// unused reports fields that the kind does not have and that are set.
func (l Limiter) unused(minSize, ratio, size bool) (out []error) {
	if !minSize && l.MinSize != 0 {
		out = append(out, fmt.Errorf("limiter.min_size = %d: %s has none (set it to 0)", l.MinSize, l.Kind))
	}
	if !ratio && (l.SamplesPerInsert != 0 || l.ErrorBuffer != 0) {
		out = append(out, fmt.Errorf("limiter.samples_per_insert = %v and error_buffer = %v: %s has none (set them to 0)", l.SamplesPerInsert, l.ErrorBuffer, l.Kind))
	}
	if !size && l.Size != 0 {
		out = append(out, fmt.Errorf("limiter.size = %d: %s has none (set it to 0)", l.Size, l.Kind))
	}
	return out
}

// finite says whether f is a usable number above zero.
func finite(f float64) bool { return f > 0 && f <= math.MaxFloat64 }

// Most is how many groups one request can ever get; 0 = no bound.
func (l Limiter) Most() uint64 {
	switch l.Kind {
	case Queue, Stack:
		return l.Size
	case SamplesPerInsert:
		return uint64(min(2*l.ErrorBuffer, maxEntries))
	}
	return 0
}
