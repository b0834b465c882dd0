package learner

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/eventlog"
	"github.com/skein-rl/skein/learner/data"
)

func onlineConfig(algorithm string) Config {
	c := DefaultOnlineConfig(algorithm)
	c.NumGenerations, c.GroupsPerStep, c.MaxSteps, c.LearningRate, c.LRSchedulerType = 4, 4, 20, .1, "constant"
	return c
}

// Rollouts ranked by their rewards make the policy better.
func TestOnlineLearnsTheBandit(t *testing.T) {
	for _, algorithm := range []string{OnlineDPO, OnlineBCO} {
		c := onlineConfig(algorithm)
		all := 0
		c.MaxPairs, c.ScoreThreshold = &all, r(.25)
		l, _ := newLearner(t, c, nil)
		var rewards []float64
		for i := range 20 {
			res := step(t, l, sampled(t, l.Params(), l.Version(), uint64(i), "a", "b", "c", "d")...)
			rewards = append(rewards, res.Metrics["reward"])
			require.Contains(t, res.Metrics, "rewards/margins")
			require.Less(t, res.Metrics["logprob_gap/same_version_max_abs"], 1e-5)
			if i == 0 {
				require.InDelta(t, 0, res.Metrics["rewards/margins"], 1e-9, "the start is the reference")
			}
		}
		require.Greater(t, rewards[19], rewards[0]+.2, algorithm)
	}
}

// A step is that of the offline algorithm on the pairs or verdicts which the same
// groups give when they are harvested.
func TestOnlineIsOfflineOnTheSameRows(t *testing.T) {
	start := noisy(4)
	groups := sampled(t, start, 0, 3, "a", "b", "c", "d")
	for algorithm, harvest := range map[string]func(HarvestConfig, []Group) (Harvest, error){OnlineDPO: Pairs, OnlineBCO: Verdicts} {
		c := onlineConfig(algorithm)
		c.ScoreThreshold = r(.3)
		h, err := harvest(c.OnlineConfig.harvest(), groups)
		require.NoError(t, err)
		require.NotEmpty(t, h.Rows)
		set := data.NewSet("harvest", h.Rows, data.Order{})

		online, _ := newLearner(t, c, start)
		res := step(t, online, groups...)
		require.Equal(t, float64(len(h.Rows)), res.Metrics["rows"])
		off := DefaultConfigOf(c.rowLoss())
		off.LearningRate, off.LRSchedulerType, off.MaxSteps, off.BatchTokens = c.LearningRate, c.LRSchedulerType, 1, 1<<20
		offline, err := New(off, identity(), newBandit(vocab), start)
		require.NoError(t, err)
		require.NoError(t, RunOffline(ctx, offline, set, OfflineOptions{OnStep: func(s OfflineStep) error {
			require.Equal(t, s.Metrics["loss"], res.Metrics["loss"])
			return nil
		}}))
		require.Equal(t, offline.Params(), online.Params())
		require.Equal(t, offline.bco, online.bco)
	}
}

// What a tool wrote is part of the completions and trained in none.
func TestOnlineTrainsThePolicysTokens(t *testing.T) {
	c := onlineConfig(OnlineDPO)
	c.NumGenerations = 2
	l, b := newLearner(t, c, nil)
	g := Group{ID: "g"}
	for m, rw := range []float64{1, 0} {
		g.Logs = append(g.Logs, entry{group: "g", member: uint32(m), size: 2, parts: []part{pol(0, 3), env(4), pol(0, int32(m))}, reward: r(rw)}.log(t))
	}
	res := step(t, l, g)
	require.Equal(t, 4.0, res.Metrics["num_tokens"])
	row := func(i int) []float32 { return b.grad[i*vocab : (i+1)*vocab] }
	require.Equal(t, make([]float32, vocab), row(3), "4 after 3 is the tool's")
	require.Equal(t, make([]float32, vocab), row(2), "both began with 3 after the prompt: the pair says nothing of it")
	require.Negative(t, row(4)[0], "down is up: 0 after 4 was the better answer")
	require.Positive(t, row(4)[1])
}

