package advantage

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestRLOOEqualsTRL(t *testing.T) {
	raw, err := os.ReadFile("testdata/rloo.json")
	require.NoError(t, err)
	type tensor struct {
		Shape []int
		Data  []*float64
	}
	var cases []struct {
		Name      string
		Beta      float64
		Normalize bool        `json:"normalize_advantages"`
		Clip      *[2]float64 `json:"reward_clip_range"`
		Weights   []float64
		G         int     `json:"num_generations"`
		Rewards   tensor  `json:"rewards_per_func"`
		Old       *tensor `json:"old_logps"`
		Ref       *tensor `json:"ref_logps"`
		Mask      *tensor `json:"completion_mask"`
		Adv       tensor  `json:"advantages"`
	}
	require.NoError(t, json.Unmarshal(raw, &cases))
	require.Len(t, cases, 16)
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			k := c.Rewards.Shape[1]
			var s []Sample
			var kl []float64
			for i := range c.Rewards.Shape[0] {
				x := Sample{Group: fmt.Sprint("g", i/c.G)}
				for j := range k {
					r := none
					if v := c.Rewards.Data[i*k+j]; v != nil {
						r = *v
					}
					x.Rewards = append(x.Rewards, r)
				}
				s = append(s, x)
				if c.Beta != 0 {
					w, sum := c.Old.Shape[1], 0.0
					for j := i * w; j < (i+1)*w; j++ {
						sum += (*c.Old.Data[j] - *c.Ref.Data[j]) * *c.Mask.Data[j]
					}
					kl = append(kl, sum)
				}
			}
			res, err := RLOO(RLOOConfig{Weights: c.Weights, RewardClipRange: c.Clip, Beta: c.Beta, NormalizeAdvantages: c.Normalize}, s, kl)
			require.NoError(t, err)
			for i, want := range c.Adv.Data {
				require.InDelta(t, *want, res.Advantages[i], 1e-9, "sample %d", i)
			}
		})
	}
}

// cases/training.tsv advantage: "RLOO baseline taken before the KL term is
// added": scores [1,0], beta*sumKL [0.5,0] give [0.5,-0.5].
func TestCaseAdvantageRLOOBaselineIncludesTheKL(t *testing.T) {
	res, err := RLOO(RLOOConfig{Weights: []float64{1}, Beta: .1}, one("g", 1, 0), []float64{5, 0})
	require.NoError(t, err)
	require.InDeltaSlice(t, []float64{.5, -.5}, res.Advantages, 1e-12)
}

// cases/training.tsv advantage: "RLOO on a group with one sample returned the
// raw reward": [6,3] and [9] give [3,-3] and 0.
func TestCaseAdvantageRLOOGroupOfOneIsZero(t *testing.T) {
	s := append(one("a", 6, 3), one("b", 9)...)
	res, err := RLOO(RLOOConfig{Weights: []float64{1}}, s, nil)
	require.NoError(t, err)
	require.Equal(t, []float64{3, -3, 0}, res.Advantages)
	// an unscored sibling is none
	res, err = RLOO(RLOOConfig{Weights: []float64{1}, NormalizeAdvantages: true}, one("c", 9, none), nil)
	require.NoError(t, err)
	require.Equal(t, []float64{0, 0}, res.Advantages)
	require.Equal(t, 1, res.Unscored)
}

// Groups whose rewards are equal have advantages of exactly 0, and the order of
// samples changes no bit.
func TestRLOOOrderAndConstantGroups(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := RLOOConfig{Weights: []float64{1}, NormalizeAdvantages: rapid.Bool().Draw(rt, "norm"), Beta: rapid.SampledFrom([]float64{0, .1}).Draw(rt, "beta")}
		n := rapid.IntRange(1, 8).Draw(rt, "n")
		s, kl := make([]Sample, n), make([]float64, n)
		for i := range s {
			s[i] = Sample{rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "g"), []float64{rapid.SampledFrom([]float64{.1, .3, 1, none}).Draw(rt, "r")}}
			kl[i] = rapid.SampledFrom([]float64{0, .7}).Draw(rt, "kl")
		}
		res, err := RLOO(c, s, kl)
		require.NoError(rt, err)
		idx := make([]int, n)
		for i := range idx {
			idx[i] = i
		}
		perm := rapid.Permutation(idx).Draw(rt, "perm")
		s2, kl2 := make([]Sample, n), make([]float64, n)
		for j, i := range perm {
			s2[j], kl2[j] = s[i], kl[i]
		}
		again, err := RLOO(c, s2, kl2)
		require.NoError(rt, err)
		for j, i := range perm {
			require.Equal(rt, res.Advantages[i], again.Advantages[j])
			require.False(rt, math.IsNaN(res.Advantages[i]))
			if !c.NormalizeAdvantages && res.Groups[s[i].Group].Constant {
				require.Zero(rt, res.Advantages[i])
			}
		}
	})
}

