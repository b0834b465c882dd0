package learner

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/skein-rl/skein/eventlog"
	"github.com/skein-rl/skein/learner/loss"
	"github.com/skein-rl/skein/learner/preference"
	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/replay"
)

// options are configurations with one option each.
func options() map[string]func(*Config) {
	algorithm := func(name string, more func(*Config)) func(*Config) {
		return func(c *Config) {
			d := DefaultConfigOf(name)
			c.Algorithm, c.LossType, c.ImportanceSamplingLevel, c.ScaleRewards = d.Algorithm, d.LossType, d.ImportanceSamplingLevel, d.ScaleRewards
			c.Beta, c.KLEstimator = d.Beta, d.KLEstimator
			more(c)
		}
	}
	is := func(mode string, lo, hi float64) func(*Config) {
		return func(c *Config) {
			c.RolloutImportanceSampling, c.RolloutImportanceSamplingMode = true, mode
			c.RolloutImportanceSamplingClipMin, c.RolloutImportanceSamplingClipMax = &lo, &hi
		}
	}
	out := map[string]func(*Config){
		"grpo": func(*Config) {},
		"rloo": algorithm(RLOO, func(*Config) {}),
		"rloo without kl, normalised, clipped": algorithm(RLOO, func(c *Config) {
			c.Beta, c.NormalizeAdvantages, c.RewardClipRange = 0, true, []float64{0, .5}
		}),
		"reinforce++":                      algorithm(Reinforce, func(*Config) {}),
		"reinforce++ with baseline, no kl": algorithm(Reinforce, func(c *Config) { c.Beta, c.GroupBaseline = 0, true }),
		"reference base":                   func(c *Config) { c.Beta, c.Reference = .1, ReferenceBase },
		"reference moving":                 func(c *Config) { c.Beta, c.Reference, c.RefModelSyncSteps = .1, ReferenceMoving, 2 },
		"k1":                               func(c *Config) { c.Beta, c.KLEstimator = .1, loss.KLK1 },
		"k2":                               func(c *Config) { c.Beta, c.KLEstimator, c.UseBiasCorrectionKL = .1, loss.KLK2, false },
		"adaptive entropy":                 func(c *Config) { c.UseAdaptiveEntropy, c.EntropyTarget, c.EntropyCoefDelta = true, 1.7, .01 },
		"m2po":                             func(c *Config) { c.M2Threshold = r(.01) },
		"staleness inverse":                func(c *Config) { c.StalenessWeighting = loss.StalenessInverse },
		"staleness exponential":            func(c *Config) { c.StalenessWeighting = loss.StalenessExponential },
		"interpolated":                     func(c *Config) { c.OldLogprobs = OldInterpolated; is(loss.TokenTruncate, 0, 3)(c) },
		"icepop":                           is(loss.TokenMask, .5, 5),
		"geometric mask, kept":             func(c *Config) { is(loss.GeometricMask, .9, 1.1)(c); c.RolloutISDenominator = loss.DenominatorKept },
		"sequence truncate":                is(loss.SequenceTruncate, 0, 2),
		"engine, rejecting":                func(c *Config) { c.OldLogprobs = OldEngine; is(loss.TokenReject, .8, 1.25)(c) },
		"constant groups dropped":          func(c *Config) { c.ConstantGroups = DropConstant },
		"lora dropout":                     func(c *Config) { c.LoRADropout, c.Beta = .2, .1 },
		"source weights":                   func(c *Config) { c.SourceWeights = map[string]float64{"toy": .5} },
		"ppo": func(c *Config) {
			d := DefaultPPOConfig()
			c.Algorithm, c.Beta, c.Reference, c.NumMiniBatches = PPO, d.Beta, ReferenceBase, 2
			c.M2Threshold, c.StalenessWeighting, c.SourceWeights = r(.05), loss.StalenessInverse, map[string]float64{"toy": 2}
		},
		"top entropy": func(c *Config) { c.TopEntropyQuantile = .5 },
		"online dpo":  algorithm(OnlineDPO, func(c *Config) { c.RolloutImportanceSampling = true }),
		"online dpo, all pairs, moving": algorithm(OnlineDPO, func(c *Config) {
			c.RolloutImportanceSampling, c.LossType, c.Weighting, c.PairMargin = true, "sigmoid+sft", preference.WeightingWPO, .1
			c.Reference, c.RefModelSyncSteps, c.SourceWeights, c.MaxPairs = ReferenceMoving, 2, map[string]float64{"toy": 2}, new(int)
		}),
		"online bco": algorithm(OnlineBCO, func(c *Config) { c.RolloutImportanceSampling, c.ScoreThreshold = true, r(.1) }),
		"mini-batches, m2po, moving, stale": func(c *Config) {
			c.NumMiniBatches, c.M2Threshold, c.StalenessWeighting = 2, r(.05), loss.StalenessInverse
			c.Beta, c.Reference, c.RefModelSyncSteps, c.NumIterations = .1, ReferenceMoving, 1, 2
		},
	}
	return out
}

