package learner

import (
	"errors"
	"fmt"
	"slices"

	"github.com/skein-rl/skein/learner/advantage"
	"github.com/skein-rl/skein/learner/loss"
)

// BaselineConfig are the settings of rloo and reinforce++, whose KL stands in
// the rewards: beta weighs it and kl_estimator is how it is taken.
type BaselineConfig struct {
	// NormalizeAdvantages scales rloo's to mean 0 and deviation 1 over the batch.
	NormalizeAdvantages bool `yaml:"normalize_advantages" json:"normalize_advantages"`
	// RewardClipRange is [least, greatest] of the weighted reward, before the KL;
	// empty = off.
	RewardClipRange []float64 `yaml:"reward_clip_range,omitempty" json:"reward_clip_range,omitempty"`
	// GroupBaseline subtracts the group's mean reward first (reinforce++).
	GroupBaseline bool `yaml:"group_baseline" json:"group_baseline"`
}

// DefaultRLOOConfig is DefaultConfig with TRL's defaults for rloo.
func DefaultRLOOConfig() Config {
	c := DefaultConfig()
	c.Algorithm, c.LossType, c.ImportanceSamplingLevel = RLOO, "rloo", loss.LevelSum
	c.ScaleRewards, c.Beta, c.KLEstimator, c.NumGenerations = advantage.ScaleNone, .05, loss.KLK1, 2
	return c
}

// DefaultReinforceConfig is DefaultConfig with OpenRLHF's defaults for
// REINFORCE++ (Hu 2025, arXiv:2501.03262).
func DefaultReinforceConfig() Config {
	c := DefaultConfig()
	c.Algorithm, c.LossType = Reinforce, "dapo"
	c.ScaleRewards, c.Beta, c.KLEstimator = advantage.ScaleNone, .01, loss.KLK1
	return c
}

func (c Config) clipRange() *[2]float64 {
	if len(c.RewardClipRange) != 2 {
		return nil
	}
	return &[2]float64{c.RewardClipRange[0], c.RewardClipRange[1]}
}

func (c Config) rloo() advantage.RLOOConfig {
	return advantage.RLOOConfig{Weights: c.advantageConfig().Weights, RewardClipRange: c.clipRange(), Beta: c.Beta, NormalizeAdvantages: c.NormalizeAdvantages}
}

func (c Config) reinforce() advantage.ReinforceConfig {
	return advantage.ReinforceConfig{Weights: c.advantageConfig().Weights, RewardClipRange: c.clipRange(), Beta: c.Beta, GroupBaseline: c.GroupBaseline}
}

// comparesGroups says that advantages come from differences within groups.
func (c Config) comparesGroups() bool {
	return c.Algorithm == GRPO || c.Algorithm == RLOO || c.Algorithm == OnlineDPO || c.Algorithm == Reinforce && c.GroupBaseline
}

func (c Config) validateBaseline(bad func(string, ...any)) (errs []error) {
	baseline := c.Algorithm == RLOO || c.Algorithm == Reinforce
	if !baseline {
		if c.NormalizeAdvantages || c.GroupBaseline || len(c.RewardClipRange) > 0 {
			bad("normalize_advantages, reward_clip_range, group_baseline: they are of %s and %s, not of %s; leave them out", RLOO, Reinforce, c.Algorithm)
		}
		return nil
	}
	if n := len(c.RewardClipRange); n != 0 && n != 2 {
		bad("reward_clip_range: %v has %d numbers; give least and greatest, e.g. [-10, 10]", c.RewardClipRange, n)
	}
	if c.ScaleRewards != advantage.ScaleNone || c.MultiObjectiveAggregation != advantage.SumThenNormalize {
		bad("scale_rewards, multi_objective_aggregation: %q, %q, but %s has a scaling of its own; use %q and %q",
			c.ScaleRewards, c.MultiObjectiveAggregation, c.Algorithm, advantage.ScaleNone, advantage.SumThenNormalize)
	}
	if c.Algorithm == RLOO {
		if c.LossType != "rloo" {
			bad("loss_type: %q, but rloo's only one is %q", c.LossType, "rloo")
		}
		if c.GroupBaseline {
			bad("group_baseline: rloo has the mean of the others as its baseline; leave it out")
		}
		return append(errs, c.rloo().Validate())
	}
	if c.LossType == "rloo" {
		bad("loss_type: %q is of sequences with one advantage; use %q for %s", c.LossType, "dapo", Reinforce)
	}
	if c.NormalizeAdvantages {
		bad("normalize_advantages: %s always normalises over the tokens of a batch; leave it out", Reinforce)
	}
	return append(errs, c.reinforce().Validate())
}

// baselines sets the advantages of rloo and reinforce++. With beta they need the
// log-probabilities before the step.
func (s *stepRun) baselines() error {
	c := s.l.cfg
	kl := make([][]float64, len(s.rows))
	for i := range s.rows {
		kl[i] = make([]float64, len(s.old[i]))
		if c.Beta != 0 {
			var err error
			if kl[i], err = loss.TokenKL(c.KLEstimator, s.old[i], s.ref[i], nil); err != nil {
				return errors.Join(ErrDiverged, err)
			}
		}
	}
	if c.Algorithm == RLOO {
		sums := make([]float64, len(kl))
		for i, row := range kl {
			for _, x := range row {
				sums[i] += x
			}
		}
		res, err := advantage.RLOO(c.rloo(), s.b.samples, sums)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrDiverged, err)
		}
		for i, a := range res.Advantages {
			s.b.Episodes[i].Advantage = a * s.b.Episodes[i].weight
			s.rows[i].Adv = []float64{s.b.Episodes[i].Advantage}
		}
		return nil
	}
	tokens := make([]advantage.Tokens, len(kl))
	for i := range kl {
		tokens[i] = advantage.Tokens{KL: kl[i]}
	}
	res, adv, err := advantage.Reinforce(c.reinforce(), s.b.samples, tokens)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDiverged, err)
	}
	for i := range adv {
		w := s.b.Episodes[i].weight
		s.b.Episodes[i].Advantage = res.Advantages[i] * w
		s.rows[i].Adv = scaledBy(adv[i], w)
		if len(adv[i]) == 0 {
			s.rows[i].Adv = []float64{0}
		}
	}
	return nil
}

func scaledBy(v []float64, w float64) []float64 {
	out := slices.Clone(v)
	for i := range out {
		out[i] *= w
	}
	return out
}

// rewardKL is the mean of the KL that stands in the rewards, over tokens.
func (s *stepRun) rewardKL() (kl float64, ok bool) {
	n := 0.0
	for i, e := range s.b.Episodes {
		if !s.l.needed(e) {
			continue
		}
		for t, old := range s.old[i] {
			x, _ := loss.KL(s.l.cfg.KLEstimator, old, s.ref[i][t])
			kl += x
			n++
		}
	}
	return kl / max(n, 1), n > 0 && s.l.cfg.klInReward() && s.l.cfg.Beta != 0
}
