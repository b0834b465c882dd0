package learner

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/skein-rl/skein/learner/advantage"
	"github.com/skein-rl/skein/learner/loss"
)

// Algorithms.
const (
	GRPO      = "grpo"        // on rollouts
	PPO       = "ppo"         // on rollouts, with a critic
	RLOO      = "rloo"        // on rollouts, against the mean of the siblings
	Reinforce = "reinforce++" // on rollouts, token by token over the whole batch
)

// Algorithms lists what can be trained: on rollouts, then on rows.
func Algorithms() []string {
	return append([]string{GRPO, PPO, RLOO, Reinforce, OnlineDPO, OnlineBCO}, OfflineAlgorithms()...)
}

// Policies for constant groups: those whose scored rewards are all equal.
const (
	KeepConstant = "keep" // rows with advantage 0: in denominators and KL (TRL)
	DropConstant = "drop" // not in the batch, which is smaller then
	// ResampleConstant drops them too and waits for others until the step has
	// GroupsPerStep, or MaxResample times as many were sampled (DAPO's dynamic
	// sampling, arXiv:2503.14476, section 3.2).
	ResampleConstant = "resample"
)

// Sources of the old log-probabilities of the policy ratio.
const (
	OldLearner = "learner" // recomputed before the first update; the engine's enter as rollout importance weights
	OldEngine  = "engine"  // as sampled; the clipped ratio then spans staleness too
	// OldInterpolated approximates the policy one version before the learner's from
	// both (loss.Interpolate): decoupled PPO, whose recomputed form OldLearner is.
	OldInterpolated = "interpolated"
)

