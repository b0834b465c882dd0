package learner

import (
	"errors"
	"math"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/skein-rl/skein/eventlog"
	"github.com/skein-rl/skein/model"
)

// ppoConfig is small(g) for ppo.
func ppoConfig(g int) Config {
	c := DefaultPPOConfig()
	s := small(g)
	c.NumGenerations, c.GroupsPerStep, c.MaxSteps, c.LearningRate, c.LRSchedulerType = s.NumGenerations, s.GroupsPerStep, s.MaxSteps, s.LearningRate, s.LRSchedulerType
	c.RolloutImportanceSampling = false
	return c
}

func TestPPOLearnsTheBandit(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"whole batches": func(*Config) {},
		"mini-batches":  func(c *Config) { c.NumMiniBatches = 3 },
		"one a prompt": func(c *Config) {
			c.NumGenerations, c.GroupsPerStep = 1, 16
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := ppoConfig(4)
			change(&c)
			l, _ := newLearner(t, c, nil)
			var rewards []float64
			var res StepResult
			for i := range 20 {
				gs := sampled(t, l.Params(), l.Version(), uint64(i), "a", "b", "c", "d")
				if c.NumGenerations == 1 {
					gs = apart(gs)
				}
				res = step(t, l, gs...)
				rewards = append(rewards, res.Metrics["reward"])
				if i == 0 {
					require.Zero(t, res.Metrics["objective/kl"], "the start is the reference")
				}
			}
			require.Greater(t, rewards[19], rewards[0]+.3)
			require.Greater(t, res.Metrics["value/mean"], .4)
			require.InDelta(t, res.Metrics["value/returns_mean"], res.Metrics["value/mean"], .1, "the critic knows what comes")
		})
	}
}

// apart makes every log a group of one.
func apart(gs []Group) (out []Group) {
	for _, g := range gs {
		for _, l := range g.Logs {
			l.Meta.Group, l.Meta.GroupSize, l.Meta.Member = l.ID, 1, 0
			out = append(out, Group{ID: l.ID, Index: uint64(len(out)), Logs: []*eventlog.Log{l}})
		}
	}
	return out
}

// cases/training.tsv, GAE and returns: a tool's tokens are no steps. The reward
// stays with the last sampled token, credit does not decay over them and is not
// reset by them.
func TestCaseReturnsSkipToolTokens(t *testing.T) {
	c := ppoConfig(1)
	c.Beta, c.Gamma, c.Lam, c.WhitenAdvantages, c.NumIterations, c.VFCoef, c.CliprangeValue = 0, .5, 1, false, 1, 1, nil
	l, b := newLearner(t, c, noisy(1))
	critic := l.critic.tr.(*table)
	before := l.Params()
	// prompt 1 2, sampled 3, tool 4 0, sampled 5, tool 1
	g := group(t, "g", 0, []part{pol(0, 3), env(4, 0), pol(0, 5), env(1)}, r(1))
	res := step(t, l, g)
	require.Equal(t, 2.0, res.Metrics["num_tokens"])
	// values are read after 2 and after 0, where 3 and 5 are chosen; returns .5, 1
	require.Equal(t, []float32{-.5, 0, -.25, 0, 0, 0}, critic.grad)
	require.InDelta(t, (.5*.5+1)/4, res.Metrics["loss/value"], 1e-9)
	for _, x := range []struct {
		row, tok int
		adv      float64
	}{{2, 3, .5}, {0, 5, 1}} {
		lp := logSoftmax(before, vocab, x.row, 1)
		for j := range vocab {
			d := -math.Exp(lp[j])
			if j == x.tok {
				d++
			}
			require.InDelta(t, -x.adv*d/2, b.grad[x.row*vocab+j], 1e-6)
		}
	}
	for _, row := range []int{1, 3, 4, 5} {
		require.Equal(t, make([]float32, vocab), b.grad[row*vocab:(row+1)*vocab])
	}
}

