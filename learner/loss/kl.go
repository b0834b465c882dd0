package loss

import "math"

// k3 is the estimator of KL(policy || reference) of one token and its
// derivative with respect to the policy's log-probability:
//
//	exp(ref - logp) - (ref - logp) - 1
//
// (Schulman 2020, "Approximating KL divergence", k3; GRPO, arXiv:2402.03300,
// eq. 4). It is never negative and exactly 0 where both agree.
func k3(logp, ref float64) (kl, dLogP float64) {
	d := ref - logp
	e := math.Exp(d)
	return e - d - 1, 1 - e
}
