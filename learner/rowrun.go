package learner

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/skein-rl/skein/learner/data"
	"github.com/skein-rl/skein/model"
)

// rowRun computes batches of rows for a learner: of a training on rows, and of
// one on rollouts whose loss is of pairs or verdicts.
type rowRun struct {
	l           *Learner
	set         *data.Set
	obj         objective
	temperature float64     // logits are divided by it
	ref         [][]float32 // the reference's log-probabilities by row; nil: taken in each step
	*dealer                 // of the batch in work
}

func (r *rowRun) batch(set *data.Set, idx []int) *offBatch {
	b := &offBatch{idx: idx}
	n := len(idx)
	b.logp, b.ref, b.value = make([][]float64, n), make([][]float64, n), make([][]float64, n)
	b.dLogP, b.dValue = make([][]float64, n), make([][]float64, n)
	heads := r.l.cfg.Trainer(model.LoRAConfig{}, false)
	if heads.MeanLogProb {
		b.mean, b.dMean = make([][]float64, n), make([][]float64, n)
	}
	if heads.LogSumSq {
		b.sumSq = make([][]float64, n)
	}
	rows := set.Rows()
	for k, i := range idx {
		e := &rows[i]
		seqs := r.obj.sequences(e)
		b.rows, b.seqs = append(b.rows, e), append(b.seqs, seqs)
		b.logp[k] = make([]float64, trainedOf(seqs))
		b.ref[k] = make([]float64, trainedOf(seqs))
		b.value[k] = make([]float64, len(seqs))
		for _, v := range [][][]float64{b.mean, b.sumSq} {
			if v != nil {
				v[k] = make([]float64, trainedOf(seqs))
			}
		}
	}
	b.micros = pack(b.seqs, all, r.l.cfg.TokenBudget)
	b.entropies = make([]float64, len(b.micros))
	return b
}

// compute scores a batch and evaluates its loss; with train it gives the gradient
// of the learner's parameters too. Micro-batches are dealt to the learner's
// trainer and its helpers; sums are taken in their order.
func (r *rowRun) compute(ctx context.Context, b *offBatch, train bool) (grad []float32, err error) {
	l := r.l
	r.dealer = l.dealer(ctx)
	b.train = train
	if err := r.obj.begin(r, b); err != nil {
		return nil, err
	}
	var drop model.Dropout
	if train {
		drop = l.cfg.dropout(model.DropoutPolicy, l.opt.T)
	}
	same := r.obj.reference() && r.sameAsReference() && drop.Rate == 0
	if r.obj.reference() && !same {
		if err := r.references(b, train); err != nil {
			return nil, err
		}
	}
	n, params := len(b.micros), l.numbered(placePolicy, l.params)
	losses, tallies := make([]float64, n), make([]func(), n)
	take := func(k int, sc model.Scores, err error) error {
		m := b.micros[k]
		if err := checkOffline(m, sc, err, l.cfg); err != nil {
			return err
		}
		b.scatter(k, sc)
		if same {
			for _, i := range m.rows() {
				copy(b.ref[i], b.logp[i])
			}
		}
		return nil
	}
	lossOf := func(k int, part []int) error {
		x, tally, err := r.obj.loss(b, part)
		if err != nil {
			return errors.Join(ErrDiverged, err)
		}
		if math.IsNaN(x) || math.IsInf(x, 0) {
			return fmt.Errorf("%w: loss is %v", ErrDiverged, x)
		}
		losses[k], tallies[k] = x, tally
		return nil
	}
	score := func(ctx context.Context, c computer, k int) error {
		done := b.spend(&b.time.Forward)
		sc, err := c.score(ctx, b.micros[k].under(drop), r.temperature, params)
		done()
		return take(k, sc, err)
	}
	ahead := r.obj.whole() && (n > 1 || !train)
	if ahead {
		if err := r.deal(n, score); err != nil {
			return nil, err
		}
		if err := lossOf(0, b.everything()); err != nil {
			return nil, err
		}
	}
	switch {
	case train:
		sum := newGradSum(len(l.params))
		err = r.deal(n, func(ctx context.Context, c computer, k int) error {
			m := b.micros[k]
			done := b.spend(&b.time.Forward)
			sc, err := c.forward(ctx, m.under(drop), r.temperature, params)
			done()
			if ahead && err != nil {
				return err
			}
			if !ahead {
				if err := take(k, sc, err); err != nil {
					return err
				}
				if err := lossOf(k, m.rows()); err != nil {
					return err
				}
			}
			defer b.spend(&b.time.Backward)()
			g, err := c.gradient(ctx, b.gather(m))
			if err == nil && len(g) != len(l.params) {
				err = fmt.Errorf("a gradient of %d numbers for %d parameters", len(g), len(l.params))
			}
			if err == nil {
				sum.add(k, g)
			}
			return err
		})
		grad = sum.sum
	case !ahead:
		err = r.deal(n, func(ctx context.Context, c computer, k int) error {
			if err := score(ctx, c, k); err != nil {
				return err
			}
			return lossOf(k, b.micros[k].rows())
		})
	}
	if err != nil {
		return nil, err
	}
	for k, tally := range tallies {
		if b.loss += losses[k]; tally != nil {
			tally()
		}
	}
	return grad, nil
}

// checkOffline refuses a trainer's answer of the wrong length.
func checkOffline(m micro, sc model.Scores, err error, c Config) error {
	if err != nil {
		return err
	}
	n, values, tc := m.scores(), 0, c.Trainer(model.LoRAConfig{}, false)
	if tc.Value {
		n, values = 0, n
	}
	if len(sc.LogProbs) != n || len(sc.Entropy) != n || len(sc.Values) != values {
		return fmt.Errorf("trainer returned %d log-probabilities, %d entropies and %d values for %d trained tokens and %d values",
			len(sc.LogProbs), len(sc.Entropy), len(sc.Values), n, values)
	}
	if tc.MeanLogProb && len(sc.MeanLogProb) != n || tc.LogSumSq && len(sc.LogSumSq) != n {
		return fmt.Errorf("trainer returned %d mean log-probabilities and %d sums of squares for %d trained tokens; make it with Config.Trainer", len(sc.MeanLogProb), len(sc.LogSumSq), n)
	}
	return nil
}

// logprobs scores sequences under given parameters; the result is indexed as
// they are, then by trained token.
func (r *rowRun) logprobs(seqs [][]sequence, params *paramVector) ([][]float64, error) {
	out := make([][]float64, len(seqs))
	for k, s := range seqs {
		out[k] = make([]float64, trainedOf(s))
	}
	micros := pack(seqs, all, r.l.cfg.TokenBudget)
	err := r.deal(len(micros), func(ctx context.Context, c computer, k int) error {
		sc, err := c.score(ctx, micros[k].groups, r.temperature, params)
		if err := checkOffline(micros[k], sc, err, r.l.cfg); err != nil {
			return err
		}
		micros[k].scatter(sc.LogProbs, func(i int) []float64 { return out[i] })
		return nil
	})
	return out, err
}

// metrics of a batch whose loss is known.
func (r *rowRun) metrics(b *offBatch) map[string]float64 {
	m := r.obj.metrics()
	m["loss"] = b.loss
	computed, given := b.computed()
	m["rows"], m["micro_batches"] = float64(len(b.rows)), float64(len(b.micros))
	m["computed_tokens"], m["sequence_tokens"] = float64(computed), float64(given)
	if n := b.tokens(); n > 0 {
		entropy := 0.0
		for _, x := range b.entropies {
			entropy += x
		}
		m["num_tokens"], m["entropy"] = float64(n), entropy/float64(n)
	}
	return m
}
