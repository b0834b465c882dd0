package learner

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"

	"github.com/skein-rl/skein/internal/spread"
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
	// Histograms of the same numbers as the quantiles among the metrics.
	Histograms map[string]spread.Histogram
	Time       StepTime
}

// StepTime splits a step's wall time; Critic is all of the critic's.
type StepTime struct{ Forward, Reference, Backward, Optimizer, Critic, Total time.Duration }

// Step trains one batch: NumIterations passes over the groups' tokens, each in
// NumMiniBatches optimizer steps, the first of all with old = new
// log-probabilities. Errors: *[GroupError], *[EmptyBatchError], [ErrDiverged],
// the trainer's, ctx's. After an error nothing has changed.
func (l *Learner) Step(ctx context.Context, groups []Group) (StepResult, error) {
	if l.cfg.Offline() {
		return StepResult{}, fmt.Errorf("learner: algorithm: Step trains on rollouts, the configuration says %q", l.cfg.Algorithm)
	}
	if l.cfg.online() {
		return l.onlineStep(ctx, groups)
	}
	began := time.Now()
	b, err := Build(l.cfg, l.version, groups)
	if err != nil {
		return StepResult{}, err
	}
	s := &stepRun{l: l, dealer: l.dealer(ctx), cfg: l.cfg.lossConfig(), b: b,
		params: slices.Clone(l.params), opt: l.opt.clone(),
		micros:  pack(rowsOf(b), func(i int) bool { return l.needed(b.Episodes[i]) }, l.cfg.TokenBudget),
		entropy: l.entropy, sameRef: l.cfg.Beta != 0 && l.isReference(l.params),
	}
	if l.critic != nil {
		s.critic = newCriticRun(l.critic, b, l.cfg.TokenBudget)
	}
	if err := s.run(); err != nil {
		return StepResult{}, err
	}
	res := StepResult{Step: l.step + 1, Version: l.version + 1, Trained: b.LogIDs(), Excluded: b.Excluded, Time: s.time}
	res.Time.Total = time.Since(began)
	res.Metrics = s.metrics()
	res.Histograms = s.distributions(res.Metrics)
	res.Metrics["time/step_s"] = res.Time.Total.Seconds()
	res.Metrics["time/tokens_per_second"] = res.Metrics["num_tokens"] / max(res.Time.Total.Seconds(), 1e-9)
	for k, v := range res.Metrics {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return StepResult{}, fmt.Errorf("%w: metric %s is %v", ErrDiverged, k, v)
		}
	}
	moving, err := l.nextReference(res.Step, s.params)
	if err != nil {
		return StepResult{}, err
	}
	l.params, l.opt, l.moving, l.entropy = s.params, s.opt, moving, s.entropy
	if l.critic != nil {
		l.critic.params, l.critic.opt = s.critic.params, s.critic.opt
	}
	l.step, l.version = res.Step, res.Version
	return res, nil
}

// stepRun is the working state of one step. Rows are indexed as episodes.
type stepRun struct {
	*dealer
	l      *Learner
	cfg    loss.Config
	b      *Batch
	micros []micro // of the whole batch
	params []float32
	opt    AdamW
	critic *criticRun // nil but for ppo

	rows     []loss.Row // LogP and Entropy are this iteration's
	old, ref [][]float64
	prepared []bool // Old and constant weights are set
	settled  bool   // old, ref and constant weights are known for all rows
	updates  int    // optimizer steps made
	sameRef  bool   // the policy before the step is the reference
	entropy  EntropyState

	loss, policy, norm, lr float64 // sums over optimizer steps but lr
	stats                  loss.Stats
	gap                    gapStats
	m2out                  float64 // tokens outside M2PO's region
	counted                float64 // tokens by the denominator rule, sum over optimizer steps

	reference *paramVector
	timer
}

func (s *stepRun) run() error {
	s.reference = s.l.reference(s.l.refParams())
	n := len(s.b.Episodes)
	s.rows, s.old, s.ref, s.prepared = make([]loss.Row, n), make([][]float64, n), make([][]float64, n), make([]bool, n)
	for i, e := range s.b.Episodes {
		s.rows[i] = loss.Row{LogP: make([]float64, e.Tokens), Entropy: make([]float64, e.Tokens), Adv: e.advantages(), Sampling: e.Sampled}
		s.old[i], s.ref[i] = make([]float64, e.Tokens), make([]float64, e.Tokens)
	}
	c := s.l.cfg
	if c.Algorithm == Reinforce && c.Beta == 0 {
		if err := s.baselines(); err != nil {
			return err
		}
	}
	if s.critic != nil || c.NumMiniBatches > 1 || c.M2Threshold != nil || c.LoRADropout > 0 || c.klInReward() && c.Beta != 0 {
		if err := s.settle(); err != nil {
			return fmt.Errorf("learner: step %d before its updates: %w", s.l.step+1, err)
		}
	}
	for it := range c.NumIterations {
		for k, part := range s.parts(it) {
			if err := s.optimize(it, part); err != nil {
				return fmt.Errorf("learner: step %d iteration %d mini-batch %d: %w", s.l.step+1, it+1, k+1, err)
			}
		}
	}
	return nil
}

