package preference

import (
	"errors"
	"fmt"
)

// Loss types on single completions with a verdict.
const (
	KTOType         = "kto"
	APOZeroUnpaired = "apo_zero_unpaired"
)

// KTOConfig is a loss on verdicts. Field names follow TRL's KTOConfig.
type KTOConfig struct {
	// LossType is KTOType or APOZeroUnpaired.
	LossType string
	// Beta is the strength of the tie to the reference, > 0.
	Beta float64
	// DesirableWeight and UndesirableWeight are the paper's λ_D and λ_U, >= 0,
	// not both 0. Where classes are uneven, λ_D n_D / (λ_U n_U) should lie in [1,
	// 4/3].
	DesirableWeight, UndesirableWeight float64
}

// DefaultKTOConfig has TRL 1.16's defaults.
func DefaultKTOConfig() KTOConfig {
	return KTOConfig{LossType: KTOType, Beta: 0.1, DesirableWeight: 1, UndesirableWeight: 1}
}

// Validate reports every problem with field, value and remedy.
func (c KTOConfig) Validate() error {
	var errs []error
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	if c.LossType != KTOType && c.LossType != APOZeroUnpaired {
		bad("loss_type: unknown %q; use %q or %q", c.LossType, KTOType, APOZeroUnpaired)
	}
	if !(c.Beta > 0 && finite(c.Beta)) {
		bad("beta: %v is not a finite number > 0; use e.g. 0.1", c.Beta)
	}
	for _, f := range []struct {
		name string
		v    float64
	}{{"desirable_weight", c.DesirableWeight}, {"undesirable_weight", c.UndesirableWeight}} {
		if !(f.v >= 0 && finite(f.v)) {
			bad("%s: %v is not a finite number >= 0; use 1", f.name, f.v)
		}
	}
	if c.DesirableWeight == 0 && c.UndesirableWeight == 0 {
		bad("desirable_weight, undesirable_weight: both 0, so nothing is trained; use 1 and 1")
	}
	return errors.Join(errs...)
}

// NeedsKL reports whether the loss compares with the policy's KL to the
// reference (KTOKL); apo_zero_unpaired does not.
func (c KTOConfig) NeedsKL() bool { return c.LossType == KTOType }

// KTOTotals are the sums over a whole optimizer step.
type KTOTotals struct {
	Rows float64
	// KL is the reference point z_0 of KTOKL, in nats; 0 when not needed.
	KL float64
}

// KTOKL is the reference point of a step: the policy's KL to the reference,
// estimated on mismatched rows (a prompt with the completion of another), as
// max(0, mean of log π/π_ref) (Ethayarajh et al. 2024, arXiv:2402.01306,
// section 4.1). It is a constant: nothing is differentiated through it.
// Score the mismatched rows of the whole step before its first backward pass.
//
// Departure from TRL, which estimates it in each micro-batch: here the step has
// one, so that the partition cannot change it.
func KTOKL(mismatched []Seq) (float64, error) {
	if len(mismatched) == 0 {
		return 0, errors.New("preference: kto: no mismatched rows to estimate the KL with; give at least one, or use loss_type \"apo_zero_unpaired\"")
	}
	sum := 0.0
	for i, s := range mismatched {
		if err := s.check(fmt.Sprintf("mismatched row %d", i), true, false); err != nil {
			return 0, err
		}
		sum += s.sum(s.LogP) - s.sum(s.Ref)
	}
	kl := max(sum/float64(len(mismatched)), 0)
	if !finite(kl) {
		return 0, fmt.Errorf("preference: kto: the KL estimate is %v", kl)
	}
	return kl, nil
}

// UnpairedResult is a micro-batch's share of the step's loss and derivatives.
type UnpairedResult struct {
	Loss  float64
	DLogP [][]float64 // in the order of the rows, 0 where masked
	Stats UnpairedStats
}

// KTO evaluates the loss of a micro-batch within a step of the given totals,
// with r = β log(π/π_ref) and z = β KL:
//
//	kto:               λ_D (1 - σ(r - z)) or λ_U (1 - σ(z - r))      (arXiv:2402.01306, eq. 7)
//	apo_zero_unpaired: λ_D (1 - σ(r))     or λ_U σ(r)                (APO, arXiv:2408.06266, eq. 7, unpaired)
//
// for desirable or undesirable rows; their mean over the step. A step of one
// class is fine. Errors as [DPO].
func KTO(c KTOConfig, rows []Unpaired, tot KTOTotals) (UnpairedResult, error) {
	if err := c.Validate(); err != nil {
		return UnpairedResult{}, err
	}
	if !(tot.KL >= 0 && finite(tot.KL)) {
		return UnpairedResult{}, fmt.Errorf("preference: kto: the step's KL is %v; use KTOKL's, which is finite and >= 0", tot.KL)
	}
	z := 0.0
	if c.NeedsKL() {
		z = c.Beta * tot.KL
	}
	return unpaired(rows, tot.Rows, c.Beta, func(u Unpaired, r float64) (l, d float64) {
		if u.Desirable {
			return c.DesirableWeight * sigmoid(z-r), -c.DesirableWeight * dSigmoid(r-z)
		}
		return c.UndesirableWeight * sigmoid(r-z), c.UndesirableWeight * dSigmoid(r-z)
	})
}

// unpaired is the weighted mean over the step of a loss of each row's reward
// r = β log(π/π_ref), given with its derivative.
func unpaired(rows []Unpaired, total, beta float64, loss func(u Unpaired, r float64) (l, d float64)) (UnpairedResult, error) {
	if err := checkTotal("rows", total, len(rows)); err != nil {
		return UnpairedResult{}, err
	}
	res := UnpairedResult{DLogP: make([][]float64, len(rows))}
	for i, u := range rows {
		r, lp, err := u.reward(i, beta)
		if err != nil {
			return UnpairedResult{}, err
		}
		l, d := loss(u, r)
		w := u.weight() / floor1(total)
		l, d = w*l, w*d*beta
		if !finite(l) || !finite(d) {
			return UnpairedResult{}, fmt.Errorf("preference: row %d: loss is %v at reward %.4g; the policy has left the reference: lower learning_rate", i, l, r)
		}
		res.Loss += l
		res.DLogP[i] = u.fill(d)
		res.Stats.add(u, r, lp, l)
	}
	return res, nil
}

// reward is β log(π/π_ref) of a checked row, and its log-probability.
func (u Unpaired) reward(i int, beta float64) (r, lp float64, err error) {
	if err := u.check(fmt.Sprintf("row %d", i), true, false); err != nil {
		return 0, 0, err
	}
	if !(u.Weight >= 0 && finite(u.Weight)) {
		return 0, 0, fmt.Errorf("preference: row %d: Weight is %v; use a finite number > 0, or 0 for 1", i, u.Weight)
	}
	lp = u.sum(u.LogP)
	return beta * (lp - u.sum(u.Ref)), lp, nil
}
