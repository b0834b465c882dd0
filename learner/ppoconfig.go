package learner

import (
	"fmt"

	"github.com/skein-rl/skein/learner/ppo"
)

// PPOConfig are the settings of ppo beside those it shares: beta is the KL
// coefficient inside the rewards, epsilon the policy's clip range, loss_type
// dapo the mean over tokens. Names are TRL's where it has one.
type PPOConfig struct {
	// Gamma and Lam are GAE's discount and smoothing, over sampled tokens alone.
	Gamma float64 `yaml:"gamma" json:"gamma"`
	Lam   float64 `yaml:"lam" json:"lam"`
	// WhitenRewards and WhitenAdvantages scale them over the batch of a step.
	WhitenRewards    bool `yaml:"whiten_rewards" json:"whiten_rewards"`
	WhitenAdvantages bool `yaml:"whiten_advantages" json:"whiten_advantages"`
	// CliprangeValue bounds how far a value may move within a step; unset = off.
	CliprangeValue *float64 `yaml:"cliprange_value,omitempty" json:"cliprange_value,omitempty"`
	// VFCoef weighs the value loss. The critic has parameters of its own, so it
	// matters only beside max_grad_norm and adam_epsilon.
	VFCoef float64 `yaml:"vf_coef" json:"vf_coef"`
	// CriticLearningRate is the critic's peak; unset = learning_rate.
	CriticLearningRate *float64 `yaml:"critic_learning_rate,omitempty" json:"critic_learning_rate,omitempty"`
	// CriticWarmup is the number of first steps that train the critic alone.
	CriticWarmup uint64 `yaml:"critic_warmup" json:"critic_warmup"`
}

func defaultPPO() PPOConfig {
	d := ppo.DefaultConfig()
	return PPOConfig{Gamma: d.Gamma, Lam: d.Lambda, WhitenAdvantages: d.WhitenAdvantages, CliprangeValue: d.CliprangeValue, VFCoef: d.VFCoef}
}

// DefaultPPOConfig is DefaultConfig with TRL's defaults for ppo: one rollout a
// prompt, four passes over each batch.
func DefaultPPOConfig() Config {
	c := DefaultConfig()
	d := ppo.DefaultConfig()
	c.Algorithm, c.LossType, c.Beta, c.KLEstimator = PPO, "dapo", d.KLCoef, d.KLEstimator
	c.NumGenerations, c.NumIterations, c.LearningRate = 1, 4, 3e-6
	return c
}

// ppo is the part package ppo decides by.
func (c Config) ppo() ppo.Config {
	return ppo.Config{
		KLCoef: c.Beta, KLEstimator: c.KLEstimator, WhitenRewards: c.WhitenRewards, WhitenAdvantages: c.WhitenAdvantages,
		Gamma: c.Gamma, Lambda: c.Lam, CliprangeValue: c.CliprangeValue, VFCoef: c.VFCoef,
	}
}

func (c Config) criticRate() float64 {
	if c.CriticLearningRate != nil {
		return *c.CriticLearningRate
	}
	return c.LearningRate
}

func (c Config) validatePPO(atLeast func(string, int, int, string), bad func(string, ...any)) []error {
	atLeast("num_generations", c.NumGenerations, 1, "use 1 for one rollout a prompt")
	if r := c.criticRate(); !(r >= 0) || r > 1e3 {
		bad("critic_learning_rate: %v is out of range; use a finite number >= 0, e.g. 1e-5", r)
	}
	if c.LossType == "rloo" {
		bad("loss_type: %q is of sequences with one advantage; use %q for ppo", c.LossType, "dapo")
	}
	if err := c.ppo().Validate(); err != nil {
		return []error{fmt.Errorf("ppo: beta is its kl_coef: %w", err)}
	}
	return nil
}

// klInReward says that the loss itself has no KL term.
func (c Config) klInReward() bool {
	return c.Algorithm == PPO || c.Algorithm == RLOO || c.Algorithm == Reinforce
}
