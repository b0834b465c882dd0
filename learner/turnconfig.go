package learner

import (
	"fmt"

	"github.com/skein-rl/skein/learner/advantage"
)

// TurnConfig has the rewards of single turns train: REWARD events of scope step
// and turn in the logs, from tools, judges of turns, or an environment.
type TurnConfig struct {
	// TurnAdvantages gives every turn an advantage of its own. For grpo it is the
	// turn's return compared within the group (advantage.Turns); for ppo a turn's
	// reward is paid at its last token, and gamma and lam do the rest.
	TurnAdvantages bool `yaml:"turn_advantages,omitempty" json:"turn_advantages,omitempty"`
	// TurnGamma discounts later turns, by turn; unset = 1. Of grpo alone.
	TurnGamma *float64 `yaml:"turn_gamma,omitempty" json:"turn_gamma,omitempty"`
	// TurnRewardWeight weighs the turns' rewards beside the episode's; unset = 1.
	TurnRewardWeight *float64 `yaml:"turn_reward_weight,omitempty" json:"turn_reward_weight,omitempty"`
}

// turns is the part package advantage decides by.
func (c Config) turns() advantage.TurnConfig {
	t := advantage.TurnConfig{Scale: c.ScaleRewards, Gamma: 1, Weight: 1}
	if c.TurnGamma != nil {
		t.Gamma = *c.TurnGamma
	}
	if c.TurnRewardWeight != nil {
		t.Weight = *c.TurnRewardWeight
	}
	return t
}

func (c Config) validateTurns(bad func(string, ...any)) []error {
	if !c.TurnAdvantages {
		if c.TurnGamma != nil || c.TurnRewardWeight != nil {
			bad("turn_gamma, turn_reward_weight: they are of turn_advantages, which is off; set it to true or leave them out")
		}
		return nil
	}
	switch {
	case c.Algorithm != GRPO && c.Algorithm != PPO:
		bad("turn_advantages: %s has one reward a rollout; use %s or %s", c.Algorithm, GRPO, PPO)
	case c.Algorithm == PPO && c.TurnGamma != nil:
		bad("turn_gamma: %v, but %s discounts by token; set gamma", *c.TurnGamma, PPO)
	case c.Algorithm == GRPO && c.MultiObjectiveAggregation != advantage.SumThenNormalize:
		bad("turn_advantages: returns are sums of rewards, and multi_objective_aggregation is %q; use %q", c.MultiObjectiveAggregation, advantage.SumThenNormalize)
	case c.Algorithm == GRPO && c.LossType == "rloo":
		bad("loss_type: %q is of sequences with one advantage; use %q with turn_advantages", c.LossType, "dapo")
	}
	if err := c.turns().Validate(); err != nil {
		return []error{fmt.Errorf("turn_advantages: %w", err)}
	}
	return nil
}
