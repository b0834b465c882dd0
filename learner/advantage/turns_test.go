package advantage

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var plainTurns = TurnConfig{Scale: ScaleGroup, Gamma: 1, Weight: 1}

func TestTurnReturns(t *testing.T) {
	s := TurnSample{"g", []float64{.5, 0, -1}, 2}
	require.Equal(t, []float64{1.5, 1, 1}, plainTurns.Returns(s))
	require.Equal(t, []float64{.5 + .25*1, .5, 1}, TurnConfig{ScaleNone, .5, 1}.Returns(s))
	require.Equal(t, []float64{2, 2, 2}, TurnConfig{ScaleNone, 1, 0}.Returns(s), "weight 0: the episode's alone")
	require.Equal(t, []float64{5 + 0, 0, -10 + 2}, TurnConfig{ScaleNone, 0, 10}.Returns(s), "gamma 0: the turn's alone")
}

// Two rollouts of the same outcome: the one whose first turn was judged bad has
// its first turn below, and its others not above, the sibling's.
func TestTurnsCreditTheTurn(t *testing.T) {
	adv, groups, err := Turns(plainTurns, []TurnSample{{"g", []float64{-1, 0}, 1}, {"g", []float64{0, 0}, 1}})
	require.NoError(t, err)
	// returns 0 1 and 1 1: mean .75, variance (.5*(.75² + .25²) + .25²)/1
	std := math.Sqrt(.5*(.5625+.0625)+.0625) + 1e-4
	require.InDeltaSlice(t, []float64{-.75 / std, .25 / std}, adv[0], 1e-12)
	require.InDeltaSlice(t, []float64{.25 / std, .25 / std}, adv[1], 1e-12)
	require.InDelta(t, .75, groups["g"].Mean, 1e-15)
	require.False(t, groups["g"].Constant)
}

// Without turn rewards and discount every turn has the advantage that Compute
// gives its rollout, however many turns siblings have.
func TestTurnsWithoutTurnRewardsAreGRPO(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		scale := rapid.SampledFrom([]string{ScaleGroup, ScaleBatch, ScaleNone}).Draw(t, "scale")
		var flat []Sample
		var turns []TurnSample
		for i := range rapid.IntRange(2, 12).Draw(t, "n") {
			g, r := fmt.Sprint(i%2), rapid.Float64Range(-2, 2).Draw(t, "r")
			flat = append(flat, Sample{g, []float64{r}})
			turns = append(turns, TurnSample{g, make([]float64, rapid.IntRange(1, 4).Draw(t, "k")), r})
		}
		want, err := Compute(Config{scale, SumThenNormalize, []float64{1}}, flat)
		require.NoError(t, err)
		got, _, err := Turns(TurnConfig{scale, 1, 1}, turns)
		require.NoError(t, err)
		for i := range got {
			for _, a := range got[i] {
				require.InDelta(t, want.Advantages[i], a, 1e-9)
			}
		}
	})
}

// The order of samples changes no bit, and a constant group has exactly 0.
func TestTurnsOrderAndConstantGroups(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var s []TurnSample
	for i := range 20 {
		s = append(s, TurnSample{fmt.Sprint(i % 3), []float64{rng.NormFloat64(), rng.NormFloat64()}, rng.NormFloat64()})
	}
	want, _, err := Turns(TurnConfig{ScaleBatch, .9, .3}, s)
	require.NoError(t, err)
	order := rng.Perm(len(s))
	mixed := make([]TurnSample, len(s))
	for i, k := range order {
		mixed[i] = s[k]
	}
	got, _, err := Turns(TurnConfig{ScaleBatch, .9, .3}, mixed)
	require.NoError(t, err)
	for i, k := range order {
		require.Equal(t, want[k], got[i])
	}
	adv, groups, err := Turns(plainTurns, []TurnSample{{"c", []float64{.1, 0, 0}, .2}, {"c", []float64{.1}, .2}, {"alone", []float64{3}, 1}})
	require.NoError(t, err)
	require.NotZero(t, adv[0][0], "the later turns of the first earn less")
	require.False(t, groups["c"].Constant)
	require.Equal(t, []float64{0}, adv[2], "nothing to compare it with")
	adv, groups, err = Turns(plainTurns, []TurnSample{{"c", []float64{0, 0}, .3}, {"c", []float64{0}, .3}})
	require.NoError(t, err)
	require.Equal(t, [][]float64{{0, 0}, {0}}, adv)
	require.True(t, groups["c"].Constant)
}

func TestTurnsRefuse(t *testing.T) {
	_, _, err := Turns(TurnConfig{"x", 2, math.NaN()}, nil)
	for _, want := range []string{"scale_rewards", "turn_gamma: 2", "turn_reward_weight: NaN"} {
		require.ErrorContains(t, err, want)
	}
	_, groups, err := Turns(plainTurns, nil)
	require.NoError(t, err)
	require.Empty(t, groups)
	_, _, err = Turns(plainTurns, []TurnSample{{"g", nil, 1}})
	require.ErrorContains(t, err, "0 turns")
	_, _, err = Turns(plainTurns, []TurnSample{{"g", []float64{math.Inf(1)}, 1}})
	require.ErrorContains(t, err, "return is +Inf")
}
