package learner

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/skein-rl/skein/learner/loss"
	"github.com/skein-rl/skein/learner/preference"
	"github.com/skein-rl/skein/model"
)

// Algorithms that train on rows of a data.Set.
const (
	SFT    = "sft"
	DPO    = "dpo"
	KTO    = "kto"
	BCO    = "bco"
	Reward = "reward"
)

// OfflineAlgorithms lists them.
func OfflineAlgorithms() []string { return []string{SFT, DPO, KTO, BCO, Reward} }

// Offline says whether the algorithm trains on rows instead of on rollouts.
func (c Config) Offline() bool { return slices.Contains(OfflineAlgorithms(), c.Algorithm) }

// OfflineConfig are the settings of training on rows; the rest of Config holds
// as well. Names are TRL's where it has one.
type OfflineConfig struct {
	// NumTrainEpochs is how often every row is trained; MaxSteps, when above 0,
	// ends training earlier or goes on for longer.
	NumTrainEpochs int `yaml:"num_train_epochs" json:"num_train_epochs"`
	// BatchTokens and BatchSize bound one optimizer step, in prompt and
	// completion tokens and in rows (a pair is one); a step has at least one row.
	// BatchSize 0 bounds by tokens alone.
	BatchTokens int `yaml:"batch_tokens" json:"batch_tokens"`
	BatchSize   int `yaml:"batch_size" json:"batch_size"`
	// EvalSteps and SaveSteps are how many optimizer steps lie between
	// evaluations and checkpoints; 0 is once an epoch. Both happen after the last
	// step too.
	EvalSteps int `yaml:"eval_steps" json:"eval_steps"`
	SaveSteps int `yaml:"save_steps" json:"save_steps"`
	// PrecomputeRefLogProbs computes the reference's log-probabilities of all rows
	// before the first step, 4 bytes a trained token, instead of in each step.
	PrecomputeRefLogProbs bool `yaml:"precompute_ref_log_probs" json:"precompute_ref_log_probs"`

	// LossWeights has one weight per loss type of a dpo mixture, whose loss_type
	// names several, joined by "+"; empty = 1 each.
	LossWeights []float64 `yaml:"loss_weights,omitempty" json:"loss_weights,omitempty"`
	// dpo: see preference.DPOConfig. LabelSmoothing is sft's too: the share of the
	// target's probability that is spread over the vocabulary, for nll alone.
	LabelSmoothing       float64  `yaml:"label_smoothing" json:"label_smoothing"`
	FDivergenceType      string   `yaml:"f_divergence_type" json:"f_divergence_type"`
	FAlphaDivergenceCoef float64  `yaml:"f_alpha_divergence_coef" json:"f_alpha_divergence_coef"`
	LDAlpha              *float64 `yaml:"ld_alpha,omitempty" json:"ld_alpha,omitempty"`
	Weighting            string   `yaml:"weighting,omitempty" json:"weighting,omitempty"`
	ReferenceFree        bool     `yaml:"reference_free" json:"reference_free"`
	RPOAlpha             float64  `yaml:"rpo_alpha" json:"rpo_alpha"`
	DiscopopTau          float64  `yaml:"discopop_tau" json:"discopop_tau"`
	SimPOGamma           float64  `yaml:"simpo_gamma" json:"simpo_gamma"`
	// kto: weights of the two verdicts.
	DesirableWeight   float64 `yaml:"desirable_weight" json:"desirable_weight"`
	UndesirableWeight float64 `yaml:"undesirable_weight" json:"undesirable_weight"`
	// bco: how the reward shift is formed, class_means or pooled.
	BCOShift string `yaml:"bco_shift" json:"bco_shift"`
	// DensityRatio weighs undesirable rows by how likely their prompts are among
	// the desirable ones, within bounds; rows need an embedding of the prompt
	// (preference.FitDensity).
	DensityRatio    bool    `yaml:"density_ratio" json:"density_ratio"`
	MinDensityRatio float64 `yaml:"min_density_ratio" json:"min_density_ratio"`
	MaxDensityRatio float64 `yaml:"max_density_ratio" json:"max_density_ratio"`
	// reward: weight of the squared sum of a pair's scores.
	CenterRewardsCoefficient float64 `yaml:"center_rewards_coefficient" json:"center_rewards_coefficient"`
}