// A step without a pair is an empty batch that says why, and changes nothing.
func TestOnlineWithoutPairs(t *testing.T) {
	c := onlineConfig(OnlineDPO)
	c.NumGenerations, c.PairMargin = 2, .2
	l, _ := newLearner(t, c, nil)
	before := l.Params()
	same := []part{pol(0, 3, 4)}
	_, err := l.Step(t.Context(), []Group{
		group(t, "equal", 0, same, r(1), r(1)),
		group(t, "near", 1, same, r(1), r(.9)),
		group(t, "identical", 2, same, r(1), r(0)),
	})
	var none *EmptyBatchError
	require.ErrorAs(t, err, &none)
	require.Equal(t, map[string]int{"pair_below_margin": 2, "pair_same_tokens": 1, "group_without_pair": 3}, none.Excluded)
	require.Equal(t, before, l.Params())
	require.Zero(t, l.StepNumber())

	b := onlineConfig(OnlineBCO)
	b.NumGenerations, b.MaskTruncatedCompletions = 2, true
	l, _ = newLearner(t, b, nil)
	_, err = l.Step(t.Context(), []Group{group(t, "g", 0, same, r(1), r(.7))})
	require.ErrorAs(t, err, &none)
	require.Equal(t, map[string]int{"group_of_one_verdict": 1}, none.Excluded)
	cut := Group{ID: "cut"}
	for m, s := range []eventlog.Status{eventlog.OK, eventlog.OK, eventlog.Truncated} {
		cut.Logs = append(cut.Logs, entry{group: "cut", member: uint32(m), size: 3, parts: []part{pol(0, 3, int32(m))}, reward: r(float64(m % 2)), status: s}.log(t))
	}
	b.NumGenerations = 3
	l, _ = newLearner(t, b, nil)
	res := step(t, l, cut)
	require.Equal(t, 2.0, res.Metrics["rows"])
	require.Equal(t, 1, res.Excluded["truncated"])
}

func TestOnlineConfigRefuses(t *testing.T) {
	for want, set := range map[string]func(*Config){
		"num_iterations: online_dpo does not heed it":    func(c *Config) { c.NumIterations = 2 },
		"entropy_coef: online_dpo does not heed it":      func(c *Config) { c.EntropyCoef = .1 },
		"m2_threshold: online_dpo does not heed it":      func(c *Config) { c.M2Threshold = r(.04) },
		"turn_advantages: online_dpo does not heed it":   func(c *Config) { c.TurnAdvantages = true },
		"num_train_epochs: online_dpo does not heed it":  func(c *Config) { c.NumTrainEpochs = 1 },
		"density_ratio: only bco heeds it":               func(c *Config) { c.DensityRatio = true },
		"num_generations: 1 is below 2":                  func(c *Config) { c.NumGenerations = 1 },
		"pair_margin: -1":                                func(c *Config) { c.PairMargin = -1 },
		"max_pairs: -1 is below 0":                       func(c *Config) { n := -1; c.MaxPairs = &n },
		"loss_type: unknown \"kto\"":                     func(c *Config) { c.LossType = "kto" },
		"constant_groups: unknown":                       func(c *Config) { c.ConstantGroups = "x" },
		"max_steps: 0 is below 1":                        func(c *Config) { c.MaxSteps = 0 },
		"loss_type: unknown \"sigmoid\" for online_bco":  func(c *Config) { c.Algorithm = OnlineBCO },
		"constant_groups: \"drop\", but online_bco does": func(c *Config) { *c = onlineConfig(OnlineBCO); c.ConstantGroups = DropConstant },
	} {
		c := onlineConfig(OnlineDPO)
		set(&c)
		require.ErrorContains(t, c.Validate(), want)
	}
}
