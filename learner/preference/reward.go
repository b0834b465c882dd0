package preference

import (
	"fmt"
	"math"
)

// RewardConfig is the loss of a reward model.
type RewardConfig struct {
	// Center weighs the square of each pair's summed score, which draws scores
	// towards 0 without touching their difference (Eisenstein et al. 2023,
	// arXiv:2312.09244, section 3.1, eq. 2); >= 0, 0 is off.
	Center float64
}

// Validate reports every problem with field, value and remedy.
func (c RewardConfig) Validate() error {
	if !(c.Center >= 0 && finite(c.Center)) {
		return fmt.Errorf("center_rewards_coefficient: %v is not a finite number >= 0; use e.g. 0.01, or 0 for none", c.Center)
	}
	return nil
}

// ScorePair is the reward model's score of two completions of one prompt, the
// first preferred by at least Margin (0 for none).
type ScorePair struct{ Chosen, Rejected, Margin float64 }

// RewardResult is a micro-batch's share of the step's loss and its derivatives
// with respect to the scores.
type RewardResult struct {
	Loss               float64
	DChosen, DRejected []float64
	Stats              RewardStats
}

// Reward evaluates the Bradley-Terry loss of a micro-batch, as a mean over the
// step's total pairs (Ouyang et al. 2022, arXiv:2203.02155, eq. 1; margin:
// Llama 2, Touvron et al. 2023, arXiv:2307.09288, eq. 2):
//
//	-log σ(s_w - s_l - margin) + center (s_w + s_l)²
//
// Errors: an invalid configuration, a score or margin that is not finite,
// totals below this micro-batch.
func Reward(c RewardConfig, pairs []ScorePair, total float64) (RewardResult, error) {
	if err := c.Validate(); err != nil {
		return RewardResult{}, err
	}
	if err := checkTotal("pairs", total, len(pairs)); err != nil {
		return RewardResult{}, err
	}
	res := RewardResult{DChosen: make([]float64, len(pairs)), DRejected: make([]float64, len(pairs))}
	for i, p := range pairs {
		if !finite(p.Chosen) || !finite(p.Rejected) || !finite(p.Margin) {
			return RewardResult{}, fmt.Errorf("preference: pair %d: scores %v and %v with margin %v; only finite values can be trained on", i, p.Chosen, p.Rejected, p.Margin)
		}
		x, sum := p.Chosen-p.Rejected-p.Margin, p.Chosen+p.Rejected
		l := (-logSigmoid(x) + c.Center*sum*sum) / floor1(total)
		if !finite(l) {
			return RewardResult{}, fmt.Errorf("preference: pair %d: loss is %v at scores %.4g and %.4g; the reward model has diverged: lower learning_rate", i, l, p.Chosen, p.Rejected)
		}
		res.Loss += l
		res.DChosen[i] = (-sigmoid(-x) + 2*c.Center*sum) / floor1(total)
		res.DRejected[i] = (sigmoid(-x) + 2*c.Center*sum) / floor1(total)
		res.Stats.Merge(RewardStats{1, p.Chosen + p.Rejected, min(p.Chosen, p.Rejected), max(p.Chosen, p.Rejected), right(p), p.Chosen - p.Rejected})
	}
	return res, nil
}

func right(p ScorePair) float64 {
	if p.Chosen > p.Rejected {
		return 1
	}
	return 0
}

// RewardStats are sums over pairs; those of micro-batches merge.
type RewardStats struct {
	Pairs, Score, Min, Max, Accurate, Margin float64
}

// Merge adds another micro-batch.
func (s *RewardStats) Merge(o RewardStats) {
	switch {
	case o.Pairs == 0:
		return
	case s.Pairs == 0:
		*s = o
		return
	}
	s.Pairs += o.Pairs
	s.Score += o.Score
	s.Min = math.Min(s.Min, o.Min)
	s.Max = math.Max(s.Max, o.Max)
	s.Accurate += o.Accurate
	s.Margin += o.Margin
}

// Metrics names them as TRL does; none without pairs.
func (s RewardStats) Metrics() map[string]float64 {
	if s.Pairs == 0 {
		return map[string]float64{}
	}
	return map[string]float64{
		"min_reward": s.Min, "mean_reward": s.Score / (2 * s.Pairs), "max_reward": s.Max,
		"accuracy": s.Accurate / s.Pairs, "margin": s.Margin / s.Pairs,
	}
}
