package gobackend

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/model"
)

// joint is a trainer of the test with what it computes.
type joint struct {
	cfg    model.TrainerConfig
	params []float32
	groups []model.PrefixGroup
}

// Adapters of unlike rank, targets and batches, of every family of models, in one
// pass: scores and gradients are to the bit those of each alone, also where a
// trainer computes layers again and another keeps them.
func TestTogetherEqualsAlone(t *testing.T) {
	for name, c := range oddConfigs() {
		t.Run(name, func(t *testing.T) {
			m := randomModel(t, c, 21)
			r := rand.New(rand.NewPCG(22, 23))
			var js []joint
			for i, lora := range []model.LoRAConfig{
				{Rank: 3, Alpha: 5, Targets: c.Projections()},
				{Rank: 8, Alpha: 4, RSLoRA: true, Targets: c.Projections()[:1]},
				{Rank: 2, Alpha: 2, Targets: c.Projections()[1:]},
			} {
				js = append(js, joint{model.TrainerConfig{LoRA: lora}, randomAdapter(t, m, lora, uint64(30+i)).Params, randomGroups(r, c, 1+i, 3, 7, 9)})
			}
			for _, keep := range []int64{-1, 1 << 16, 0} {
				b := newBackend(t, m, Options{Threads: 2, ActivationBytes: keep})
				trainers := make([]model.Trainer, len(js))
				want, scores := make([][]float32, len(js)), make([]model.Scores, len(js))
				for i, j := range js {
					trainers[i] = newTrainer(t, b, j.cfg, j.params)
					want[i], scores[i] = gradient(t, trainers[i], [][]model.PrefixGroup{j.groups}, 0.9)
				}
				calls := make([]model.JointCall, len(js))
				for i, j := range js {
					calls[i] = model.JointCall{Trainer: trainers[i], Do: func() error {
						grad, s := gradient(t, trainers[i], [][]model.PrefixGroup{j.groups}, 0.9)
						if !equalBits(grad, want[i]) || !equalBits(s.LogProbs, scores[i].LogProbs) || !equalBits(s.Entropy, scores[i].Entropy) {
							return errors.New("not as alone")
						}
						return nil
					}}
				}
				met := &meeting{passes: len(calls)}
				for i, err := range b.together(calls, met) {
					require.NoError(t, err, "trainer %d, activations %d", i, keep)
				}
				for i, err := range b.Together(calls) {
					require.NoError(t, err, "trainer %d, activations %d", i, keep)
				}
				if c.Experts == 0 { // experts have rows of some passes only
					require.Less(t, met.computed, met.handed/2, "products are shared")
				}
			}
		})
	}
}

// someConfig is the first of the odd ones by name.
func someConfig() model.Config {
	all := oddConfigs()
	return all[slices.Min(slices.Collect(maps.Keys(all)))]
}

func equalBits(a, b []float32) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// A pass that fails leaves the others alone, and so does one that ends early.
func TestTogetherFailuresStayApart(t *testing.T) {
	c := someConfig()
	m := randomModel(t, c, 21)
	b := newBackend(t, m, Options{})
	lora := model.LoRAConfig{Rank: 2, Alpha: 2, Targets: c.Projections()}
	params := randomAdapter(t, m, lora, 3).Params
	groups := randomGroups(rand.New(rand.NewPCG(1, 2)), c, 2, 2, 5, 6)
	var trainers []model.Trainer
	for range 4 {
		trainers = append(trainers, newTrainer(t, b, model.TrainerConfig{LoRA: lora}, params))
	}
	for _, tr := range trainers {
		require.Same(t, b.net, tr.(*trainer).net, "however many trainers, one copy of the base")
	}
	want, _ := gradient(t, trainers[0], [][]model.PrefixGroup{groups}, 1)
	gone, cancel := context.WithCancel(ctx)
	cancel()
	var grad []float32
	errs := b.Together([]model.JointCall{
		{Trainer: trainers[0], Do: func() error { grad, _ = gradient(t, trainers[0], [][]model.PrefixGroup{groups}, 1); return nil }},
		{Trainer: trainers[1], Do: func() error { _, err := trainers[1].Forward(gone, groups, 1); return err }},
		{Trainer: trainers[2], Do: func() error { return trainers[2].Backward(ctx, model.Scores{LogProbs: []float32{1}}) }},
		{Trainer: trainers[3], Do: func() error { return nil }},
	})
	require.NoError(t, errs[0])
	require.ErrorIs(t, errs[1], context.Canceled)
	require.ErrorContains(t, errs[2], "no forward pass")
	require.NoError(t, errs[3])
	require.Equal(t, want, grad)

	for _, errs := range [][]error{
		b.Together([]model.JointCall{{Trainer: trainers[0], Do: func() error { t.Error("called"); return nil }}, {Trainer: trainers[0]}}),
		b.Together([]model.JointCall{{Trainer: newTrainer(t, newBackend(t, m, Options{}), model.TrainerConfig{LoRA: lora}, params)}}),
	} {
		require.ErrorIs(t, errs[0], errJoint)
	}
}

// Several users take turns on one backend, each with a loop of passes like a
// learner's: joined or not, each gets what it gets alone.
func TestTurnsEqualAlone(t *testing.T) {
	c := someConfig()
	m := randomModel(t, c, 41)
	b := newBackend(t, m, Options{Threads: 2})
	var js []joint
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 3 {
		lora := model.LoRAConfig{Rank: 2 + i, Alpha: 2, Targets: c.Projections()}
		js = append(js, joint{model.TrainerConfig{LoRA: lora}, randomAdapter(t, m, lora, uint64(i)).Params, randomGroups(r, c, 2, 2, 6, 8)})
	}
	loop := func(j joint, be model.Backend) (out [][]float32) {
		tr, err := be.NewTrainer(j.cfg)
		require.NoError(t, err)
		defer tr.Close()
		p := append([]float32(nil), j.params...)
		for range 4 {
			require.NoError(t, tr.SetParams(p))
			g, s := gradient(t, tr, [][]model.PrefixGroup{j.groups[:1], j.groups[1:]}, 1)
			ref, err := tr.Score(ctx, j.groups, 1, nil)
			require.NoError(t, err)
			for i := range p {
				p[i] -= 0.1 * g[i]
			}
			out = append(out, g, s.LogProbs, ref.LogProbs)
		}
		return out
	}
	for _, most := range []int{1, 0} { // one by one, together
		turns := model.NewTurns(b, most)
		var wg sync.WaitGroup
		for i, j := range js {
			wg.Go(func() {
				got := loop(j, turns.User(float64(i+1)))
				if want := loop(j, b); len(got) != len(want) {
					t.Error("lengths")
				} else {
					for k := range got {
						if !equalBits(got[k], want[k]) {
							t.Errorf("user %d: result %d is not as alone", i, k)
						}
					}
				}
			})
		}
		wg.Wait()
	}
}
