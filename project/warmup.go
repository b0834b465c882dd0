package project

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/skein-rl/skein/learner"
	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/project/supervised"
	"github.com/skein-rl/skein/replay"
	"github.com/skein-rl/skein/rollout"
	"github.com/skein-rl/skein/rollout/task"
)

// BaseRun names the run that evaluates the base model beside a warmed-up run.
func BaseRun(run string) string { return run + baseSuffix }

// baseSuffix marks runs that only evaluate; no configured run may end in it.
const baseSuffix = "-base"

// warmStart trains the start adapter and stores it; meanwhile the workers
// evaluate the base model, in a run of its own that makes no steps.
func (p *parts) warmStart(ctx context.Context, st replay.Store, dir string, log *slog.Logger, progress io.Writer) (digest string, err error) {
	if p.cfg.Eval.Tasks > 0 {
		if err := p.requestBaseEval(ctx, st); err != nil {
			return "", err
		}
	}
	a, err := p.warmUp(ctx, filepath.Join(dir, "warmup"), log, progress)
	if err != nil {
		return "", err
	}
	if p.cfg.Eval.Tasks > 0 {
		fmt.Fprintln(progress, "warm-up done; waiting for the base model's evaluation")
		if err := p.finishBaseEval(ctx, st); err != nil {
			return "", err
		}
	}
	// Not before the wait: the store collects blobs that no run refers to.
	if digest, err = st.PutBlob(ctx, a.Encode()); err != nil {
		return "", fmt.Errorf("storing the start adapter: %w", err)
	}
	return digest, nil
}

// requestBaseEval is idempotent, also when an earlier life of this process had
// it evaluated.
func (p *parts) requestBaseEval(ctx context.Context, st replay.Store) error {
	base := *p
	base.cfg.Warmup.Examples = 0
	// Workers with nothing left to evaluate roll out training groups; keep
	// those of a run that never trains to one small one.
	base.cfg.Training.GroupsPerStep, base.cfg.Training.NumGenerations, base.cfg.Training.MaxStaleness = 1, 2, 0
	spec, err := base.spec()
	if err != nil {
		return err
	}
	spec.Run = BaseRun(p.cfg.Run)
	if err := st.CreateRun(ctx, spec); err != nil {
		return err
	}
	return st.RequestEval(ctx, replay.EvalRequest{Run: spec.Run, Version: 0, Count: uint32(p.cfg.Eval.Tasks)})
}

func (p *parts) finishBaseEval(ctx context.Context, st replay.Store) error {
	run := BaseRun(p.cfg.Run)
	if err := evaluate(ctx, st, run, 0, p.cfg); err != nil {
		return err
	}
	return st.FinishRun(ctx, run)
}

// demoRows turns the first n demonstrations of the source into SFT rows.
func (p *parts) demoRows(ctx context.Context, n int) ([]learner.SFTRow, error) {
	// The embedded model writes calls without blanks, as its own recipe does;
	// models of the field write them as Python's json module would.
	format := rollout.FormatCallsSpaced
	if p.model.Name == EmbeddedTiny {
		format = rollout.FormatCalls
	}
	var rows []learner.SFTRow
	for i := range uint64(n) {
		t, err := p.source.Train(i)
		if err != nil {
			return nil, err
		}
		if len(t.Demo) == 0 {
			return nil, fmt.Errorf("task source %s has no demonstrations (task %s): set warmup.examples to 0", p.source.Name(), t.ID)
		}
		messages, err := task.Converse(ctx, t, t.Demo, format)
		if err != nil {
			return nil, err
		}
		row, err := supervised.Row(p.chat, t, messages)
		if err != nil {
			return nil, err
		}
		if len(row.Prompt)+len(row.Tokens) <= p.cfg.Rollout.MaxLen {
			rows = append(rows, row)
		}
	}
	if len(rows) == 0 {
		return nil, fmt.Errorf("no demonstration of %s fits into rollout.max_len %d: raise it", p.source.Name(), p.cfg.Rollout.MaxLen)
	}
	return rows, nil
}

// warmUp trains a fresh adapter on demonstrations. It resumes from dir.
func (p *parts) warmUp(ctx context.Context, dir string, log *slog.Logger, progress io.Writer) (*model.Adapter, error) {
	rows, err := p.demoRows(ctx, p.cfg.Warmup.Examples)
	if err != nil {
		return nil, err
	}
	a, err := model.NewAdapter(p.model.Config, p.cfg.LoRA, p.model.Digest, p.cfg.Training.Seed)
	if err != nil {
		return nil, err
	}
	tr, err := p.backend.NewTrainer(model.TrainerConfig{LoRA: p.cfg.LoRA})
	if err != nil {
		return nil, err
	}
	defer tr.Close()
	sc := learner.DefaultSFTConfig()
	sc.LearningRate, sc.NumTrainEpochs, sc.BatchTokens = p.cfg.Warmup.LearningRate, p.cfg.Warmup.Epochs, p.cfg.Warmup.BatchTokens
	sc.LRSchedulerType, sc.Seed, sc.TokenBudget = "cosine", p.cfg.Training.Seed, p.cfg.Training.TokenBudget
	ident := p.identity(p.cfg.Run + "/warmup")
	ident.Dataset = learner.SFTDataset(p.source.Name()+" demonstrations", rows)
	l, err := learner.New(sc, ident, tr, a.Params)
	if err != nil {
		return nil, err
	}
	ck, err := learner.LoadLatest(dir, func(err error) { log.Warn("warm-up checkpoint", "error", err) })
	if err == nil && ck != nil {
		err = l.Restore(ck)
	}
	if err != nil {
		return nil, err
	}
	err = learner.RunSFT(ctx, l, rows, learner.SFTOptions{Dir: dir, SaveEvery: 20, Progress: func(s learner.SFTProgress) error {
		if s.Step%5 == 0 || s.Step == s.Steps {
			fmt.Fprintf(progress, "warm-up %3d/%-3d loss %.4f  %d tokens  %s\n", s.Step, s.Steps, s.Loss, s.Tokens, s.Elapsed.Round(time.Second))
		}
		return nil
	}})
	if err != nil {
		return nil, err
	}
	return l.Adapter(), nil
}
