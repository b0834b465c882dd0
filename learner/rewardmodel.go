package learner

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/skein-rl/skein/model"
)

// RewardModel scores finished sequences with a trained reward model: its value
// head after the last token. Safe for concurrent use: calls that wait while one is
// computed are computed together next, their equal prompts once.
type RewardModel struct {
	tr     model.Trainer
	params []float32
	budget int
	turn   chan struct{} // held by who computes
	closed sync.Once

	mu      sync.Mutex
	waiting []*scoring
}

// scoring is one call.
type scoring struct {
	seqs [][]sequence
	out  []float64
	done chan error // its outcome, once
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
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	c := &scoring{seqs: seqs, out: make([]float64, len(rows)), done: make(chan error, 1)}
	r.mu.Lock()
	r.waiting = append(r.waiting, c)
	r.mu.Unlock()
	for {
		select {
		case err := <-c.done:
			if err != nil {
				return nil, fmt.Errorf("learner: reward model: %w", err)
			}
			return c.out, nil
		case r.turn <- struct{}{}:
			r.serve(ctx)
			<-r.turn
		case <-ctx.Done():
			r.mu.Lock()
			r.waiting = slices.DeleteFunc(r.waiting, func(w *scoring) bool { return w == c })
			r.mu.Unlock()
			return nil, context.Cause(ctx)
		}
	}
}

// serve computes all that wait. When that fails each is computed alone, so that one
// call's trouble is its own. The caller's end is not the others'.
func (r *RewardModel) serve(ctx context.Context) {
	r.mu.Lock()
	calls := r.waiting
	r.waiting = nil
	r.mu.Unlock()
	ctx = context.WithoutCancel(ctx)
	err := r.compute(ctx, calls)
	for _, c := range calls {
		if err != nil && len(calls) > 1 {
			c.done <- r.compute(ctx, []*scoring{c})
			continue
		}
		c.done <- err
	}
}

// compute fills the outcomes of some calls. A panic of the trainer is an error: the
// others wait for theirs.
func (r *RewardModel) compute(ctx context.Context, calls []*scoring) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	var seqs [][]sequence
	var out [][]float64
	for _, c := range calls {
		seqs = append(seqs, c.seqs...)
		for i := range c.out {
			out = append(out, c.out[i:i+1])
		}
	}
	for _, m := range pack(seqs, all, r.budget) {
		sc, err := r.tr.Score(ctx, m.groups, 1, r.params)
		if err := checkValues(m, sc, err); err != nil {
			return err
		}
		m.scatter(sc.Values, func(row int) []float64 { return out[row] })
	}
	return nil
}

// Close frees the trainer. A call that its caller has given up may still compute:
// Close waits for it, and keeps the turn, so that none begins after it.
func (r *RewardModel) Close() (err error) {
	r.closed.Do(func() {
		r.turn <- struct{}{}
		err = r.tr.Close()
	})
	return err
}
