package loss

import (
	"fmt"
	"math"
)

// Row is one trajectory's tokens. Every non-nil slice but Adv and Ratio has
// len(LogP) elements.
type Row struct {
	// LogP is the log-probability of each token under the policy that is
	// differentiated.
	LogP []float64
	// Old is that of the policy before the step's first update; nil means LogP
	// itself, detached (ratio exactly 1, gradient intact).
	Old []float64
	// Ref is that of the frozen reference; needed when Beta > 0.
	Ref []float64
	// Sampling is what the engine reported when it sampled; NaN where unknown;
	// nil means Old.
	Sampling []float64
	// Entropy is that of the distribution at each token; needed for an entropy
	// bonus and for TopEntropyQuantile < 1, a metric otherwise (nil allowed).
	Entropy []float64
	// Mask marks the tokens that count; nil marks all. Tokens outside it may hold
	// any value.
	Mask []bool
	// Adv has one advantage for the row, or one per token.
	Adv []float64
	// Ratio is the constant rollout importance weight: nil for none, one value
	// for the row, or one per token.
	Ratio []float64
}

// on reports whether token t counts.
func (r Row) on(t int) bool { return r.Mask == nil || r.Mask[t] }

// at reads a slice that holds one value or one per token.
func at(v []float64, t int) float64 {
	if len(v) == 1 {
		return v[0]
	}
	return v[t]
}

func (r Row) adv(t int) float64 { return at(r.Adv, t) }

// ratio is the rollout importance weight of token t, 1 without correction.
func (r Row) ratio(t int) float64 {
	if r.Ratio == nil {
		return 1
	}
	return at(r.Ratio, t)
}

// old is the old log-probability of token t.
func (r Row) old(t int) float64 {
	if r.Old == nil {
		return r.LogP[t]
	}
	return r.Old[t]
}

// count is the number of tokens that count, and of those not rejected by the
// rollout importance weight.
func (r Row) count() (n, kept float64) {
	for t := range r.LogP {
		if r.on(t) {
			n++
			if r.ratio(t) != 0 {
				kept++
			}
		}
	}
	return n, kept
}

// check refuses lengths and numbers that would poison the whole step.
func (r Row) check(i int, c Config) error {
	T := len(r.LogP)
	for _, f := range []struct {
		name     string
		v        []float64
		required bool
		single   bool
		nan      bool
	}{
		{"LogP", r.LogP, T > 0, false, false},
		{"Old", r.Old, false, false, false},
		{"Ref", r.Ref, c.Beta != 0 && T > 0, false, false},
		{"Sampling", r.Sampling, false, false, true},
		{"Entropy", r.Entropy, (c.EntropyCoef != 0 || c.TopEntropyQuantile < 1) && T > 0, false, false},
		{"Adv", r.Adv, true, true, false},
		{"Ratio", r.Ratio, false, true, false},
	} {
		if f.v == nil {
			if f.required {
				return fmt.Errorf("loss: row %d: %s is missing but the configuration needs it", i, f.name)
			}
			continue
		}
		if len(f.v) != T && !(f.single && len(f.v) == 1) {
			return fmt.Errorf("loss: row %d: %s has %d values for %d tokens", i, f.name, len(f.v), T)
		}
		for t, x := range f.v {
			if len(f.v) == T && !r.on(t) || f.nan && math.IsNaN(x) {
				continue
			}
			if math.IsNaN(x) || math.IsInf(x, 0) {
				return fmt.Errorf("loss: row %d token %d: %s is %v; only finite values can be trained on", i, t, f.name, x)
			}
		}
	}
	if r.Mask != nil && len(r.Mask) != T {
		return fmt.Errorf("loss: row %d: Mask has %d values for %d tokens", i, len(r.Mask), T)
	}
	return nil
}