// stale is a batch of which half the groups were sampled a version or two ago,
// from slightly other policies.
func stale(t testing.TB, start []float32, seed uint64, version uint64) []Group {
	other := noisy(seed + 100)
	for i := range other {
		other[i] = start[i] + .1*other[i]
	}
	gs := sampled(t, other, version-2, seed, "a", "b")
	for i, g := range sampled(t, start, version, seed+1, "c", "d") {
		g.Index = uint64(i + 2)
		gs = append(gs, g)
	}
	return gs
}

// Every option with every other budget: micro-batches cannot change the step.
func TestPropertyMicroBatchingWithEveryOption(t *testing.T) {
	all := options()
	var names []string
	for name := range all {
		names = append(names, name)
	}
	rapid.Check(t, func(rt *rapid.T) {
		c := small(4)
		all[rapid.SampledFrom(names).Draw(rt, "first")](&c)
		if also := c; rapid.Bool().Draw(rt, "two") {
			all[rapid.SampledFrom(names).Draw(rt, "second")](&also)
			if also.Validate() == nil { // many do not go together
				c = also
			}
		}
		if !c.online() {
			c.NumIterations = max(c.NumIterations, rapid.IntRange(1, 2).Draw(rt, "iters"))
		}
		c.LearningRate, c.AdamEpsilon = .01, 1e-3
		require.NoError(rt, c.Validate())
		start := noisy(3)
		gs := stale(t, start, rapid.Uint64Range(1, 5).Draw(rt, "seed"), 2)
		one := func(budget int) (StepResult, []float32) {
			c.TokenBudget = budget
			l, _ := newLearner(t, c, noisy(5))
			l.params, l.version = clonef(start), 2
			return step(t, l, gs...), l.Params()
		}
		whole, wp := one(1 << 20)
		parts, pp := one(rapid.IntRange(1, 15).Draw(rt, "budget"))
		if !c.online() { // which may have one pair
			require.Greater(rt, parts.Metrics["micro_batches"], 1.0)
		}
		for i := range wp {
			require.InDelta(rt, wp[i], pp[i], 2e-5)
		}
		for k, v := range whole.Metrics {
			if k != "micro_batches" && k != "computed_tokens" && !strings.HasPrefix(k, "time/") {
				require.InDelta(rt, v, parts.Metrics[k], 1e-4*(1+math.Abs(v)), k)
			}
		}
	})
}

// Stopped in the middle and resumed, every option ends at the same bits, and
// every step of it verifies.
func TestEveryOptionResumesAndVerifies(t *testing.T) {
	for name, set := range options() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := small(4)
				set(&c)
				c.MaxSteps, c.MaxStaleness = 5, 1
				require.NoError(t, c.Validate())
				a := newFoldStore(t, c)
				a.work(4) // beyond one step: the later ones are stale when trained
				straight := runTo(t, c, a, 5)
				b := newFoldStore(t, c)
				b.work(4)
				runTo(t, c, b, 3)
				second := runTo(t, c, b, 5)
				require.Equal(t, straight.l.Params(), second.l.Params())
				require.Equal(t, straight.steps[4].Checkpoint, second.steps[1].Checkpoint)
				for n := uint64(1); n <= 5; n++ {
					rep, err := VerifyStep(t.Context(), b, run, n, func(tc model.TrainerConfig) (model.Trainer, error) {
						if tc.Value {
							return newTable(vocab), nil
						}
						return newBandit(vocab), nil
					})
					require.NoError(t, err)
					require.True(t, rep.OK, "step %d: %+v", n, rep)
					require.Equal(t, rep.CheckpointRecorded, rep.CheckpointRecomputed)
					require.Empty(t, rep.Metrics)
				}
			})
		})
	}
}

