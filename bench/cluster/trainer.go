package main

import (
	"context"
	"time"

	"github.com/skein-rl/skein/model"
)

// trainer is a model.Trainer of known speed: forward and backward of a sequence
// take so long, and need no processor meanwhile.
type trainer struct {
	layout   model.Layout
	grad     []float32
	sequence time.Duration
}

func (t *trainer) Layout() model.Layout      { return t.layout }
func (t *trainer) SetParams([]float32) error { return nil }
func (t *trainer) Grad() []float32           { return t.grad }
func (t *trainer) ZeroGrad()                 { clear(t.grad) }
func (t *trainer) Close() error              { return nil }

// scores are the logprobs that the engine gives under an adapter.
func scores(groups []model.PrefixGroup) (sc model.Scores) {
	for _, g := range groups {
		for _, m := range g.Members {
			for _, train := range m.Train {
				if train {
					sc.LogProbs, sc.Entropy = append(sc.LogProbs, -1.125), append(sc.Entropy, 1)
				}
			}
		}
	}
	return sc
}

// Score costs nothing: the time of a step is Forward's.
func (t *trainer) Score(_ context.Context, groups []model.PrefixGroup, _ float64, _ []float32) (model.Scores, error) {
	return scores(groups), nil
}

func (t *trainer) Forward(ctx context.Context, groups []model.PrefixGroup, _ float64) (model.Scores, error) {
	n := 0
	for _, g := range groups {
		n += len(g.Members)
	}
	select {
	case <-time.After(time.Duration(n) * t.sequence):
	case <-ctx.Done():
		return model.Scores{}, context.Cause(ctx)
	}
	return scores(groups), nil
}

// Backward moves every parameter a little, so that each step publishes another
// adapter.
func (t *trainer) Backward(context.Context, model.Scores) error {
	for i := range t.grad {
		t.grad[i] += 1e-3
	}
	return nil
}
