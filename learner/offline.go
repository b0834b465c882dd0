package learner

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/skein-rl/skein/learner/data"
	"github.com/skein-rl/skein/model"
)

// DatasetOf identifies a set by content, for Identity.
func DatasetOf(s *data.Set) Dataset { return Dataset{Name: s.Name(), Digest: s.Digest()} }

// OfflineStep is what one optimizer step on rows did.
type OfflineStep struct {
	Step, Steps uint64 // of the whole training
	// Epoch counts epochs, the running one by its share.
	Epoch float64
	// Metrics are named as in TRL: loss, grad_norm, learning_rate, num_tokens
	// (trained in this step), entropy, rewards/... and so on.
	Metrics map[string]float64
	Rows    int
	Tokens  int // trained; 0 for a reward model, which trains scores
	Elapsed time.Duration
}

// OfflineEval is one evaluation; every metric's name begins with "eval_".
type OfflineEval struct {
	Step    uint64
	Epoch   float64
	Metrics map[string]float64
	Elapsed time.Duration
}

// OfflineOptions are the surroundings of RunOffline.
type OfflineOptions struct {
	// Eval is evaluated before the first step, every EvalSteps and after the last
	// step; nil = never.
	Eval *data.Set
	// OnStep and OnEval see every step and evaluation; an error from them ends the
	// training there, saved. nil allowed.
	OnStep func(OfflineStep) error
	OnEval func(OfflineEval) error
	// Dir receives sealed checkpoints every SaveSteps, at the end and when ctx
	// ends; "" = none. Keep is how many stay; 0 = all.
	Dir  string
	Keep int
	// Team has other learners of the run compute micro-batches; what they need to
	// agree in is Hello's. Who leads is settled: whoever has the rows. nil = alone.
	Team  Team
	Hello Hello
	// OnWarning hears of helpers that are refused or lost; nil allowed.
	OnWarning func(error)
}

// RunOffline trains the learner's algorithm on a set's rows, from where the
// learner stands: a restored one goes on with the same next batch and, on the
// same machine and backend, the same numbers. Each step is one gradient over
// its rows, whatever the micro-batches.
//
// sft minimises Σ w·NLL / Σ w (package loss); dpo, kto, bco and reward are those
// of package preference. All work for LoRA and full trainers; reward wants one
// with a value head. Errors: rows that do not serve the algorithm, with counts;
// [ErrDiverged] for losses or gradients that are not finite, before anything is
// updated; ctx's error after saving.
func RunOffline(ctx context.Context, l *Learner, set *data.Set, opt OfflineOptions) error {
	r, err := newOffline(l, set, opt)
	if err != nil {
		return err
	}
	if err := r.run(ctx); err != nil {
		if ctx.Err() != nil || errors.Is(err, errStopped) {
			return errors.Join(err, r.save())
		}
		return err
	}
	return r.save()
}

// errStopped marks an end that a hook asked for.
var errStopped = errors.New("learner: stopped by a hook")

// offline is the state of RunOffline beside the learner's.
type offline struct {
	rowRun
	crew  crew
	opt   OfflineOptions
	total uint64
	began time.Time
	order []int // of the running epoch
	at    uint64
	seen  uint64 // the step evaluated last, plus 1
}

func newOffline(l *Learner, set *data.Set, opt OfflineOptions) (*offline, error) {
	if !l.cfg.Offline() {
		return nil, fmt.Errorf("learner: algorithm: %q trains on rollouts, not on rows; use one of %v", l.cfg.Algorithm, OfflineAlgorithms())
	}
	layout := l.tr.Layout()
	if head := len(layout) > 0 && layout[len(layout)-1].Name == model.ScoreWeight; head != (l.cfg.Algorithm == Reward) {
		return nil, fmt.Errorf("learner: algorithm: %s and a trainer with value head %v do not go together; set TrainerConfig.Value for reward alone", l.cfg.Algorithm, head)
	}
	r := &offline{rowRun: rowRun{l: l, set: set, obj: newObjective(l), temperature: 1}, opt: opt, began: time.Now()}
	r.crew = crew{team: opt.Team, l: l, hello: opt.Hello, warn: func(err error) {
		if opt.OnWarning != nil {
			opt.OnWarning(err)
		}
	}}
	for _, s := range []*data.Set{set, opt.Eval} {
		if s == nil {
			continue
		}
		if err := checkRows(l.cfg, s); err != nil {
			return nil, err
		}
	}
	if b, ok := r.obj.(*bcoObjective); ok && l.cfg.DensityRatio {
		var err error
		if b.density, err = fitDensity(l.cfg.density(), set); err != nil {
			return nil, err
		}
	}
	r.total = offlineSteps(l.cfg, set)
	if w := uint64(l.cfg.WarmupSteps); w > 0 && w >= r.total {
		return nil, fmt.Errorf("learner: warmup_steps: %d leaves no step at full rate of %d; lower it or train longer", w, r.total)
	}
	return r, nil
}

