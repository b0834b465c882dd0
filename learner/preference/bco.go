package preference

import (
	"errors"
	"fmt"
)

// Rules for BCO's reward shift δ.
const (
	// ShiftClassMeans is the paper's: the mean of the two classes' mean rewards,
	// so that uneven classes do not move it.
	ShiftClassMeans = "class_means"
	// ShiftPooled is TRL's: the mean of all rewards.
	ShiftPooled = "pooled"
)

// BCOConfig is the loss of the binary classifier optimization.
type BCOConfig struct {
	// Beta is the strength of the tie to the reference, > 0.
	Beta float64
	// Shift is ShiftClassMeans or ShiftPooled; equal for steps with as many
	// desirable as undesirable rows.
	Shift string
}

// DefaultBCOConfig has TRL 0.24's β and the paper's shift.
func DefaultBCOConfig() BCOConfig { return BCOConfig{Beta: 0.1, Shift: ShiftClassMeans} }

// Validate reports every problem with field, value and remedy.
func (c BCOConfig) Validate() error {
	var errs []error
	if !(c.Beta > 0 && finite(c.Beta)) {
		errs = append(errs, fmt.Errorf("beta: %v is not a finite number > 0; use e.g. 0.1", c.Beta))
	}
	if c.Shift != ShiftClassMeans && c.Shift != ShiftPooled {
		errs = append(errs, fmt.Errorf("bco_shift: unknown %q; use %q or %q", c.Shift, ShiftClassMeans, ShiftPooled))
	}
	return errors.Join(errs...)
}

// BCOState is the running mean of rewards over all steps. It is part of a
// run's checkpoint: the zero value is a fresh run. Both shift rules read the
// same state.
type BCOState struct {
	Desirable   Moments `json:"desirable"`
	Undesirable Moments `json:"undesirable"`
}

// Shift is δ under the state. While a class is unseen it is the other's mean;
// 0 while both are.
func (s BCOState) Shift(c BCOConfig) float64 {
	if c.Shift == ShiftPooled || s.Desirable.Count == 0 || s.Undesirable.Count == 0 {
		return s.Pooled().Mean
	}
	return (s.Desirable.Mean + s.Undesirable.Mean) / 2
}

// Pooled are the moments of all rewards.
func (s BCOState) Pooled() Moments { return s.Desirable.Merge(s.Undesirable) }

// BCOTotals are what a whole optimizer step decides.
type BCOTotals struct {
	Rows  float64
	Shift float64 // δ, a constant
}

// NewBCOTotals takes a step's rewards into the state and gives the totals and
// the state after it. rows are the whole step's, already scored by the policy
// as it is before the update: score all micro-batches first. The state given is
// not changed; keep the new one when the step succeeds. For an evaluation use
// BCOTotals{Rows: n, Shift: state.Shift(c)} instead, which learns nothing.
func NewBCOTotals(c BCOConfig, s BCOState, rows []Unpaired) (BCOTotals, BCOState, error) {
	if err := c.Validate(); err != nil {
		return BCOTotals{}, s, err
	}
	var up, down []float64
	for i, u := range rows {
		r, _, err := u.reward(i, c.Beta)
		if err != nil {
			return BCOTotals{}, s, err
		}
		if u.Desirable {
			up = append(up, r)
		} else {
			down = append(down, r)
		}
	}
	next := BCOState{s.Desirable.Merge(momentsOf(up)), s.Undesirable.Merge(momentsOf(down))}
	shift := next.Shift(c)
	if !finite(shift) {
		return BCOTotals{}, s, fmt.Errorf("preference: bco: the reward shift is %v after this step; the policy has left the reference: lower learning_rate", shift)
	}
	return BCOTotals{Rows: float64(len(rows)), Shift: shift}, next, nil
}

// BCO evaluates the loss of a micro-batch within a step of the given totals
// (Jung et al. 2024, arXiv:2404.04656), r = β log(π/π_ref):
//
//	-log σ(r - δ)           for desirable rows
//	-ψ(x) log σ(-(r - δ))   for undesirable ones
//
// averaged over the step's rows. ψ is the row's Weight: the density ratio of
// desirable over undesirable prompts (Density.Ratio), 1 without. Errors as
// [DPO].
func BCO(c BCOConfig, rows []Unpaired, tot BCOTotals) (UnpairedResult, error) {
	if err := c.Validate(); err != nil {
		return UnpairedResult{}, err
	}
	if !finite(tot.Shift) {
		return UnpairedResult{}, fmt.Errorf("preference: bco: the step's shift is %v; use NewBCOTotals'", tot.Shift)
	}
	return unpaired(rows, tot.Rows, c.Beta, func(u Unpaired, r float64) (l, d float64) {
		x := r - tot.Shift
		if u.Desirable {
			return -logSigmoid(x), -sigmoid(-x)
		}
		return -logSigmoid(-x), sigmoid(x)
	})
}