// cases/training.tsv, KL: a tool's tokens are not penalised; the penalty stands
// in the rewards.
func TestCaseKLSkipsToolTokens(t *testing.T) {
	c := ppoConfig(1)
	c.Gamma, c.Lam, c.NumIterations, c.WhitenAdvantages = 1, 1, 1, false
	for _, beta := range []float64{0, .3} {
		c.Beta = beta
		l, _ := newLearner(t, c, noisy(1))
		l.params = noisy(2) // away from the start
		start, now := l.start, l.Params()
		critic := l.critic.tr.(*table)
		res := step(t, l, group(t, "g", 0, []part{pol(0, 3), env(4, 0), pol(0, 5)}, r(1)))
		kl := logSoftmax(now, vocab, 0, 1)[5] - logSoftmax(start, vocab, 0, 1)[5]
		// the return where 5 is chosen: the score minus that token's own penalty
		require.InDelta(t, -c.VFCoef*(1-beta*kl)/2, critic.grad[0], 1e-6)
		if beta > 0 {
			kl += logSoftmax(now, vocab, 2, 1)[3] - logSoftmax(start, vocab, 2, 1)[3]
			require.InDelta(t, kl, res.Metrics["objective/kl"], 1e-6)
		}
	}
}

// The value before a rollout's first token is read after the prompt's last, also
// where that is all of the prompt.
func TestPPOPromptOfOneToken(t *testing.T) {
	c := ppoConfig(2)
	c.Beta, c.Lam, c.WhitenAdvantages, c.NumIterations, c.VFCoef, c.CliprangeValue = 0, 1, false, 1, 1, nil
	l, _ := newLearner(t, c, noisy(1))
	g := Group{ID: "g"}
	for m, prompt := range [][]int32{{2}, {4}} {
		g.Logs = append(g.Logs, entry{group: "g", member: uint32(m), size: 2, prompt: prompt, parts: []part{pol(0, 3)}, reward: r(float64(m))}.log(t))
	}
	step(t, l, g)
	require.Equal(t, []float32{0, 0, 0, 0, -.5, 0}, l.critic.tr.(*table).grad)
}

// Micro-batches change neither policy nor critic, mini-batches or not.
func TestPPOMicroBatchingCannotChangeTheStep(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := ppoConfig(4)
		c.NumIterations, c.NumMiniBatches = rapid.IntRange(1, 3).Draw(rt, "iters"), rapid.IntRange(1, 4).Draw(rt, "mini")
		c.Beta = rapid.SampledFrom([]float64{0, .05}).Draw(rt, "beta")
		c.KLEstimator = rapid.SampledFrom([]string{"k1", "k2", "k3"}).Draw(rt, "kl")
		c.WhitenRewards, c.WhitenAdvantages = rapid.Bool().Draw(rt, "whiten"), rapid.Bool().Draw(rt, "whiten advantages")
		c.Gamma, c.Lam = rapid.Float64Range(.5, 1).Draw(rt, "gamma"), rapid.Float64Range(0, 1).Draw(rt, "lam")
		c.RolloutImportanceSampling = rapid.Bool().Draw(rt, "is")
		c.RolloutISDenominator = rapid.SampledFrom([]string{"fixed", "kept"}).Draw(rt, "den")
		c.TopEntropyQuantile = rapid.SampledFrom([]float64{1, .5}).Draw(rt, "topq")
		c.LearningRate, c.AdamEpsilon = .01, 1e-3
		start, behaviour := noisy(3), noisy(4)
		for i := range behaviour {
			behaviour[i] = start[i] + .1*behaviour[i]
		}
		gs := sampled(t, behaviour, 0, 5, "a", "b", "c")
		one := func(budget int) (StepResult, []float32, []float32) {
			c.TokenBudget = budget
			l, _ := newLearner(t, c, start)
			l.params = noisy(7)
			for i := range l.params {
				l.params[i] = start[i] + .02*l.params[i]
			}
			l.critic.params = noisy(8)[:vocab]
			return step(t, l, gs...), l.Params(), l.CriticParams()
		}
		whole, wp, wc := one(1 << 20)
		parts, pp, pc := one(rapid.IntRange(1, 15).Draw(rt, "budget"))
		require.Greater(rt, parts.Metrics["micro_batches"], 1.0)
		for i := range wp {
			require.InDelta(rt, wp[i], pp[i], 2e-5)
		}
		for i := range wc {
			require.InDelta(rt, wc[i], pc[i], 2e-5)
		}
		for k, v := range whole.Metrics {
			if k != "micro_batches" && k != "computed_tokens" && !strings.HasPrefix(k, "time/") {
				require.InDelta(rt, v, parts.Metrics[k], 1e-4*(1+math.Abs(v)), k)
			}
		}
	})
}