// settle scores all rows before the first update: what is measured against the
// policy before the step must not see an update.
func (s *stepRun) settle() error {
	params := s.l.numbered(placePolicy, s.params)
	err := s.deal(len(s.micros), func(ctx context.Context, c computer, k int) error {
		m := s.micros[k]
		if err := s.score(ctx, c, m, params, model.Dropout{}); err != nil {
			return err
		}
		return s.first(ctx, c, m)
	})
	if err != nil {
		return err
	}
	s.measure(s.micros)
	s.settled = true
	if err := s.trust(); err != nil {
		return err
	}
	switch {
	case s.critic != nil:
		return s.estimate()
	case s.l.cfg.klInReward() && s.l.cfg.Beta != 0:
		return s.baselines()
	}
	return nil
}

// mini is the rows of one optimizer step and their micro-batches.
type mini struct {
	rows   []int
	micros []micro
}

// parts cuts the batch into this iteration's mini-batches: whole rollouts, drawn
// by (seed, step, iteration), then in canonical order.
func (s *stepRun) parts(it int) []mini {
	n := len(s.rows)
	count := min(s.l.cfg.NumMiniBatches, n)
	if count == 1 {
		all := make([]int, n)
		for i := range all {
			all[i] = i
		}
		return []mini{{all, s.micros}}
	}
	order := rand.New(rand.NewPCG(s.l.cfg.Seed, s.l.step<<16|uint64(it))).Perm(n)
	seqs := rowsOf(s.b)
	out := make([]mini, count)
	for k := range out {
		rows := order[k*n/count : (k+1)*n/count]
		slices.Sort(rows)
		out[k] = mini{rows, pack(seqs, func(i int) bool {
			_, in := slices.BinarySearch(rows, i)
			return in && s.l.needed(s.b.Episodes[i])
		}, s.l.cfg.TokenBudget)}
	}
	return out
}

// optimize makes one optimizer step on a mini-batch.
func (s *stepRun) optimize(it int, p mini) error {
	if s.critic != nil {
		if err := s.criticStep(p.rows); err != nil {
			return fmt.Errorf("critic: %w", err)
		}
		if s.l.step < s.l.cfg.CriticWarmup {
			return nil
		}
	}
	s.cfg.EntropyCoef = s.entropy.applied(s.l.cfg)
	params := s.l.numbered(placePolicy, s.params)
	tot, err := s.totals(it, p, params)
	if err != nil {
		return err
	}
	s.counted += tot.Tokens
	first := it == 0 && !s.settled
	results := make([]loss.Result, len(p.micros))
	grad := newGradSum(len(s.params))
	err = s.deal(len(p.micros), func(ctx context.Context, c computer, k int) error {
		m := p.micros[k]
		if err := s.forward(ctx, c, m, params); err != nil {
			return err
		}
		if first {
			if err := s.first(ctx, c, m); err != nil {
				return err
			}
		}
		res, g, err := s.backward(ctx, c, m, tot)
		if err == nil {
			results[k] = res
			grad.add(k, g)
		}
		return err
	})
	if err != nil {
		return err
	}
	if first {
		s.measure(p.micros)
	}
	for _, res := range results {
		s.loss += res.Loss
		s.policy += res.PolicyLoss
		s.stats.Merge(res.Stats)
	}
	t0 := time.Now()
	defer func() { s.time.Optimizer += time.Since(t0) }()
	c := s.l.cfg
	s.lr = c.LR(s.opt.T, c.optimizerSteps())
	s.entropy = s.entropy.after(c, s.entropyOf(p.rows, tot.EntropyFloor))
	norm, err := c.update(&s.opt, s.params, grad.sum, s.l.decay, s.lr)
	s.norm += norm
	s.updates++
	return err
}

// forward sets the current log-probabilities and entropies of a micro-batch's
// rows, for backward; score sets them only. What is constant in an update is
// scored without dropout.
func (s *stepRun) forward(ctx context.Context, c computer, m micro, params *paramVector) error {
	defer s.spend(&s.time.Forward)()
	sc, err := c.forward(ctx, m.under(s.dropout()), s.l.cfg.Temperature, params)
	if err := checkScores(m, sc, err); err != nil {
		return err
	}
	s.scatter(m, sc)
	return nil
}

func (s *stepRun) score(ctx context.Context, c computer, m micro, params *paramVector, d model.Dropout) error {
	defer s.spend(&s.time.Forward)()
	sc, err := c.score(ctx, m.under(d), s.l.cfg.Temperature, params)
	if err := checkScores(m, sc, err); err != nil {
		return err
	}
	s.scatter(m, sc)
	return nil
}

