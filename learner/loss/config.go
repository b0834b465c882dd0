package loss

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// Importance levels: how the ratio between the new and the old policy is taken.
const (
	LevelToken    = "token"    // one ratio per token (GRPO, arXiv:2402.03300)
	LevelSequence = "sequence" // exp of the mean log-ratio (GSPO, arXiv:2507.18071, eq. 7)
	// LevelSum is exp of the summed log-ratio, the ratio of the whole trajectory;
	// it explodes with length (RLOO, arXiv:2402.14740).
	LevelSum = "sequence_sum"
)

// Denominator rules: whether a token that the rollout importance correction
// rejected (ratio 0) still counts in the denominator.
const (
	DenominatorFixed = "fixed" // it counts (TRL, NeMo-RL, OpenRLHF)
	DenominatorKept  = "kept"  // it does not (slime)
)

// Config is one loss of the GRPO family. Field names follow TRL's GRPOConfig.
type Config struct {
	// LossType is one of Types().
	LossType string
	// Level is LevelToken, LevelSequence or LevelSum.
	Level string
	// EpsilonLow and EpsilonHigh bound the ratio to [1-EpsilonLow,
	// 1+EpsilonHigh]. EpsilonLow is in [0, 1); EpsilonHigh >= 0.
	EpsilonLow, EpsilonHigh float64
	// Delta, when set, caps the unclipped ratio too (two-sided clipping,
	// INTELLECT-2, arXiv:2505.07291, eq. 3). It must exceed 1+EpsilonHigh to have
	// an effect of its own; any value > 0 is accepted.
	Delta *float64
	// Beta weighs the KL term against the reference; 0 leaves it out.
	Beta float64
	// KLEstimator is KLK1, KLK2 or KLK3; "" is KLK3. KLK1 needs BiasCorrectedKL.
	KLEstimator string
	// BiasCorrectedKL multiplies the KL term by the differentiable ratio
	// (DeepSeek-V3.2, arXiv:2512.02556, eq. 7; TRL's use_bias_correction_kl).
	BiasCorrectedKL bool
	// MaxCompletionLength is dr_grpo's constant, in tokens.
	MaxCompletionLength int
	// OffPolicyMaskThreshold, when set, drops rows of negative advantage whose
	// mean log-ratio sampling/new exceeds it, in nats (DeepSeek-V3.2, eq. 9).
	OffPolicyMaskThreshold *float64
	// TopEntropyQuantile keeps the policy term of that share of tokens, those of
	// highest entropy ("Beyond the 80/20 rule", arXiv:2506.01939). 1 keeps all.
	TopEntropyQuantile float64
	// EntropyCoef weighs the entropy bonus: loss -= EntropyCoef * mean entropy.
	EntropyCoef float64
	// Denominator is DenominatorFixed or DenominatorKept.
	Denominator string
	// SAPOTemperaturePos and SAPOTemperatureNeg are sapo's τ for positive and
	// other advantages, > 0.
	SAPOTemperaturePos, SAPOTemperatureNeg float64
	// VESPOKPos … VESPOLambdaNeg shape vespo's φ for advantages >= 0 and < 0; each
	// >= 0.
	VESPOKPos, VESPOLambdaPos, VESPOKNeg, VESPOLambdaNeg float64
}

// DefaultConfig has TRL 1.16's defaults.
func DefaultConfig() Config {
	return Config{
		LossType: "dapo", Level: LevelToken,
		EpsilonLow: 0.2, EpsilonHigh: 0.2,
		KLEstimator: KLK3, BiasCorrectedKL: true, MaxCompletionLength: 512,
		TopEntropyQuantile: 1, Denominator: DenominatorFixed,
		SAPOTemperaturePos: 1, SAPOTemperatureNeg: 1.05,
		VESPOKPos: 2, VESPOLambdaPos: 3, VESPOKNeg: 3, VESPOLambdaNeg: 2,
	}
}

// kind is a loss type: the term of one token, and the weight of a token in a
// row with n counted ones.
type kind struct {
	term   func(c Config, in tokenIn) term
	weight func(n float64, t Totals, c Config) float64
}

var kinds = map[string]kind{
	"grpo": {clippedTerm, grpoWeight}, "bnpo": {clippedTerm, bnpoWeight}, "dr_grpo": {clippedTerm, drGRPOWeight},
	"dapo": {clippedTerm, dapoWeight}, "luspo": {clippedTerm, luspoWeight},
	"cispo": {cispoTerm, dapoWeight}, "sapo": {sapoTerm, grpoWeight}, "vespo": {vespoTerm, dapoWeight},
	"rloo": {clippedTerm, grpoWeight},
}