// gradient compares the bandit's gradient with the sum of weight·(onehot - p)
// over tokens: weight is dLoss/dLogP.
type term struct {
	prev, tok int
	weight    float64
}

func gradient(t *testing.T, b *bandit, before []float32, terms ...term) {
	t.Helper()
	want := make([]float64, vocab*vocab)
	for _, x := range terms {
		for j, lp := range logSoftmax(before, vocab, x.prev, 1) {
			want[x.prev*vocab+j] -= x.weight * math.Exp(lp)
		}
		want[x.prev*vocab+x.tok] += x.weight
	}
	for i, w := range want {
		require.InDelta(t, w, b.grad[i], 1e-6, "row %d logit %d", i/vocab, i%vocab)
	}
}

// pair is a group of two: tokens 3 4 with one reward, 5 with another; the prompt
// ends in 2.
func pair(t *testing.T, version uint64, lps []float32, rewards ...float64) Group {
	a := part{writer: eventlog.Policy, ids: []int32{3, 4}, version: version}
	b := part{writer: eventlog.Policy, ids: []int32{5}, version: version}
	if lps != nil {
		a.lps, b.lps = lps[:2], lps[2:]
	}
	return Group{ID: "g", Logs: []*eventlog.Log{
		entry{group: "g", member: 0, size: 2, parts: []part{a}, reward: r(rewards[0])}.log(t),
		entry{group: "g", member: 1, size: 2, parts: []part{b}, reward: r(rewards[1])}.log(t)}}
}

func logprobsOf(params []float32) []float32 {
	return []float32{float32(logSoftmax(params, vocab, 2, 1)[3]), float32(logSoftmax(params, vocab, 3, 1)[4]), float32(logSoftmax(params, vocab, 2, 1)[5])}
}

// RLOO (arXiv:2402.14740, eq. 7): the mean over completions of A·∇ Σ log π, A
// the reward less its KL, less the other's.
func TestStepRLOO(t *testing.T) {
	for _, beta := range []float64{0, .2} {
		c := DefaultRLOOConfig()
		c.Beta, c.RolloutImportanceSampling, c.LearningRate = beta, false, .1
		start, now := noisy(1), noisy(2)
		l, b := newLearner(t, c, start)
		l.params = clonef(now)
		res := step(t, l, pair(t, 0, nil, 1, .25))
		kl := func(k ...int) (sum float64) {
			for _, i := range k {
				sum += float64(logprobsOf(now)[i]) - float64(logprobsOf(start)[i])
			}
			return sum
		}
		a := 1 - beta*kl(0, 1) - (.25 - beta*kl(2))
		gradient(t, b, now, term{2, 3, -a / 2}, term{3, 4, -a / 2}, term{2, 5, a / 2})
		require.InDelta(t, math.Abs(a), res.Metrics["advantage/max"], 1e-6)
		if beta > 0 {
			require.InDelta(t, kl(0, 1, 2)/3, res.Metrics["kl"], 1e-6)
		} else {
			require.NotContains(t, res.Metrics, "kl")
		}
	}
}

