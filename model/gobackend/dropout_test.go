package gobackend

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/skein-rl/skein/model"
)

// dropping gives every group dropout.
func dropping(groups []model.PrefixGroup, d model.Dropout) []model.PrefixGroup {
	out := slices.Clone(groups)
	for i := range out {
		out[i].Dropout = d
	}
	return out
}

// TestDropoutPartitions: however the same sequences are cut into calls and
// groups, in whatever order, with activations kept or computed again, the scores
// under dropout are the same bits and the gradient is as close as without.
func TestDropoutPartitions(t *testing.T) {
	c := quickConfig()
	m := randomModel(t, c, 71)
	lora := everyLoRA(c)
	params := randomAdapter(t, m, lora, 72).Params
	cfg := model.TrainerConfig{LoRA: lora}
	tr := newTrainer(t, newBackend(t, m, Options{}), cfg, params)
	lean := newTrainer(t, newBackend(t, m, Options{Threads: 1, ActivationBytes: -1}), cfg, params)
	rapid.Check(t, func(rt *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 73))
		g := randomTree(r, c, 30, rapid.IntRange(1, 6).Draw(rt, "members"), rapid.IntRange(1, 20).Draw(rt, "length"))
		g.Dropout = model.Dropout{Rate: rapid.SampledFrom([]float64{0.1, 0.5}).Draw(rt, "rate"), Key: rapid.Uint64().Draw(rt, "key")}
		other := randomGroups(r, c, 1, 2, 10, 10)[0] // without
		want, scores := gradient(t, tr, [][]model.PrefixGroup{{g}}, 0.9)
		again, s := gradient(t, lean, [][]model.PrefixGroup{{g}}, 0.9)
		require.Equal(rt, scores, s)
		require.Equal(rt, want, again, "threads and recomputation change nothing at all")
		scored, err := tr.Score(ctx, []model.PrefixGroup{g}, 0.9, params)
		require.NoError(t, err)
		require.Equal(rt, scores.LogProbs, scored.LogProbs)

		var alone [][]model.PrefixGroup
		for _, g2 := range unshared(g) {
			g2.Dropout = g.Dropout
			alone = append(alone, []model.PrefixGroup{g2})
		}
		got, each := gradient(t, tr, alone, 0.9)
		require.Equal(rt, scores, each)
		require.Less(rt, relative(want, got), 2e-5)

		// Beside a group that drops nothing, on either side.
		_, plain := gradient(t, tr, [][]model.PrefixGroup{{other}}, 0.9)
		_, both := gradient(t, tr, [][]model.PrefixGroup{{other, g}}, 0.9)
		require.Equal(rt, slices.Concat(plain.LogProbs, scores.LogProbs), both.LogProbs)
		_, both = gradient(t, tr, [][]model.PrefixGroup{{g, other}}, 0.9)
		require.Equal(rt, slices.Concat(scores.LogProbs, plain.LogProbs), both.LogProbs)
	})
}

// TestDropoutGradient: the gradient is that of the masked computation, by finite
// differences.
func TestDropoutGradient(t *testing.T) {
	for name, c := range oddConfigs() {
		t.Run(name, func(t *testing.T) {
			c.ExpertsPerToken = c.Experts
			m := randomModel(t, c, 74)
			r := rand.New(rand.NewPCG(75, 76))
			groups := dropping(randomGroups(r, c, 2, 2, 7, 9), model.Dropout{Rate: 0.4, Key: 9})
			lora := model.LoRAConfig{Rank: 3, Alpha: 5, Targets: c.Projections(), RankPattern: model.Pattern[int]{{Key: c.Projections()[0], Value: 5}}}
			params := randomAdapter(t, m, lora, 77).Params
			tr := newTrainer(t, newBackend(t, m, Options{}), model.TrainerConfig{LoRA: lora}, params)
			grad, _ := gradient(t, tr, [][]model.PrefixGroup{groups}, 0.8)
			for _, p := range tr.Layout() {
				dir := make([]float64, p.Len())
				var want, norm float64
				for i := range dir {
					dir[i] = r.NormFloat64()
					want += dir[i] * float64(grad[p.Offset+i])
					norm += float64(grad[p.Offset+i]) * float64(grad[p.Offset+i])
				}
				at := func(h float64) float64 {
					moved := slices.Clone(params)
					for i, d := range dir {
						moved[p.Offset+i] += float32(h * d)
					}
					s, err := tr.Score(ctx, groups, 0.8, moved)
					require.NoError(t, err)
					return loss(groups, s)
				}
				h := 5e-4
				got := (8*(at(h)-at(-h)) - (at(2*h) - at(-2*h))) / (12 * h)
				require.InDelta(t, want, got, 6e-3*(math.Sqrt(norm)+1), p.Name)
			}
		})
	}
}

// TestDropoutOnlyOnTheAdapter: nothing is dropped at rate 0 and from the base, keys matter,
// and a full trainer refuses a rate.
func TestDropoutOnlyOnTheAdapter(t *testing.T) {
	c := quickConfig()
	m := randomModel(t, c, 78)
	lora := everyLoRA(c)
	params := randomAdapter(t, m, lora, 79).Params
	b := newBackend(t, m, Options{})
	tr := newTrainer(t, b, model.TrainerConfig{LoRA: lora}, params)
	groups := randomGroups(rand.New(rand.NewPCG(80, 1)), c, 2, 2, 10, 10)
	score := func(params []float32, d model.Dropout) []float32 {
		s, err := tr.Score(ctx, dropping(groups, d), 1, params)
		require.NoError(t, err)
		return s.LogProbs
	}
	plain := score(params, model.Dropout{})
	require.Equal(t, plain, score(params, model.Dropout{Key: 5}))
	require.Equal(t, score(nil, model.Dropout{}), score(nil, model.Dropout{Rate: 0.5, Key: 5}))
	dropped := score(params, model.Dropout{Rate: 0.5, Key: 5})
	require.NotEqual(t, plain, dropped)
	require.NotEqual(t, dropped, score(params, model.Dropout{Rate: 0.5, Key: 6}))

	_, err := tr.Forward(ctx, dropping(groups, model.Dropout{Rate: 1}), 1)
	require.ErrorContains(t, err, "group 0: dropout rate is 1, want 0 (none) or more and below 1")
	full, err := m.Weights.Flatten(c)
	require.NoError(t, err)
	_, err = newTrainer(t, b, model.TrainerConfig{Full: true}, full).Forward(ctx, dropping(groups, model.Dropout{Rate: 0.1}), 1)
	require.ErrorContains(t, err, "a full trainer has no adapter to drop from")
}