// Every token's advantage is the reward less the KL still to come; over the
// batch they have mean 0 and variance 1.
func TestReinforceIsRewardToGoNormalised(t *testing.T) {
	s := append(one("a", 1, 0), one("b", 2)...)
	s = append(s, one("b", none)...)
	tokens := []Tokens{{KL: []float64{1, none, 2}, Mask: []bool{true, false, true}}, {KL: []float64{0, 4}}, {KL: []float64{1}}, {KL: []float64{9, 9}}}
	res, adv, err := Reinforce(ReinforceConfig{Weights: []float64{1}, Beta: .1}, s, tokens)
	require.NoError(t, err)
	raw := []float64{.7, .8, -.4, -.4, 1.9}
	mu := (.7 + .8 - .4 - .4 + 1.9) / 5
	v := 0.0
	for _, x := range raw {
		v += (x - mu) * (x - mu) / 5
	}
	sd := math.Sqrt(v)
	require.InDeltaSlice(t, []float64{(.7 - mu) / sd, 0, (.8 - mu) / sd}, adv[0], 1e-12)
	require.InDeltaSlice(t, []float64{(-.4 - mu) / sd, (-.4 - mu) / sd}, adv[1], 1e-12)
	require.InDelta(t, (1.9-mu)/sd, adv[2][0], 1e-12)
	require.Equal(t, []float64{0, 0}, adv[3])
	require.InDelta(t, (.75-mu)/sd, res.Advantages[0], 1e-12)
	require.Equal(t, 1, res.Unscored)

	_, adv, err = Reinforce(ReinforceConfig{Weights: []float64{1}, GroupBaseline: true}, append(one("a", 1, 0), one("b", 5, 5)...), []Tokens{{KL: fill(2)}, {KL: fill(2)}, {KL: fill(1)}, {KL: fill(1)}})
	require.NoError(t, err)
	x := math.Sqrt(6. / 4) // .5/sqrt(4·.25/6)
	require.InDeltaSlice(t, []float64{x, x}, adv[0], 1e-12)
	require.InDeltaSlice(t, []float64{-x, -x}, adv[1], 1e-12)
	require.InDelta(t, 0, adv[2][0], 1e-12)

	_, adv, err = Reinforce(ReinforceConfig{Weights: []float64{1}}, one("a", .1, .1, .1), []Tokens{{KL: fill(3)}, {KL: fill(3)}, {KL: fill(4)}})
	require.NoError(t, err)
	require.Equal(t, [][]float64{fill(3), fill(3), fill(4)}, adv)
}

func fill(n int) []float64 { return make([]float64, n) }

func TestRLOOAndReinforceRefuse(t *testing.T) {
	bad := RLOOConfig{Weights: []float64{none}, RewardClipRange: &[2]float64{1, 1}, Beta: -1}
	for _, want := range []string{"reward_weights[0]: NaN", "reward_clip_range: [1, 1]", "beta: -1"} {
		require.ErrorContains(t, bad.Validate(), want)
		require.ErrorContains(t, ReinforceConfig{Weights: bad.Weights, RewardClipRange: bad.RewardClipRange, Beta: bad.Beta}.Validate(), want)
	}
	w := []float64{1}
	_, err := RLOO(RLOOConfig{Weights: w, Beta: 1}, one("g", 1), nil)
	require.ErrorContains(t, err, "0 KL sums for 1 samples")
	_, err = RLOO(RLOOConfig{Weights: w, Beta: 1}, one("g", 1), []float64{none})
	require.ErrorContains(t, err, `sample 0 of group "g": KL is NaN`)
	_, err = RLOO(RLOOConfig{Weights: w}, []Sample{{Rewards: w}}, nil)
	require.ErrorContains(t, err, "has no group")
	_, _, err = Reinforce(ReinforceConfig{Weights: w}, one("g", 1), nil)
	require.ErrorContains(t, err, "tokens of 0 samples for 1")
	_, _, err = Reinforce(ReinforceConfig{Weights: w, Beta: 1}, one("g", 1), []Tokens{{KL: []float64{none}}})
	require.ErrorContains(t, err, "token 0: KL is NaN")
	_, _, err = Reinforce(ReinforceConfig{Weights: w}, one("g", 1), []Tokens{{KL: w, Mask: make([]bool, 2)}})
	require.ErrorContains(t, err, "1 KL values, 2 mask values")
}