// REINFORCE++ (arXiv:2501.03262): rewards of the whole batch, normalised over
// tokens, without groups.
func TestStepReinforce(t *testing.T) {
	for _, beta := range []float64{0, .2} {
		c := DefaultReinforceConfig()
		c.Beta, c.RolloutImportanceSampling, c.NumGenerations = beta, false, 2
		start, now := noisy(1), noisy(2)
		l, b := newLearner(t, c, start)
		l.params = clonef(now)
		step(t, l, pair(t, 0, nil, 1, 0))
		k := make([]float64, 3)
		for i := range k {
			k[i] = beta * (float64(logprobsOf(now)[i]) - float64(logprobsOf(start)[i]))
		}
		a := []float64{1 - k[0] - k[1], 1 - k[1], -k[2]}
		mu := (a[0] + a[1] + a[2]) / 3
		sd := math.Sqrt(((a[0]-mu)*(a[0]-mu) + (a[1]-mu)*(a[1]-mu) + (a[2]-mu)*(a[2]-mu)) / 3)
		w := func(i int) float64 { return -(a[i] - mu) / sd / 3 } // mean over tokens
		gradient(t, b, now, term{2, 3, w(0)}, term{3, 4, w(1)}, term{2, 5, w(2)})
	}
	// one rollout a prompt is enough
	c := DefaultReinforceConfig()
	c.NumGenerations = 1
	require.NoError(t, c.Validate())
	c.GroupBaseline = true
	require.ErrorContains(t, c.Validate(), "num_generations: 1 is below 2")
}

func TestReferences(t *testing.T) {
	kl := func(from, to []float32) (sum float64) { // k3 over the pair's tokens
		for i, x := range logprobsOf(from) {
			d := float64(logprobsOf(to)[i]) - float64(x)
			sum += math.Exp(d) - d - 1
		}
		return sum / 3
	}
	c := small(2)
	c.Beta = .1
	l, b := newLearner(t, c, noisy(1))
	require.Zero(t, step(t, l, pair(t, 0, nil, 1, 0)).Metrics["kl"])

	c.Reference = ReferenceBase
	l, b = newLearner(t, c, noisy(1))
	require.InDelta(t, kl(noisy(1), make([]float32, vocab*vocab)), step(t, l, pair(t, 0, nil, 1, 0)).Metrics["kl"], 1e-6)
	l, b = newLearner(t, c, nil) // an adapter that adds nothing is the base
	require.Zero(t, step(t, l, pair(t, 0, nil, 1, 0)).Metrics["kl"])
	require.Zero(t, b.scored)

	c.Reference, c.RefModelSyncSteps, c.RefModelMixupAlpha = ReferenceMoving, 2, .25
	l, _ = newLearner(t, c, noisy(1))
	want := noisy(1)
	for n := range 5 {
		before := l.Params()
		m := step(t, l, pair(t, l.version, nil, 1, 0)).Metrics
		require.InDelta(t, kl(before, want), m["kl"], 1e-6, "step %d", n+1)
		if n%2 == 1 {
			for i, x := range l.Params() {
				want[i] = float32(.25*float64(x) + .75*float64(want[i]))
			}
		}
		require.Equal(t, want, l.moving)
	}
	data, err := l.Checkpoint().Encode()
	require.NoError(t, err)
	ck, err := DecodeCheckpoint(data)
	require.NoError(t, err)
	require.Equal(t, want, ck.Moving)
	require.Equal(t, noisy(1), ck.Start)

	c.RefModelSyncSteps, c.RefModelMixupAlpha = 1, 1 // on the heels of the policy
	l, _ = newLearner(t, c, noisy(1))
	for range 3 {
		require.Zero(t, step(t, l, pair(t, l.version, nil, 1, 0)).Metrics["kl"])
	}
}

// The controller of TRL, by hand: rises at or below the target, falls above,
// and the bonus waits for a measurement.
func TestAdaptiveEntropy(t *testing.T) {
	c := small(2)
	c.UseAdaptiveEntropy, c.EntropyCoef, c.EntropyCoefMax, c.EntropyCoefDelta, c.EntropyTarget = true, .01, .025, .01, 1
	require.NoError(t, c.Validate())
	s := EntropyState{Coef: c.EntropyCoef}
	for _, x := range []struct{ entropy, applied, coef float64 }{{.5, 0, .02}, {1, .02, .025}, {1.5, .025, .015}, {2, 0, .005}, {2, 0, 0}, {.5, 0, .01}} {
		require.InDelta(t, x.applied, s.applied(c), 1e-12)
		s = s.after(c, x.entropy)
		require.InDelta(t, x.coef, s.Coef, 1e-12)
	}
	// in the step: two iterations, the second with the bonus
	c.NumIterations, c.EntropyTarget = 2, 5
	l, _ := newLearner(t, c, noisy(1))
	m := step(t, l, pair(t, 0, nil, 1, 0)).Metrics
	require.InDelta(t, .025, m["entropy_coef"], 1e-12)
	require.InDelta(t, .02, m["entropy_coef_applied"], 1e-12)
	require.Less(t, m["loss"], m["policy_loss"])
	require.NotNil(t, l.Checkpoint().Entropy.Last)
	c.UseAdaptiveEntropy = false
	l, _ = newLearner(t, c, noisy(1))
	require.Nil(t, l.Checkpoint().Entropy)
}