// clips reports whether the loss type clips to [1-EpsilonLow, 1+EpsilonHigh].
func (c Config) clips() bool {
	return c.LossType != "cispo" && c.LossType != "sapo" && c.LossType != "vespo"
}

// Types lists the loss types, sorted.
func Types() []string { return slices.Sorted(maps.Keys(kinds)) }

// Validate reports every problem with field, value and remedy.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	if _, ok := kinds[c.LossType]; !ok {
		bad("loss_type: unknown %q; use one of %s", c.LossType, strings.Join(Types(), ", "))
	}
	if c.Level != LevelToken && c.Level != LevelSequence && c.Level != LevelSum {
		bad("importance_sampling_level: unknown %q; use %q, %q or %q", c.Level, LevelToken, LevelSequence, LevelSum)
	}
	if c.LossType == "rloo" {
		c.validateRLOO(bad)
	}
	if c.KLEstimator != "" {
		if err := CheckKLEstimator(c.KLEstimator); err != nil {
			errs = append(errs, err)
		}
	}
	if c.KLEstimator == KLK1 && c.Beta != 0 && !c.BiasCorrectedKL {
		bad("kl_estimator: %q as a loss has a derivative that ignores the reference; set use_bias_correction_kl: true or use %q or %q", KLK1, KLK2, KLK3)
	}
	if !(c.EpsilonLow >= 0 && c.EpsilonLow < 1) {
		bad("epsilon: %v is outside [0, 1); use e.g. 0.2", c.EpsilonLow)
	}
	if !(c.EpsilonHigh >= 0) || math.IsInf(c.EpsilonHigh, 0) {
		bad("epsilon_high: %v is not a number >= 0; use e.g. 0.28", c.EpsilonHigh)
	}
	if c.Delta != nil && !(*c.Delta > 0 && !math.IsInf(*c.Delta, 0)) {
		bad("delta: %v is not a finite number > 0; use a cap above 1+epsilon_high or leave it out", *c.Delta)
	}
	if c.LossType == "cispo" && c.EpsilonHigh < 1 {
		bad("epsilon_high: %v, but cispo's is the cap on the ratio itself; use e.g. 5", c.EpsilonHigh)
	}
	if c.Delta != nil && !c.clips() {
		bad("delta: %s does not clip; leave it out", c.LossType)
	}
	if c.LossType == "sapo" && !(c.SAPOTemperaturePos > 0 && c.SAPOTemperatureNeg > 0) {
		bad("sapo_temperature_pos, sapo_temperature_neg: %v, %v are not both > 0; use 1 and 1.05", c.SAPOTemperaturePos, c.SAPOTemperatureNeg)
	}
	if c.LossType == "vespo" && !(c.VESPOKPos >= 0 && c.VESPOKNeg >= 0 && c.VESPOLambdaPos >= 0 && c.VESPOLambdaNeg >= 0) {
		bad("vespo_k_pos, vespo_lambda_pos, vespo_k_neg, vespo_lambda_neg: %v, %v, %v, %v are not all >= 0; use 2, 3, 3, 2", c.VESPOKPos, c.VESPOLambdaPos, c.VESPOKNeg, c.VESPOLambdaNeg)
	}
	if !(c.Beta >= 0) || math.IsInf(c.Beta, 0) {
		bad("beta: %v is not a number >= 0", c.Beta)
	}
	if c.LossType == "dr_grpo" && c.MaxCompletionLength < 1 {
		bad("max_completion_length: %d, but dr_grpo divides by it; use the rollout's token limit", c.MaxCompletionLength)
	}
	if c.OffPolicyMaskThreshold != nil && !(*c.OffPolicyMaskThreshold > 0 && !math.IsInf(*c.OffPolicyMaskThreshold, 0)) {
		bad("off_policy_mask_threshold: %v is not a finite number > 0; use e.g. 0.5 or leave it out", *c.OffPolicyMaskThreshold)
	}
	if !(c.TopEntropyQuantile >= 0 && c.TopEntropyQuantile <= 1) {
		bad("top_entropy_quantile: %v is outside [0, 1]; 1 keeps every token", c.TopEntropyQuantile)
	}
	if math.IsNaN(c.EntropyCoef) || math.IsInf(c.EntropyCoef, 0) {
		bad("entropy_coef: %v is not finite", c.EntropyCoef)
	}
	if c.Denominator != DenominatorFixed && c.Denominator != DenominatorKept {
		bad("rollout_is_denominator: unknown %q; use %q or %q", c.Denominator, DenominatorFixed, DenominatorKept)
	}
	return errors.Join(errs...)
}
