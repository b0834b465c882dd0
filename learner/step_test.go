package learner

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/skein-rl/skein/eventlog"
	"github.com/skein-rl/skein/learner/loss"
)

var ctx = context.Background()

func step(t testing.TB, l *Learner, groups ...Group) StepResult {
	t.Helper()
	res, err := l.Step(ctx, groups)
	require.NoError(t, err)
	return res
}

// noisy is a start that is not the zero adapter.
func noisy(seed uint64) []float32 {
	rng := rand.New(rand.NewPCG(seed, 0))
	p := make([]float32, vocab*vocab)
	for i := range p {
		p[i] = float32(rng.NormFloat64())
	}
	return p
}

func TestStepLearnsTheRewardedToken(t *testing.T) {
	c := small(4)
	l, _ := newLearner(t, c, nil)
	var first, last float64
	for i := range 20 {
		res := step(t, l, sampled(t, l.Params(), l.Version(), uint64(i), "a", "b", "c", "d")...)
		last = res.Metrics["reward"]
		if i == 0 {
			first = last
		}
		require.Equal(t, uint64(i+1), res.Version)
	}
	require.Greater(t, last, first+.3)
}

// The parameter update is that of the documented gradient: one on-policy GRPO
// step with plain SGD-like AdamW moves along sum A·grad logp.
func TestStepGradientIsREINFORCEOnPolicy(t *testing.T) {
	c := small(2)
	c.LossType = "grpo"
	l, b := newLearner(t, c, noisy(1))
	g := group(t, "g", 0, []part{pol(0, 3, 4)}, r(1), r(0))
	res := step(t, l, g)
	require.InDelta(t, 0, res.Metrics["loss"], 1e-12) // advantages cancel at ratio 1
	// rewards 1, 0: advantages ±a on equal tokens cancel in the gradient too
	require.InDelta(t, 0, res.Metrics["grad_norm"], 1e-7)
	g.Logs[1] = entry{group: "g", member: 1, size: 2, parts: []part{pol(1, 5)}, reward: r(0)}.log(t)
	g.Logs[0] = entry{group: "g", member: 0, size: 2, parts: []part{pol(1, 3)}, reward: r(1)}.log(t)
	before := l.Params()
	step(t, l, g)
	a := .5 / (math.Sqrt(.5) + 1e-4)
	lp := logSoftmax(before, vocab, 2, 1)
	for j := range vocab {
		want := 0.0
		for _, x := range []struct {
			tok int
			adv float64
		}{{3, a}, {5, -a}} {
			d := -math.Exp(lp[j])
			if j == x.tok {
				d++
			}
			want -= x.adv * d / 2
		}
		require.InDelta(t, want, b.grad[2*vocab+j], 1e-6, "logit %d", j)
	}
}

// Micro-batching cannot change the result (cases/training.tsv loss-agg).
func TestCaseLossAggMicroBatchingCannotChangeTheStep(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := small(4)
		c.LossType = rapid.SampledFrom(loss.Types()).Draw(rt, "type")
		if c.LossType == "cispo" {
			c.EpsilonHigh = r(1.5) // the cap itself
		}
		c.ImportanceSamplingLevel = rapid.SampledFrom([]string{"token", "sequence"}).Draw(rt, "level")
		c.Beta = rapid.SampledFrom([]float64{0, .05}).Draw(rt, "beta")
		if c.LossType == "rloo" {
			c.ImportanceSamplingLevel, c.Beta = loss.LevelSum, 0
		}
		c.EntropyCoef = rapid.SampledFrom([]float64{0, .01}).Draw(rt, "ent")
		c.TopEntropyQuantile = rapid.SampledFrom([]float64{1, .5}).Draw(rt, "topq")
		c.NumIterations = rapid.IntRange(1, 2).Draw(rt, "iters")
		c.RolloutImportanceSampling = rapid.Bool().Draw(rt, "is")
		c.RolloutISDenominator = rapid.SampledFrom([]string{"fixed", "kept"}).Draw(rt, "den")
		c.LearningRate, c.AdamEpsilon = .01, 1e-3 // so that rounding of a zero gradient is no step
		start := noisy(3)
		behaviour := noisy(4)
		for i := range behaviour {
			behaviour[i] = start[i] + .1*behaviour[i]
		}
		gs := sampled(t, behaviour, 0, 5, "a", "b", "c")
		one := func(budget int) (StepResult, []float32) {
			c.TokenBudget = budget
			l, _ := newLearner(t, c, start)
			return step(t, l, gs...), l.Params()
		}
		whole, wp := one(1 << 20)
		parts, pp := one(rapid.IntRange(1, 15).Draw(rt, "budget"))
		require.Equal(rt, 1.0, whole.Metrics["micro_batches"])
		require.Greater(rt, parts.Metrics["micro_batches"], 1.0)
		for i := range wp {
			require.InDelta(rt, wp[i], pp[i], 2e-5)
		}
		for k, v := range whole.Metrics {
			switch {
			case k == "micro_batches", k == "computed_tokens", strings.HasPrefix(k, "time/"):
			default:
				require.InDelta(rt, v, parts.Metrics[k], 1e-5*(1+math.Abs(v)), k)
			}
		}
	})
}

