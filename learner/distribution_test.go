package learner

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/eventlog"
)

// Every number by hand: two rollouts of two tokens under a uniform policy.
func TestDistributionsOfAStep(t *testing.T) {
	c := small(2)
	l, _ := newLearner(t, c, nil)
	l.version = 2
	u := float32(-math.Log(vocab)) // the learner's log-probability of every token
	mk := func(m uint32, rw float64, gaps ...float32) *eventlog.Log {
		lps := []float32{u - gaps[0], u - gaps[1]}
		return entry{group: "g", member: m, size: 2, reward: r(rw), parts2: map[string]any{"answer": rw, "format": 1.0, "note": "x"},
			parts: []part{{eventlog.Policy, []int32{3}, lps[:1], 1}, {eventlog.Policy, []int32{4}, lps[1:], 2}}}.log(t)
	}
	res := step(t, l, Group{ID: "g", Logs: []*eventlog.Log{mk(0, 1, 0, .5), mk(1, 0, -.5, 0)}})
	m := res.Metrics
	a := .5 / (math.Sqrt(.5) + 1e-4)
	for name, want := range map[string]float64{
		"logprob_gap/k1": 0, "logprob_gap/k3": (math.Exp(.5) - 1.5 + math.Exp(-.5) - .5) / 4, "logprob_gap/p50": .25, "logprob_gap/p90": .5,
		"engine_ratio/p50": 1, "engine_ratio/p01": math.Exp(-.5) + .03*(1-math.Exp(-.5)),
		"advantage/mean": 0, "advantage/std": a, "advantage/min": -a, "advantage/max": a,
		"entropy/p10": math.Log(vocab), "staleness/p50": .5, "staleness/p90": 1, "completions/length/p50": 2,
		"rewards/answer/mean": .5, "rewards/answer/std": .5, "rewards/format/mean": 1, "rewards/format/std": 0,
		"tools/call_frequency": 0, "tools/calls_max": 0,
	} {
		require.Contains(t, m, name)
		require.InDelta(t, want, m[name], 1e-6, name)
	}
	require.NotContains(t, m, "rewards/note/mean")
	require.NotContains(t, m, "tools/failure_frequency", "no call, no share")
	for _, h := range []string{"logprob_gap", "engine_ratio", "entropy", "advantage", "staleness", "completions/length", "reward"} {
		sum := 0.0
		for _, n := range res.Histograms[h].Counts {
			sum += n
		}
		require.Equal(t, res.Histograms[h].Num, sum, h)
	}
	require.Equal(t, 4.0, res.Histograms["engine_ratio"].Num)
	require.Positive(t, m["time/tokens_per_second"])
}

func TestAFarEngineKeepsMetricsFinite(t *testing.T) {
	c := small(2)
	l, _ := newLearner(t, c, nil)
	lps := []float32{-500}
	g := Group{ID: "g", Logs: []*eventlog.Log{
		entry{group: "g", member: 0, size: 2, reward: r(1), parts: []part{{eventlog.Policy, []int32{3}, lps, 0}}}.log(t),
		entry{group: "g", member: 1, size: 2, reward: r(0), parts: []part{{eventlog.Policy, []int32{4}, lps, 0}}}.log(t)}}
	m := step(t, l, g).Metrics
	require.InDelta(t, 500-math.Log(vocab), m["logprob_gap/p50"], 1e-4)
	require.InEpsilon(t, math.Exp(69), m["engine_ratio/p50"], 1e-9)
}

func TestToolCallsAndTooManyComponents(t *testing.T) {
	parts := map[string]any{}
	for i := range maxComponents + 3 {
		parts[fmt.Sprintf("c%02d", i)] = 1.0
	}
	with := func(m uint32, calls, failed int) *eventlog.Log {
		b := eventlog.NewBuilder(eventlog.Meta{Run: run, Group: "g", Member: m, GroupSize: 2, Table: "train", Source: "toy", Task: "t", Worker: "w"})
		b.SetTier(eventlog.Full)
		_, err := b.AppendTokens(0, []int32{1, 2}, nil, eventlog.Prompt, 0)
		require.NoError(t, err)
		sp, err := b.AppendTokens(0, []int32{3}, []float32{-1}, eventlog.Policy, 0)
		require.NoError(t, err)
		_, err = b.Append(eventlog.NewText("x").In(0, sp))
		require.NoError(t, err)
		for i := range calls {
			id := fmt.Sprint("call", i)
			_, err := b.Append(eventlog.NewToolCall(id, "f", map[string]any{}))
			require.NoError(t, err)
			why := ""
			if i < failed {
				why = "broken"
			}
			_, err = b.Append(eventlog.NewToolResult(id, "out", why))
			require.NoError(t, err)
		}
		ev := eventlog.NewReward(eventlog.EpisodeScope, float64(m))
		ev.Payload["components"] = parts
		_, err = b.Append(ev)
		require.NoError(t, err)
		l, err := b.Finish(eventlog.OK, "")
		require.NoError(t, err)
		return l
	}
	l, _ := newLearner(t, small(2), nil)
	m := step(t, l, Group{ID: "g", Logs: []*eventlog.Log{with(0, 3, 1), with(1, 1, 0)}}).Metrics
	require.Equal(t, 2.0, m["tools/call_frequency"])
	require.Equal(t, 3.0, m["tools/calls_max"])
	require.Equal(t, .25, m["tools/failure_frequency"])
	require.Equal(t, 3.0, m["rewards/components_left_out"])
	require.Contains(t, m, "rewards/c31/std")
	require.NotContains(t, m, "rewards/c32/std")
}
