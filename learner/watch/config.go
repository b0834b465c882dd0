package watch

import (
	"errors"
	"fmt"
	"math"
)

// Config are the thresholds. A threshold of 0 switches its rule off.
type Config struct {
	// Window is over how many of the last steps a metric is averaged; Baseline
	// over how many of the first for the rules that compare with the start, which
	// begin once Baseline + Window steps are made.
	Window   int `yaml:"window" json:"window"`
	Baseline int `yaml:"baseline" json:"baseline"`

	// EntropyMin, in nats a token, and EntropyDrop, a share of the start's
	// entropy: below either, entropy has collapsed.
	EntropyMin  float64 `yaml:"entropy_min" json:"entropy_min"`
	EntropyDrop float64 `yaml:"entropy_drop" json:"entropy_drop"`
	// ConstantGroups is the share of groups whose rewards are all equal.
	ConstantGroups float64 `yaml:"constant_groups" json:"constant_groups"`
	// RewardStdMin is the mean deviation within groups below which rewards differ
	// by noise alone.
	RewardStdMin float64 `yaml:"reward_std_min" json:"reward_std_min"`
	// LogprobGap, in nats a token, is the mean difference between engine and
	// learner for tokens of the learner's own version (of any, where there are
	// none); LogprobGapGrowth is how many times the start's it may be before
	// reaching a tenth of LogprobGap matters.
	LogprobGap       float64 `yaml:"logprob_gap" json:"logprob_gap"`
	LogprobGapGrowth float64 `yaml:"logprob_gap_growth" json:"logprob_gap_growth"`
	// LengthGrowth is how many times the start's mean length completions may have
	// while the reward is not above the start's.
	LengthGrowth float64 `yaml:"length_growth" json:"length_growth"`
	// KL from the reference, in nats a token.
	KL float64 `yaml:"kl" json:"kl"`
	// Truncated is the share of completions cut off.
	Truncated float64 `yaml:"truncated" json:"truncated"`
	// Rejected is the share of tokens without weight in the off-policy correction.
	Rejected float64 `yaml:"rejected" json:"rejected"`
}

// DefaultConfig has thresholds that a healthy run stays clear of.
func DefaultConfig() Config {
	return Config{
		Window: 3, Baseline: 3,
		EntropyMin: 1e-3, EntropyDrop: .2, ConstantGroups: .9, RewardStdMin: 1e-3,
		LogprobGap: .1, LogprobGapGrowth: 5, LengthGrowth: 2, KL: 1, Truncated: .3, Rejected: .5,
	}
}

// Validate reports every problem with field, value and remedy.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	if c.Window < 1 || c.Window > 1000 {
		bad("window: %d is outside 1 to 1000; use e.g. 3", c.Window)
	}
	if c.Baseline < 1 || c.Baseline > 1000 {
		bad("baseline: %d is outside 1 to 1000; use e.g. 3", c.Baseline)
	}
	for _, f := range []struct {
		name  string
		v, hi float64
	}{
		{"entropy_min", c.EntropyMin, math.MaxFloat64}, {"entropy_drop", c.EntropyDrop, 1}, {"constant_groups", c.ConstantGroups, 1},
		{"reward_std_min", c.RewardStdMin, math.MaxFloat64}, {"logprob_gap", c.LogprobGap, math.MaxFloat64},
		{"logprob_gap_growth", c.LogprobGapGrowth, math.MaxFloat64}, {"length_growth", c.LengthGrowth, math.MaxFloat64},
		{"kl", c.KL, math.MaxFloat64}, {"truncated", c.Truncated, 1}, {"rejected", c.Rejected, 1},
	} {
		if !(f.v >= 0 && f.v <= f.hi) {
			bad("%s: %v is outside [0, %g]; 0 switches the rule off", f.name, f.v, f.hi)
		}
	}
	for name, v := range map[string]float64{"length_growth": c.LengthGrowth, "logprob_gap_growth": c.LogprobGapGrowth} {
		if v > 0 && v <= 1 {
			bad("%s: %v is no growth; use a factor above 1, or 0 to switch the rule off", name, v)
		}
	}
	return errors.Join(errs...)
}
