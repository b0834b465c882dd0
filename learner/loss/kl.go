package loss

import (
	"fmt"
	"math"
)

// KL estimators of one token's KL(policy || reference) from the log-probability
// of the token that was sampled (Schulman 2020, "Approximating KL divergence").
const (
	// KLK1 is logp - ref: unbiased, of either sign. As a loss its derivative is 1
	// whatever the reference says, so there it needs BiasCorrectedKL; in a reward
	// it is the usual choice.
	KLK1 = "k1"
	// KLK2 is (logp - ref)²/2: biased, but its derivative is an unbiased one of
	// the KL on-policy (REINFORCE++, arXiv:2501.03262).
	KLK2 = "k2"
	// KLK3 is exp(ref - logp) - (ref - logp) - 1: unbiased and never negative
	// (GRPO, arXiv:2402.03300, eq. 4).
	KLK3 = "k3"
)

// CheckKLEstimator reports an unknown name.
func CheckKLEstimator(name string) error {
	if name != KLK1 && name != KLK2 && name != KLK3 {
		return fmt.Errorf("kl_estimator: unknown %q; use %q, %q or %q", name, KLK1, KLK2, KLK3)
	}
	return nil
}

// KL is the estimate of one token and its derivative with respect to the
// policy's log-probability. All are exactly 0 where both agree. The name must
// have passed CheckKLEstimator.
func KL(estimator string, logp, ref float64) (kl, dLogP float64) {
	d := logp - ref
	switch estimator {
	case KLK1:
		return d, 1
	case KLK2:
		return d * d / 2, d
	}
	return k3(logp, ref)
}

// TokenKL is the estimate of every token of a row [T], 0 where masked (mask as
// in [Row]), for algorithms that put it into the reward (RLOO, REINFORCE++).
// old and ref are log-probabilities before the step's first update. Errors: an
// unknown estimator, lengths, estimates that are not finite.
func TokenKL(estimator string, old, ref []float64, mask []bool) ([]float64, error) {
	if err := CheckKLEstimator(estimator); err != nil {
		return nil, err
	}
	if len(old) != len(ref) || mask != nil && len(mask) != len(old) {
		return nil, fmt.Errorf("loss: kl: %d old, %d reference log-probabilities, %d mask values", len(old), len(ref), len(mask))
	}
	out := make([]float64, len(old))
	for t := range old {
		if mask != nil && !mask[t] {
			continue
		}
		out[t], _ = KL(estimator, old[t], ref[t])
		if math.IsNaN(out[t]) || math.IsInf(out[t], 0) {
			return nil, fmt.Errorf("loss: kl: token %d: %s of log-probabilities %v and %v is %v; lower learning_rate or use %q", t, estimator, old[t], ref[t], out[t], KLK1)
		}
	}
	return out, nil
}

// k3 is KLK3.
func k3(logp, ref float64) (kl, dLogP float64) {
	d := ref - logp
	e := math.Exp(d)
	return e - d - 1, 1 - e
}
