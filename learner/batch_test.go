package learner

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/skein-rl/skein/eventlog"
)

func build(t testing.TB, c Config, version uint64, groups ...Group) *Batch {
	t.Helper()
	b, err := Build(c, version, groups)
	require.NoError(t, err)
	return b
}

// train is the mask over an episode's tokens after the prompt.
func train(e Episode) []bool { return e.seqs[0].Train }

// cases/training.tsv eos/pad: "no EOS in the response: mask returned all ones
// and pads were trained", "mask derived from token value, pad id == eos id".
func TestCaseEOSPadMaskIsByPosition(t *testing.T) {
	c := small(2)
	g := Group{ID: "g", Logs: []*eventlog.Log{
		// ids [5,6] sampled, then [0,0] by the environment; eos = 2 never came
		entry{group: "g", member: 0, size: 2, parts: []part{pol(0, 5, 6), env(0, 0)}, reward: r(1)}.log(t),
		// ids [5,6,2] sampled, [2] is padding with the same id as the real EOS
		entry{group: "g", member: 1, size: 2, parts: []part{pol(0, 5, 6, 2), env(2)}, reward: r(0)}.log(t),
	}}
	b := build(t, c, 0, g)
	require.Equal(t, []bool{true, true}, train(b.Episodes[0])) // what follows is cut, not trained
	require.Equal(t, []bool{true, true, true}, train(b.Episodes[1]))
	require.Equal(t, 2, b.Episodes[0].Tokens)
	require.Equal(t, 3, b.Episodes[1].Tokens)
}

// cases/training.tsv loss-mask: tool results inside a trajectory are never
// trained; positions of sampled tokens are.
func TestToolTokensAreNotTrained(t *testing.T) {
	b := build(t, small(2), 0, group(t, "g", 0, []part{pol(0, 3), env(4, 4), pol(0, 5)}, r(1), r(0)))
	require.Equal(t, []bool{true, false, false, true}, train(b.Episodes[0]))
	require.Equal(t, []int32{3, 4, 4, 5}, b.Episodes[0].seqs[0].Tokens)
	require.Equal(t, []int32{1, 2}, b.Episodes[0].seqs[0].prompt)
}

// cases/training.tsv group: "failed rollout replaced by a one-token pad
// trajectory with response mask 1".
func TestCaseGroupFailedRolloutIsNotARow(t *testing.T) {
	g := group(t, "g", 0, []part{pol(0, 3)}, r(1), r(0), r(0), nil)
	g.Logs[3] = entry{group: "g", member: 3, size: 4, parts: []part{pol(0, 3)}, status: eventlog.Failed, cause: "tool: exploded: badly"}.log(t)
	b := build(t, small(4), 0, g)
	require.Len(t, b.Episodes, 3)
	require.InDelta(t, 1./3, b.RewardMean, 1e-12)
	require.Equal(t, map[string]int{"failed: tool": 1}, b.Excluded)
}

// cases/training.tsv loss-mask: "rollouts with zero captured model calls entered
// the batch as empty rows", "assistant messages given as plain dicts produced an
// all-zero mask": counted, before a step.
func TestCaseLossMaskNoSampledTokensIsRefusedWithCount(t *testing.T) {
	g := group(t, "g", 0, []part{pol(0, 3)}, r(1), r(0), r(1), r(1))
	g.Logs[2] = entry{group: "g", member: 2, size: 4, parts: []part{env(3)}, reward: r(1)}.log(t)
	g.Logs[3] = entry{group: "g", member: 3, size: 4, parts: []part{env(3)}, reward: r(1)}.log(t)
	b := build(t, small(4), 0, g)
	require.Len(t, b.Episodes, 2)
	require.Equal(t, 2, b.Excluded["no_model_calls"])

	none := group(t, "n", 0, []part{env(3)}, r(1), r(0))
	_, err := Build(small(2), 0, []Group{none})
	var empty *EmptyBatchError
	require.ErrorAs(t, err, &empty)
	require.ErrorContains(t, err, "no_model_calls=2")
}

// cases/training.tsv reward: "row for which every reward function abstained was
// summed to 0 and moved the group mean".
func TestCaseRewardUnscoredIsExcludedAndCounted(t *testing.T) {
	b := build(t, small(3), 0, group(t, "g", 0, []part{pol(0, 3)}, r(1), nil, r(0)))
	require.Len(t, b.Episodes, 2)
	require.Equal(t, .5, b.RewardMean)
	require.Equal(t, -b.Episodes[0].Advantage, b.Episodes[1].Advantage)
	require.Equal(t, map[string]int{"unscored": 1}, b.Excluded)
}

