package learner

import (
	"strings"

	"github.com/skein-rl/skein/learner/loss"
)

// OffPolicyConfig are corrections for tokens that another policy sampled, beside
// rollout importance sampling. All multiply a token's policy term.
type OffPolicyConfig struct {
	// M2Threshold, in nats², leaves out the tokens of largest log-ratio
	// learner/engine until the mean square of the rest is at most it (M2PO,
	// arXiv:2510.01161: 0.04); unset = off.
	M2Threshold *float64 `yaml:"m2_threshold,omitempty" json:"m2_threshold,omitempty"`
	// StalenessWeighting is none, inverse or exponential (StalenessDecay^lag), of
	// the policy-version lag of each token: see loss.Staleness.
	StalenessWeighting string  `yaml:"staleness_weighting" json:"staleness_weighting"`
	StalenessDecay     float64 `yaml:"staleness_decay" json:"staleness_decay"`
}

func defaultOffPolicy() OffPolicyConfig {
	return OffPolicyConfig{StalenessWeighting: loss.StalenessNone, StalenessDecay: .9}
}

func (c Config) staleness() loss.Staleness {
	return loss.Staleness{Rule: c.StalenessWeighting, Decay: c.StalenessDecay}
}

func (c Config) weighsStaleness() bool {
	return c.StalenessWeighting != "" && c.StalenessWeighting != loss.StalenessNone
}

func (c Config) validateOffPolicy(bad func(string, ...any)) []error {
	var errs []error
	if c.M2Threshold != nil {
		if _, err := loss.M2Mask(*c.M2Threshold, nil); err != nil {
			errs = append(errs, err)
		}
	}
	if err := c.staleness().Validate(); err != nil {
		errs = append(errs, err)
	}
	if c.weighsStaleness() && c.MaxStaleness == 0 {
		bad("staleness_weighting: %q, but max_staleness is 0, so no token is stale; raise max_staleness or leave it out", c.StalenessWeighting)
	}
	switch c.OldLogprobs {
	case OldLearner:
	case OldEngine:
		if c.RolloutImportanceSampling && !strings.HasSuffix(c.RolloutImportanceSamplingMode, "_reject") {
			bad("old_logprobs: %q already puts the engine's probabilities into the ratio; set rollout_importance_sampling_correction: false, a *_reject mode, or old_logprobs: %q", OldEngine, OldLearner)
		}
	case OldInterpolated:
		if !c.RolloutImportanceSampling {
			bad("old_logprobs: %q needs the weight proximal/engine of decoupled PPO; set rollout_importance_sampling_correction: true", OldInterpolated)
		}
		if c.MaxStaleness == 0 {
			bad("old_logprobs: %q, but max_staleness is 0: the proximal policy is the learner; use %q", OldInterpolated, OldLearner)
		}
		if c.klInReward() {
			bad("old_logprobs: %q, but %s measures KL and values under the policy before the step; use %q", OldInterpolated, c.Algorithm, OldLearner)
		}
	default:
		bad("old_logprobs: unknown %q; use %q, %q or %q", c.OldLogprobs, OldLearner, OldEngine, OldInterpolated)
	}
	return errs
}

// lags are the policy-version lags of an episode's tokens.
func (s *stepRun) lags(i int) []uint64 {
	e := s.b.Episodes[i]
	out := make([]uint64, len(e.Versions))
	for t, v := range e.Versions {
		out[t] = s.l.version - v
	}
	return out
}

// proximal sets Row.Old where the configuration wants another policy than the
// learner before the step. LogP is the learner's then.
func (s *stepRun) proximal(i int) (err error) {
	switch r := &s.rows[i]; s.l.cfg.OldLogprobs {
	case OldEngine:
		r.Old = r.Sampling
	case OldInterpolated:
		r.Old, err = loss.Interpolate(r.LogP, r.Sampling, s.lags(i))
	}
	return err
}

// weigh sets a row's constant weights from LogP, which is the learner's before
// the step: rollout importance sampling of the proximal policy (with the
// engine's as old, of the learner, which only rejects) and staleness.
func (s *stepRun) weigh(i int) error {
	c, r := s.l.cfg, &s.rows[i]
	var is, stale []float64
	var err error
	if c.RolloutImportanceSampling {
		proximal := r.LogP
		if c.OldLogprobs == OldInterpolated {
			proximal = r.Old
		}
		if is, err = c.rolloutIS().Ratio(proximal, r.Sampling, nil); err != nil {
			return err
		}
	}
	if c.weighsStaleness() {
		if stale, err = c.staleness().Weights(s.lags(i)); err != nil {
			return err
		}
	}
	r.Ratio, err = loss.Weigh(len(r.LogP), is, stale)
	return err
}

// trust leaves out the tokens outside M2PO's trust region, over the whole batch.
func (s *stepRun) trust() error {
	if s.l.cfg.M2Threshold == nil {
		return nil
	}
	rows := make([]loss.M2Row, len(s.rows))
	for i, e := range s.b.Episodes {
		rows[i] = loss.M2Row{Old: s.old[i], Sampling: e.Sampled}
	}
	masks, err := loss.M2Mask(*s.l.cfg.M2Threshold, rows)
	if err != nil {
		return err
	}
	for i, m := range masks {
		for _, x := range m {
			s.m2out += 1 - x
		}
		if s.rows[i].Ratio, err = loss.Weigh(len(s.rows[i].LogP), s.rows[i].Ratio, m); err != nil {
			return err
		}
	}
	return nil
}
