package learner

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/learner/data"
	"github.com/skein-rl/skein/learner/preference"
)

// Every setting of a loss on rows arrives in it: a training with it ends
// elsewhere than one without.
func TestOfflineSettingsReachTheLoss(t *testing.T) {
	lossType := func(name string) func(*Config) { return func(c *Config) { c.LossType = name } }
	type setting struct {
		name        string
		with, above func(*Config) // above is in both trainings
	}
	none := func(*Config) {}
	for algorithm, settings := range map[string][]setting{
		SFT: {{"label_smoothing", func(c *Config) { c.LabelSmoothing = .2 }, none}, {"loss_type", lossType("dft"), none}},
		DPO: {
			{"beta", func(c *Config) { c.Beta = .3 }, none},
			{"label_smoothing", func(c *Config) { c.LabelSmoothing = .2 }, none},
			{"loss_weights", func(c *Config) { c.LossWeights = []float64{1, .1} }, lossType("sigmoid+sft")},
			{"f_divergence_type: forward_kl", func(c *Config) { c.FDivergenceType = preference.ForwardKL }, none},
			{"f_divergence_type: js_divergence", func(c *Config) { c.FDivergenceType = preference.JSDivergence }, none},
			{"f_alpha_divergence_coef", func(c *Config) { c.FAlphaDivergenceCoef = .9 }, func(c *Config) { c.FDivergenceType = preference.AlphaDivergence }},
			{"ld_alpha", func(c *Config) { c.LDAlpha = r(.2) }, none},
			{"weighting: wpo", func(c *Config) { c.Weighting = preference.WeightingWPO }, none},
			{"weighting: wpo_aligned", func(c *Config) { c.Weighting = preference.WeightingWPOAligned }, func(c *Config) { c.Weighting = preference.WeightingWPO }},
			{"reference_free", func(c *Config) { c.ReferenceFree = true }, none},
			{"rpo_alpha", func(c *Config) { c.RPOAlpha = .5 }, none},
			{"discopop_tau", func(c *Config) { c.DiscopopTau = .5 }, lossType("discopop")},
			{"simpo_gamma", func(c *Config) { c.SimPOGamma = 2 }, lossType("simpo")},
		},
		KTO: {
			{"desirable_weight", func(c *Config) { c.DesirableWeight = 3 }, none},
			{"undesirable_weight", func(c *Config) { c.UndesirableWeight = 3 }, none},
		},
		BCO: {
			{"bco_shift", func(c *Config) { c.BCOShift = preference.ShiftPooled }, none},
			{"min_density_ratio", func(c *Config) { c.MinDensityRatio = 3 }, func(c *Config) { c.DensityRatio = true }},
			{"max_density_ratio", func(c *Config) { c.MaxDensityRatio = .6 }, func(c *Config) { c.DensityRatio = true }},
		},
		Reward: {{"center_rewards_coefficient", func(c *Config) { c.CenterRewardsCoefficient = 1 }, none}},
	} {
		rows := offlineRows(algorithm).Rows()
		for i := range rows {
			rows[i].Embedding = []float64{float64(i % 3), 1}
		}
		if algorithm == BCO {
			rows = rows[:len(rows)-1] // uneven classes, which bco_shift is about
		}
		set := data.NewSet("rows", rows, data.Order{})
		for _, s := range settings {
			c := offlineConfigs()[algorithm]
			c.MaxSteps, c.BatchSize, c.LearningRate, c.AdamEpsilon = 3, 100, .1, 1 // steps follow the gradient's size
			s.above(&c)
			train := func(c Config) []float32 {
				require.NoError(t, c.Validate(), s.name)
				l := offlineLearner(t, c)
				require.NoError(t, RunOffline(ctx, l, set, OfflineOptions{}), s.name)
				return l.Params()
			}
			plain := train(c)
			s.with(&c)
			require.NotEqual(t, plain, train(c), "%s: %s", algorithm, s.name)
		}
	}
}

func TestAdaptiveEntropyStaysWithinItsBounds(t *testing.T) {
	c := small(4)
	c.UseAdaptiveEntropy, c.EntropyCoef, c.EntropyCoefMin, c.EntropyCoefMax, c.EntropyCoefDelta, c.EntropyTarget = true, .01, .008, .02, .005, 1
	s := EntropyState{Coef: c.EntropyCoef}
	for range 3 {
		s = s.after(c, 5) // far above the target: less bonus
	}
	require.Equal(t, .008, s.Coef)
	for range 9 {
		s = s.after(c, .1)
	}
	require.Equal(t, .02, s.Coef)
}
