package advantage

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var none = math.NaN()

func grpo(n int) Config {
	w := make([]float64, n)
	for i := range w {
		w[i] = 1
	}
	return Config{Scale: ScaleGroup, Aggregation: SumThenNormalize, Weights: w}
}

func one(group string, rewards ...float64) []Sample {
	var out []Sample
	for _, r := range rewards {
		out = append(out, Sample{Group: group, Rewards: []float64{r}})
	}
	return out
}

func TestAdvantagesEqualTRL(t *testing.T) {
	raw, err := os.ReadFile("testdata/advantages.json")
	require.NoError(t, err)
	var cases []struct {
		Name    string
		Scale   string `json:"scale_rewards"`
		Agg     string `json:"multi_objective_aggregation"`
		G       int    `json:"num_generations"`
		Weights []float64
		Rewards struct {
			Shape []int
			Data  []*float64
		} `json:"rewards_per_func"`
		Advantages struct{ Data []float64 }
	}
	require.NoError(t, json.Unmarshal(raw, &cases))
	require.Len(t, cases, 18)
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			k := c.Rewards.Shape[1]
			var s []Sample
			for i := range c.Rewards.Shape[0] {
				r := make([]float64, k)
				for j := range r {
					r[j] = none
					if v := c.Rewards.Data[i*k+j]; v != nil {
						r[j] = *v
					}
				}
				s = append(s, Sample{Group: fmt.Sprint("g", i/c.G), Rewards: r})
			}
			res, err := Compute(Config{Scale: c.Scale, Aggregation: c.Agg, Weights: c.Weights}, s)
			require.NoError(t, err)
			require.InDeltaSlice(t, c.Advantages.Data, res.Advantages, 1e-9)
		})
	}
}

// cases/training.tsv grouping: "groups were cut as consecutive windows": any
// order of arrival gives the same advantages, bit for bit.
func TestCaseGroupingIsOrderIndependent(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := Config{Scale: rapid.SampledFrom([]string{ScaleGroup, ScaleBatch, ScaleNone}).Draw(rt, "scale"),
			Aggregation: rapid.SampledFrom([]string{SumThenNormalize, NormalizeThenSum}).Draw(rt, "agg"), Weights: []float64{1, .3}}
		n := rapid.IntRange(1, 20).Draw(rt, "n")
		s := make([]Sample, n)
		r := rapid.OneOf(rapid.Float64Range(-3, 3), rapid.Just(none))
		for i := range s {
			s[i] = Sample{Group: rapid.SampledFrom([]string{"a:b:1", "a:b:2", "a"}).Draw(rt, "g"), Rewards: []float64{r.Draw(rt, "r"), r.Draw(rt, "r")}}
		}
		want, err := Compute(c, s)
		require.NoError(rt, err)
		perm := rand.New(rand.NewPCG(uint64(n), 1)).Perm(n)
		moved := make([]Sample, n)
		for i, p := range perm {
			moved[i] = s[p]
		}
		got, err := Compute(c, moved)
		require.NoError(rt, err)
		for i, p := range perm {
			require.Equal(rt, want.Advantages[p], got.Advantages[i])
			require.False(rt, math.IsNaN(got.Advantages[i]))
		}
		require.Equal(rt, want.Unscored, got.Unscored)
	})
}

// cases/training.tsv grouping: "row ids containing ':' collapse to the prefix".
func TestCaseGroupingIdsAreOpaque(t *testing.T) {
	var s []Sample
	for i := range 32 {
		s = append(s, Sample{Group: fmt.Sprintf("a:b:case:%d", i/2), Rewards: []float64{float64(i % 2)}})
	}
	res, err := Compute(grpo(1), s)
	require.NoError(t, err)
	require.Len(t, res.Groups, 16)
	for _, g := range res.Groups {
		require.Equal(t, 2, g.Scored)
	}
}

// cases/training.tsv grouping: "groups keyed by prompt tokens merge duplicate
// prompts in a batch".
func TestCaseGroupingDuplicatePromptsStayApart(t *testing.T) {
	res, err := Compute(grpo(1), append(one("first", 1, 0), one("second", 1, 1)...))
	require.NoError(t, err)
	require.False(t, res.Groups["first"].Constant)
	require.True(t, res.Groups["second"].Constant)
	require.Equal(t, []float64{0, 0}, res.Advantages[2:])
	require.Greater(t, res.Advantages[0], .7)
}

// cases/training.tsv reward: "row for which every reward function abstained was
// summed to 0 and moved the group mean".
func TestCaseRewardNoneIsNotZero(t *testing.T) {
	res, err := Compute(grpo(1), one("g", 1, none, 0))
	require.NoError(t, err)
	require.Equal(t, .5, res.Groups["g"].Mean)
	require.Equal(t, 2, res.Groups["g"].Scored)
	require.Equal(t, 1, res.Unscored)
	require.Positive(t, res.Advantages[0])
	require.Zero(t, res.Advantages[1])
	require.Equal(t, -res.Advantages[0], res.Advantages[2])
}

// cases/training.tsv advantage: "per-reward-function normalisation (GDPO)
// spreads one None/NaN to the whole batch".
func TestCaseAdvantageNoneStaysInItsRow(t *testing.T) {
	s := []Sample{{"g", []float64{1, 0}}, {"g", []float64{none, 1}}, {"h", []float64{0, 1}}, {"h", []float64{1, 0}}, {"h", []float64{none, none}}}
	for _, agg := range []string{SumThenNormalize, NormalizeThenSum} {
		c := grpo(2)
		c.Aggregation = agg
		res, err := Compute(c, s)
		require.NoError(t, err)
		require.Equal(t, 1, res.Unscored)
		require.Zero(t, res.Advantages[4])
		for _, a := range res.Advantages {
			require.False(t, math.IsNaN(a) || math.IsInf(a, 0))
		}
		if agg == NormalizeThenSum {
			require.NotZero(t, res.Advantages[0])
			require.NotZero(t, res.Advantages[1])
		}
	}
}

func TestConstantGroupHasExactlyZeroAdvantages(t *testing.T) {
	for _, scale := range []string{ScaleGroup, ScaleNone} {
		c := grpo(1)
		c.Scale = scale
		res, err := Compute(c, one("g", .1, .1, .1, .1, .1, .1, .1))
		require.NoError(t, err)
		require.Equal(t, make([]float64, 7), res.Advantages)
	}
}

func TestBadInput(t *testing.T) {
	_, err := Compute(Config{Scale: "std", Aggregation: "mean", Weights: []float64{none}}, nil)
	for _, f := range []string{`scale_rewards: unknown "std"`, `multi_objective_aggregation: unknown "mean"`, "reward_weights[0]"} {
		require.ErrorContains(t, err, f)
	}
	_, err = Compute(grpo(2), one("g", 1))
	require.ErrorContains(t, err, "has 1 rewards for 2 reward_weights")
	_, err = Compute(grpo(1), one("", 1))
	require.ErrorContains(t, err, "has no group")
	_, err = Compute(grpo(1), one("g", math.Inf(1)))
	require.ErrorContains(t, err, "reward 0 is +Inf")
}
