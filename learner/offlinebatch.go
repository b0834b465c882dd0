package learner

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/skein-rl/skein/learner/data"
	"github.com/skein-rl/skein/model"
)

// offBatch is the rows of one optimizer step, or of an evaluation, with their
// scores and the derivatives of the loss. Slices are indexed by row of the
// batch, then by trained token: a pair's chosen ones, then its rejected ones.
type offBatch struct {
	rows      []*data.Example
	idx       []int // of the set
	seqs      [][]sequence
	micros    []micro
	logp, ref [][]float64
	value     [][]float64 // one per sequence, where a value head is read
	mean      [][]float64 // log-probability over the vocabulary; nil unless the loss needs it
	sumSq     [][]float64 // log Σπ²; nil unless the loss needs it
	dLogP     [][]float64
	dMean     [][]float64
	dValue    [][]float64

	train     bool      // else an evaluation
	entropies []float64 // summed over trained tokens, by micro-batch
	loss      float64
	timer
}

func trainedOf(seqs []sequence) (n int) {
	for _, s := range seqs {
		n += s.trained
	}
	return n
}

// tokens is the number of trained tokens.
func (b *offBatch) tokens() (n int) {
	for _, lp := range b.logp {
		n += len(lp)
	}
	return n
}

// computed is what its passes compute, given what its sequences have together.
func (b *offBatch) computed() (computed, given int) {
	for _, m := range b.micros {
		computed, given = computed+m.tokens, given+m.given
	}
	return computed, given
}

// everything lists all rows of the batch.
func (b *offBatch) everything() []int {
	out := make([]int, len(b.rows))
	for k := range out {
		out[k] = k
	}
	return out
}

// scatter brings a micro-batch's scores to its rows.
func (b *offBatch) scatter(k int, sc model.Scores) {
	m := b.micros[k]
	if b.mean != nil {
		m.scatter(sc.MeanLogProb, func(k int) []float64 { return b.mean[k] })
	}
	if b.sumSq != nil {
		m.scatter(sc.LogSumSq, func(k int) []float64 { return b.sumSq[k] })
	}
	if m.valued {
		m.scatter(sc.Values, func(k int) []float64 { return b.value[k] })
		return
	}
	m.scatter(sc.LogProbs, func(k int) []float64 { return b.logp[k] })
	b.entropies[k] = m.total(sc.Entropy)
}

// gather is the inverse, for derivatives.
func (b *offBatch) gather(m micro) (d model.Scores) {
	if m.valued {
		d.Values = m.gather(func(k int) []float64 { return b.dValue[k] })
		return d
	}
	d.LogProbs = m.gather(func(k int) []float64 { return b.dLogP[k] })
	if b.dMean != nil {
		d.MeanLogProb = m.gather(func(k int) []float64 { return b.dMean[k] })
	}
	return d
}

// step makes one optimizer step; when it fails nothing has changed.
func (r *offline) step(ctx context.Context) (OfflineStep, error) {
	l, began := r.l, time.Now()
	idx := r.next()
	b := r.batch(r.set, idx)
	s := OfflineStep{Step: l.step + 1, Steps: r.total, Rows: len(idx), Tokens: b.tokens()}
	r.obj.reset()
	grad, err := r.compute(ctx, b, true)
	if err != nil {
		return s, fmt.Errorf("learner: %s step %d: %w", l.cfg.Algorithm, s.Step, err)
	}
	updating := b.spend(&b.time.Optimizer)
	params, opt, c := slices.Clone(l.params), l.opt.clone(), l.cfg
	lr := c.LR(opt.T, int(r.total))
	norm, err := c.update(&opt, params, grad, l.decay, lr)
	if err != nil {
		return s, fmt.Errorf("learner: %s step %d: %w", c.Algorithm, s.Step, err)
	}
	updating()
	l.params, l.opt = params, opt
	r.obj.done()
	l.step++
	l.version++
	if l.cursor += uint64(len(idx)); l.cursor == uint64(len(r.order)) {
		l.epoch, l.cursor = l.epoch+1, 0
	}
	s.Epoch, s.Elapsed = r.position(), time.Since(r.began)
	s.Metrics = r.metrics(b)
	s.Metrics["grad_norm"], s.Metrics["learning_rate"], s.Metrics["epoch"] = norm, lr, s.Epoch
	b.time.Total = time.Since(began)
	b.time.metrics(s.Metrics)
	r.help(s.Metrics)
	s.Metrics["time/tokens_per_second"] = s.Metrics["computed_tokens"] / max(b.time.Total.Seconds(), 1e-9)
	return s, nil
}

// evaluate computes the metrics of the evaluation set as one batch.
func (r *offline) evaluate(ctx context.Context) error {
	l, began := r.l, time.Now()
	if r.seen == l.step+1 {
		return nil
	}
	r.obj.reset()
	b := r.batch(r.opt.Eval, r.opt.Eval.Epoch(l.cfg.Seed, 0))
	if _, err := r.compute(ctx, b, false); err != nil {
		return fmt.Errorf("learner: %s evaluation after step %d: %w", l.cfg.Algorithm, l.step, err)
	}
	r.seen = l.step + 1
	if r.opt.OnEval == nil {
		return nil
	}
	if r.order == nil {
		r.next()
	}
	out := map[string]float64{}
	for k, v := range r.metrics(b) {
		out["eval_"+k] = v
	}
	if err := r.opt.OnEval(OfflineEval{Step: l.step, Epoch: r.position(), Metrics: out, Elapsed: time.Since(began)}); err != nil {
		return fmt.Errorf("%w: %w", errStopped, err)
	}
	return nil
}
