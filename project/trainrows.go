package project

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/skein-rl/skein/learner"
	"github.com/skein-rl/skein/learner/data"
	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/replay"
)

// Parts of a training's folder.
const (
	checkpointsDir = "checkpoints"
	adapterDir     = "adapter"
	metricsFile    = "metrics.jsonl"
	configFile     = "config.yaml"
)

// TrainRows trains a configuration on files in this process, from where the
// training in Dir stands, and leaves there: the resolved configuration, sealed
// checkpoints, metrics.jsonl (a line a step and evaluation), the final adapter in
// PEFT's format (with train: full the model in Hugging Face layout), and summary.json. When ctx ends it stops after the running step
// and returns the summary so far with ctx's error: the same call goes on from
// there.
func TrainRows(ctx context.Context, c Config, opt LocalOptions) (RowsSummary, error) {
	began := time.Now()
	mine := layout{Kind: kindRows, Run: c.Run}
	if err := checkDir(opt.Dir, mine); err != nil {
		return RowsSummary{}, err
	}
	opt.bases = opt.shared()
	opt.bases.bound(c)
	mx, err := serveMetrics(opt.Metrics, opt.Log)
	if err != nil {
		return RowsSummary{}, err
	}
	defer mx.Close()
	r, err := openRows(ctx, opt.bases, c, opt.Log)
	if err != nil {
		return RowsSummary{}, err
	}
	defer r.Close()
	r.metrics = mx
	if err := os.MkdirAll(opt.Dir, 0o755); err != nil {
		return RowsSummary{}, fmt.Errorf("project: run folder: %w", err)
	}
	if err := checkSpace(opt.Dir, replay.DefaultLocalOptions().MinFreeBytes); err != nil {
		return RowsSummary{}, err
	}
	lock, err := lockDir(opt.Dir)
	if err != nil {
		return RowsSummary{}, err
	}
	defer lock.Close()
	if err := claimDir(opt.Dir, mine); err != nil {
		return RowsSummary{}, err
	}
	if err := mx.announce(opt.Dir); err != nil {
		return RowsSummary{}, err
	}
	return r.run(ctx, opt, began)
}

// Close closes the model's files.
func (r *rowsRun) Close() error { return r.unmodel() }

// rowsRun is what a training on files is made of.
type rowsRun struct {
	cfg         Config
	bases       *bases
	model       *model.Model
	unmodel     func() error     // gives the model back
	lora        model.LoRAConfig // resolved for the model; zero when full
	full        bool
	train, eval *data.Set
	report      data.Report
	start       *model.Adapter
	metrics     *metrics // of this process; nil = none
}

// openRows loads the model, the rows and the start adapter.
func openRows(ctx context.Context, b *bases, c Config, log *slog.Logger) (_ *rowsRun, err error) {
	r := &rowsRun{cfg: c, bases: b}
	if r.model, r.unmodel, err = b.model(c.Model); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			r.Close() // read only: nothing to lose
		}
	}()
	if err = c.checkFull(r.model); err != nil {
		return nil, err
	}
	r.lora, r.full = c.trained(r.model)
	if r.train, r.eval, r.report, err = loadData(ctx, c, r.model, log); err != nil {
		return nil, err
	}
	if r.start, err = startOf(c, r.model, c.Training.Algorithm == learner.Reward); err != nil {
		return nil, err
	}
	return r, nil
}