// dropout is the policy's in the next update.
func (s *stepRun) dropout() model.Dropout { return s.l.cfg.dropout(model.DropoutPolicy, s.opt.T) }

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
func (s *stepRun) first(ctx context.Context, c computer, m micro) error {
	for _, i := range m.rows() {
		copy(s.old[i], s.rows[i].LogP)
		if err := s.prepare(i); err != nil {
			return err
		}
	}
	if s.l.cfg.Beta == 0 {
		return nil
	}
	// While the parameters are the reference's, it is this very pass: the KL is
	// then exactly 0, whatever the kernels' rounding.
	if s.sameRef {
		for _, i := range m.rows() {
			copy(s.ref[i], s.old[i])
		}
	} else {
		done := s.spend(&s.time.Reference)
		sc, err := c.score(ctx, m.groups, s.l.cfg.Temperature, s.reference)
		done()
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

// measure compares the engine's log-probabilities with those of before the step.
func (s *stepRun) measure(micros []micro) {
	for _, m := range micros {
		for _, i := range m.rows() {
			s.gap.add(s.b.Episodes[i], s.old[i], s.l.version)
		}
	}
}

// prepare sets what is constant of a row from LogP, which is the learner's
// before the step, once.
func (s *stepRun) prepare(i int) error {
	if s.prepared[i] {
		return nil
	}
	if err := s.proximal(i); err != nil {
		return err
	}
	s.prepared[i] = true
	return s.weigh(i)
}

// totals counts a mini-batch. Where a statistic over all its tokens decides
// (entropy floor, rejected tokens), the rows are scored first.
func (s *stepRun) totals(it int, p mini, params *paramVector) (loss.Totals, error) {
	known := s.settled && s.updates == 0 && s.l.cfg.LoRADropout == 0 // from settle
	entropy := s.cfg.TopEntropyQuantile < 1 && !known
	kept := it == 0 && !s.settled && s.l.cfg.RolloutImportanceSampling && s.cfg.Denominator == loss.DenominatorKept
	if entropy || kept {
		err := s.deal(len(p.micros), func(ctx context.Context, c computer, k int) error {
			m := p.micros[k]
			if err := s.score(ctx, c, m, params, s.dropout()); err != nil {
				return err
			}
			for _, i := range m.rows() {
				if kept {
					if err := s.prepare(i); err != nil {
						return err
					}
				}
			}
			return nil
		})
		if err != nil {
			return loss.Totals{}, err
		}
	}
	rows := make([]loss.Row, len(p.rows))
	for k, i := range p.rows {
		rows[k] = s.rows[i]
	}
	return loss.NewTotals(s.cfg, rows)
}

// backward gives a micro-batch's loss and, of that alone, the gradient.
func (s *stepRun) backward(ctx context.Context, c computer, m micro, tot loss.Totals) (loss.Result, []float32, error) {
	ids := m.rows()
	rows := make([]loss.Row, len(ids))
	at := make(map[int]int, len(ids))
	for k, i := range ids {
		rows[k] = s.rows[i]
		if (s.updates > 0 || s.l.cfg.LoRADropout > 0) && rows[k].Old == nil {
			rows[k].Old = s.old[i]
		}
		at[i] = k
	}
	res, err := loss.Compute(s.cfg, rows, tot)
	if err != nil {
		return res, nil, errors.Join(ErrDiverged, err)
	}
	dLogP := m.gather(func(i int) []float64 { return res.DLogP[at[i]] })
	var dEntropy []float32
	if res.DEntropy != nil {
		dEntropy = m.gather(func(i int) []float64 { return res.DEntropy[at[i]] })
	}
	defer s.spend(&s.time.Backward)()
	grad, err := c.gradient(ctx, model.Scores{LogProbs: dLogP, Entropy: dEntropy})
	if err == nil && len(grad) != len(s.params) {
		err = fmt.Errorf("a gradient of %d numbers for %d parameters", len(grad), len(s.params))
	}
	return res, grad, err
}

// collected is from how many parameters on garbage is collected after every
// update: the state before it is as large as the state, gigabytes where all
// weights are trained, and to collect it takes milliseconds.
const collected = 1 << 20

// update moves params against grad and returns the gradient's norm.
func (c Config) update(opt *AdamW, params, grad []float32, decay []Decay, lr float64) (norm float64, err error) {
	norm = GradNorm(grad)
	if math.IsNaN(norm) || math.IsInf(norm, 0) {
		return norm, fmt.Errorf("%w: gradient norm is %v", ErrDiverged, norm)
	}
	err = opt.Update(params, grad, decay, Hyper{LR: lr, Beta1: c.AdamBeta1, Beta2: c.AdamBeta2, Epsilon: c.AdamEpsilon, Scale: ClipScale(norm, c.MaxGradNorm)})
	if len(params) >= collected {
		runtime.GC()
	}
	return norm, err
}
