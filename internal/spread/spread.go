// Package spread describes how numbers are distributed: moments, quantiles and
// a histogram. Values are sorted first, so their order cannot change a digit,
// and NaN is left out.
package spread

import (
	"math"
	"slices"
)

// Spread is a sorted copy of some numbers with their moments, which are 0
// without any.
type Spread struct {
	sorted             []float64
	Min, Max           float64
	Mean, Sum, Squares float64 // Squares: sum of squares
	Std                float64 // of the population
}

// Of describes v.
func Of(v []float64) Spread {
	s := Spread{sorted: make([]float64, 0, len(v))}
	for _, x := range v {
		if !math.IsNaN(x) {
			s.sorted = append(s.sorted, x)
		}
	}
	slices.Sort(s.sorted)
	n := len(s.sorted)
	if n == 0 {
		return s
	}
	s.Min, s.Max = s.sorted[0], s.sorted[n-1]
	for _, x := range s.sorted {
		s.Sum += x
		s.Squares += x * x
	}
	s.Mean = s.Sum / float64(n)
	if s.Min == s.Max {
		s.Mean = s.Min // no rounding residue
	}
	var dev float64
	for _, x := range s.sorted {
		dev += (x - s.Mean) * (x - s.Mean)
	}
	s.Std = math.Sqrt(dev / float64(n))
	return s
}

// Len is the number of values.
func (s Spread) Len() int { return len(s.sorted) }

// Quantile interpolates linearly between the nearest ranks; NaN without values.
func (s Spread) Quantile(q float64) float64 {
	if len(s.sorted) == 0 {
		return math.NaN()
	}
	at := min(max(q, 0), 1) * float64(len(s.sorted)-1)
	lo := int(at)
	x := s.sorted[lo]
	if lo+1 < len(s.sorted) && s.sorted[lo+1] != x {
		x += (at - float64(lo)) * (s.sorted[lo+1] - x)
	}
	return x
}

// Histogram counts values by bucket: Counts[i] of those in (Limits[i-1],
// Limits[i]], the first bucket open below. Limits ascend.
type Histogram struct {
	Min, Max, Num, Sum, Squares float64
	Limits, Counts              []float64
}

// Histogram cuts the range from the least to the greatest value into at most n
// equal buckets: one for equal values, none without values.
func (s Spread) Histogram(n int) Histogram {
	h := Histogram{Min: s.Min, Max: s.Max, Num: float64(s.Len()), Sum: s.Sum, Squares: s.Squares}
	if s.Len() == 0 {
		return h
	}
	width := (s.Max - s.Min) / float64(n)
	if !(width > 0) || math.IsInf(width, 0) {
		h.Limits, h.Counts = []float64{s.Max}, []float64{h.Num}
		return h
	}
	for i := range n {
		limit := s.Min + float64(i+1)*width
		if i == n-1 {
			limit = s.Max
		}
		if i > 0 && limit <= h.Limits[len(h.Limits)-1] {
			continue // closer than floating point can tell apart
		}
		h.Limits = append(h.Limits, limit)
	}
	h.Counts = make([]float64, len(h.Limits))
	b := 0
	for _, x := range s.sorted {
		for x > h.Limits[b] {
			b++
		}
		h.Counts[b]++
	}
	return h
}