func TestPPOResumeIsBitIdentical(t *testing.T) {
	c := ppoConfig(4)
	c.NumMiniBatches = 2
	straight, _ := newLearner(t, c, nil)
	train := func(l *Learner, from, to int) {
		for i := from; i < to; i++ {
			step(t, l, sampled(t, l.Params(), l.Version(), uint64(i), "a", "b", "c")...)
		}
	}
	train(straight, 0, 6)
	first, _ := newLearner(t, c, nil)
	train(first, 0, 3)
	data, err := first.Checkpoint().Encode()
	require.NoError(t, err)
	ck, err := DecodeCheckpoint(data)
	require.NoError(t, err)
	require.Equal(t, first.Checkpoint(), ck)
	second, _ := newLearner(t, c, nil)
	require.NoError(t, second.Restore(ck))
	train(second, 3, 6)
	require.Equal(t, straight.Params(), second.Params())
	require.Equal(t, straight.CriticParams(), second.CriticParams())
	require.Equal(t, straight.Checkpoint(), second.Checkpoint())

	// a checkpoint of one shape is none of the other
	grpo, _ := newLearner(t, small(4), nil)
	require.ErrorIs(t, grpo.Restore(ck), ErrCheckpoint)
	require.ErrorIs(t, second.Restore(grpo.Checkpoint()), ErrCheckpoint)
	other := *ck
	other.Critic = &CriticState{Params: make([]float32, 2), M: make([]float32, 2), V: make([]float32, 2)}
	before := second.Checkpoint()
	require.ErrorContains(t, second.Restore(&other), "its critic has 2 parameters, this learner's 6")
	require.Equal(t, before, second.Checkpoint())
	other.Critic.V = nil
	_, err = other.Encode()
	require.ErrorIs(t, err, ErrCheckpoint)
	for n := range len(data) {
		_, err := DecodeCheckpoint(data[:n])
		require.ErrorIs(t, err, ErrCheckpoint)
	}
}

func TestPPOFailedStepChangesNothing(t *testing.T) {
	c := ppoConfig(4)
	l, b := newLearner(t, c, noisy(1))
	gs := sampled(t, noisy(1), 0, 1, "a", "b")
	before := l.Checkpoint()
	forwards := 0
	b.onForward = func() error {
		if forwards++; forwards == 3 { // the critic has moved by now
			return errInjected
		}
		return nil
	}
	_, err := l.Step(ctx, gs)
	require.ErrorIs(t, err, errInjected)
	require.Equal(t, before, l.Checkpoint())
}

func TestPPOCriticWarmup(t *testing.T) {
	c := ppoConfig(4)
	c.CriticWarmup = 2
	l, _ := newLearner(t, c, noisy(1))
	for i := range 3 {
		p, k := l.Params(), l.CriticParams()
		step(t, l, sampled(t, l.Params(), l.Version(), uint64(i), "a", "b")...)
		require.NotEqual(t, k, l.CriticParams())
		require.Equal(t, i < 2, slicesEqual(p, l.Params()))
	}
}