// Config is everything the learner decides by. Names are TRL's where it has
// one. Fields are also the keys of YAML and JSON.
type Config struct {
	// Algorithm is one of Algorithms().
	Algorithm string `yaml:"algorithm" json:"algorithm"`

	// LossType is one of loss.Types(); for sft nll or dft, for dpo one or more of
	// preference.DPOTypes() joined by "+", for kto kto or apo_zero_unpaired. With
	// cispo, epsilon_high is the cap on the ratio itself.
	LossType string `yaml:"loss_type" json:"loss_type"`
	// Beta weighs the KL to the reference; 0 needs none. For ppo (TRL's kl_coef),
	// rloo and reinforce++ the KL stands in the rewards instead of the loss; for
	// dpo, kto and bco it is the strength of the tie to the reference.
	Beta float64 `yaml:"beta" json:"beta"`
	// KLEstimator is k1, k2 or k3 (Schulman 2020, "Approximating KL divergence").
	KLEstimator string `yaml:"kl_estimator" json:"kl_estimator"`
	// UseBiasCorrectionKL multiplies the KL term by the policy ratio.
	UseBiasCorrectionKL bool `yaml:"use_bias_correction_kl" json:"use_bias_correction_kl"`
	// Epsilon bounds the ratio below; EpsilonHigh above (unset = Epsilon).
	Epsilon     float64  `yaml:"epsilon" json:"epsilon"`
	EpsilonHigh *float64 `yaml:"epsilon_high,omitempty" json:"epsilon_high,omitempty"`
	// Delta caps the unclipped ratio (two-sided clipping); unset = off.
	Delta *float64 `yaml:"delta,omitempty" json:"delta,omitempty"`
	// NumIterations is how often each batch is trained on (TRL's num_ppo_epochs),
	// NumMiniBatches into how many parts of whole rollouts, drawn anew each time,
	// it is cut for that; each part is one optimizer step.
	NumIterations  int `yaml:"num_iterations" json:"num_iterations"`
	NumMiniBatches int `yaml:"num_mini_batches" json:"num_mini_batches"`
	// ImportanceSamplingLevel is "token", "sequence" or, for rloo, "sequence_sum".
	ImportanceSamplingLevel string `yaml:"importance_sampling_level" json:"importance_sampling_level"`
	// OldLogprobs is "learner", "engine" or "interpolated".
	OldLogprobs string `yaml:"old_logprobs" json:"old_logprobs"`
	// OffPolicyMaskThreshold in nats; unset = off.
	OffPolicyMaskThreshold *float64 `yaml:"off_policy_mask_threshold,omitempty" json:"off_policy_mask_threshold,omitempty"`
	// TopEntropyQuantile is the share of tokens with a policy term; 1 = all.
	TopEntropyQuantile float64 `yaml:"top_entropy_quantile" json:"top_entropy_quantile"`
	// EntropyCoef weighs the entropy bonus; 0 = none.
	EntropyCoef float64 `yaml:"entropy_coef" json:"entropy_coef"`
	// SAPOTemperaturePos and SAPOTemperatureNeg are sapo's gate temperatures for
	// positive and other advantages.
	SAPOTemperaturePos float64 `yaml:"sapo_temperature_pos" json:"sapo_temperature_pos"`
	SAPOTemperatureNeg float64 `yaml:"sapo_temperature_neg" json:"sapo_temperature_neg"`
	// VESPO's weighting of sequences of advantage >= 0 and < 0.
	VESPOKPos      float64 `yaml:"vespo_k_pos" json:"vespo_k_pos"`
	VESPOLambdaPos float64 `yaml:"vespo_lambda_pos" json:"vespo_lambda_pos"`
	VESPOKNeg      float64 `yaml:"vespo_k_neg" json:"vespo_k_neg"`
	VESPOLambdaNeg float64 `yaml:"vespo_lambda_neg" json:"vespo_lambda_neg"`

	// ScaleRewards is group, batch or none.
	ScaleRewards string `yaml:"scale_rewards" json:"scale_rewards"`
	// MultiObjectiveAggregation is sum_then_normalize or normalize_then_sum.
	MultiObjectiveAggregation string `yaml:"multi_objective_aggregation" json:"multi_objective_aggregation"`
	// RewardWeights weighs the named components of an episode reward (key
	// "components" of the REWARD event). Empty = use the event's value.
	RewardWeights map[string]float64 `yaml:"reward_weights,omitempty" json:"reward_weights,omitempty"`
	// ConstantGroups is "keep", "drop" or "resample"; MaxResample bounds the groups
	// sampled for one step, in multiples of GroupsPerStep.
	ConstantGroups string `yaml:"constant_groups" json:"constant_groups"`
	MaxResample    int    `yaml:"max_resample" json:"max_resample"`
	// SourceWeights weighs the policy term of rollouts by their task source; one
	// that is not named has 1. Denominators, KL and entropy bonus stay.
	SourceWeights map[string]float64 `yaml:"source_weights,omitempty" json:"source_weights,omitempty"`

	// MaskTruncatedCompletions leaves truncated rollouts out of the loss; their
	// rewards still count in the group.
	MaskTruncatedCompletions bool `yaml:"mask_truncated_completions" json:"mask_truncated_completions"`
	// MaskOffPolicyInPartialRollout trains only the tokens of a rollout's newest
	// policy version, when a swap happened while it was generated.
	MaskOffPolicyInPartialRollout bool `yaml:"mask_offpolicy_in_partial_rollout" json:"mask_offpolicy_in_partial_rollout"`

	// RolloutImportanceSampling corrects for learner and engine disagreeing on a
	// token's probability (other kernels, or an older version). TRL's
	// vllm_importance_sampling_correction.
	RolloutImportanceSampling        bool     `yaml:"rollout_importance_sampling_correction" json:"rollout_importance_sampling_correction"`
	RolloutImportanceSamplingMode    string   `yaml:"rollout_importance_sampling_mode" json:"rollout_importance_sampling_mode"`
	RolloutImportanceSamplingClipMin *float64 `yaml:"rollout_importance_sampling_clip_min,omitempty" json:"rollout_importance_sampling_clip_min,omitempty"`
	RolloutImportanceSamplingClipMax *float64 `yaml:"rollout_importance_sampling_clip_max,omitempty" json:"rollout_importance_sampling_clip_max,omitempty"`
	// RolloutISDenominator says whether rejected tokens stay in the denominator:
	// "fixed" or "kept".
	RolloutISDenominator string `yaml:"rollout_is_denominator" json:"rollout_is_denominator"`

	// NumGenerations is the size of a group.
	NumGenerations int `yaml:"num_generations" json:"num_generations"`
	// GroupsPerStep is the number of groups in one learner step.
	GroupsPerStep int `yaml:"groups_per_step" json:"groups_per_step"`
	// MaxCompletionLength in tokens; the divisor of dr_grpo.
	MaxCompletionLength int `yaml:"max_completion_length" json:"max_completion_length"`
	// MaxStaleness is how many policy versions a trained token may lag behind.
	MaxStaleness uint64 `yaml:"max_staleness" json:"max_staleness"`
	// Publish is the precision of what the workers get: "" or "f32" the parameters
	// as they are, "bf16" rounded, in half the bytes. The learner goes on from its
	// own; what rounding changes is part of the gap between engine and learner.
	Publish string `yaml:"publish,omitempty" json:"publish,omitempty"`
	// Temperature is the rollouts': logits are divided by it before the softmax,
	// here as there.
	Temperature float64 `yaml:"temperature" json:"temperature"`

	// MaxSteps is the number of learner steps, NumIterations x NumMiniBatches
	// optimizer steps each. Offline, 0 means NumTrainEpochs decides.
	MaxSteps int `yaml:"max_steps" json:"max_steps"`
	// LearningRate is the peak; LRSchedulerType one of Schedules().
	LearningRate    float64 `yaml:"learning_rate" json:"learning_rate"`
	LRSchedulerType string  `yaml:"lr_scheduler_type" json:"lr_scheduler_type"`
	// WarmupSteps in optimizer steps; the first of them has rate 0, as in
	// transformers.
	WarmupSteps int     `yaml:"warmup_steps" json:"warmup_steps"`
	WeightDecay float64 `yaml:"weight_decay" json:"weight_decay"`
	AdamBeta1   float64 `yaml:"adam_beta1" json:"adam_beta1"`
	AdamBeta2   float64 `yaml:"adam_beta2" json:"adam_beta2"`
	AdamEpsilon float64 `yaml:"adam_epsilon" json:"adam_epsilon"`
	// MaxGradNorm clips the global gradient norm; 0 = no clipping.
	MaxGradNorm float64 `yaml:"max_grad_norm" json:"max_grad_norm"`

	// What a KL is measured against.
	ReferenceConfig `yaml:",inline"`
	// Corrections for tokens of another policy.
	OffPolicyConfig `yaml:",inline"`
	// Control of the entropy bonus.
	AdaptiveEntropyConfig `yaml:",inline"`
	// Advantages of single turns.
	TurnConfig `yaml:",inline"`
	// Settings of rloo and reinforce++.
	BaselineConfig `yaml:",inline"`
	// PPO settings.
	PPOConfig `yaml:",inline"`
	// Settings of algorithms that train on rows, and of their losses on rollouts.
	OfflineConfig `yaml:",inline"`
	// What rollouts become for these losses.
	OnlineConfig `yaml:",inline"`

	// LoRADropout is the rate of LoRA dropout (model.Dropout) in the passes that are
	// differentiated, the critic's too; 0 = none. The policy's masks are a function
	// of Seed, the optimizer step and the tokens alone. The engine's, old, reference
	// and proximal log-probabilities, values and evaluations are of the whole
	// adapter, so that the ratio to the old policy is not 1 before the first update.
	LoRADropout float64 `yaml:"lora_dropout" json:"lora_dropout,omitempty"`

	// TokenBudget is the target size of a micro-batch in tokens, shared prompts
	// counted once. A longer trajectory goes alone. It bounds memory and cannot
	// change the result.
	TokenBudget int `yaml:"token_budget" json:"token_budget"`
	// Seed of everything random in the learner.
	Seed uint64 `yaml:"seed" json:"seed"`
}