// cases/training.tsv packing: the first token of each packed segment is
// predicted by its own prompt, and packed equals unpacked.
func TestCasePackingSegmentsDoNotTouch(t *testing.T) {
	p1, p2 := []int32{1, 2}, []int32{4, 5}
	g := Group{ID: "g", Logs: []*eventlog.Log{
		entry{group: "g", member: 0, size: 2, prompt: p1, parts: []part{pol(0, 3)}, reward: r(1)}.log(t),
		entry{group: "g", member: 1, size: 2, prompt: p2, parts: []part{pol(0, 3)}, reward: r(0)}.log(t),
	}}
	grads := map[int][]float32{}
	for _, budget := range []int{1, 100} {
		c := small(2)
		c.TokenBudget = budget
		l, _ := newLearner(t, c, noisy(2))
		step(t, l, g)
		grads[budget] = l.opt.M // the gradient times a constant
	}
	require.Equal(t, grads[1], grads[100])
	for row := range vocab {
		for j := range vocab {
			touched := grads[100][row*vocab+j] != 0
			require.Equal(t, row == 2 || row == 5, touched, "row %d: only the last prompt tokens predict", row)
		}
	}
}

// cases/training.tsv loss-mask: "chunked log-prob path returns a tensor detached
// from the model when no token is trainable": a fully masked member inside an
// accumulation of two leaves the other's gradient alone.
func TestCaseLossMaskFullyMaskedMicroBatch(t *testing.T) {
	c := small(2)
	c.MaskTruncatedCompletions, c.TokenBudget, c.LossType = true, 1, "dapo"
	g := group(t, "g", 0, []part{pol(0, 3, 4)}, r(1), r(0))
	g.Logs[1] = entry{group: "g", member: 1, size: 2, parts: []part{pol(0, 5, 5)}, reward: r(0), status: eventlog.Truncated}.log(t)
	l, b := newLearner(t, c, nil)
	res := step(t, l, g)
	require.Equal(t, 1.0, res.Metrics["micro_batches"])
	require.Equal(t, 2.0, res.Metrics["num_tokens"])
	require.Equal(t, .5, res.Metrics["completions/clipped_ratio"])
	a := .5 / (math.Sqrt(.5) + 1e-4)
	require.InDelta(t, -a/2*(1-1./vocab), b.grad[2*vocab+3], 1e-6)

	g.Logs[0] = entry{group: "g", member: 0, size: 2, parts: []part{pol(1, 5, 5)}, reward: r(1), status: eventlog.Truncated}.log(t)
	g.Logs[1] = entry{group: "g", member: 1, size: 2, parts: []part{pol(1, 5, 5)}, reward: r(0), status: eventlog.Truncated}.log(t)
	before := l.Params()
	_, err := l.Step(ctx, []Group{g})
	var empty *EmptyBatchError
	require.ErrorAs(t, err, &empty) // everything masked: a skipped step, never NaN
	require.Equal(t, before, l.Params())
	require.Equal(t, uint64(1), l.Version())
}

// cases/training.tsv ref-model: "policy starts from a trained adapter, reference
// computed with adapters disabled (base)".
func TestCaseRefModelKLIsZeroAtStepZeroAndTheReferenceStaysFrozen(t *testing.T) {
	c := small(4)
	c.Beta = .1
	start := noisy(1)
	l, b := newLearner(t, c, start)
	res := step(t, l, sampled(t, start, 0, 1, "a", "b", "c", "d")...)
	require.Zero(t, res.Metrics["kl"])
	require.Positive(t, res.Metrics["grad_norm"])
	require.Zero(t, b.scored)
	res = step(t, l, sampled(t, l.Params(), 1, 2, "a", "b")...)
	require.Positive(t, res.Metrics["kl"])
	require.Equal(t, 1, b.scored)
	require.Equal(t, start, l.start)
	// the reference survives a checkpoint
	data, err := l.Checkpoint().Encode()
	require.NoError(t, err)
	ck, err := DecodeCheckpoint(data)
	require.NoError(t, err)
	require.Equal(t, start, ck.Start)
}