func TestRewardComponents(t *testing.T) {
	c := small(2)
	c.RewardWeights = map[string]float64{"format": .5, "answer": 1}
	g := Group{ID: "g", Logs: []*eventlog.Log{
		entry{group: "g", member: 0, size: 2, parts: []part{pol(0, 3)}, reward: r(9), parts2: map[string]any{"format": 1.0, "answer": int64(1)}}.log(t),
		entry{group: "g", member: 1, size: 2, parts: []part{pol(0, 3)}, reward: r(9), parts2: map[string]any{"format": 1.0, "answer": nil}}.log(t),
	}}
	b := build(t, c, 0, g)
	require.Equal(t, []float64{1.5, .5}, []float64{b.Episodes[0].Reward, b.Episodes[1].Reward})
}

// cases/training.tsv grouping, as the learner sees it.
func TestCaseGroupingAnyOrderOfArrivalGivesTheSameBatch(t *testing.T) {
	gs := sampled(t, make([]float32, vocab*vocab), 0, 7, "p:1", "p:2", "p:3")
	want := build(t, small(4), 0, gs...)
	rapid.Check(t, func(rt *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
		moved := append([]Group(nil), gs...)
		rng.Shuffle(len(moved), func(i, j int) { moved[i], moved[j] = moved[j], moved[i] })
		for i := range moved {
			moved[i].Logs = append([]*eventlog.Log(nil), moved[i].Logs...)
			rng.Shuffle(4, func(a, b int) { moved[i].Logs[a], moved[i].Logs[b] = moved[i].Logs[b], moved[i].Logs[a] })
		}
		got, err := Build(small(4), 0, moved)
		require.NoError(rt, err)
		require.Equal(rt, want, got)
	})
}

// Two prompts with equal tokens are still two groups.
func TestCaseGroupingDuplicatePrompts(t *testing.T) {
	p := []part{pol(0, 3)}
	b := build(t, small(2), 0, group(t, "a", 0, p, r(1), r(0)), group(t, "b", 1, p, r(1), r(1)))
	require.Equal(t, 2, b.Groups)
	require.Equal(t, 1, b.Constant)
	require.Zero(t, b.Episodes[2].Advantage)
}

func TestCaseGroupPartialMixedAndDuplicateAreRefused(t *testing.T) {
	c := small(3)
	p := []part{pol(0, 3)}
	whole := group(t, "g", 0, p, r(1), r(0), r(1))
	partial := Group{ID: "g", Logs: whole.Logs[:2]}
	mixed := Group{ID: "g", Logs: append([]*eventlog.Log{whole.Logs[0], whole.Logs[1]}, group(t, "h", 0, p, r(1), r(0), r(1)).Logs[2])}
	again := entry{group: "g", member: 1, size: 3, parts: p, reward: r(0), attempt: 2}.log(t)
	dup := Group{ID: "g", Logs: append([]*eventlog.Log{again}, whole.Logs...)}
	other := group(t, "o", 0, p, r(1), r(0))
	for name, tc := range map[string]struct {
		g    Group
		want error
	}{
		"partial": {partial, ErrPartialGroup}, "empty": {Group{ID: "g"}, ErrPartialGroup}, "mixed": {mixed, ErrMixedGroup},
		"duplicate": {dup, ErrDuplicateMember}, "other size": {other, ErrMixedGroup},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Build(c, 0, []Group{tc.g})
			require.ErrorIs(t, err, tc.want)
			var ge *GroupError
			require.ErrorAs(t, err, &ge)
			require.Equal(t, tc.g.ID, ge.Group)
			ok, refused := Admit(c, 0, []Group{whole, tc.g})
			require.Len(t, refused, 1)
			require.Len(t, ok, 1)
		})
	}
	_, err := Build(c, 0, []Group{whole, whole})
	require.ErrorIs(t, err, ErrDuplicateMember)
	// a group the store closed at its deadline may be short
	partial.Closed = true
	b := build(t, c, 0, partial)
	require.Len(t, b.Episodes, 2)
	require.Equal(t, 1, b.Excluded["missing"])
	// but not of one
	partial.Logs = partial.Logs[:1]
	_, err = Build(c, 0, []Group{partial})
	require.ErrorContains(t, err, "group_of_one=1")
}

