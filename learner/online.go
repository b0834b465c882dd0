package learner

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/skein-rl/skein/internal/spread"
	"github.com/skein-rl/skein/learner/data"
	"github.com/skein-rl/skein/learner/loss"
)

// onlineRows are a batch's rollouts as pairs or verdicts, and of which episodes
// each row is, in the order of its completions.
type onlineRows struct {
	rows []data.Example
	of   [][]int
}

// onlineStep is Step for the losses of rows: one update on the pairs, or
// verdicts, that the groups' rewards give.
func (l *Learner) onlineStep(ctx context.Context, groups []Group) (StepResult, error) {
	began, c := time.Now(), l.cfg
	b, err := Build(c, l.version, groups)
	if err != nil {
		return StepResult{}, err
	}
	on := c.onlineRows(b)
	if len(on.rows) == 0 {
		return StepResult{}, &EmptyBatchError{b.Excluded}
	}
	r := &rowRun{l: l, set: data.NewSet("rollouts", on.rows, data.Order{}), obj: newObjective(l), temperature: c.Temperature}
	idx := make([]int, len(on.rows))
	for i := range idx {
		idx[i] = i
	}
	rb := r.batch(r.set, idx)
	r.obj.reset()
	fail := func(err error) (StepResult, error) {
		return StepResult{}, fmt.Errorf("learner: step %d: %w", l.step+1, err)
	}
	grad, err := r.compute(ctx, rb, true)
	if err != nil {
		return fail(err)
	}
	updated := rb.spend(&rb.time.Optimizer)
	params, opt := slices.Clone(l.params), l.opt.clone()
	lr := c.LR(opt.T, c.optimizerSteps())
	norm, err := c.update(&opt, params, grad, l.decay, lr)
	updated()
	if err != nil {
		return fail(err)
	}
	res := StepResult{Step: l.step + 1, Version: l.version + 1, Trained: b.LogIDs(), Excluded: b.Excluded, Time: rb.time}
	res.Time.Total = time.Since(began)
	res.Metrics, res.Histograms = r.onlineMetrics(b, on, rb, res.Time)
	res.Metrics["grad_norm"], res.Metrics["learning_rate"] = norm, lr
	for k, v := range res.Metrics {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return StepResult{}, fmt.Errorf("%w: metric %s is %v", ErrDiverged, k, v)
		}
	}
	moving, err := l.nextReference(res.Step, params)
	if err != nil {
		return StepResult{}, err
	}
	r.obj.done()
	l.params, l.opt, l.moving = params, opt, moving
	l.step, l.version = res.Step, res.Version
	return res, nil
}

// onlineMetrics are those of the loss and, as for every step on rollouts, of the
// batch; log-probabilities are known of rollouts in rows alone.
func (r *rowRun) onlineMetrics(b *Batch, on onlineRows, rb *offBatch, took StepTime) (map[string]float64, map[string]spread.Histogram) {
	m := r.metrics(rb)
	s := &stepRun{l: r.l, b: b, dealer: r.dealer, rows: make([]loss.Row, len(b.Episodes)), old: make([][]float64, len(b.Episodes))}
	s.episodes(m)
	s.sources(m)
	m["num_tokens"] = float64(rb.tokens())
	for k, of := range on.of {
		lp := rb.logp[k]
		for _, i := range of {
			e := b.Episodes[i]
			s.old[i], lp = lp[:e.Tokens], lp[e.Tokens:]
			s.gap.add(e, s.old[i], r.l.version)
		}
	}
	s.gap.metrics(m)
	histograms := s.distributions(m)
	for reason, n := range b.Excluded {
		m["excluded/"+reason] = float64(n)
	}
	took.metrics(m)
	s.help(m)
	m["time/tokens_per_second"] = m["num_tokens"] / max(took.Total.Seconds(), 1e-9)
	return m, histograms
}

// onlineRows forms the rows, in canonical order, and counts what gives none.
func (c Config) onlineRows(b *Batch) (out onlineRows) {
	var group []int
	for i, e := range b.Episodes {
		if reason := c.unpairable(e); reason != "" {
			b.Excluded[reason]++
		} else {
			group = append(group, i)
		}
		if i+1 == len(b.Episodes) || b.Episodes[i+1].Group != e.Group {
			if c.Algorithm == OnlineDPO {
				c.pairsOf(b, group, &out)
			} else {
				c.verdictsOf(b, group, &out)
			}
			group = nil
		}
	}
	if c.Algorithm == OnlineBCO && len(out.rows) > 0 && !slices.ContainsFunc(out.rows, func(e data.Example) bool { return e.Label != out.rows[0].Label }) {
		b.Excluded["group_of_one_verdict"] += b.Groups // rewards on one side of the threshold shift only
		return onlineRows{}
	}
	return out
}

// unpairable says why an episode is no completion.
func (c Config) unpairable(e Episode) string {
	switch {
	case e.Tokens == 0:
		return "truncated" // masked
	case len(e.seqs) != 1:
		return "forked" // no one sequence holds it
	}
	return ""
}

func (c Config) pairsOf(b *Batch, group []int, out *onlineRows) {
	h := c.OnlineConfig.harvest()
	order := slices.Clone(group)
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(b.Episodes[j].Reward, b.Episodes[i].Reward) })
	made := 0
	for i, j := 0, len(order)-1; i < j && (h.MaxPairs == 0 || made < h.MaxPairs); i, j = i+1, j-1 {
		good, bad := b.Episodes[order[i]], b.Episodes[order[j]]
		g, w := good.seqs[0], bad.seqs[0]
		switch {
		case good.Reward-bad.Reward < h.Margin:
			b.Excluded["pair_below_margin"]++
		case !slices.Equal(g.prompt, w.prompt):
			b.Excluded["pair_prompts_differ"]++
		case slices.Equal(g.Tokens, w.Tokens):
			b.Excluded["pair_same_tokens"]++
		case good.weight == 0: // of its source
		default:
			out.rows = append(out.rows, data.Example{Prompt: g.prompt, Chosen: completionOf(g), Rejected: completionOf(w), Weight: good.weight, Where: good.LogID + " > " + bad.LogID})
			out.of = append(out.of, []int{order[i], order[j]})
			made++
		}
	}
	if made == 0 {
		b.Excluded["group_without_pair"]++
	}
}

func (c Config) verdictsOf(b *Batch, group []int, out *onlineRows) {
	threshold := c.OnlineConfig.harvest().MinReward
	for _, i := range group {
		e := b.Episodes[i]
		if e.weight == 0 {
			continue
		}
		s := e.seqs[0]
		out.rows = append(out.rows, data.Example{Prompt: s.prompt, Chosen: completionOf(s), Label: e.Reward >= threshold, Weight: e.weight, Where: e.LogID})
		out.of = append(out.of, []int{i})
	}
}

// completionOf is a branch of a rollout as a row's: what the policy did not write
// weighs 0.
func completionOf(s sequence) data.Completion {
	w := make([]float32, len(s.Train))
	for t, on := range s.Train {
		if on {
			w[t] = 1
		}
	}
	return data.Completion{Tokens: s.Tokens, Weights: w}
}