// cases/training.tsv zero-advantage: both values of the flag, KL and
// denominator.
func TestCaseZeroAdvantageGroupInKLAndDenominator(t *testing.T) {
	p := []part{pol(1, 3)}
	gs := []Group{group(t, "c", 0, p, r(1), r(1)), {ID: "i", Index: 1, Logs: []*eventlog.Log{
		entry{group: "i", member: 0, size: 2, parts: []part{pol(1, 4)}, reward: r(1)}.log(t),
		entry{group: "i", member: 1, size: 2, parts: []part{pol(1, 5)}, reward: r(0)}.log(t)}}}
	run := func(policy string) (StepResult, []float32) {
		c := small(2)
		c.Beta, c.ConstantGroups, c.MaxStaleness = .5, policy, 1
		l, b := newLearner(t, c, nil)
		l.params, l.version = noisy(5), 1 // away from the start, so that KL > 0
		return step(t, l, gs...), clonef(b.grad)
	}
	keep, gKeep := run(KeepConstant)
	drop, gDrop := run(DropConstant)
	require.Equal(t, 4.0, keep.Metrics["num_tokens"])
	require.Equal(t, 2.0, drop.Metrics["num_tokens"])
	require.Equal(t, .5, keep.Metrics["frac_reward_zero_std"])
	require.Equal(t, 1.0, drop.Metrics["excluded/group_constant"])
	// halved by the denominator, and beside that moved by the constant group's KL
	moved := 0.
	for i := range gKeep {
		moved = max(moved, math.Abs(float64(gKeep[i]-gDrop[i]/2)))
	}
	require.Greater(t, moved, 1e-3)

	// without beta the constant group only widens the denominator
	for policy, half := range map[string]float32{KeepConstant: .5, DropConstant: 1} {
		c := small(2)
		c.ConstantGroups = policy
		c.MaxStaleness = 1
		l, b := newLearner(t, c, nil)
		l.version = 1
		res := step(t, l, gs...)
		a := .5 / (math.Sqrt(.5) + 1e-4)
		require.InDelta(t, -float64(half)*a/2*(1), b.grad[2*vocab+4], 1e-6, policy) // ±(1-p) and ∓p of two tokens
		if policy == KeepConstant {
			require.Equal(t, 2.0, res.Metrics["rollouts_without_gradient"])
		}
	}
}

// Skipping rows without gradient must not change the step.
func TestRowsWithoutGradientAreNotComputed(t *testing.T) {
	c := small(2)
	p := []part{pol(0, 3, 3, 3)}
	l, b := newLearner(t, c, nil)
	step(t, l, group(t, "c", 0, p, r(1), r(1)), group(t, "i", 1, p, r(1), r(0)))
	require.Equal(t, 2+3, b.tokens) // of equal members once
	require.Equal(t, 1, b.forward)
	// all constant: nothing to compute, parameters stay, the version moves on
	l, b = newLearner(t, c, nil)
	before := l.Params()
	res := step(t, l, group(t, "c", 0, p, r(1), r(1)))
	require.Zero(t, b.forward)
	require.Equal(t, before, l.Params())
	require.Equal(t, uint64(1), res.Version)
}

// cases/training.tsv logprobs: temperature divides logits before the softmax,
// here as in the engine.
func TestCaseLogprobsTemperatureOnBothSides(t *testing.T) {
	start := make([]float32, vocab*vocab)
	start[2*vocab] = 2
	for j := 2; j < vocab; j++ {
		start[2*vocab+j] = -1e4 // logits [2, 0] over tokens 0 and 1
	}
	g := Group{ID: "g"}
	for m, rw := range []float64{1, 0} {
		g.Logs = append(g.Logs, entry{group: "g", member: uint32(m), size: 2, parts: []part{{eventlog.Policy, []int32{0}, []float32{-0.0181499}, 0}}, reward: r(rw)}.log(t))
	}
	for temp, gap := range map[float64]float64{.5: 0, 1: .12693 - .01815} {
		c := small(2)
		c.Temperature = temp
		l, _ := newLearner(t, c, start)
		res := step(t, l, g)
		require.InDelta(t, gap, res.Metrics["logprob_gap/mean_abs"], 2e-5)
		require.InDelta(t, gap, res.Metrics["logprob_gap/same_version_max_abs"], 2e-5)
	}
}

