package learner

import "math"

// AdaptiveEntropyConfig controls the entropy bonus by the entropy it is to keep
// (Skywork-OR1, He et al. 2025, arXiv:2505.22312, section 3.2; names and rule are
// TRL's): after each optimizer step entropy_coef rises by EntropyCoefDelta when
// the entropy of its tokens was at most EntropyTarget and falls by it otherwise,
// within [EntropyCoefMin, EntropyCoefMax]. A step has the bonus only when the
// optimizer step before it was at or below the target; the first has none.
type AdaptiveEntropyConfig struct {
	// UseAdaptiveEntropy makes EntropyCoef the first coefficient.
	UseAdaptiveEntropy bool    `yaml:"use_adaptive_entropy" json:"use_adaptive_entropy"`
	EntropyCoefMin     float64 `yaml:"entropy_coef_min" json:"entropy_coef_min"`
	EntropyCoefMax     float64 `yaml:"entropy_coef_max" json:"entropy_coef_max"`
	EntropyCoefDelta   float64 `yaml:"entropy_coef_delta" json:"entropy_coef_delta"`
	// EntropyTarget in nats a token.
	EntropyTarget float64 `yaml:"entropy_target" json:"entropy_target"`
}

func defaultAdaptiveEntropy() AdaptiveEntropyConfig {
	return AdaptiveEntropyConfig{EntropyCoefMax: 1, EntropyCoefDelta: .005, EntropyTarget: .2}
}

func (c Config) validateAdaptiveEntropy(bad func(string, ...any)) {
	if !c.UseAdaptiveEntropy {
		return
	}
	finite := func(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }
	if !(c.EntropyCoefMin >= 0 && c.EntropyCoefMin <= c.EntropyCoefMax && finite(c.EntropyCoefMax)) {
		bad("entropy_coef_min, entropy_coef_max: [%v, %v] is no range of coefficients; use e.g. 0 and 1", c.EntropyCoefMin, c.EntropyCoefMax)
	} else if !(c.EntropyCoef >= c.EntropyCoefMin && c.EntropyCoef <= c.EntropyCoefMax) {
		bad("entropy_coef: %v is outside [entropy_coef_min, entropy_coef_max] = [%v, %v]; start inside", c.EntropyCoef, c.EntropyCoefMin, c.EntropyCoefMax)
	}
	if !(c.EntropyCoefDelta > 0 && finite(c.EntropyCoefDelta)) {
		bad("entropy_coef_delta: %v is not a finite number > 0; use e.g. 0.005", c.EntropyCoefDelta)
	}
	if !(c.EntropyTarget > 0 && finite(c.EntropyTarget)) {
		bad("entropy_target: %v is not a finite number > 0; use the entropy early in training, in nats a token", c.EntropyTarget)
	}
}

// EntropyState is the controller's part of a checkpoint.
type EntropyState struct {
	Coef float64 `json:"coef"`
	// Last is the entropy of the last optimizer step's tokens; nil before the
	// first.
	Last *float64 `json:"last,omitempty"`
}

// applied is the coefficient of the next optimizer step.
func (s EntropyState) applied(c Config) float64 {
	switch {
	case !c.UseAdaptiveEntropy:
		return c.EntropyCoef
	case s.Last == nil || *s.Last > c.EntropyTarget:
		return 0
	}
	return s.Coef
}

// after is the state when the tokens of an optimizer step had a mean entropy.
func (s EntropyState) after(c Config, entropy float64) EntropyState {
	if !c.UseAdaptiveEntropy {
		return s
	}
	s.Last = &entropy
	if entropy <= c.EntropyTarget {
		s.Coef = min(s.Coef+c.EntropyCoefDelta, c.EntropyCoefMax)
	} else {
		s.Coef = max(s.Coef-c.EntropyCoefDelta, c.EntropyCoefMin)
	}
	return s
}

// entropyOf is the mean over the given rows' tokens of at least a floor; 0
// without any.
func (s *stepRun) entropyOf(rows []int, floor float64) float64 {
	sum, n := 0.0, 0.0
	for _, i := range rows {
		if !s.l.needed(s.b.Episodes[i]) {
			continue
		}
		for _, h := range s.rows[i].Entropy {
			if h >= floor {
				sum += h
				n++
			}
		}
	}
	return sum / max(n, 1)
}
