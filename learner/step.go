package learner

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/skein-rl/skein/learner/loss"
	"github.com/skein-rl/skein/model"
)

// ErrDiverged: a loss or gradient is not finite. Nothing was updated.
var ErrDiverged = errors.New("learner: loss or gradient is not finite")

// StepResult is what a step did.
type StepResult struct {
	Step    uint64 // this step's number, from 1
	Version uint64 // policy version it makes
	// Trained are the batch's logs, in order; Excluded counts the others by
	// reason.
	Trained  []string
	Excluded map[string]int
	// Metrics: names as TRL's where it has one; every value is finite.
	Metrics map[string]float64
	Time    StepTime
}

// StepTime splits a step's wall time.
type StepTime struct{ Forward, Reference, Backward, Optimizer, Total time.Duration }

// Step trains one batch: NumIterations optimizer steps on the groups' tokens,
// the first with old = new log-probabilities. Errors: *[GroupError],
// *[EmptyBatchError], [ErrDiverged], the trainer's, ctx's. After an error
// nothing has changed.
func (l *Learner) Step(ctx context.Context, groups []Group) (StepResult, error) {
	if l.cfg.Algorithm != GRPO {
		return StepResult{}, fmt.Errorf("learner: algorithm: Step trains %q, the configuration says %q", GRPO, l.cfg.Algorithm)
	}
	began := time.Now()
	b, err := Build(l.cfg, l.version, groups)
	if err != nil {
		return StepResult{}, err
	}
	s := &stepRun{l: l, ctx: ctx, cfg: l.cfg.lossConfig(), b: b,
		params: slices.Clone(l.params), opt: l.opt.clone(),
		micros: pack(rowsOf(b), func(i int) bool { return l.needed(b.Episodes[i]) }, l.cfg.TokenBudget),
	}
	if err := s.run(); err != nil {
		return StepResult{}, err
	}
	res := StepResult{Step: l.step + 1, Version: l.version + 1, Trained: b.LogIDs(), Excluded: b.Excluded, Time: s.time}
	res.Time.Total = time.Since(began)
	res.Metrics = s.metrics()
	for k, v := range res.Metrics {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return StepResult{}, fmt.Errorf("%w: metric %s is %v", ErrDiverged, k, v)
		}
	}
	l.params, l.opt = s.params, s.opt
	l.step, l.version = res.Step, res.Version
	return res, nil
}

// stepRun is the working state of one step. Rows are indexed as episodes.
type stepRun struct {
	l      *Learner
	ctx    context.Context
	cfg    loss.Config
	b      *Batch
	micros []micro
	params []float32
	opt    AdamW

	rows     []loss.Row // LogP and Entropy are this iteration's
	old, ref [][]float64

	loss, policy, norm, lr float64 // sums over iterations but lr
	stats                  loss.Stats
	gap                    gapStats
	time                   StepTime
}

func (s *stepRun) run() error {
	n := len(s.b.Episodes)
	s.rows, s.old, s.ref = make([]loss.Row, n), make([][]float64, n), make([][]float64, n)
	for i, e := range s.b.Episodes {
		s.rows[i] = loss.Row{LogP: make([]float64, e.Tokens), Entropy: make([]float64, e.Tokens), Adv: []float64{e.Advantage}, Sampling: e.Sampled}
		if s.l.cfg.OldLogprobs == OldEngine {
			s.rows[i].Old = e.Sampled
		}
		s.old[i], s.ref[i] = make([]float64, e.Tokens), make([]float64, e.Tokens)
	}
	for it := range s.l.cfg.NumIterations {
		if err := s.iteration(it); err != nil {
			return fmt.Errorf("learner: step %d iteration %d: %w", s.l.step+1, it+1, err)
		}
	}
	return nil
}

func (s *stepRun) iteration(it int) error {
	tr := s.l.tr
	if err := tr.SetParams(s.params); err != nil {
		return err
	}
	tr.ZeroGrad()
	tot, err := s.totals(it)
	if err != nil {
		return err
	}
	for _, m := range s.micros {
		t0 := time.Now()
		sc, err := s.forward(m)
		s.time.Forward += time.Since(t0)
		if err != nil {
			return err
		}
		s.scatter(m, sc)
		if it == 0 {
			if err := s.first(m); err != nil {
				return err
			}
		}
		if err := s.backward(it, m, tot); err != nil {
			return err
		}
	}
	t0 := time.Now()
	defer func() { s.time.Optimizer += time.Since(t0) }()
	return s.update()
}

func (s *stepRun) forward(m micro) (model.Scores, error) {
	sc, err := s.l.tr.Forward(s.ctx, m.groups, s.l.cfg.Temperature)
	return sc, checkScores(m, sc, err)
}

// checkScores refuses a trainer's answer of the wrong length.
func checkScores(m micro, sc model.Scores, err error) error {
	if err == nil && (len(sc.LogProbs) != m.scores() || len(sc.Entropy) != m.scores()) {
		err = fmt.Errorf("trainer returned %d log-probabilities and %d entropies for %d trained tokens", len(sc.LogProbs), len(sc.Entropy), m.scores())
	}
	return err
}

