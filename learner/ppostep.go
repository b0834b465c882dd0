package learner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/skein-rl/skein/learner/ppo"
	"github.com/skein-rl/skein/model"
)

// criticRun is a critic's working state in one step. Rows are indexed as
// episodes, values by trained token: V before that token was sampled. What a
// tool or the environment wrote is no step: it has no value and no reward, and
// credit does not decay over it. The branches of an episode follow each other.
type criticRun struct {
	c      *critic
	params []float32
	opt    AdamW
	seqs   [][]sequence
	budget int

	rows    []ppo.ValueRow // Pred is the current forward's
	stats   ppo.Stats
	value   ppo.ValueStats
	loss    float64 // sums over optimizer steps but lr
	norm    float64
	lr      float64
	updates int
	elapsed time.Duration
}

func newCriticRun(c *critic, b *Batch, budget int) *criticRun {
	r := &criticRun{c: c, params: slices.Clone(c.params), opt: c.opt.clone(), budget: budget}
	for _, e := range b.Episodes {
		var seqs []sequence
		for _, s := range e.seqs {
			if s.trained > 0 {
				seqs = append(seqs, valuedSeq(s))
			}
		}
		r.seqs = append(r.seqs, seqs)
		r.rows = append(r.rows, ppo.ValueRow{Pred: make([]float64, e.Tokens), Old: make([]float64, e.Tokens)})
	}
	return r
}

// micros packs the given rows, sorted.
func (r *criticRun) micros(rows []int) []micro {
	return pack(r.seqs, func(i int) bool {
		_, in := slices.BinarySearch(rows, i)
		return in
	}, r.budget)
}

// checkValues refuses a trainer's answer of the wrong length.
func checkValues(m micro, sc model.Scores, err error) error {
	if err == nil && len(sc.Values) != m.scores() {
		err = fmt.Errorf("trainer returned %d values for %d marked tokens", len(sc.Values), m.scores())
	}
	return err
}

// estimate takes the critic's values of all rows, and from them and the settled
// log-probabilities each token's advantage and return. The value of a state in
// which a rollout was cut (truncated) is taken as 0: its reward was given for
// what there is.
func (s *stepRun) estimate() error {
	r, t0 := s.critic, time.Now()
	all := make([]int, len(r.rows))
	for i := range all {
		all[i] = i
	}
	micros, params := r.micros(all), s.l.numbered(placeCritic, r.params)
	err := s.deal(len(micros), func(ctx context.Context, c computer, k int) error {
		m := micros[k]
		sc, err := c.score(ctx, m.groups, s.l.cfg.Temperature, params)
		if err := checkValues(m, sc, err); err != nil {
			return err
		}
		m.scatter(sc.Values, func(i int) []float64 { return r.rows[i].Old })
		return nil
	})
	if err != nil {
		return fmt.Errorf("critic: %w", err)
	}
	r.elapsed += time.Since(t0)
	rows := make([]ppo.Trajectory, len(r.rows))
	for i, e := range s.b.Episodes {
		rows[i] = ppo.Trajectory{Old: s.old[i], Ref: s.ref[i], Values: r.rows[i].Old, Score: e.Reward}
		if s.l.cfg.TurnAdvantages {
			rows[i].Rewards = e.paid(s.l.cfg.turns().Weight)
		}
	}
	est, stats, err := ppo.Estimates(s.l.cfg.ppo(), rows)
	if err != nil {
		return errors.Join(ErrDiverged, err)
	}
	r.stats = stats
	for i, e := range est {
		s.rows[i].Adv = scaledBy(e.Policy(len(s.old[i])), s.b.Episodes[i].weight)
		r.rows[i].Returns = e.Returns
	}
	return nil
}

// criticStep makes one optimizer step of the critic on a mini-batch.
func (s *stepRun) criticStep(rows []int) error {
	r, c, t0 := s.critic, s.l.cfg, time.Now()
	defer func() { r.elapsed += time.Since(t0) }()
	micros, params := r.micros(rows), s.l.numbered(placeCritic, r.params)
	count := ppo.ValueCount(pick(r.rows, rows))
	results := make([]ppo.ValueResult, len(micros))
	grad := newGradSum(len(r.params))
	drop := c.dropout(model.DropoutCritic, r.opt.T)
	err := s.deal(len(micros), func(ctx context.Context, by computer, k int) error {
		m := micros[k]
		sc, err := by.forward(ctx, m.under(drop), c.Temperature, params)
		if err := checkValues(m, sc, err); err != nil {
			return err
		}
		m.scatter(sc.Values, func(i int) []float64 { return r.rows[i].Pred })
		ids := m.rows()
		res, err := ppo.Value(c.ppo(), pick(r.rows, ids), count)
		if err != nil {
			return errors.Join(ErrDiverged, err)
		}
		at := make(map[int]int, len(ids))
		for k, i := range ids {
			at[i] = k
		}
		g, err := by.gradient(ctx, model.Scores{Values: m.gather(func(i int) []float64 { return res.DValue[at[i]] })})
		if err == nil && len(g) != len(r.params) {
			err = fmt.Errorf("a gradient of %d numbers for %d parameters", len(g), len(r.params))
		}
		if err == nil {
			results[k] = res
			grad.add(k, g)
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, res := range results {
		r.loss += res.Loss
		r.value.Merge(res.Stats)
	}
	rated := c
	rated.LearningRate = c.criticRate()
	r.lr = rated.LR(r.opt.T, c.optimizerSteps())
	norm, err := c.update(&r.opt, r.params, grad.sum, r.c.decay, r.lr)
	r.norm += norm
	r.updates++
	return err
}

// pick is the chosen elements in order.
func pick[T any](v []T, at []int) []T {
	out := make([]T, len(at))
	for k, i := range at {
		out[k] = v[i]
	}
	return out
}

// metrics adds the critic's.
func (r *criticRun) metrics(m map[string]float64) {
	for k, v := range r.stats.Metrics() {
		m[k] = v
	}
	for k, v := range r.value.Metrics() {
		m[k] = v
	}
	n := float64(max(r.updates, 1))
	m["critic/loss"] = r.loss / n // with vf_coef
	m["critic/grad_norm"] = r.norm / n
	m["critic/learning_rate"] = r.lr
	m["time/critic_s"] = r.elapsed.Seconds()
}