// Staleness weights multiply a token's policy term and nothing else.
func TestStalenessWeights(t *testing.T) {
	a := .5 / (math.Sqrt(.5) + 1e-4)
	for rule, w := range map[string]float64{loss.StalenessNone: 1, loss.StalenessInverse: .5, loss.StalenessExponential: .81} {
		c := small(2)
		c.StalenessWeighting = rule
		l, b := newLearner(t, c, noisy(1))
		l.version = 2
		m := step(t, l, pair(t, 0, nil, 1, 0)).Metrics
		gradient(t, b, noisy(1), term{2, 3, -a * w / 3}, term{3, 4, -a * w / 3}, term{2, 5, a * w / 3})
		require.Equal(t, 3.0, m["denominator/tokens"])
	}
}

// M2PO (arXiv:2510.01161): the tokens of largest squared log-ratio go until the
// mean square is within the threshold.
func TestM2PO(t *testing.T) {
	a := .5 / (math.Sqrt(.5) + 1e-4)
	now := noisy(1)
	lps := logprobsOf(now)
	lps[0] -= .1 // squares .01, .36, .0025
	lps[1] += .6
	lps[2] -= .05
	for rule, n := range map[string]float64{loss.DenominatorFixed: 3, loss.DenominatorKept: 2} {
		c := small(2)
		c.M2Threshold, c.RolloutISDenominator = r(.04), rule
		l, b := newLearner(t, c, now)
		m := step(t, l, pair(t, 0, lps, 1, 0)).Metrics
		gradient(t, b, now, term{2, 3, -a / n}, term{2, 5, a / n})
		require.Equal(t, 1.0, m["m2po/masked_tokens"])
		require.Equal(t, n, m["denominator/tokens"])
	}
}

// Decoupled PPO: with tokens one version old the interpolated proximal policy is
// the one that sampled, with two it is half way, with none the learner.
func TestInterpolatedProximalPolicy(t *testing.T) {
	now := noisy(1)
	lps := logprobsOf(now)
	for i := range lps {
		lps[i] += []float32{-.15, .1, -.3}[i]
	}
	a := .5 / (math.Sqrt(.5) + 1e-4)
	for lag := range uint64(3) {
		c := small(2)
		c.OldLogprobs, c.RolloutImportanceSampling, c.RolloutImportanceSamplingMode = OldInterpolated, true, loss.TokenTruncate
		c.EpsilonHigh = r(.25)
		l, b := newLearner(t, c, now)
		l.version = 2
		step(t, l, pair(t, 2-lag, lps, 1, 0))
		w := func(i int, adv float64) float64 {
			share := 0.0 // of π/π_prox in log π/π_engine
			if lag > 0 {
				share = 1 / float64(lag)
			}
			d := float64(logprobsOf(now)[i] - lps[i])
			u := math.Exp(share * d)
			is := math.Exp((1 - share) * d)
			if adv > 0 && u > 1.25 || adv < 0 && u < .8 {
				u = 0 // clipped
			}
			return -adv * u * is / 3
		}
		gradient(t, b, now, term{2, 3, w(0, a)}, term{3, 4, w(1, a)}, term{2, 5, w(2, -a)})
	}
}