func (s *stepRun) scatter(m micro, sc model.Scores) {
	m.scatter(sc.LogProbs, func(i int) []float64 { return s.rows[i].LogP })
	m.scatter(sc.Entropy, func(i int) []float64 { return s.rows[i].Entropy })
}

// first settles, from the first forward pass of the step, what later passes
// hold constant: old and reference log-probabilities and rollout weights.
func (s *stepRun) first(m micro) error {
	for _, i := range m.rows() {
		copy(s.old[i], s.rows[i].LogP)
		s.gap.add(s.b.Episodes[i], s.old[i], s.l.version)
		if s.rows[i].Ratio == nil { // else totals has settled them
			if err := s.weigh(i); err != nil {
				return err
			}
		}
	}
	if s.cfg.Beta == 0 {
		return nil
	}
	// While the parameters are still the start's, the reference is this very
	// pass: the KL is then exactly 0, whatever the kernels' rounding.
	if slices.Equal(s.params, s.l.start) {
		for _, i := range m.rows() {
			copy(s.ref[i], s.old[i])
		}
	} else {
		t0 := time.Now()
		sc, err := s.l.tr.Score(s.ctx, m.groups, s.l.cfg.Temperature, s.l.start)
		s.time.Reference += time.Since(t0)
		if err := checkScores(m, sc, err); err != nil {
			return fmt.Errorf("reference: %w", err)
		}
		m.scatter(sc.LogProbs, func(i int) []float64 { return s.ref[i] })
	}
	for _, i := range m.rows() {
		s.rows[i].Ref = s.ref[i]
	}
	return nil
}

// weigh sets a row's rollout importance weights from its current LogP.
func (s *stepRun) weigh(i int) (err error) {
	if s.l.cfg.RolloutImportanceSampling {
		s.rows[i].Ratio, err = s.l.cfg.rolloutIS().Ratio(s.rows[i].LogP, s.rows[i].Sampling, nil)
	}
	return err
}

// totals counts the whole step. Where a statistic over all tokens decides
// (entropy floor, rejected tokens), the rows are scored first.
func (s *stepRun) totals(it int) (loss.Totals, error) {
	entropy := s.cfg.TopEntropyQuantile < 1
	kept := it == 0 && s.l.cfg.RolloutImportanceSampling && s.cfg.Denominator == loss.DenominatorKept
	if entropy || kept {
		t0 := time.Now()
		defer func() { s.time.Forward += time.Since(t0) }()
		for _, m := range s.micros {
			sc, err := s.l.tr.Score(s.ctx, m.groups, s.l.cfg.Temperature, s.params)
			if err := checkScores(m, sc, err); err != nil {
				return loss.Totals{}, err
			}
			s.scatter(m, sc)
			for _, i := range m.rows() {
				if kept {
					if err := s.weigh(i); err != nil {
						return loss.Totals{}, err
					}
				}
			}
		}
	}
	return loss.NewTotals(s.cfg, s.rows)
}

func (s *stepRun) backward(it int, m micro, tot loss.Totals) error {
	ids := m.rows()
	rows := make([]loss.Row, len(ids))
	at := make(map[int]int, len(ids))
	for k, i := range ids {
		rows[k] = s.rows[i]
		if it > 0 && rows[k].Old == nil {
			rows[k].Old = s.old[i]
		}
		at[i] = k
	}
	res, err := loss.Compute(s.cfg, rows, tot)
	if err != nil {
		return errors.Join(ErrDiverged, err)
	}
	s.loss += res.Loss
	s.policy += res.PolicyLoss
	s.stats.Merge(res.Stats)
	dLogP := m.gather(func(i int) []float64 { return res.DLogP[at[i]] })
	var dEntropy []float32
	if res.DEntropy != nil {
		dEntropy = m.gather(func(i int) []float64 { return res.DEntropy[at[i]] })
	}
	t0 := time.Now()
	defer func() { s.time.Backward += time.Since(t0) }()
	return s.l.tr.Backward(s.ctx, model.Scores{LogProbs: dLogP, Entropy: dEntropy})
}

func (s *stepRun) update() error {
	c := s.l.cfg
	grad := s.l.tr.Grad()
	norm := GradNorm(grad)
	if math.IsNaN(norm) || math.IsInf(norm, 0) {
		return fmt.Errorf("%w: gradient norm is %v", ErrDiverged, norm)
	}
	s.norm += norm
	s.lr = c.LR(s.opt.T, c.MaxSteps*c.NumIterations)
	return s.opt.Update(s.params, grad, s.l.decay, Hyper{LR: s.lr, Beta1: c.AdamBeta1, Beta2: c.AdamBeta2, Epsilon: c.AdamEpsilon, Scale: ClipScale(norm, c.MaxGradNorm)})
}