func defaultOffline() OfflineConfig {
	d, k := preference.DefaultDPOConfig(), preference.DefaultKTOConfig()
	return OfflineConfig{
		NumTrainEpochs: 3, BatchTokens: 8192,
		FDivergenceType: d.FDivergence, FAlphaDivergenceCoef: d.FAlpha, DiscopopTau: d.DiscopopTau, SimPOGamma: d.SimPOGamma,
		MinDensityRatio: preference.DefaultDensityConfig().MinRatio, MaxDensityRatio: preference.DefaultDensityConfig().MaxRatio,
		DesirableWeight: k.DesirableWeight, UndesirableWeight: k.UndesirableWeight, BCOShift: preference.DefaultBCOConfig().Shift,
	}
}

// rates and loss types are TRL's defaults.
var offlineDefaults = map[string]struct {
	lossType string
	rate     float64
	beta     float64
}{
	SFT: {loss.NLL, 2e-5, 0}, DPO: {"sigmoid", 1e-6, 0.1}, KTO: {preference.KTOType, 1e-6, 0.1},
	BCO: {"bco", 5e-7, 0.1}, Reward: {"bradley_terry", 1e-4, 0},
}

// DefaultConfigOf is DefaultConfig with the defaults of an algorithm; an unknown
// one, which Validate refuses, has those of grpo.
func DefaultConfigOf(algorithm string) Config {
	switch algorithm {
	case PPO:
		return DefaultPPOConfig()
	case RLOO:
		return DefaultRLOOConfig()
	case Reinforce:
		return DefaultReinforceConfig()
	case OnlineDPO, OnlineBCO:
		return DefaultOnlineConfig(algorithm)
	}
	c := DefaultConfig()
	if d, ok := offlineDefaults[algorithm]; ok {
		c.LossType, c.LearningRate, c.Beta, c.MaxSteps = d.lossType, d.rate, d.beta, 0
	}
	c.Algorithm = algorithm
	return c
}

// DefaultSFTConfig is DefaultConfigOf(SFT).
func DefaultSFTConfig() Config { return DefaultConfigOf(SFT) }

// validateForeign refuses settings that the algorithm would not heed.
func (c Config) validateForeign(bad func(string, ...any)) {
	d := defaultOffline()
	for _, s := range []struct {
		field string
		set   bool
		of    []string
	}{
		{"label_smoothing", c.LabelSmoothing != 0, []string{SFT, DPO}},
		{"loss_weights", len(c.LossWeights) > 0, []string{DPO}},
		{"weighting", c.Weighting != "", []string{DPO}},
		{"ld_alpha", c.LDAlpha != nil, []string{DPO}},
		{"reference_free", c.ReferenceFree, []string{DPO}},
		{"rpo_alpha", c.RPOAlpha != 0, []string{DPO}},
		{"f_divergence_type", c.FDivergenceType != d.FDivergenceType, []string{DPO}},
		{"density_ratio", c.DensityRatio, []string{BCO}},
		{"center_rewards_coefficient", c.CenterRewardsCoefficient != 0, []string{Reward}},
	} {
		if s.set && !slices.Contains(s.of, c.rowLoss()) {
			bad("%s: only %s heeds it, not %s; leave it out", s.field, strings.Join(s.of, " and "), c.Algorithm)
		}
	}
}

