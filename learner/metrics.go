package learner

import (
	"math"

	"github.com/skein-rl/skein/learner/loss"
)

// gapStats compare the engine's log-probabilities with the learner's before the
// update, over trained tokens: all of them, and those sampled under the very
// version the learner holds (where only numerics differ).
type gapStats struct {
	n, sum, max          float64
	sameN, sameSum, same float64
}

func (g *gapStats) add(e Episode, old []float64, version uint64) {
	for t, lp := range old {
		d := math.Abs(lp - e.Sampled[t])
		g.n++
		g.sum += d
		g.max = max(g.max, d)
		if e.Versions[t] == version {
			g.sameN++
			g.sameSum += d
			g.same = max(g.same, d)
		}
	}
}

func (g gapStats) metrics(m map[string]float64) {
	if g.n > 0 {
		m["logprob_gap/mean_abs"] = g.sum / g.n
		m["logprob_gap/max_abs"] = g.max
	}
	if g.sameN > 0 {
		m["logprob_gap/same_version_mean_abs"] = g.sameSum / g.sameN
		m["logprob_gap/same_version_max_abs"] = g.same
	}
}

// metrics of a finished step. Means over tokens are over computed tokens.
func (s *stepRun) metrics() map[string]float64 {
	m := s.stats.Metrics(s.cfg)
	it := float64(max(s.updates, 1))
	m["loss"] = s.loss / it
	if s.l.cfg.EntropyCoef != 0 || s.l.cfg.UseAdaptiveEntropy {
		m["policy_loss"] = s.policy / it
	}
	if s.l.cfg.UseAdaptiveEntropy {
		m["entropy_coef"], m["entropy_coef_applied"] = s.entropy.Coef, s.cfg.EntropyCoef
	}
	// The denominators' rule, and what it gave.
	m["denominator/kept_rule"] = 0
	if s.cfg.Denominator == loss.DenominatorKept {
		m["denominator/kept_rule"] = 1
	}
	m["denominator/tokens"] = s.counted / it
	if s.l.cfg.M2Threshold != nil {
		m["m2po/masked_tokens"] = s.m2out
	}
	if kl, ok := s.rewardKL(); ok {
		m["kl"] = kl
	}
	s.sources(m)
	m["grad_norm"] = s.norm / it
	m["learning_rate"] = s.lr
	s.episodes(m)
	s.gap.metrics(m)
	computed, given := 0, 0
	for _, mb := range s.micros {
		computed, given = computed+mb.tokens, given+mb.given
	}
	if s.critic != nil {
		s.critic.metrics(m)
	}
	m["micro_batches"] = float64(len(s.micros))
	m["computed_tokens"], m["sequence_tokens"] = float64(computed), float64(given)
	for reason, n := range s.b.Excluded {
		m["excluded/"+reason] = float64(n)
	}
	s.time.metrics(m)
	s.help(m)
	return m
}

// help adds what other learners did: a matter of time, not of what is learned.
func (d *dealer) help(m map[string]float64) {
	if len(d.helpers) > 0 {
		m["time/helpers"] = float64(len(d.helpers))
		m["time/helped_micro_batches"] = float64(d.helped.Load())
	}
}

// episodes adds what is known without the trainer.
func (s *stepRun) episodes(m map[string]float64) {
	b := s.b
	m["reward"] = b.RewardMean
	m["reward_std"] = b.RewardStd
	m["frac_reward_zero_std"] = float64(b.Constant) / float64(b.Groups)
	m["groups"] = float64(b.Groups)
	m["rollouts"] = float64(len(b.Episodes))
	longest, shortest, truncated, skipped := 0.0, math.Inf(1), 0.0, 0.0
	var lag, lagMax float64
	for _, e := range b.Episodes {
		n := float64(e.Tokens)
		longest, shortest = max(longest, n), min(shortest, n)
		if e.Truncated {
			truncated++
		}
		if e.Tokens > 0 && !s.l.needed(e) {
			skipped++
		}
		for _, v := range e.Versions {
			d := float64(s.l.version - v)
			lag += d
			lagMax = max(lagMax, d)
		}
	}
	tokens := float64(b.Tokens())
	m["num_tokens"] = tokens
	m["completions/mean_length"] = tokens / float64(len(b.Episodes))
	m["completions/min_length"] = shortest
	m["completions/max_length"] = longest
	m["completions/clipped_ratio"] = truncated / float64(len(b.Episodes))
	m["rollouts_without_gradient"] = skipped
	m["staleness/mean"] = lag / tokens // token-weighted, in policy versions
	m["staleness/max"] = lagMax
}

// metrics adds the split of a step's time; the whole only where it is known.
func (t StepTime) metrics(m map[string]float64) {
	m["time/forward_s"], m["time/reference_s"] = t.Forward.Seconds(), t.Reference.Seconds()
	m["time/backward_s"], m["time/optimizer_s"] = t.Backward.Seconds(), t.Optimizer.Seconds()
	if t.Total > 0 {
		m["time/step_s"] = t.Total.Seconds()
	}
}