// IcePop and rejection: what leaves the bounds has weight 0; the denominator's
// rule is in the record (cases/training.tsv off-policy).
func TestCaseOffPolicyMasksAndDenominatorsInTheStep(t *testing.T) {
	now := noisy(1)
	lps := logprobsOf(now)
	lps[0] -= float32(math.Log(1.5)) // ratio 1.5
	lps[1] -= float32(math.Log(6))   // 6, out of [.5, 5]
	lps[2] -= float32(math.Log(.8))
	a := .5 / (math.Sqrt(.5) + 1e-4)
	lo, hi := .5, 5.0
	for rule, n := range map[string]float64{loss.DenominatorFixed: 3, loss.DenominatorKept: 2} {
		c := small(2)
		c.RolloutImportanceSampling, c.RolloutImportanceSamplingMode, c.RolloutISDenominator = true, loss.TokenMask, rule
		c.RolloutImportanceSamplingClipMin, c.RolloutImportanceSamplingClipMax = &lo, &hi
		l, b := newLearner(t, c, now)
		m := step(t, l, pair(t, 0, lps, 1, 0)).Metrics
		gradient(t, b, now, term{2, 3, -a * 1.5 / n}, term{2, 5, a * .8 / n})
		require.Equal(t, n, m["denominator/tokens"])
		require.Equal(t, float64(map[string]int{loss.DenominatorKept: 1}[rule]), m["denominator/kept_rule"])
		require.Equal(t, 1.0, m["rollout_is/rejected_tokens"])

		// the engine's as old, rejecting the same token: the ratio alone corrects
		c.OldLogprobs, c.RolloutImportanceSamplingMode, c.EpsilonHigh, c.Epsilon = OldEngine, loss.TokenReject, r(9), .9
		l, b = newLearner(t, c, now)
		step(t, l, pair(t, 0, lps, 1, 0))
		gradient(t, b, now, term{2, 3, -a * 1.5 / n}, term{2, 5, a * .8 / n})
	}
}

func TestSourceWeights(t *testing.T) {
	a := .5 / (math.Sqrt(.5) + 1e-4)
	for w, set := range map[float64]map[string]float64{1: {"other": 0}, 2: {"toy": 2}, 0: {"toy": 0}} {
		for _, algorithm := range []string{GRPO, Reinforce} {
			c := small(2)
			scale := a
			if algorithm == Reinforce {
				c = DefaultReinforceConfig()
				c.NumGenerations, c.Beta, c.RolloutImportanceSampling = 2, 0, false
				scale = math.Sqrt(.5)
			}
			c.SourceWeights = set
			l, b := newLearner(t, c, noisy(1))
			m := step(t, l, pair(t, 0, nil, 1, 0)).Metrics
			other := -scale
			if algorithm == Reinforce {
				other = -math.Sqrt2
			}
			gradient(t, b, noisy(1), term{2, 3, -w * scale / 3}, term{3, 4, -w * scale / 3}, term{2, 5, -w * other / 3})
			require.InDelta(t, .5, m["reward"], 1e-12)
		}
	}
}