// DefaultConfig has TRL 1.16's defaults for GRPO.
func DefaultConfig() Config {
	clipMax, l := 3.0, loss.DefaultConfig()
	return Config{
		Algorithm: GRPO, LossType: "dapo", KLEstimator: loss.KLK3, UseBiasCorrectionKL: true, Epsilon: 0.2, NumIterations: 1, NumMiniBatches: 1,
		ImportanceSamplingLevel: loss.LevelToken, OldLogprobs: OldLearner, TopEntropyQuantile: 1,
		ScaleRewards: advantage.ScaleGroup, MultiObjectiveAggregation: advantage.SumThenNormalize, ConstantGroups: KeepConstant, MaxResample: 3,
		RolloutImportanceSampling: true, RolloutImportanceSamplingMode: loss.SequenceMask,
		RolloutImportanceSamplingClipMax: &clipMax, RolloutISDenominator: loss.DenominatorFixed,
		NumGenerations: 8, GroupsPerStep: 8, MaxCompletionLength: 512, MaxStaleness: 2, Temperature: 1,
		MaxSteps: 100, LearningRate: 1e-6, LRSchedulerType: "linear",
		AdamBeta1: 0.9, AdamBeta2: 0.999, AdamEpsilon: 1e-8, MaxGradNorm: 1,
		ReferenceConfig: defaultReference(), OffPolicyConfig: defaultOffPolicy(), AdaptiveEntropyConfig: defaultAdaptiveEntropy(),
		PPOConfig: defaultPPO(), OfflineConfig: defaultOffline(), TokenBudget: 4096,
		SAPOTemperaturePos: l.SAPOTemperaturePos, SAPOTemperatureNeg: l.SAPOTemperatureNeg,
		VESPOKPos: l.VESPOKPos, VESPOLambdaPos: l.VESPOLambdaPos, VESPOKNeg: l.VESPOKNeg, VESPOLambdaNeg: l.VESPOLambdaNeg,
	}
}

