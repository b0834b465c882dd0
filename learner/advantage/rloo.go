package advantage

import (
	"errors"
	"fmt"
	"math"
)

// RLOOConfig says how RLOO's rewards become advantages. Names follow TRL's
// RLOOConfig.
type RLOOConfig struct {
	// Weights has one weight per reward function.
	Weights []float64
	// RewardClipRange bounds the weighted reward before the KL; nil = off.
	RewardClipRange *[2]float64
	// Beta weighs the KL inside the reward; 0 leaves it out.
	Beta float64
	// NormalizeAdvantages scales them to mean 0 and deviation 1 over the batch.
	NormalizeAdvantages bool
}

// Validate reports every problem with field, value and remedy.
func (c RLOOConfig) Validate() error {
	return errors.Join(checkWeights(c.Weights), checkShaping(c.RewardClipRange, c.Beta))
}

func checkWeights(w []float64) error {
	var errs []error
	for i, w := range w {
		if math.IsNaN(w) || math.IsInf(w, 0) {
			errs = append(errs, fmt.Errorf("reward_weights[%d]: %v is not finite", i, w))
		}
	}
	return errors.Join(errs...)
}

func checkShaping(clip *[2]float64, beta float64) error {
	var errs []error
	if clip != nil && !(clip[0] < clip[1]) {
		errs = append(errs, fmt.Errorf("reward_clip_range: [%v, %v] is no range; use e.g. [-10, 10]", clip[0], clip[1]))
	}
	if !(beta >= 0) || math.IsInf(beta, 0) {
		errs = append(errs, fmt.Errorf("beta: %v is not a finite number >= 0", beta))
	}
	return errors.Join(errs...)
}

// RLOO gives each sample its reward minus the mean of its siblings' (Kool et
// al. 2019, "Buy 4 REINFORCE samples, get a baseline for free!"; Ahmadian et al.
// 2024, arXiv:2402.14740, eq. 7). kl has one number per sample: the sum over its
// counted tokens of log π_old - log π_ref (loss.TokenKL, KLK1); nil when Beta is
// 0. The KL is part of the reward before any baseline is taken. Unscored
// samples are no siblings and get 0, as does a sample alone in its group.
//
// Result.Rewards are the weighted rewards without clip and KL; Groups those
// with. Errors as Compute's.
func RLOO(c RLOOConfig, samples []Sample, kl []float64) (Result, error) {
	if err := c.Validate(); err != nil {
		return Result{}, err
	}
	if c.Beta != 0 && len(kl) != len(samples) {
		return Result{}, fmt.Errorf("advantage: rloo: %d KL sums for %d samples; beta %v needs one each", len(kl), len(samples), c.Beta)
	}
	res, members, err := gather(c.Weights, samples)
	if err != nil {
		return Result{}, err
	}
	shaped := make([]float64, len(samples))
	for i, r := range res.Rewards {
		shaped[i] = clip(r, c.RewardClipRange)
		if c.Beta != 0 {
			if math.IsNaN(kl[i]) || math.IsInf(kl[i], 0) {
				return Result{}, fmt.Errorf("advantage: sample %d of group %q: KL is %v", i, samples[i].Group, kl[i])
			}
			shaped[i] -= c.Beta * kl[i]
		}
	}
	for g, m := range members {
		group := summarise(pick(shaped, m))
		res.Groups[g] = group
		sum := group.Mean * float64(group.Scored)
		for _, i := range m {
			res.Advantages[i] = math.NaN()
			if group.Scored > 1 {
				res.Advantages[i] = shaped[i] - (sum-shaped[i])/float64(group.Scored-1)
				if group.Constant {
					res.Advantages[i] = shaped[i] - group.Mean // exactly 0; NaN stays
				}
			}
		}
	}
	if c.NormalizeAdvantages {
		mu, sd := mean(res.Advantages), std(res.Advantages)
		for i := range res.Advantages {
			res.Advantages[i] = (res.Advantages[i] - mu) / (sd + epsilon)
		}
	}
	zeroNaN(res.Advantages)
	return res, nil
}

func clip(r float64, to *[2]float64) float64 {
	if to == nil || math.IsNaN(r) {
		return r
	}
	return min(max(r, to[0]), to[1])
}

func zeroNaN(v []float64) {
	for i, a := range v {
		if math.IsNaN(a) {
			v[i] = 0
		}
	}
}