// startOf is the adapter a configuration starts from: a saved one, or a fresh
// one of its seed; with a value head for a reward model.
func startOf(c Config, m *model.Model, value bool) (*model.Adapter, error) {
	lora := c.LoRA.Resolve(m.Config)
	if c.StartAdapter == "" {
		a, err := c.fresh(m)
		if err == nil && value {
			a = a.WithScore(m.Config)
		}
		return a, err
	}
	a, err := model.LoadAdapter(c.StartAdapter, m.Config)
	if value && err != nil { // a reward model goes on from one, or from a policy
		var scored error
		if a, scored = model.LoadScoreAdapter(c.StartAdapter, m.Config); scored == nil {
			err = nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("project: start_adapter %s: %w", c.StartAdapter, err)
	}
	if a.BaseDigest != "" {
		if err := a.CheckBase(m.Digest); err != nil {
			return nil, fmt.Errorf("project: start_adapter %s: %w", c.StartAdapter, err)
		}
	}
	if !a.LoRA.Equal(lora) {
		return nil, fmt.Errorf("project: start_adapter %s has %v; the configuration says %v: set lora to the adapter's",
			c.StartAdapter, a.LoRA, lora)
	}
	if value && a.Score == nil {
		a = a.WithScore(m.Config)
	}
	a.BaseDigest = m.Digest
	return a, nil
}

func (r *rowsRun) learner(dir string, log *slog.Logger, be model.Backend) (*learner.Learner, func() error, error) {
	tr, err := be.NewTrainer(r.cfg.Training.Trainer(r.lora, r.full))
	if err != nil {
		return nil, nil, err
	}
	ident := learner.Identity{Run: r.cfg.Run, Base: r.model.Digest, LoRA: r.lora, Full: r.full, Dataset: learner.DatasetOf(r.train)}
	l, err := learner.New(r.cfg.Training, ident, tr, r.start.Flat())
	if err != nil {
		return nil, nil, errors.Join(err, tr.Close())
	}
	ck, err := learner.LoadLatest(filepath.Join(dir, checkpointsDir), func(err error) { log.Warn("checkpoint passed over", "error", err) })
	if err == nil && ck != nil {
		if diffs := learner.DiffConfig(ck.Config, r.cfg.Training); len(diffs) > 0 {
			err = fmt.Errorf("project: run %s was started with %w: training.%s: use the same values, or start a run of its own in another --dir",
				r.cfg.Run, ErrOtherConfig, strings.Join(diffs, "; training."))
		} else {
			err = l.Restore(ck)
		}
	}
	if err != nil {
		return nil, nil, errors.Join(err, tr.Close())
	}
	return l, tr.Close, nil
}

func (r *rowsRun) run(ctx context.Context, opt LocalOptions, began time.Time) (RowsSummary, error) {
	base, err := r.bases.backend(r.cfg, r.model, opt.Log)
	if err != nil {
		return RowsSummary{}, err
	}
	defer base.release()
	l, closeTrainer, err := r.learner(opt.Dir, opt.Log, base.user(r.cfg.Share))
	if err != nil {
		return RowsSummary{}, err
	}
	defer closeTrainer()
	text, err := r.cfg.YAML()
	if err != nil {
		return RowsSummary{}, err
	}
	if err := writeFile(filepath.Join(opt.Dir, configFile), text); err != nil {
		return RowsSummary{}, err
	}
	log := openRowsLog(r.cfg.Watch, opt.Dir, l.StepNumber(), opt.Log)
	defer r.metrics.recording(log)()
	r.metrics.rowsBegin(l.StepNumber())
	counts := r.train.Counts()
	fmt.Fprintf(opt.Progress, "%s on %d rows (%d tokens, %d trained) of %s%s\n", r.cfg.Training.Algorithm, counts.Rows, counts.Tokens, counts.Trained, r.train.Name(), r.left())
	if n := l.StepNumber(); n > 0 {
		fmt.Fprintf(opt.Progress, "going on after step %d\n", n)
	}
	var helpers learner.Team
	if opt.Join != nil {
		t, leave, err := r.join(ctx, opt)
		if err != nil {
			return RowsSummary{}, err
		}
		defer leave()
		helpers = t
	}
	err = learner.RunOffline(ctx, l, r.train, learner.OfflineOptions{
		Team: helpers, Hello: l.Hello(r.cfg.arithmetic()), OnWarning: func(err error) { opt.Log.Warn("helpers", "error", err) },
		Eval: r.eval, Dir: filepath.Join(opt.Dir, checkpointsDir), Keep: int(r.cfg.Limits.SaveTotalLimit),
		OnStep: func(s learner.OfflineStep) error {
			fmt.Fprintln(opt.Progress, stepLine(s))
			a, err := r.adapter(l.Params())
			if err != nil {
				return err
			}
			log.step(s, a.Digest())
			r.metrics.rowsStep(s)
			return nil
		},
		OnEval: func(e learner.OfflineEval) error {
			fmt.Fprintln(opt.Progress, evalLine(e))
			log.eval(e)
			r.metrics.rowsEval(e)
			return nil
		},
	})
	log.close()
	return r.conclude(l, opt.Dir, began, err)
}

// left tells of rows that were not taken.
func (r *rowsRun) left() string {
	s := ""
	if n := r.report.Bad; n > 0 {
		s += fmt.Sprintf("; %d bad rows left out", n)
	}
	if n := r.report.TooLong; n > 0 {
		s += fmt.Sprintf("; %d too long left out", n)
	}
	if n := r.report.Truncated; n > 0 {
		s += fmt.Sprintf("; %d truncated", n)
	}
	return s
}

// adapter gives parameters their shape.
func (r *rowsRun) adapter(params []float32) (*model.Adapter, error) {
	if r.full {
		return &model.Adapter{Full: true, BaseDigest: r.model.Digest, Params: params}, nil
	}
	return model.AdapterOf(r.model.Config, r.lora, r.model.Digest, params, r.cfg.Training.Algorithm == learner.Reward)
}

// conclude saves the adapter of a finished training and sums up.
func (r *rowsRun) conclude(l *learner.Learner, dir string, began time.Time, runErr error) (RowsSummary, error) {
	sum := RowsSummary{
		Run: r.cfg.Run, Algorithm: r.cfg.Training.Algorithm, Model: r.cfg.Model, Backend: r.cfg.Backend,
		Dataset: r.train.Name(), DatasetDigest: r.train.Digest(), Data: r.train.Counts(), Report: r.report,
		Steps: l.StepNumber(), Seconds: time.Since(began).Seconds(), PeakRSSMB: peakRSSMB(os.Getpid()),
	}
	if r.eval != nil {
		sum.EvalRows = r.eval.Len()
	}
	if err := sum.read(filepath.Join(dir, metricsFile)); err != nil && runErr == nil {
		return sum, err
	}
	if runErr != nil {
		return sum, runErr
	}
	a, err := r.adapter(l.Params())
	if err != nil {
		return sum, err
	}
	sum.AdapterDigest = a.Digest()
	if sum.Adapter, err = r.cfg.saveTrained(dir, r.model, a); err != nil {
		return sum, err
	}
	return sum, sum.Save(dir)
}