func (r *offline) run(ctx context.Context) error {
	l := r.l
	defer r.crew.dismiss()
	r.crew.gather(ctx)
	if err := r.precompute(ctx); err != nil {
		return err
	}
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		r.crew.gather(ctx)
		if r.due(l.cfg.EvalSteps) && r.opt.Eval != nil {
			if err := r.evaluate(ctx); err != nil {
				return err
			}
		}
		if l.step >= r.total {
			return nil
		}
		s, err := r.step(ctx)
		if err != nil {
			return err
		}
		if r.opt.OnStep != nil {
			if err := r.opt.OnStep(s); err != nil {
				return fmt.Errorf("%w: %w", errStopped, err)
			}
		}
		if r.due(l.cfg.SaveSteps) {
			if err := r.save(); err != nil {
				return err
			}
		}
	}
}

// due says whether something that happens every so many steps, or with 0 once an
// epoch, happens where the learner stands.
func (r *offline) due(every int) bool {
	l := r.l
	if every > 0 {
		return l.step%uint64(every) == 0 || l.step >= r.total
	}
	return l.cursor == 0 || l.step >= r.total
}

func (r *offline) save() error {
	if r.opt.Dir == "" {
		return nil
	}
	if _, err := SaveCheckpoint(r.opt.Dir, r.l.Checkpoint()); err != nil {
		return err
	}
	return PruneCheckpoints(r.opt.Dir, r.opt.Keep)
}

// position is where the learner stands, in epochs.
func (r *offline) position() float64 {
	p := float64(r.l.epoch)
	if r.l.cursor > 0 {
		p += float64(r.l.cursor) / float64(len(r.order))
	}
	return p
}

// next is the batch where the learner stands.
func (r *offline) next() []int {
	l := r.l
	if r.order == nil || r.at != l.epoch {
		r.order, r.at = r.set.Epoch(l.cfg.Seed, l.epoch), l.epoch
	}
	return cutBatch(l.cfg, r.set.Rows(), r.order[l.cursor:])
}

// cutBatch takes rows while they fit; at least one.
func cutBatch(c Config, rows []data.Example, order []int) []int {
	n, sum := 0, 0
	for _, i := range order {
		sum += rows[i].Len()
		if n > 0 && (sum > c.BatchTokens || n == c.BatchSize) {
			break
		}
		n++
	}
	return order[:n]
}

// offlineSteps counts the optimizer steps of the whole training.
func offlineSteps(c Config, set *data.Set) uint64 {
	if c.MaxSteps > 0 {
		return uint64(c.MaxSteps)
	}
	steps := uint64(0)
	for e := range c.NumTrainEpochs {
		order := set.Epoch(c.Seed, uint64(e))
		for len(order) > 0 {
			order = order[len(cutBatch(c, set.Rows(), order)):]
			steps++
		}
	}
	return steps
}

// PlanOffline counts what a training would do without doing it: optimizer steps,
// and the tokens of the largest step and of the largest micro-batch in it.
func PlanOffline(c Config, set *data.Set) (steps uint64, stepTokens, microTokens int, err error) {
	if err := checkRows(c, set); err != nil {
		return 0, 0, 0, err
	}
	order := set.Epoch(c.Seed, 0)
	rows := set.Rows()
	obj := objectiveOf(c)
	for len(order) > 0 {
		batch := cutBatch(c, rows, order)
		order = order[len(batch):]
		seqs := make([][]sequence, len(batch))
		for k, i := range batch {
			seqs[k] = obj.sequences(&rows[i])
		}
		sum := 0
		for _, m := range pack(seqs, all, c.TokenBudget) {
			sum += m.tokens
			microTokens = max(microTokens, m.tokens)
		}
		stepTokens = max(stepTokens, sum)
	}
	return offlineSteps(c, set), stepTokens, microTokens, nil
}

func all(int) bool { return true }
