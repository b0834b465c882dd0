package loss

import (
	"fmt"
	"math"
)

// Decoupled PPO (Hilton et al. 2022, arXiv:2110.00641; AReaL, Fu et al.
// 2025, arXiv:2505.24298) separates the policy that sampled from the one
// whose neighbourhood an update stays in, the proximal policy:
//
//	E[ π_prox/π_sampling · min(u A, clip(u) A) ],  u = π/π_prox
//
// A [Row] says it with Old = log π_prox and Ratio = π_prox/π_sampling, which
// [RolloutIS] bounds. The proximal policy is one of
//
//   - recomputed: log-probabilities of the learner before the step's first
//     update, from a forward pass;
//   - interpolated: Interpolate, which needs no pass;
//   - the sampling policy itself (plain PPO): Old = Sampling, Ratio nil.

// Interpolate approximates the proximal policy, one version behind the learner,
// between the policy that sampled and the current one, by version (the
// loglinear prox_logp_method of AReaL, whose proximal version is the current
// one less 1):
//
//	log π_prox = log π_sampling + (1 - 1/lag) (log π - log π_sampling)
//
// logP are current log-probabilities [T], taken as constants; sampling the
// engine's (NaN = unknown: π_prox is π). lags are learner version - token's
// version, one for the row or one per token; at 0 π_prox is π. Errors: lengths.
func Interpolate(logP, sampling []float64, lags []uint64) ([]float64, error) {
	if len(sampling) != len(logP) || len(lags) != len(logP) && len(lags) != 1 {
		return nil, fmt.Errorf("loss: interpolate: %d log-probabilities, %d sampling ones, %d lags", len(logP), len(sampling), len(lags))
	}
	out := make([]float64, len(logP))
	for t := range out {
		lag := lags[0]
		if len(lags) > 1 {
			lag = lags[t]
		}
		s := sampling[t]
		if lag == 0 || math.IsNaN(s) {
			out[t] = logP[t]
			continue
		}
		out[t] = s + (1-1/float64(lag))*(logP[t]-s)
	}
	return out, nil
}