func TestOptionsThatDoNotGoTogether(t *testing.T) {
	for want, set := range map[string]func(*Config){
		"reference: \"moving\", but beta is 0":            func(c *Config) { c.Reference = ReferenceMoving },
		"reference: unknown \"old\"":                      func(c *Config) { c.Reference = "old" },
		"ref_model_sync_steps: 0":                         func(c *Config) { c.RefModelSyncSteps = 0 },
		"ref_model_mixup_alpha: 0":                        func(c *Config) { c.RefModelMixupAlpha = 0 },
		"entropy_coef: 2 is outside":                      func(c *Config) { c.UseAdaptiveEntropy, c.EntropyCoef = true, 2 },
		"entropy_coef_delta: 0":                           func(c *Config) { c.UseAdaptiveEntropy, c.EntropyCoefDelta = true, 0 },
		"entropy_target: NaN":                             func(c *Config) { c.UseAdaptiveEntropy, c.EntropyTarget = true, math.NaN() },
		"m2_threshold: 0":                                 func(c *Config) { c.M2Threshold = r(0) },
		"staleness_weighting: unknown \"x\"":              func(c *Config) { c.StalenessWeighting = "x" },
		"staleness_decay: 1":                              func(c *Config) { c.StalenessWeighting, c.StalenessDecay = loss.StalenessExponential, 1 },
		"staleness_weighting: \"inverse\", but max_stale": func(c *Config) { c.StalenessWeighting, c.MaxStaleness = loss.StalenessInverse, 0 },
		"old_logprobs: \"interpolated\" needs":            func(c *Config) { c.OldLogprobs = OldInterpolated },
		"old_logprobs: \"engine\" already": func(c *Config) {
			c.OldLogprobs, c.RolloutImportanceSampling = OldEngine, true
		},
		"source_weights.a: -1":            func(c *Config) { c.SourceWeights = map[string]float64{"a": -1} },
		"constant_groups: \"resample\"":   func(c *Config) { c.ConstantGroups, c.MaxStaleness = ResampleConstant, 0 },
		"max_resample: 0":                 func(c *Config) { c.MaxResample = 0 },
		"normalize_advantages, reward_cl": func(c *Config) { c.NormalizeAdvantages = true },
		"scale_rewards, multi_objective": func(c *Config) {
			*c = DefaultRLOOConfig()
			c.ScaleRewards = "group"
		},
		"loss_type: \"dapo\", but rloo's": func(c *Config) {
			*c = DefaultRLOOConfig()
			c.LossType = "dapo"
		},
		"importance_sampling_level: \"token\"": func(c *Config) {
			*c = DefaultRLOOConfig()
			c.ImportanceSamplingLevel = "token"
		},
		"reward_clip_range: [1]": func(c *Config) {
			*c = DefaultReinforceConfig()
			c.RewardClipRange = []float64{1}
		},
		"constant_groups: \"drop\", but reinforce++": func(c *Config) {
			*c = DefaultReinforceConfig()
			c.ConstantGroups = DropConstant
		},
		"reference: \"moving\" is for training on rollouts": func(c *Config) {
			*c = DefaultConfigOf(DPO)
			c.Reference = ReferenceMoving
		},
	} {
		c := small(4)
		set(&c)
		require.ErrorContains(t, c.Validate(), want)
	}
	for _, name := range Algorithms() {
		require.NoError(t, DefaultConfigOf(name).Validate(), name)
	}
}

// Dynamic sampling: groups that teach nothing are replaced, in the order of the
// stream, until the step is full or the bound is reached.
func TestConstantGroupsAreResampled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := small(4)
		c.ConstantGroups, c.MaxStaleness, c.MaxSteps, c.MaxResample = ResampleConstant, 3, 2, 3
		s := newFoldStore(t, c)
		makeGroups := func(pattern string) { // c: constant, v: varied
			for i, tk := range s.tickets(len(pattern)) {
				var logs []*eventlog.Log
				for m := range tk.GroupSize {
					rw := float64(m % 2)
					if pattern[i] == 'c' {
						rw = 1
					}
					logs = append(logs, entry{group: tk.Group, member: m, size: tk.GroupSize, parts: []part{pol(tk.Version, 3, int32(m))}, reward: r(rw)}.log(t))
				}
				s.append(logs...)
			}
		}
		makeGroups("cvccvcc") // the first step takes five, the second six and is not full
		g := newRig(t, c, loopConfig(), s)
		g.lp.hooks.OnStep = func(rec replay.StepRecord, _ StepResult, _ *Checkpoint) {
			g.steps = append(g.steps, rec)
			makeGroups("cccv")
		}
		_, err := g.lp.Run(t.Context())
		require.NoError(t, err)
		first, second := g.steps[0], g.steps[1]
		require.Len(t, first.Groups, 5)
		require.Len(t, first.LogIDs, 8)
		require.Equal(t, 3.0, first.Metrics["excluded/group_constant"])
		require.Equal(t, 2.0, first.Metrics["groups"])
		require.Len(t, second.Groups, 6, "3 x groups_per_step")
		require.Equal(t, 1.0, second.Metrics["groups"])
		require.Equal(t, 5.0, second.Metrics["excluded/group_constant"])
		for n := uint64(1); n <= 2; n++ {
			rep, err := VerifyStep(t.Context(), s, run, n, func(model.TrainerConfig) (model.Trainer, error) { return newBandit(vocab), nil })
			require.NoError(t, err)
			require.True(t, rep.OK, fmt.Sprint(rep.Metrics))
		}
	})
}
