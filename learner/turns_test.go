package learner

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/eventlog"
)

// turnGroup: two rollouts of two turns with one outcome; the first one's first
// turn was judged bad, by a reward that comes with the tool's answer.
func turnGroup(t testing.TB) Group {
	step, turn := eventlog.StepScope, eventlog.TurnScope
	return Group{ID: "g", Logs: []*eventlog.Log{
		entry{group: "g", member: 0, size: 2, parts: []part{pol(0, 3, 5), env(4), pol(0, 4)}, reward: r(1),
			judged: map[int]eventlog.Event{1: eventlog.NewReward(step, -1)}}.log(t),
		entry{group: "g", member: 1, size: 2, parts: []part{pol(0, 5), env(4), pol(0, 3, 3)}, reward: r(1),
			judged: map[int]eventlog.Event{1: eventlog.NewReward(step, 0), 2: eventlog.NewReward(turn, 0)}}.log(t),
	}}
}

func turnConfig() Config {
	c := small(2)
	c.GroupsPerStep, c.TurnAdvantages = 1, true
	return c
}

func TestTurnsOfALog(t *testing.T) {
	l := turnGroup(t).Logs[0]
	turns := turnLogOf(l)
	require.Equal(t, []float64{-1, 0}, turns.rewards)
	require.Equal(t, 1, turns.judged)
	// prompt 1 2 | 3 5 | 4 (answer) | 4
	require.Equal(t, []int{0, 0, 0, 0, 0, 1}, turns.tokens(l, 0))
	require.Equal(t, []float64{0, 0}, turnLogOf(turnGroup(t).Logs[1]).rewards)
	require.Equal(t, 2, turnLogOf(turnGroup(t).Logs[1]).judged)

	// a forked history: the tokens before the fork are of the parent's events
	b := eventlog.NewBuilder(eventlog.Meta{Run: run, Group: "g", GroupSize: 1})
	b.SetTier(eventlog.Full)
	say := func(branch uint32, w eventlog.Writer, ids ...int32) eventlog.Span {
		var lps []float32
		if w == eventlog.Policy {
			lps = make([]float32, len(ids))
		}
		s, err := b.AppendTokens(branch, ids, lps, w, 0)
		require.NoError(t, err)
		return s
	}
	add := func(e eventlog.Event) {
		_, err := b.Append(e)
		require.NoError(t, err)
	}
	say(0, eventlog.Prompt, 1)
	s := say(0, eventlog.Policy, 2, 3)
	s.End-- // the token that ends the turn has no event
	add(eventlog.NewText("a").In(0, s))
	add(eventlog.NewTurnComplete(1))
	add(eventlog.NewReward(eventlog.TurnScope, .5)) // of the turn before
	fork, err := b.Fork(0, 3)
	require.NoError(t, err)
	say(fork, eventlog.Environment, 4)
	add(eventlog.NewText("b").In(fork, say(fork, eventlog.Policy, 5)))
	log, err := b.Finish(eventlog.OK, "")
	require.NoError(t, err)
	turns = turnLogOf(log)
	require.Equal(t, []float64{.5, 0}, turns.rewards)
	require.Equal(t, []int{0, 0, 0, 0, 1}, turns.tokens(log, int(fork)))
}

// Off, turn rewards change nothing: the two rollouts have one reward and nothing
// to learn. On, the judged turn alone is pushed down.
func TestTurnAdvantagesAreOffByDefault(t *testing.T) {
	c := turnConfig()
	c.TurnAdvantages = false
	l, _ := newLearner(t, c, nil)
	before := l.Params()
	res, err := l.Step(ctx, []Group{turnGroup(t)})
	require.NoError(t, err)
	require.Equal(t, before, l.Params())
	require.Equal(t, 1., res.Metrics["frac_reward_zero_std"])
	require.Equal(t, 2., res.Metrics["turns/mean"])
	require.Equal(t, .75, res.Metrics["turns/judged_ratio"])
	require.Equal(t, -.25, res.Metrics["turns/reward_mean"])

	c.TurnAdvantages = true
	l, _ = newLearner(t, c, nil)
	b, err := Build(c, 0, []Group{turnGroup(t)})
	require.NoError(t, err)
	// returns 0 1 | 1 1
	std := math.Sqrt(.5*(.5625+.0625)+.0625) + 1e-4
	require.InDeltaSlice(t, []float64{-.75 / std, -.75 / std, .25 / std}, b.Episodes[0].tokenAdv, 1e-12)
	require.InDeltaSlice(t, []float64{.25 / std, .25 / std, .25 / std}, b.Episodes[1].tokenAdv, 1e-12)
	res, err = l.Step(ctx, []Group{turnGroup(t)})
	require.NoError(t, err)
	require.NotEqual(t, before, l.Params())
	require.Zero(t, res.Metrics["frac_reward_zero_std"])
	require.InDelta(t, -.75/std, res.Metrics["advantage/min"], 1e-12)
	require.InDelta(t, .25/std, res.Metrics["advantage/max"], 1e-12)
}