func slicesEqual(a, b []float32) bool {
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

func TestPPORefusals(t *testing.T) {
	c := ppoConfig(4)
	_, err := New(c, identity(), newBandit(vocab), make([]float32, vocab*vocab))
	require.ErrorContains(t, err, "use NewPPO")
	id := identity()
	shape := lora()
	id.Critic = &shape
	_, err = NewPPO(small(4), id, newBandit(vocab), make([]float32, vocab*vocab), Critic{})
	require.ErrorContains(t, err, "NewPPO is for")
	_, err = NewPPO(c, id, newBandit(vocab), make([]float32, vocab*vocab), Critic{newBandit(vocab), make([]float32, vocab*vocab)})
	require.ErrorContains(t, err, "no value head")
	_, err = NewPPO(c, id, newBandit(vocab), make([]float32, vocab*vocab), Critic{newTable(vocab), make([]float32, 2)})
	require.ErrorContains(t, err, "critic: 2 start parameters for a trainer of 6")

	require.NoError(t, DefaultPPOConfig().Validate())
	c.ConstantGroups, c.Gamma, c.NumMiniBatches, c.VFCoef = DropConstant, 1.5, 0, -1
	rate := math.Inf(1)
	c.CriticLearningRate, c.KLEstimator, c.NumGenerations = &rate, "k9", 0
	err = c.Validate()
	for _, want := range []string{"constant_groups", "gamma: 1.5", "num_mini_batches: 0", "vf_coef: -1", "critic_learning_rate: +Inf", "k9", "num_generations: 0"} {
		require.ErrorContains(t, err, want)
	}
}

// Values that are not finite end the step with a cause, not with NaN.
func TestPPODivergedCritic(t *testing.T) {
	l, _ := newLearner(t, ppoConfig(4), nil)
	l.critic.params[2] = float32(math.Inf(1))
	_, err := l.Step(ctx, sampled(t, l.Params(), 0, 1, "a"))
	require.ErrorIs(t, err, ErrDiverged)
}

// The loop commits the critic with the policy, resumes both, and every step can
// be verified.
func TestPPOLoopResumesAndVerifies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := ppoConfig(4)
		c.MaxSteps, c.NumMiniBatches = 4, 2
		run1 := newFoldStore(t, c)
		run1.work(2)
		straight := newRig(t, c, loopConfig(), run1)
		_, err := straight.lp.Run(t.Context())
		require.NoError(t, err)

		s := newFoldStore(t, c)
		s.work(2)
		half := newRig(t, c, loopConfig(), s)
		died := errors.New("died")
		s.fault = func(op string) error {
			if op == "lease" && len(half.steps) == 2 {
				return died
			}
			return nil
		}
		_, err = half.lp.Run(t.Context())
		require.ErrorIs(t, err, died)
		s.fault = nil
		rest := newRig(t, c, loopConfig(), s)
		_, err = rest.lp.Run(t.Context())
		require.NoError(t, err)
		require.Equal(t, []string{"2/2/true"}, rest.start)
		require.Equal(t, straight.ckpts[3].Params, rest.ckpts[1].Params)
		require.Equal(t, straight.ckpts[3].Critic, rest.ckpts[1].Critic)

		var made []model.Trainer
		trainers := func(shift float32) func(tc model.TrainerConfig) (model.Trainer, error) {
			return func(tc model.TrainerConfig) (model.Trainer, error) {
				require.Equal(t, lora(), tc.LoRA)
				if tc.Value {
					k := newTable(vocab)
					made = append(made, k)
					if shift != 0 {
						return shifted{k, shift}, nil
					}
					return k, nil
				}
				made = append(made, newBandit(vocab))
				return made[len(made)-1], nil
			}
		}
		for n := uint64(1); n <= 4; n++ {
			r, err := VerifyStep(t.Context(), s, run, n, trainers(0))
			require.NoError(t, err)
			require.True(t, r.OK)
			require.Equal(t, r.CheckpointRecorded, r.CheckpointRecomputed)
			require.Equal(t, &CriticDiff{Params: vocab}, r.Critic)
			require.Empty(t, r.Metrics)
		}
		require.Len(t, made, 8)
		for _, m := range made {
			if b, ok := m.(*bandit); ok {
				require.True(t, b.closed)
			} else {
				require.True(t, m.(*table).closed)
			}
		}
		r, err := VerifyStep(t.Context(), s, run, 4, trainers(.5))
		require.NoError(t, err)
		require.False(t, r.OK)
		require.Positive(t, r.Critic.Different)
		require.Positive(t, r.Critic.MaxAbsDiff)
	})
}

// shifted is a critic of another machine: its gradients are off.
type shifted struct {
	*table
	by float32
}

func (s shifted) Grad() []float32 {
	for i := range s.grad {
		s.grad[i] += s.by
	}
	return s.grad
}