// Validate reports every problem at once, each with field, value and remedy.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	atLeast := func(field string, v, lo int, why string) {
		if v < lo {
			bad("%s: %d is below %d; %s", field, v, lo, why)
		}
	}
	finite := func(field string, v, lo float64, open bool, remedy string) {
		if math.IsNaN(v) || math.IsInf(v, 0) || v < lo || open && v == lo {
			bad("%s: %v is out of range; %s", field, v, remedy)
		}
	}
	switch c.Algorithm {
	case GRPO, PPO, RLOO, Reinforce:
		errs = append(errs, c.validateRollouts(atLeast, bad)...)
		atLeast("max_steps", c.MaxSteps, 1, "say how many learner steps to train")
	case OnlineDPO, OnlineBCO:
		errs = append(errs, c.validateOnline(atLeast, bad)...)
		atLeast("max_steps", c.MaxSteps, 1, "say how many learner steps to train")
	case SFT, DPO, KTO, BCO, Reward:
		errs = append(errs, c.validateOffline(atLeast, bad)...)
	default:
		errs = append(errs, unknownAlgorithm(c.Algorithm, Algorithms()))
	}
	c.validateForeign(bad)
	c.validateReference(bad)
	finite("temperature", c.Temperature, 0, true, "use the rollouts' temperature, above 0: a greedy policy has no gradient")
	finite("learning_rate", c.LearningRate, 0, false, "use a finite number >= 0, e.g. 1e-5")
	finite("weight_decay", c.WeightDecay, 0, false, "use a finite number >= 0")
	finite("adam_epsilon", c.AdamEpsilon, 0, true, "use e.g. 1e-8")
	finite("max_grad_norm", c.MaxGradNorm, 0, false, "0 means no clipping")
	if !(c.LoRADropout >= 0 && c.LoRADropout < 1) {
		bad("lora_dropout: %v is outside [0, 1); use e.g. 0.05, or 0 for none", c.LoRADropout)
	}
	for _, b := range []struct {
		name string
		v    float64
	}{{"adam_beta1", c.AdamBeta1}, {"adam_beta2", c.AdamBeta2}} {
		if !(b.v >= 0 && b.v < 1) {
			bad("%s: %v is outside [0, 1)", b.name, b.v)
		}
	}
	if schedules[c.LRSchedulerType] == nil {
		bad("lr_scheduler_type: unknown %q; use one of %s", c.LRSchedulerType, strings.Join(Schedules(), ", "))
	}
	atLeast("warmup_steps", c.WarmupSteps, 0, "use 0 for no warm-up")
	if total := c.optimizerSteps(); c.MaxSteps > 0 && c.WarmupSteps >= total {
		bad("warmup_steps: %d leaves no step at full rate of %d optimizer steps (max_steps %d x num_iterations x num_mini_batches); lower it", c.WarmupSteps, total, c.MaxSteps)
	}
	atLeast("token_budget", c.TokenBudget, 1, "use e.g. 4096")
	return errors.Join(errs...)
}