// With constant_groups: drop such a group teaches; one whose returns are all the
// same does not.
func TestTurnAdvantagesAndConstantGroups(t *testing.T) {
	c := turnConfig()
	c.ConstantGroups = DropConstant
	b, err := Build(c, 0, []Group{turnGroup(t)})
	require.NoError(t, err)
	require.Zero(t, b.Constant)
	flat := group(t, "f", 0, []part{pol(0, 3), env(4), pol(0, 5)}, r(1), r(1))
	_, err = Build(c, 0, []Group{flat})
	var none *EmptyBatchError
	require.ErrorAs(t, err, &none)
	require.Equal(t, 1, none.Excluded["group_constant"])
}

// Without turn rewards a step is that of plain GRPO: the same advantages, and
// parameters that differ by rounding alone.
func TestTurnAdvantagesWithoutTurnRewards(t *testing.T) {
	var params [2][]float32
	for i, on := range []bool{false, true} {
		c := turnConfig()
		c.TurnAdvantages = on
		l, _ := newLearner(t, c, nil)
		_, err := l.Step(ctx, []Group{{ID: "g", Logs: []*eventlog.Log{
			entry{group: "g", member: 0, size: 2, parts: []part{pol(0, 3, 5), env(4), pol(0, 4)}, reward: r(1)}.log(t),
			entry{group: "g", member: 1, size: 2, parts: []part{pol(0, 4)}, reward: r(0)}.log(t),
		}}})
		require.NoError(t, err)
		params[i] = l.Params()
	}
	require.InDeltaSlice(t, params[0], params[1], 1e-6)
	require.False(t, slices.Equal(params[0], make([]float32, len(params[0]))))
}

// ppo pays a turn's reward at its last token.
func TestPPOPaysTurnRewards(t *testing.T) {
	c := DefaultPPOConfig()
	c.NumGenerations, c.GroupsPerStep, c.RolloutImportanceSampling, c.TurnAdvantages = 2, 1, false, true
	c.TurnRewardWeight = r(2)
	require.NoError(t, c.Validate())
	b, err := Build(c, 0, []Group{turnGroup(t)})
	require.NoError(t, err)
	require.Equal(t, []float64{0, -2, 0}, b.Episodes[0].paid(2))
	require.Equal(t, []float64{0, 0, 0}, b.Episodes[1].paid(2))
	step := func(c Config) map[string]float64 {
		l, _ := newLearner(t, c, nil)
		res, err := l.Step(ctx, []Group{turnGroup(t)})
		require.NoError(t, err)
		return res.Metrics
	}
	on := step(c)
	c.TurnAdvantages, c.TurnRewardWeight = false, nil
	off := step(c)
	require.InDelta(t, off["objective/non_score_reward"]-1, on["objective/non_score_reward"], 1e-12, "-2 of the one, over two rollouts")
	require.Equal(t, off["objective/scores"], on["objective/scores"])
}

func TestTurnConfigRefuses(t *testing.T) {
	for want, set := range map[string]func(*Config){
		"turn_advantages, which is off":   func(c *Config) { c.TurnGamma = r(.9) },
		"turn_gamma: 1.5":                 func(c *Config) { c.TurnAdvantages, c.TurnGamma = true, r(1.5) },
		"reinforce++ has one reward":      func(c *Config) { *c = DefaultReinforceConfig(); c.TurnAdvantages = true },
		"ppo discounts by token":          func(c *Config) { *c = DefaultPPOConfig(); c.TurnAdvantages, c.TurnGamma = true, r(.9) },
		"turn_reward_weight: +Inf":        func(c *Config) { c.TurnAdvantages, c.TurnRewardWeight = true, r(math.Inf(1)) },
		"multi_objective_aggregation is":  func(c *Config) { c.TurnAdvantages, c.MultiObjectiveAggregation = true, "normalize_then_sum" },
		`"rloo" is of sequences with one`: func(c *Config) { c.TurnAdvantages, c.LossType = true, "rloo" },
	} {
		c := small(2)
		set(&c)
		require.ErrorContains(t, c.Validate(), want)
	}
}