func (c Config) validateOffline(atLeast func(string, int, int, string), bad func(string, ...any)) []error {
	atLeast("num_train_epochs", c.NumTrainEpochs, 1, "use 1 or more")
	atLeast("batch_tokens", c.BatchTokens, 1, "say how many tokens one optimizer step sees")
	atLeast("batch_size", c.BatchSize, 0, "0 bounds a step by batch_tokens alone")
	atLeast("eval_steps", c.EvalSteps, 0, "0 evaluates once an epoch")
	atLeast("save_steps", c.SaveSteps, 0, "0 saves once an epoch")
	atLeast("max_steps", c.MaxSteps, 0, "0 lets num_train_epochs decide")
	if c.Publish != "" {
		bad("publish: %q, but %s trains on rows and publishes to no workers; leave it out", c.Publish, c.Algorithm)
	}
	only := func(name string) {
		if c.LossType != name {
			bad("loss_type: unknown %q for %s; its only one is %q", c.LossType, c.Algorithm, name)
		}
	}
	var err error
	switch c.Algorithm {
	case SFT:
		if c.LossType != loss.NLL && c.LossType != loss.DFT {
			bad("loss_type: unknown %q for sft; use %q or %q", c.LossType, loss.NLL, loss.DFT)
		}
		switch e := c.LabelSmoothing; {
		case !(e >= 0 && e < 1):
			bad("label_smoothing: %v is outside [0, 1); use e.g. 0.1, or 0 for none", e)
		case e > 0 && c.LossType != loss.NLL:
			bad("label_smoothing: %v, but loss_type %s has none; set 0 or loss_type: %s", e, c.LossType, loss.NLL)
		}
	case DPO:
		err = c.dpo().Validate()
	case KTO:
		err = c.kto().Validate()
	case BCO:
		only("bco")
		err = errors.Join(c.bco().Validate(), c.density().Validate())
	case Reward:
		only("bradley_terry")
		err = c.reward().Validate()
	}
	if err != nil {
		return []error{err}
	}
	return nil
}

// Trainer is what the policy's trainer must be made with: the parameters given,
// and what the algorithm reads of the model's heads.
func (c Config) Trainer(lora model.LoRAConfig, full bool) model.TrainerConfig {
	return model.TrainerConfig{
		LoRA: lora, Full: full, Value: c.Algorithm == Reward,
		MeanLogProb: c.rowLoss() == SFT && c.LabelSmoothing > 0,
		LogSumSq:    c.rowLoss() == DPO && c.Weighting == preference.WeightingWPOAligned,
	}
}

func (c Config) dpo() preference.DPOConfig {
	return preference.DPOConfig{
		LossTypes: strings.Split(c.LossType, "+"), LossWeights: c.LossWeights, Beta: c.Beta, LabelSmoothing: c.LabelSmoothing,
		FDivergence: c.FDivergenceType, FAlpha: c.FAlphaDivergenceCoef, LDAlpha: c.LDAlpha, Weighting: c.Weighting,
		ReferenceFree: c.ReferenceFree, RPOAlpha: c.RPOAlpha, DiscopopTau: c.DiscopopTau, SimPOGamma: c.SimPOGamma,
	}
}

func (c Config) kto() preference.KTOConfig {
	return preference.KTOConfig{LossType: c.LossType, Beta: c.Beta, DesirableWeight: c.DesirableWeight, UndesirableWeight: c.UndesirableWeight}
}

func (c Config) bco() preference.BCOConfig {
	return preference.BCOConfig{Beta: c.Beta, Shift: c.BCOShift}
}

func (c Config) density() preference.DensityConfig {
	d := preference.DefaultDensityConfig()
	d.MinRatio, d.MaxRatio = c.MinDensityRatio, c.MaxDensityRatio
	return d
}

func (c Config) reward() preference.RewardConfig {
	return preference.RewardConfig{Center: c.CenterRewardsCoefficient}
}

// unknownAlgorithm is the error of a name that nothing implements.
func unknownAlgorithm(name string, known []string) error {
	return fmt.Errorf("algorithm: unknown %q; use one of %s", name, strings.Join(known, ", "))
}
