package learner

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/eventlog"
	"github.com/skein-rl/skein/learner/data"
)

// tale is a rollout of turns, each with a tool result that may be an error.
func tale(t *testing.T, member uint32, reward *float64, answer int32, wrong ...bool) *eventlog.Log {
	b := eventlog.NewBuilder(eventlog.Meta{Run: run, Group: "g", Member: member, GroupSize: 4, Table: "train", Source: "toy", Task: "t"})
	b.SetTier(eventlog.Full)
	must := func(sp eventlog.Span, err error) eventlog.Span {
		require.NoError(t, err)
		return sp
	}
	event := func(e eventlog.Event) {
		_, err := b.Append(e)
		require.NoError(t, err)
	}
	event(eventlog.NewObservation("env", "task").In(0, must(b.AppendTokens(0, []int32{1, 2}, nil, eventlog.Prompt, 0))))
	for i, bad := range wrong {
		event(eventlog.NewToolCall(string(rune('a'+i)), "f", nil).In(0, must(b.AppendTokens(0, []int32{10 + int32(i), 3}, []float32{-1, -1}, eventlog.Policy, 1))))
		text := ""
		if bad {
			text = "broken"
		}
		event(eventlog.NewToolResult(string(rune('a'+i)), "x", text).In(0, must(b.AppendTokens(0, []int32{7}, nil, eventlog.Environment, 0))))
	}
	event(eventlog.NewText("done").In(0, must(b.AppendTokens(0, []int32{answer, 3}, []float32{-1, -1}, eventlog.Policy, 1))))
	if reward != nil {
		event(eventlog.NewReward(eventlog.EpisodeScope, *reward))
	}
	l, err := b.Finish(eventlog.OK, "")
	require.NoError(t, err)
	return l
}

func taleGroup(t *testing.T) []Group {
	return []Group{{ID: "g", Logs: []*eventlog.Log{
		tale(t, 2, r(.2), 21, true), tale(t, 0, r(1), 22, true, false), tale(t, 3, nil, 23), tale(t, 1, r(.6), 24),
	}}}
}

func TestHarvestPairsBestAgainstWorst(t *testing.T) {
	c := DefaultHarvestConfig()
	h, err := Pairs(c, taleGroup(t))
	require.NoError(t, err)
	require.Equal(t, map[string]int{"unscored": 1}, h.Excluded)
	require.Len(t, h.Rows, 1)
	e := h.Rows[0]
	require.Equal(t, []int32{1, 2}, e.Prompt)
	require.Equal(t, []int32{10, 3, 7, 11, 3, 7, 22, 3}, e.Chosen.Tokens)
	require.Equal(t, []float32{1, 1, 0, 1, 1, 0, 1, 1}, e.Chosen.Weights, "tool results are never trained")
	require.Equal(t, []int32{10, 3, 7, 21, 3}, e.Rejected.Tokens)
	require.InDelta(t, .8, e.Margin, 1e-12)

	c.MaskSuboptimal = true
	h, err = Pairs(c, taleGroup(t))
	require.NoError(t, err)
	require.Equal(t, []float32{0, 0, 0, 1, 1, 0, 1, 1}, h.Rows[0].Chosen.Weights, "its first turn had an error")
	require.Equal(t, []float32{1, 1, 0, 1, 1}, h.Rows[0].Rejected.Weights, "an error, and the outcome")

	c.Margin = .9
	h, err = Pairs(c, taleGroup(t))
	require.NoError(t, err)
	require.Empty(t, h.Rows)
	require.Equal(t, map[string]int{"unscored": 1, "below_margin": 1, "group_without_pair": 1}, h.Excluded)
	c.Margin = 0
	_, err = Pairs(c, nil)
	require.ErrorContains(t, err, "margin")
}

