package learner

import (
	"context"
	"errors"
	"fmt"
	"math"
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

	train   bool    // else an evaluation
	entropy float64 // summed over trained tokens
	loss    float64
	time    StepTime
}

func (r *offline) batch(set *data.Set, idx []int) *offBatch {
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
	return b
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

func (b *offBatch) computed() (n int) {
	for _, m := range b.micros {
		n += m.tokens
	}
	return n
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
func (b *offBatch) scatter(m micro, sc model.Scores) {
	m.scatter(sc.LogProbs, func(k int) []float64 { return b.logp[k] })
	if b.mean != nil {
		m.scatter(sc.MeanLogProb, func(k int) []float64 { return b.mean[k] })
	}
	if b.sumSq != nil {
		m.scatter(sc.LogSumSq, func(k int) []float64 { return b.sumSq[k] })
	}
	for _, x := range sc.Entropy {
		b.entropy += float64(x)
	}
	if len(sc.Values) > 0 {
		m.eachSequence(func(k, row, seq int) { b.value[row][seq] = float64(sc.Values[k]) })
	}
}

// gather is the inverse, for derivatives.
func (b *offBatch) gather(m micro) (d model.Scores) {
	if m.scores() > 0 {
		d.LogProbs = m.gather(func(k int) []float64 { return b.dLogP[k] })
		if b.dMean != nil {
			d.MeanLogProb = m.gather(func(k int) []float64 { return b.dMean[k] })
		}
		return d
	}
	d.Values = make([]float32, len(m.spans))
	m.eachSequence(func(k, row, seq int) { d.Values[k] = float32(b.dValue[row][seq]) })
	return d
}

// eachSequence visits the sequences in the trainer's order, with their row and
// their number within it.
func (m micro) eachSequence(f func(k, row, seq int)) {
	seen := map[int]int{}
	for k, s := range m.spans {
		f(k, s.row, seen[s.row])
		seen[s.row]++
	}
}

// compute scores a batch and evaluates its loss; with train it accumulates the
// gradient of the learner's parameters too.
func (r *offline) compute(ctx context.Context, b *offBatch, train bool) error {
	l := r.l
	b.train = train
	if err := r.obj.begin(ctx, r, b); err != nil {
		return err
	}
	same := r.obj.reference() && r.sameAsReference()
	if r.obj.reference() && !same {
		if err := r.references(ctx, b, train); err != nil {
			return err
		}
	}
	if train {
		if err := l.tr.SetParams(l.params); err != nil {
			return err
		}
		l.tr.ZeroGrad()
	}
	take := func(m micro, sc model.Scores, err error) error {
		if err := checkOffline(m, sc, err, l.cfg); err != nil {
			return err
		}
		b.scatter(m, sc)
		if same {
			for _, k := range m.rows() {
				copy(b.ref[k], b.logp[k])
			}
		}
		return nil
	}
	lossOf := func(part []int) error {
		x, err := r.obj.loss(b, part)
		if err != nil {
			return errors.Join(ErrDiverged, err)
		}
		if b.loss += x; math.IsNaN(b.loss) || math.IsInf(b.loss, 0) {
			return fmt.Errorf("%w: loss is %v", ErrDiverged, b.loss)
		}
		return nil
	}
	ahead := r.obj.whole() && (len(b.micros) > 1 || !train)
	if ahead {
		for _, m := range b.micros {
			done := b.spend(&b.time.Forward)
			sc, err := l.tr.Score(ctx, m.groups, 1, l.params)
			done()
			if err := take(m, sc, err); err != nil {
				return err
			}
		}
		if err := lossOf(b.everything()); err != nil {
			return err
		}
	}
	for _, m := range b.micros {
		done := b.spend(&b.time.Forward)
		switch {
		case train:
			sc, err := l.tr.Forward(ctx, m.groups, 1)
			done()
			if ahead {
				if err != nil {
					return err
				}
				break
			}
			if err := take(m, sc, err); err != nil {
				return err
			}
		case !ahead:
			sc, err := l.tr.Score(ctx, m.groups, 1, l.params)
			done()
			if err := take(m, sc, err); err != nil {
				return err
			}
		}
		if !ahead {
			if err := lossOf(m.rows()); err != nil {
				return err
			}
		}
		if train {
			done := b.spend(&b.time.Backward)
			if err := l.tr.Backward(ctx, b.gather(m)); err != nil {
				return err
			}
			done()
		}
	}
	return nil
}

// spend adds the time until the returned function is called to a total.
func (b *offBatch) spend(on *time.Duration) func() {
	began := time.Now()
	return func() { *on += time.Since(began) }
}

// checkOffline refuses a trainer's answer of the wrong length.
func checkOffline(m micro, sc model.Scores, err error, c Config) error {
	if err != nil {
		return err
	}
	n, values, tc := m.scores(), 0, c.Trainer(model.LoRAConfig{}, false)
	if tc.Value {
		values = len(m.spans)
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
func (r *offline) logprobs(ctx context.Context, seqs [][]sequence, params []float32) ([][]float64, error) {
	out := make([][]float64, len(seqs))
	for k, s := range seqs {
		out[k] = make([]float64, trainedOf(s))
	}
	for _, m := range pack(seqs, all, r.l.cfg.TokenBudget) {
		sc, err := r.l.tr.Score(ctx, m.groups, 1, params)
		if err := checkOffline(m, sc, err, r.l.cfg); err != nil {
			return nil, err
		}
		m.scatter(sc.LogProbs, func(k int) []float64 { return out[k] })
	}
	return out, nil
}

// step makes one optimizer step; when it fails nothing has changed.
func (r *offline) step(ctx context.Context) (OfflineStep, error) {
	l, began := r.l, time.Now()
	idx := r.next()
	b := r.batch(r.set, idx)
	s := OfflineStep{Step: l.step + 1, Steps: r.total, Rows: len(idx), Tokens: b.tokens()}
	r.obj.reset()
	if err := r.compute(ctx, b, true); err != nil {
		return s, fmt.Errorf("learner: %s step %d: %w", l.cfg.Algorithm, s.Step, err)
	}
	grad := l.tr.Grad()
	norm := GradNorm(grad)
	if math.IsNaN(norm) || math.IsInf(norm, 0) {
		return s, fmt.Errorf("%w: %s step %d: gradient norm is %v", ErrDiverged, l.cfg.Algorithm, s.Step, norm)
	}
	updating := b.spend(&b.time.Optimizer)
	params, opt, c := slices.Clone(l.params), l.opt.clone(), l.cfg
	lr := c.LR(opt.T, int(r.total))
	if err := opt.Update(params, grad, l.decay, Hyper{LR: lr, Beta1: c.AdamBeta1, Beta2: c.AdamBeta2, Epsilon: c.AdamEpsilon, Scale: ClipScale(norm, c.MaxGradNorm)}); err != nil {
		return s, err
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
	s.Metrics["time/tokens_per_second"] = float64(b.computed()) / max(b.time.Total.Seconds(), 1e-9)
	return s, nil
}

// metrics of a batch whose loss is known.
func (r *offline) metrics(b *offBatch) map[string]float64 {
	m := r.obj.metrics()
	m["loss"] = b.loss
	m["rows"], m["computed_tokens"], m["micro_batches"] = float64(len(b.rows)), float64(b.computed()), float64(len(b.micros))
	if n := b.tokens(); n > 0 {
		m["num_tokens"], m["entropy"] = float64(n), b.entropy/float64(n)
	}
	return m
}

// evaluate computes the metrics of the evaluation set as one batch.
func (r *offline) evaluate(ctx context.Context) error {
	l, began := r.l, time.Now()
	if r.seen == l.step+1 {
		return nil
	}
	r.obj.reset()
	b := r.batch(r.opt.Eval, r.opt.Eval.Epoch(l.cfg.Seed, 0))
	if err := r.compute(ctx, b, false); err != nil {
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