// optimizerSteps are those of all learner steps.
func (c Config) optimizerSteps() int {
	return c.MaxSteps * max(c.NumIterations, 1) * max(c.NumMiniBatches, 1)
}

// validateRollouts checks what training on rollouts needs.
func (c Config) validateRollouts(atLeast func(string, int, int, string), bad func(string, ...any)) []error {
	var errs []error
	if err := c.lossConfig().Validate(); err != nil {
		errs = append(errs, err)
	}
	if err := c.advantageConfig().Validate(); err != nil {
		errs = append(errs, err)
	}
	if c.RolloutImportanceSampling {
		if err := c.rolloutIS().Validate(); err != nil {
			errs = append(errs, err)
		}
	}
	switch {
	case c.Algorithm == PPO:
		errs = append(errs, c.validatePPO(atLeast, bad)...)
	case c.comparesGroups():
		atLeast("num_generations", c.NumGenerations, 2, c.Algorithm+" compares siblings of one prompt and needs at least 2")
	default:
		atLeast("num_generations", c.NumGenerations, 1, "use 1 for one rollout a prompt")
	}
	errs = append(errs, c.validateBaseline(bad)...)
	errs = append(errs, c.validateOffPolicy(bad)...)
	errs = append(errs, c.validateTurns(bad)...)
	c.validateAdaptiveEntropy(bad)
	c.validateSources(bad)
	atLeast("num_iterations", c.NumIterations, 1, "use 1 for one update per batch")
	atLeast("num_mini_batches", c.NumMiniBatches, 1, "use 1 to train on the whole batch at once")
	c.validateGroups(atLeast, bad)
	return errs
}

// lossConfig is the part package loss decides by.
func (c Config) lossConfig() loss.Config {
	high := c.Epsilon
	if c.EpsilonHigh != nil {
		high = *c.EpsilonHigh
	}
	beta := c.Beta
	if c.klInReward() {
		beta = 0
	}
	return loss.Config{
		LossType: c.LossType, Level: c.ImportanceSamplingLevel, EpsilonLow: c.Epsilon, EpsilonHigh: high, Delta: c.Delta,
		Beta: beta, KLEstimator: c.KLEstimator, BiasCorrectedKL: c.UseBiasCorrectionKL, MaxCompletionLength: c.MaxCompletionLength,
		OffPolicyMaskThreshold: c.OffPolicyMaskThreshold, TopEntropyQuantile: c.TopEntropyQuantile,
		EntropyCoef: c.EntropyCoef, Denominator: c.RolloutISDenominator,
		SAPOTemperaturePos: c.SAPOTemperaturePos, SAPOTemperatureNeg: c.SAPOTemperatureNeg,
		VESPOKPos: c.VESPOKPos, VESPOLambdaPos: c.VESPOLambdaPos, VESPOKNeg: c.VESPOKNeg, VESPOLambdaNeg: c.VESPOLambdaNeg,
	}
}

func (c Config) advantageConfig() advantage.Config {
	a := advantage.Config{Scale: c.ScaleRewards, Aggregation: c.MultiObjectiveAggregation, Weights: []float64{1}}
	if len(c.RewardWeights) > 0 {
		a.Weights = nil
		for _, name := range c.rewardNames() {
			a.Weights = append(a.Weights, c.RewardWeights[name])
		}
	}
	return a
}

// rewardNames is the order of the reward columns; empty = the event's value.
func (c Config) rewardNames() []string { return slices.Sorted(maps.Keys(c.RewardWeights)) }

func (c Config) rolloutIS() loss.RolloutIS {
	return loss.RolloutIS{Mode: c.RolloutImportanceSamplingMode, ClipMin: c.RolloutImportanceSamplingClipMin, ClipMax: c.RolloutImportanceSamplingClipMax}
}