func TestMultipleIterationsUseTheFirstPassAsOld(t *testing.T) {
	c := small(4)
	c.NumIterations, c.LearningRate, c.Epsilon = 4, .5, .1
	l, b := newLearner(t, c, nil)
	res := step(t, l, sampled(t, l.Params(), 0, 3, "a", "b")...)
	require.Equal(t, 4, b.forward)
	require.Equal(t, uint64(4), l.opt.T)
	require.Equal(t, uint64(1), res.Step)
	require.Positive(t, res.Metrics["clip_ratio/region_mean"]) // ratios left the trust region
	// with the engine's as old, a stale batch is clipped in the first pass
	c.NumIterations, c.OldLogprobs = 1, OldEngine
	l, _ = newLearner(t, c, noisy(1))
	res = step(t, l, sampled(t, noisy(2), 0, 3, "a", "b")...)
	require.Positive(t, res.Metrics["clip_ratio/region_mean"])
	c.OldLogprobs = OldLearner
	l, _ = newLearner(t, c, noisy(1))
	res = step(t, l, sampled(t, noisy(2), 0, 3, "a", "b")...)
	require.Zero(t, res.Metrics["clip_ratio/region_mean"])
}

func TestRolloutImportanceSamplingIsMeasuredAndApplied(t *testing.T) {
	c := small(4)
	c.RolloutImportanceSampling, c.RolloutImportanceSamplingMode = true, loss.TokenTruncate
	l, _ := newLearner(t, c, noisy(1))
	res := step(t, l, sampled(t, noisy(2), 0, 3, "a", "b")...)
	require.Equal(t, 3.0, res.Metrics["rollout_is/max"])
	require.Positive(t, res.Metrics["logprob_gap/max_abs"])
	c.RolloutImportanceSamplingMode, c.RolloutISDenominator = loss.TokenMask, loss.DenominatorKept
	l, b := newLearner(t, c, noisy(1))
	res = step(t, l, sampled(t, noisy(2), 0, 3, "a", "b")...)
	require.Positive(t, res.Metrics["rollout_is/rejected_tokens"])
	require.Equal(t, 1, b.scored)
}

func TestStalenessAndCountsAreMetrics(t *testing.T) {
	c := small(2)
	l, _ := newLearner(t, c, nil)
	l.version = 4
	res := step(t, l, group(t, "g", 0, []part{pol(2, 3), pol(4, 3, 3, 3)}, r(1), r(0)))
	require.Equal(t, .5, res.Metrics["staleness/mean"])
	require.Equal(t, 2.0, res.Metrics["staleness/max"])
	require.Equal(t, 8.0, res.Metrics["num_tokens"])
	for _, k := range []string{"loss", "reward", "reward_std", "entropy", "grad_norm", "learning_rate", "clip_ratio/low_mean", "time/forward_s", "completions/mean_length"} {
		require.Contains(t, res.Metrics, k)
	}
}

func TestFailedStepChangesNothing(t *testing.T) {
	c := small(4)
	l, b := newLearner(t, c, noisy(1))
	step(t, l, sampled(t, l.Params(), 0, 1, "a", "b")...)
	before, err := l.Checkpoint().Digest()
	require.NoError(t, err)
	b.onForward = func() error { return errInjected }
	_, err = l.Step(ctx, sampled(t, l.Params(), 1, 2, "a", "b"))
	require.ErrorIs(t, err, errInjected)
	b.onForward = nil
	cctx, cancel := context.WithCancel(ctx)
	cancel()
	_, err = l.Step(cctx, sampled(t, l.Params(), 1, 2, "a", "b"))
	require.ErrorIs(t, err, context.Canceled)
	after, err := l.Checkpoint().Digest()
	require.NoError(t, err)
	require.Equal(t, before, after)
}

func TestDivergenceIsAnErrorNotNaN(t *testing.T) {
	l, b := newLearner(t, small(2), nil)
	b.onForward = func() error { b.params[2*vocab] = float32(math.NaN()); return nil }
	_, err := l.Step(ctx, []Group{group(t, "g", 0, []part{pol(0, 3)}, r(1), r(0))})
	require.ErrorIs(t, err, ErrDiverged)
	require.ErrorContains(t, err, "step 1")
	require.Equal(t, uint64(0), l.StepNumber())
	for _, x := range l.Params() {
		require.False(t, x != x)
	}
}

func TestNewRefusesWrongStart(t *testing.T) {
	_, err := New(small(2), identity(), newBandit(2), make([]float32, 3))
	require.ErrorContains(t, err, "3 start parameters for a trainer of 4")
	_, err = New(small(2), identity(), newBandit(1), []float32{float32(math.Inf(1))})
	require.ErrorContains(t, err, "start parameter 0 is +Inf")
	l, _ := newLearner(t, small(2), nil)
	l.cfg.Algorithm = SFT
	_, err = l.Step(ctx, nil)
	require.ErrorContains(t, err, "algorithm")
	require.False(t, errors.Is(err, ErrDiverged))
}
