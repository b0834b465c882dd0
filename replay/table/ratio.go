package table

import "fmt"

// ratio holds samples and inserts to a ratio: Reverb's SampleToInsertRatio.
// With d = inserts*SamplesPerInsert - samples, an insert needs
// d <= MinSize*SamplesPerInsert + ErrorBuffer after it and a sample
// d >= MinSize*SamplesPerInsert - ErrorBuffer after it. Up to MinSize groups
// inserts are free.
//
// Departures: what is leased counts as sampled and returns with a release;
// admitted groups count as inserts for inserting; groups that leave before any
// sample for another reason than to make room count as never inserted, or
// dropping stale ones would hold both sides back for ever.
type ratio struct{}

// diff is d; the product is rounded by itself, the same on every machine.
func diff(l Limiter, inserts, samples uint64) float64 {
	return float64(float64(inserts)*l.SamplesPerInsert) - float64(samples)
}

func (ratio) insert(l Limiter, c Counts) string {
	if c.Open+c.size()+1 <= l.MinSize {
		return ""
	}
	d := diff(l, c.Inserted+c.Open+1, c.Sampled+c.Leased)
	most := float64(float64(l.MinSize)*l.SamplesPerInsert) + l.ErrorBuffer
	if d <= most {
		return ""
	}
	return fmt.Sprintf("samples_per_insert: %d inserted, %d being collected and %d sampled; one more would be %.6g ahead of the learner, at most %.6g",
		c.Inserted, c.Open, c.Sampled+c.Leased, d, most)
}

func (ratio) sample(l Limiter, c Counts, n uint64) (uint64, string) {
	if c.size() < l.MinSize {
		return 0, fmt.Sprintf("samples_per_insert: the table has %d of the %d groups it wants first", c.size(), l.MinSize)
	}
	d := diff(l, c.Inserted, c.Sampled+c.Leased)
	least := float64(float64(l.MinSize)*l.SamplesPerInsert) - l.ErrorBuffer
	room := d - least
	if room >= float64(n) {
		return n, ""
	}
	why := fmt.Sprintf("samples_per_insert: %d inserted and %d sampled; %d more would be %.6g behind the producers, at least %.6g",
		c.Inserted, c.Sampled+c.Leased, n, d-float64(n), least)
	if room < 1 {
		return 0, why
	}
	return uint64(room), why
}

func (ratio) problems(l Limiter) []error {
	out := l.unused(true, true, false)
	if l.MinSize < 1 {
		out = append(out, fmt.Errorf("limiter.min_size = %d: want at least 1", l.MinSize))
	}
	if !finite(l.SamplesPerInsert) {
		out = append(out, fmt.Errorf("limiter.samples_per_insert = %v: want above 0", l.SamplesPerInsert))
	} else if least := max(1, l.SamplesPerInsert); !finite(l.ErrorBuffer) || l.ErrorBuffer < least {
		out = append(out, fmt.Errorf("limiter.error_buffer = %v: want at least %v, or inserts and samples block each other", l.ErrorBuffer, least))
	}
	return out
}
