package preference

import (
	"fmt"
	"math"
)

// Seq is one completion under the policy that is differentiated and under the
// frozen reference. Every non-nil slice has len(LogP) elements.
type Seq struct {
	// LogP is the log-probability of each token under the policy.
	LogP []float64
	// Ref is that under the reference; nil where the loss needs none.
	Ref []float64
	// LogSumSq is log Σ_v π(v)² of the distribution at each token; needed by
	// WeightingWPOAligned alone.
	LogSumSq []float64
	// Mask marks the tokens that count; nil marks all.
	Mask []bool
}

// Pair is two completions of one prompt, the first preferred.
type Pair struct{ Chosen, Rejected Seq }

// PairGrad is dLoss/dLogP of a pair, 0 where masked.
type PairGrad struct{ Chosen, Rejected []float64 }

// Unpaired is a completion with a verdict.
type Unpaired struct {
	Seq
	// Desirable is the verdict: true pushes the completion up.
	Desirable bool
	// Weight multiplies the row's loss, > 0; 0 is 1 (leave a row out rather than
	// weigh it 0). BCO's density ratio goes here (Density.Ratio).
	Weight float64
}

func (u Unpaired) weight() float64 {
	if u.Weight == 0 {
		return 1
	}
	return u.Weight
}

func (s Seq) on(t int) bool { return s.Mask == nil || s.Mask[t] }

// tokens is the number of tokens that count.
func (s Seq) tokens() float64 {
	n := 0.0
	for t := range s.LogP {
		if s.on(t) {
			n++
		}
	}
	return n
}

// sum adds v over the tokens that count; a nil v is 0.
func (s Seq) sum(v []float64) float64 {
	x := 0.0
	if v == nil {
		return 0
	}
	for t := range s.LogP {
		if s.on(t) {
			x += v[t]
		}
	}
	return x
}

// fill gives every token that counts the derivative d.
func (s Seq) fill(d float64) []float64 {
	out := make([]float64, len(s.LogP))
	for t := range out {
		if s.on(t) {
			out[t] = d
		}
	}
	return out
}

// check refuses lengths and numbers that would poison the whole step. where
// names the sequence.
func (s Seq) check(where string, ref, sumSq bool) error {
	T := len(s.LogP)
	if s.Mask != nil && len(s.Mask) != T {
		return fmt.Errorf("preference: %s: Mask has %d values for %d tokens", where, len(s.Mask), T)
	}
	for _, f := range []struct {
		name   string
		v      []float64
		needed bool
	}{{"LogP", s.LogP, true}, {"Ref", s.Ref, ref}, {"LogSumSq", s.LogSumSq, sumSq}} {
		if f.v == nil && (!f.needed || T == 0) {
			continue
		}
		if f.v == nil {
			return fmt.Errorf("preference: %s: %s is missing but the configuration needs it", where, f.name)
		}
		if len(f.v) != T {
			return fmt.Errorf("preference: %s: %s has %d values for %d tokens", where, f.name, len(f.v), T)
		}
		for t, x := range f.v {
			if s.on(t) && (math.IsNaN(x) || math.IsInf(x, 0)) {
				return fmt.Errorf("preference: %s token %d: %s is %v; only finite values can be trained on", where, t, f.name, x)
			}
		}
	}
	return nil
}

func floor1(n float64) float64 { return max(n, 1) }

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

// checkTotal refuses totals that cannot be of a step with this micro-batch.
func checkTotal(what string, total float64, here int) error {
	if here > 0 && !(total >= float64(here) && finite(total)) {
		return fmt.Errorf("preference: the step's totals count %v %s, but this micro-batch alone has %d; compute the totals over the whole step", total, what, here)
	}
	return nil
}
