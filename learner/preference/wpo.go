package preference

import "math"

// Weightings of pairs (WPO, Zhou et al. 2024, arXiv:2406.11827): a pair counts
// as much as the policy itself would have sampled its completions, which makes
// off-policy pairs resemble on-policy ones. Weights are not differentiated.
const (
	WeightingNone = ""
	// WeightingWPO weighs by exp(mean log π) of each completion (eq. 2).
	WeightingWPO = "wpo"
	// WeightingWPOAligned divides each token's π by Σ_v π(v)², its expectation
	// under the policy (sampled alignment; TRL's use_weighting). It needs
	// LogSumSq, an output of the model's head.
	WeightingWPOAligned = "wpo_aligned"
)

// pairWeight is the product of the two completions' weights.
func (c DPOConfig) pairWeight(p Pair) float64 {
	if c.Weighting == WeightingNone {
		return 1
	}
	mean := func(s Seq) float64 {
		x := s.sum(s.LogP)
		if c.Weighting == WeightingWPOAligned {
			x -= s.sum(s.LogSumSq)
		}
		return x / floor1(s.tokens())
	}
	return math.Exp(mean(p.Chosen) + mean(p.Rejected))
}
