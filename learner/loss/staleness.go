package loss

import (
	"fmt"
	"math"
)

// Staleness rules: how much a token still counts that a policy some versions
// older than the learner's sampled.
const (
	StalenessNone        = "none"        // 1
	StalenessInverse     = "inverse"     // 1/max(lag, 1) (Zhang et al. 2016, "Staleness-aware async-SGD", arXiv:1511.05950)
	StalenessExponential = "exponential" // decay^lag
)

// Staleness weighs tokens by policy-version lag. The zero value weighs nothing.
type Staleness struct {
	// Rule is StalenessNone (also ""), StalenessInverse or StalenessExponential.
	Rule string
	// Decay is exponential's base, in (0, 1).
	Decay float64
	// MaxLag, when > 0, gives weight 0 to anything older, by any rule.
	MaxLag uint64
}

// Validate reports an unknown rule or a base that is none.
func (s Staleness) Validate() error {
	switch s.Rule {
	case "", StalenessNone, StalenessInverse:
	case StalenessExponential:
		if !(s.Decay > 0 && s.Decay < 1) {
			return fmt.Errorf("staleness_decay: %v is outside (0, 1); use e.g. 0.9", s.Decay)
		}
	default:
		return fmt.Errorf("staleness_weighting: unknown %q; use %q, %q or %q", s.Rule, StalenessNone, StalenessInverse, StalenessExponential)
	}
	return nil
}

// Weights gives the weight of each lag, in policy versions: one for a row, or
// one per token (a rollout may go on under a newer policy). For Row.Ratio, by
// Weigh.
func (s Staleness) Weights(lags []uint64) ([]float64, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	out := make([]float64, len(lags))
	for i, lag := range lags {
		switch {
		case s.MaxLag > 0 && lag > s.MaxLag:
		case s.Rule == StalenessInverse:
			out[i] = 1 / float64(max(lag, 1))
		case s.Rule == StalenessExponential:
			out[i] = math.Pow(s.Decay, float64(lag))
		default:
			out[i] = 1
		}
	}
	return out, nil
}
