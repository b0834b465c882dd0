package ppo

import (
	"errors"
	"fmt"
	"math"

	"github.com/skein-rl/skein/learner/loss"
)

// Config says how scores become advantages, and how values are trained. Names
// follow TRL's PPOConfig.
type Config struct {
	// KLCoef weighs the KL to the reference inside the reward; >= 0, 0 needs no
	// reference.
	KLCoef float64
	// KLEstimator is loss.KLK1, KLK2 or KLK3.
	KLEstimator string
	// WhitenRewards scales the rewards to unit variance, their mean kept, before
	// advantages are estimated.
	WhitenRewards bool
	// WhitenAdvantages scales the advantages to mean 0 and variance 1, after the
	// returns were taken (TRL always does).
	WhitenAdvantages bool
	// Gamma and Lambda are GAE's discount and smoothing, in [0, 1].
	Gamma, Lambda float64
	// CliprangeValue bounds how far a value may move from the one that estimated
	// the advantages; nil = unbounded.
	CliprangeValue *float64
	// VFCoef weighs the value loss; >= 0.
	VFCoef float64
}

// DefaultConfig has TRL's defaults.
func DefaultConfig() Config {
	clip := 0.2
	return Config{KLCoef: 0.05, KLEstimator: loss.KLK1, WhitenAdvantages: true, Gamma: 1, Lambda: 0.95, CliprangeValue: &clip, VFCoef: 0.1}
}

// Validate reports every problem with field, value and remedy.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	if !(c.KLCoef >= 0 && finite(c.KLCoef)) {
		bad("kl_coef: %v is not a finite number >= 0; use e.g. 0.05, or 0 for none", c.KLCoef)
	}
	if err := loss.CheckKLEstimator(c.KLEstimator); err != nil {
		errs = append(errs, err)
	}
	for _, f := range []struct {
		name string
		v    float64
	}{{"gamma", c.Gamma}, {"lam", c.Lambda}} {
		if !(f.v >= 0 && f.v <= 1) {
			bad("%s: %v is outside [0, 1]; use e.g. 0.95", f.name, f.v)
		}
	}
	if c.CliprangeValue != nil && !(*c.CliprangeValue > 0 && finite(*c.CliprangeValue)) {
		bad("cliprange_value: %v is not a finite number > 0; use e.g. 0.2 or leave it out", *c.CliprangeValue)
	}
	if !(c.VFCoef >= 0 && finite(c.VFCoef)) {
		bad("vf_coef: %v is not a finite number >= 0; use e.g. 0.1", c.VFCoef)
	}
	return errors.Join(errs...)
}

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }
