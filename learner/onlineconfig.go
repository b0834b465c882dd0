package learner

import (
	"errors"
	"math"
	"slices"
	"strings"
)

// Algorithms on rollouts whose loss is one of pairs or verdicts: the rollouts of
// a step, with tools or without, are ranked by their rewards.
const (
	// OnlineDPO pairs a group's better rollouts with its worse ones (Guo et al.
	// 2024, arXiv:2402.04792, with rewards as the judge).
	OnlineDPO = "online_dpo"
	// OnlineBCO calls rollouts desirable from a reward on (Jung et al. 2024,
	// arXiv:2404.04656).
	OnlineBCO = "online_bco"
)

// OnlineConfig says what the rollouts of a step become. The loss itself has the
// settings of dpo or bco.
type OnlineConfig struct {
	// PairMargin is by how much the rewards of a pair must differ; 0 = at all.
	PairMargin float64 `yaml:"pair_margin,omitempty" json:"pair_margin,omitempty"`
	// MaxPairs of a group: best against worst, then second best against second
	// worst, and so on; unset = 1, 0 = all that PairMargin allows.
	MaxPairs *int `yaml:"max_pairs,omitempty" json:"max_pairs,omitempty"`
	// ScoreThreshold is the least reward of a desirable rollout; unset = 0.5.
	ScoreThreshold *float64 `yaml:"score_threshold,omitempty" json:"score_threshold,omitempty"`
}

// harvest has the same as settings of Harvest, and its defaults.
func (c OnlineConfig) harvest() HarvestConfig {
	h := DefaultHarvestConfig()
	if c.PairMargin != 0 {
		h.Margin = c.PairMargin
	}
	if c.MaxPairs != nil {
		h.MaxPairs = *c.MaxPairs
	}
	if c.ScoreThreshold != nil {
		h.MinReward = *c.ScoreThreshold
	}
	return h
}

// DefaultOnlineConfig is DefaultConfig with the loss of the offline algorithm.
func DefaultOnlineConfig(algorithm string) Config {
	c := DefaultConfig()
	c.Algorithm = algorithm
	d := offlineDefaults[c.rowLoss()]
	c.LossType, c.LearningRate, c.Beta = d.lossType, d.rate, d.beta
	return c
}

// online says that rollouts are trained as pairs or verdicts.
func (c Config) online() bool { return c.Algorithm == OnlineDPO || c.Algorithm == OnlineBCO }

// rowLoss is the algorithm whose loss rows have.
func (c Config) rowLoss() string {
	switch c.Algorithm {
	case OnlineDPO:
		return DPO
	case OnlineBCO:
		return BCO
	}
	return c.Algorithm
}

// onlineHeeds are the settings that these algorithms read; others must stay as
// they are by default.
var onlineHeeds = []string{
	"algorithm", "loss_type", "beta", "reference", "ref_model_sync_steps", "ref_model_mixup_alpha",
	"loss_weights", "label_smoothing", "f_divergence_type", "f_alpha_divergence_coef", "ld_alpha", "weighting", "reference_free", "rpo_alpha", "discopop_tau", "simpo_gamma", "bco_shift",
	"pair_margin", "max_pairs", "score_threshold", "reward_weights", "constant_groups", "max_resample", "source_weights",
	"mask_truncated_completions", "mask_offpolicy_in_partial_rollout", "num_generations", "groups_per_step", "max_completion_length", "max_staleness", "publish", "temperature",
	"max_steps", "learning_rate", "lr_scheduler_type", "warmup_steps", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm",
	"token_budget", "seed", "lora_dropout",
}

func (c Config) validateOnline(atLeast func(string, int, int, string), bad func(string, ...any)) []error {
	for _, diff := range DiffConfig(DefaultOnlineConfig(c.Algorithm), c) {
		if key, _, _ := strings.Cut(diff, ":"); !slices.Contains(onlineHeeds, key) {
			bad("%s: %s does not heed it; leave it out", key, c.Algorithm)
		}
	}
	var errs []error
	if c.Algorithm == OnlineDPO {
		atLeast("num_generations", c.NumGenerations, 2, c.Algorithm+" compares siblings of one prompt and needs at least 2")
		errs = append(errs, c.dpo().Validate())
	} else {
		atLeast("num_generations", c.NumGenerations, 1, "use 1 for one rollout a prompt")
		errs = append(errs, c.bco().Validate())
		if c.LossType != offlineDefaults[BCO].lossType {
			bad("loss_type: unknown %q for %s; its only one is %q", c.LossType, c.Algorithm, offlineDefaults[BCO].lossType)
		}
	}
	errs = append(errs, c.advantageConfig().Validate())
	c.validateSources(bad)
	c.validateGroups(atLeast, bad)
	if !(c.PairMargin >= 0) || math.IsInf(c.PairMargin, 0) {
		bad("pair_margin: %v is not a finite number >= 0; 0 takes any difference of rewards", c.PairMargin)
	}
	atLeast("max_pairs", c.harvest().MaxPairs, 0, "0 is all that pair_margin allows")
	if x := c.harvest().MinReward; math.IsNaN(x) || math.IsInf(x, 0) {
		bad("score_threshold: %v is not finite; use e.g. 0.5", x)
	}
	if err := errors.Join(errs...); err != nil {
		return []error{err}
	}
	return nil
}

// validateGroups checks what every training on groups of rollouts needs.
func (c Config) validateGroups(atLeast func(string, int, int, string), bad func(string, ...any)) {
	atLeast("groups_per_step", c.GroupsPerStep, 1, "use 1 or more")
	atLeast("max_completion_length", c.MaxCompletionLength, 1, "use the rollouts' token limit")
	if c.Publish != "" && c.Publish != PublishF32 && c.Publish != PublishBF16 {
		bad("publish: unknown %q; use %q or %q", c.Publish, PublishF32, PublishBF16)
	}
	switch c.ConstantGroups {
	case KeepConstant:
	case DropConstant, ResampleConstant:
		if !c.comparesGroups() {
			bad("constant_groups: %q, but %s does not compare within groups; use %q", c.ConstantGroups, c.Algorithm, KeepConstant)
		}
		if c.ConstantGroups == ResampleConstant && c.MaxStaleness == 0 {
			bad("constant_groups: %q needs rollouts beyond those of one step, and max_staleness 0 lets none be made; use max_staleness 1 or more, or %q", c.ConstantGroups, DropConstant)
		}
	default:
		bad("constant_groups: unknown %q; use %q, %q or %q", c.ConstantGroups, KeepConstant, DropConstant, ResampleConstant)
	}
	atLeast("max_resample", c.MaxResample, 1, "use e.g. 3")
}