// cases/training.tsv staleness: "'on-policy' setting lets the rollouter refill
// from old weights": asserted per batch.
func TestCaseStalenessIsAssertedPerBatch(t *testing.T) {
	at := func(vs ...uint64) Group {
		var p []part
		for _, v := range vs {
			p = append(p, pol(v, 3))
		}
		return group(t, "g", 0, p, r(1), r(0))
	}
	c := small(2)
	c.MaxStaleness = 0
	build(t, c, 4, at(4))
	for _, g := range []Group{at(3), at(3, 4), at(5)} {
		_, err := Build(c, 4, []Group{g})
		require.ErrorIs(t, err, ErrStaleTokens)
	}
	_, err := Build(c, 4, []Group{at(5)})
	require.ErrorContains(t, err, "sampled under version 5, the learner is at 4 (restore its last checkpoint)")
	c.MaxStaleness = 1
	build(t, c, 4, at(3, 4))
	_, err = Build(c, 4, []Group{at(2, 3)})
	require.ErrorContains(t, err, "sampled under version 2, the learner is at 4 and max_staleness is 1")
	// a token that is not trained has no staleness
	c.MaskOffPolicyInPartialRollout = true
	build(t, c, 4, at(2, 3))
}

// cases/training.tsv partial-rollout: "off-policy part of a resumed partial
// rollout not masked as configured".
func TestCasePartialRolloutMask(t *testing.T) {
	g := group(t, "g", 0, []part{pol(3, 1, 2, 3, 4), pol(4, 5, 1, 2)}, r(1), r(0))
	c := small(2)
	b := build(t, c, 4, g)
	require.Equal(t, []uint64{3, 3, 3, 3, 4, 4, 4}, b.Episodes[0].Versions)
	require.Equal(t, []bool{true, true, true, true, true, true, true}, train(b.Episodes[0]))
	c.MaskOffPolicyInPartialRollout = true
	b = build(t, c, 4, g)
	require.Equal(t, []bool{false, false, false, false, true, true, true}, train(b.Episodes[0]))
	require.Equal(t, []uint64{4, 4, 4}, b.Episodes[0].Versions)
}

// cases/training.tsv zero-advantage: what a constant group does follows an
// explicit flag.
func TestCaseZeroAdvantageConstantGroupFlag(t *testing.T) {
	p := []part{pol(0, 3)}
	gs := []Group{group(t, "c", 0, p, r(1), r(1)), group(t, "i", 1, p, r(1), r(0))}
	c := small(2)
	require.Len(t, build(t, c, 0, gs...).Episodes, 4)
	c.ConstantGroups = DropConstant
	b := build(t, c, 0, gs...)
	require.Len(t, b.Episodes, 2)
	require.Equal(t, "i", b.Episodes[0].Group)
	require.Equal(t, map[string]int{"group_constant": 1}, b.Excluded)
	_, err := Build(c, 0, gs[:1])
	require.ErrorContains(t, err, "group_constant=1")
}

func TestTruncatedAreMaskedButScored(t *testing.T) {
	g := group(t, "g", 0, []part{pol(0, 3)}, r(1), r(0), r(0))
	g.Logs[1] = entry{group: "g", member: 1, size: 3, parts: []part{pol(0, 3)}, reward: r(0), status: eventlog.Truncated}.log(t)
	c := small(3)
	require.Equal(t, 3, build(t, c, 0, g).Tokens())
	c.MaskTruncatedCompletions = true
	b := build(t, c, 0, g)
	require.Equal(t, 2, b.Tokens())
	require.Len(t, b.Episodes, 3)
	require.InDelta(t, 1./3, b.RewardMean, 1e-12)
}

