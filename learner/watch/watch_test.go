package watch

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

type metrics = map[string]float64

// healthy is a step that no rule minds.
func healthy() metrics {
	return metrics{"entropy": 1, "frac_reward_zero_std": .3, "reward": .5, "reward_std": .2, "logprob_gap/mean_abs": 1e-3,
		"logprob_gap/same_version_mean_abs": 1e-5, "completions/mean_length": 100, "kl": .05, "completions/clipped_ratio": .05,
		"rollout_is/kept_tokens": 90, "rollout_is/rejected_tokens": 10}
}

// history has n healthy steps and then m with the changes.
func history(n, m int, change metrics) []Step {
	var out []Step
	for i := range n + m {
		s := healthy()
		if i >= n {
			for k, v := range change {
				s[k] = v
				if math.IsNaN(v) {
					delete(s, k)
				}
			}
		}
		out = append(out, Step{uint64(i + 1), s})
	}
	return out
}

func TestEachRule(t *testing.T) {
	none := math.NaN()
	for _, tc := range []struct {
		name   string
		change metrics
		kind   string
		cause  string
	}{
		{"absolute entropy", metrics{"entropy": 1e-4}, EntropyCollapse, "likely"},
		{"entropy against the start", metrics{"entropy": .19}, EntropyCollapse, "likely"},
		{"too hard", metrics{"frac_reward_zero_std": .95, "reward": 0}, ConstantGroups, "too hard"},
		{"too easy", metrics{"frac_reward_zero_std": 1, "reward": 1, "reward_std": 0}, ConstantGroups, "solved"},
		{"constant groups left out", metrics{"frac_reward_zero_std": 0, "groups": 1, "excluded/group_constant": 15, "reward": .1}, ConstantGroups, "too hard"},
		{"noise rewards", metrics{"reward_std": 5e-4}, RewardFlat, "small one"},
		{"numerics", metrics{"logprob_gap/same_version_mean_abs": .2}, LogprobGap, "numerics"},
		{"growing numerics", metrics{"logprob_gap/same_version_mean_abs": .02}, LogprobGap, "numerics"},
		{"stale", metrics{"logprob_gap/same_version_mean_abs": none, "logprob_gap/mean_abs": .5}, LogprobGap, "stale"},
		{"length", metrics{"completions/mean_length": 201}, LengthExplosion, "favours length"},
		{"kl", metrics{"kl": 1.1}, KLExplosion, "too large"},
		{"truncated", metrics{"completions/clipped_ratio": .31}, Truncated, "limit"},
		{"rejected", metrics{"rollout_is/kept_tokens": 40, "rollout_is/rejected_tokens": 60}, Rejected, "sequence modes"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := DefaultConfig()
			require.NoError(t, c.Validate())
			got := Detect(c, history(6, 20, tc.change))
			require.Len(t, got, 1, "once, and no other")
			w := got[0]
			require.Equal(t, tc.kind, w.Kind)
			require.GreaterOrEqual(t, w.Step, uint64(7))
			require.LessOrEqual(t, w.Step, uint64(9), "within a window")
			require.Contains(t, w.Cause, tc.cause)
			require.NotEmpty(t, w.Remedy)
			require.True(t, strings.HasPrefix(w.String(), w.Kind+": "+w.What), w.String())
			require.NotContains(t, w.String(), "NaN")
			require.NotContains(t, w.String(), "%!")
		})
	}
}

func TestHealthyRunsAreQuiet(t *testing.T) {
	require.Empty(t, Detect(DefaultConfig(), history(100, 0, nil)))
	better := history(6, 30, metrics{"completions/mean_length": 400, "reward": .9}) // longer and better
	require.Empty(t, Detect(DefaultConfig(), better))
	require.Empty(t, Detect(DefaultConfig(), history(0, 30, metrics{"logprob_gap/mean_abs": .5})), "stale tokens beside exact ones")
	require.Empty(t, Detect(DefaultConfig(), make([]Step, 20)), "no metrics, no evidence")
	require.Empty(t, Detect(DefaultConfig(), history(6, 1, metrics{"frac_reward_zero_std": 1, "reward_std": .2})), "one step is no trend")
}

func TestOnsetOnceAndAgainAfterItWasAway(t *testing.T) {
	c := DefaultConfig()
	bad, ok := metrics{"kl": 5}, metrics(nil)
	var h []Step
	for _, part := range []struct {
		n      int
		change metrics
	}{{5, ok}, {5, bad}, {4, ok}, {3, bad}, {12, ok}, {5, bad}} {
		for _, s := range history(0, part.n, part.change) {
			s.Step = uint64(len(h) + 1)
			h = append(h, s)
		}
	}
	var at []uint64
	d := NewDetector(c)
	active := map[uint64][]string{}
	for _, s := range h {
		for _, w := range d.Add(s) {
			at = append(at, w.Step)
		}
		active[s.Step] = d.Active()
	}
	require.Len(t, at, 2, "a short pause is no end")
	require.Equal(t, []string{KLExplosion}, active[10])
	require.Empty(t, active[28])
}

func TestZeroSwitchesRulesOff(t *testing.T) {
	c := Config{Window: 3, Baseline: 3}
	require.NoError(t, c.Validate())
	require.Empty(t, Detect(c, history(6, 20, metrics{"entropy": 0, "frac_reward_zero_std": 1, "reward_std": 0, "kl": 100,
		"logprob_gap/same_version_mean_abs": 9, "completions/mean_length": 1e6, "completions/clipped_ratio": 1, "rollout_is/kept_tokens": 0})))
}

func TestValidateNamesFields(t *testing.T) {
	err := Config{EntropyDrop: 2, KL: math.NaN(), LengthGrowth: .5, Truncated: -1}.Validate()
	for _, want := range []string{"window: 0", "baseline: 0", "entropy_drop: 2", "kl: NaN", "length_growth: 0.5", "truncated: -1"} {
		require.ErrorContains(t, err, want)
	}
}

// One step at a time gives what the whole history gives, and a history that goes
// on never changes what was said.
func TestPropertyPrefixes(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := DefaultConfig()
		c.Window, c.Baseline = rapid.IntRange(1, 4).Draw(rt, "window"), rapid.IntRange(1, 4).Draw(rt, "baseline")
		n := rapid.IntRange(0, 30).Draw(rt, "n")
		var h []Step
		for i := range n {
			s := healthy()
			for k := range s {
				if rapid.IntRange(0, 9).Draw(rt, "odd") == 0 {
					s[k] = rapid.SampledFrom([]float64{0, 1e-4, .95, 5, 1e3, math.NaN()}).Draw(rt, "value")
				}
			}
			h = append(h, Step{uint64(i + 1), s})
		}
		whole := Detect(c, h)
		cut := rapid.IntRange(0, n).Draw(rt, "cut")
		part := Detect(c, h[:cut])
		require.Equal(rt, len(part) == 0, len(whole[:len(part)]) == 0)
		for i := range part {
			require.Equal(rt, part[i], whole[i])
		}
		kinds := Kinds()
		for _, w := range whole {
			require.Contains(rt, kinds, w.Kind)
			require.False(rt, math.IsNaN(w.Value) || math.IsNaN(w.Limit), "%+v", w)
		}
	})
}
