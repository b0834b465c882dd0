package learner

import (
	"context"
	"errors"
	"fmt"

	"github.com/skein-rl/skein/model"
)

// table is an analytic critic beside bandit: the value after a token is the
// number in its row of a table.
type table struct {
	params, grad []float32
	last         []model.PrefixGroup
	closed       bool
}

func newTable(v int) *table { return &table{params: make([]float32, v), grad: make([]float32, v)} }

func (b *table) Layout() model.Layout {
	return model.Layout{{Name: model.ScoreWeight, Shape: []int{1, len(b.params)}}}
}

func (b *table) SetParams(p []float32) error {
	if len(p) != len(b.params) {
		return errors.New("table: wrong size")
	}
	copy(b.params, p)
	return nil
}

func (b *table) Grad() []float32 { return b.grad }
func (b *table) ZeroGrad()       { clear(b.grad) }
func (b *table) Close() error    { b.closed = true; return nil }

func (b *table) each(groups []model.PrefixGroup, f func(tok int32)) error {
	for _, g := range groups {
		if err := (model.TrainerConfig{Value: true}).CheckMarks(g); err != nil {
			return fmt.Errorf("table: %w", err)
		}
		for _, m := range g.Members {
			for t, on := range m.Value {
				if on {
					f(m.Tokens[t])
				}
			}
		}
	}
	return nil
}

func (b *table) Score(_ context.Context, groups []model.PrefixGroup, _ float64, params []float32) (sc model.Scores, err error) {
	err = b.each(groups, func(tok int32) { sc.Values = append(sc.Values, params[tok]) })
	return sc, err
}

func (b *table) Forward(ctx context.Context, groups []model.PrefixGroup, temp float64) (model.Scores, error) {
	b.last = groups
	return b.Score(ctx, groups, temp, b.params)
}

func (b *table) Backward(_ context.Context, d model.Scores) error {
	k := 0
	return b.each(b.last, func(tok int32) {
		b.grad[tok] += d.Values[k]
		k++
	})
}