// A template that rewrote history forks the trajectory: every sampled token is
// trained once, in one loss row, with the context the engine saw.
func TestForkedTrajectoryIsOneRowAndTrainsATokenOnce(t *testing.T) {
	forked := func(member uint32, reward float64) *eventlog.Log {
		b := eventlog.NewBuilder(eventlog.Meta{Run: run, Group: "g", Member: member, GroupSize: 2, Table: "train", Source: "toy", Task: "t", Worker: "w"})
		sp, err := b.AppendTokens(0, []int32{1, 2}, nil, eventlog.Prompt, 0)
		require.NoError(t, err)
		_, err = b.Append(eventlog.NewObservation("env", "q").In(0, sp))
		require.NoError(t, err)
		sp, err = b.AppendTokens(0, []int32{3, 4}, []float32{-1, -2}, eventlog.Policy, 0)
		require.NoError(t, err)
		_, err = b.Append(eventlog.NewText("turn 1").In(0, sp))
		require.NoError(t, err)
		br, err := b.Fork(0, 3) // the template dropped token 4
		require.NoError(t, err)
		_, err = b.AppendTokens(br, []int32{5}, nil, eventlog.Environment, 0)
		require.NoError(t, err)
		sp, err = b.AppendTokens(br, []int32{2, 1}, []float32{-3, -4}, eventlog.Policy, 0)
		require.NoError(t, err)
		_, err = b.Append(eventlog.NewText("turn 2").In(br, sp))
		require.NoError(t, err)
		_, err = b.Append(eventlog.NewReward(eventlog.EpisodeScope, reward))
		require.NoError(t, err)
		l, err := b.Finish(eventlog.OK, "")
		require.NoError(t, err)
		return l
	}
	b := build(t, small(2), 0, Group{ID: "g", Logs: []*eventlog.Log{forked(0, 1), forked(1, 0)}})
	require.Len(t, b.Episodes, 2)
	e := b.Episodes[0]
	require.Equal(t, []float64{-1, -2, -3, -4}, e.Sampled)
	require.Equal(t, 4, e.Tokens)
	require.Len(t, e.seqs, 2)
	require.Equal(t, []bool{true, true}, e.seqs[0].Train)
	require.Equal(t, []int32{3, 5, 2, 1}, e.seqs[1].Tokens)
	require.Equal(t, []bool{false, false, true, true}, e.seqs[1].Train)
	// both members say the same: everything is computed once
	m := pack(rowsOf(b), func(int) bool { return true }, 1000)
	require.Len(t, m, 1)
	require.Len(t, m[0].groups, 1)
	require.Len(t, m[0].groups[0].Members, 2)
	require.Equal(t, 2+2+4, m[0].tokens)
	require.Equal(t, 2*(2+2+2+4), m[0].given)
}

func TestPackKeepsRowsTogetherAndPlacesEveryScore(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(1, 12).Draw(rt, "rows")
		rows := make([][]sequence, n)
		want := make([][]float64, n)
		for i := range rows {
			for range rapid.IntRange(0, 3).Draw(rt, "seqs") {
				s := sequence{prompt: []int32{int32(rapid.IntRange(1, 3).Draw(rt, "p"))}}
				for range rapid.IntRange(1, 5).Draw(rt, "len") {
					on := rapid.Bool().Draw(rt, "on")
					s.Tokens, s.Train = append(s.Tokens, int32(100*i+len(want[i]))), append(s.Train, on)
					if on {
						s.trained++
						want[i] = append(want[i], float64(100*i+len(want[i])))
					}
				}
				rows[i] = append(rows[i], s)
			}
		}
		budget := rapid.IntRange(1, 30).Draw(rt, "budget")
		got := make([][]float64, n)
		for i := range got {
			got[i] = make([]float64, len(want[i]))
		}
		seen := map[int]bool{}
		for _, m := range pack(rows, func(int) bool { return true }, budget) {
			computed := 0
			scores := []float32{}
			for _, g := range m.groups {
				computed += len(g.Prompt)
				for _, s := range g.Members {
					computed += len(s.Tokens)
					for t, on := range s.Train {
						if on {
							scores = append(scores, float32(s.Tokens[t]))
						}
					}
				}
			}
			require.Equal(rt, computed, m.tokens)
			require.Len(rt, scores, m.scores())
			require.True(rt, m.tokens <= budget || len(m.rows()) == 1)
			m.scatter(scores, func(i int) []float64 { return got[i] })
			require.Equal(rt, scores, m.gather(func(i int) []float64 { return got[i] }))
			for _, i := range m.rows() {
				require.False(rt, seen[i], "row in two micro-batches")
				seen[i] = true
			}
		}
		for i := range want {
			for k, x := range want[i] {
				require.Equal(rt, x, got[i][k])
			}
		}
	})
}

func TestHistogramAndBoundary(t *testing.T) {
	require.Equal(t, "a=1, b=2", histogram(map[string]int{"b": 2, "a": 1}))
	require.Equal(t, ": engine", boundary("engine: no memory: 3"))
	require.Empty(t, boundary(""))
	require.True(t, errors.Is(&GroupError{"g", ErrMixedGroup}, ErrMixedGroup))
}