func TestHarvestDemonstrationsAndVerdicts(t *testing.T) {
	c := DefaultHarvestConfig()
	c.BestOf = 2
	c.MinReward = .7
	h, err := Demonstrations(c, taleGroup(t))
	require.NoError(t, err)
	require.Equal(t, map[string]int{"unscored": 1, "below_min_reward": 1}, h.Excluded)
	require.Len(t, h.Rows, 1)
	require.Equal(t, []float32{2, 2, 0, 2, 2, 0, 1, 1}, h.Rows[0].Chosen.Weights, "tool calls weigh 2")

	v, err := Verdicts(c, taleGroup(t))
	require.NoError(t, err)
	require.Len(t, v.Rows, 3)
	var labels []bool
	for _, e := range v.Rows {
		labels = append(labels, e.Label)
	}
	require.Equal(t, []bool{true, false, false}, labels, "in member order")

	// harvested rows train
	set := data.NewSet("harvest", v.Rows, data.Order{Shuffle: true})
	bc := DefaultConfigOf(BCO)
	require.NoError(t, checkRows(bc, set))
}

// What an expert wrote needs no reward to be distilled; it is nobody's pair.
func TestHarvestExpert(t *testing.T) {
	b := eventlog.NewBuilder(eventlog.Meta{Run: run, Group: "g", GroupSize: 1, Table: "demonstrations", Source: "toy", Task: "t"})
	sp, err := b.AppendTokens(0, []int32{1, 2}, nil, eventlog.Prompt, 0)
	require.NoError(t, err)
	_, err = b.Append(eventlog.NewObservation("env", "task").In(0, sp))
	require.NoError(t, err)
	sp, err = b.AppendTokens(0, []int32{5, 3}, nil, eventlog.Expert, 0)
	require.NoError(t, err)
	_, err = b.Append(eventlog.NewText("x").In(0, sp))
	require.NoError(t, err)
	l, err := b.Finish(eventlog.OK, "")
	require.NoError(t, err)
	groups := []Group{{ID: "g", Logs: []*eventlog.Log{l}}}
	h, err := Demonstrations(DefaultHarvestConfig(), groups)
	require.NoError(t, err)
	require.Len(t, h.Rows, 1)
	require.Equal(t, []float32{1, 1}, h.Rows[0].Chosen.Weights)
	h, err = Verdicts(DefaultHarvestConfig(), groups)
	require.NoError(t, err)
	require.Empty(t, h.Rows)
	require.Equal(t, 1, h.Excluded[unscored])
}

func TestHarvestStepPairs(t *testing.T) {
	b := eventlog.NewBuilder(eventlog.Meta{Run: run, Group: "g", GroupSize: 1, Table: "train", Source: "toy", Task: "t"})
	b.SetTier(eventlog.Full)
	tokens := func(branch uint32, w eventlog.Writer, ids ...int32) eventlog.Span {
		var lps []float32
		if w == eventlog.Policy {
			lps = make([]float32, len(ids))
		}
		sp, err := b.AppendTokens(branch, ids, lps, w, 0)
		require.NoError(t, err)
		return sp
	}
	sp := tokens(0, eventlog.Prompt, 1, 2)
	root, err := b.Append(eventlog.NewObservation("env", "task").In(0, sp))
	require.NoError(t, err)
	_, err = b.Append(eventlog.NewText("bad").In(0, tokens(0, eventlog.Policy, 8, 4, 3)))
	require.NoError(t, err)
	other, err := b.Fork(0, 2)
	require.NoError(t, err)
	seq, err := b.AppendAfter(root, eventlog.NewText("good").In(other, tokens(other, eventlog.Policy, 8, 5, 3)))
	require.NoError(t, err)
	require.NoError(t, b.SetOutcome(seq))
	l, err := b.Finish(eventlog.OK, "")
	require.NoError(t, err)

	h, err := StepPairs([]Group{{ID: "g", Logs: []*eventlog.Log{l}}})
	require.NoError(t, err)
	require.Empty(t, h.Excluded)
	require.Len(t, h.Rows, 1)
	require.Equal(t, []int32{1, 2}, h.Rows[0].Prompt, "a pair begins where the turn does, not where its tokens part")
	require.Equal(t, []int32{8, 5, 3}, h.Rows[0].Chosen.Tokens)
	require.Equal(t, []int32{8, 4, 3}, h.Rows[0].Rejected.Tokens)
}
