package learner

import (
	"context"
	"fmt"

	"github.com/skein-rl/skein/model"
)

// RewardModel scores finished sequences with a trained reward model: its value
// head after the last token. Safe for concurrent use; calls take turns.
type RewardModel struct {
	tr     model.Trainer
	params []float32
	budget int
	turn   chan struct{}
}

// NewRewardModel loads a reward model's adapter (model.LoadScoreAdapter) over a
// backend's base, whose configuration is c. budget is the target size of one
// forward pass in tokens (Config.TokenBudget). The backend must outlive it.
func NewRewardModel(b model.Backend, c model.Config, a *model.Adapter, budget int) (*RewardModel, error) {
	if a.Score == nil {
		return nil, fmt.Errorf("learner: reward model: %w: it has no value head; train one with algorithm %q", model.ErrAdapter, Reward)
	}
	if err := a.Check(c); err != nil {
		return nil, fmt.Errorf("learner: reward model: %w", err)
	}
	if budget < 1 {
		return nil, fmt.Errorf("learner: reward model: token budget %d is below 1; use e.g. 4096", budget)
	}
	tr, err := b.NewTrainer(model.TrainerConfig{LoRA: a.LoRA, Value: true})
	if err != nil {
		return nil, fmt.Errorf("learner: reward model: %w", err)
	}
	return &RewardModel{tr: tr, params: a.Flat(), budget: budget, turn: make(chan struct{}, 1)}, nil
}

// RewardRow is a sequence to score, as the reward model was trained on them: the
// prompt, and the completion to its end, its end-of-turn token included. Rows
// with one prompt share it.
type RewardRow struct{ Prompt, Tokens []int32 }

// Score gives each row its score, in order; a row's does not depend on the
// others. Errors: a row without prompt or completion, the trainer's, ctx's.
func (r *RewardModel) Score(ctx context.Context, rows []RewardRow) ([]float64, error) {
	seqs := make([][]sequence, len(rows))
	for i, row := range rows {
		if len(row.Prompt) == 0 || len(row.Tokens) == 0 {
			return nil, fmt.Errorf("learner: reward model: row %d has %d prompt and %d completion tokens; both are needed", i, len(row.Prompt), len(row.Tokens))
		}
		s := endValued(row.Prompt, row.Tokens)
		s.trained = 1 // one value
		seqs[i] = []sequence{s}
	}
	select {
	case r.turn <- struct{}{}:
		defer func() { <-r.turn }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	out := make([]float64, len(rows))
	for _, m := range pack(seqs, all, r.budget) {
		sc, err := r.tr.Score(ctx, m.groups, 1, r.params)
		if err := checkValues(m, sc, err); err != nil {
			return nil, fmt.Errorf("learner: reward model: %w", err)
		}
		m.scatter(sc.Values, func(i int) []float64 { return out[i : i+1] })
	}
	return out, nil
}

// Close frees the trainer; no call may be running.
func (r *RewardModel) Close() error { return r.tr.Close() }
