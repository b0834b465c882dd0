package project

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"time"

	"github.com/skein-rl/skein/agent/tool"
	"github.com/skein-rl/skein/eventlog"
	"github.com/skein-rl/skein/learner"
	"github.com/skein-rl/skein/learner/data"
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

// warmStart trains the start adapter and stores it. The demonstrations it is
// trained on stand in a run of their own that makes no steps; meanwhile the
// workers evaluate the base model there.
func (p *parts) warmStart(ctx context.Context, st replay.Store, dir string, log *slog.Logger, progress io.Writer) (digest string, err error) {
	demos, err := p.demonstrations(ctx, p.cfg.Warmup.Examples)
	if err != nil {
		return "", err
	}
	if err := p.openBaseRun(ctx, st, demos); err != nil {
		return "", err
	}
	a, err := p.warmUp(ctx, demos, filepath.Join(dir, "warmup"), log, progress)
	if err != nil {
		return "", err
	}
	if p.cfg.Eval.Tasks > 0 {
		fmt.Fprintln(progress, "warm-up done; waiting for the base model's evaluation")
		if err := evaluate(ctx, st, BaseRun(p.cfg.Run), 0, p.cfg); err != nil {
			return "", err
		}
	}
	if err := st.FinishRun(ctx, BaseRun(p.cfg.Run)); err != nil {
		return "", err
	}
	// Not before the wait: the store collects blobs that no run refers to.
	if digest, err = st.PutBlob(ctx, a.Encode()); err != nil {
		return "", fmt.Errorf("storing the start adapter: %w", err)
	}
	return digest, nil
}

// openBaseRun is idempotent, also when an earlier life of this process had it
// evaluated: equal demonstrations have equal ids.
func (p *parts) openBaseRun(ctx context.Context, st replay.Store, demos []*eventlog.Log) error {
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
	if err := store(ctx, st, demos); err != nil {
		return fmt.Errorf("storing the demonstrations: %w", err)
	}
	if p.cfg.Eval.Tasks == 0 {
		return nil
	}
	return st.RequestEval(ctx, replay.EvalRequest{Run: spec.Run, Version: 0, Count: uint32(p.cfg.Eval.Tasks)})
}

// store appends logs, a few at a time.
func store(ctx context.Context, st replay.Store, logs []*eventlog.Log) error {
	for batch := range slices.Chunk(logs, 64) {
		recs := make([]replay.Record, len(batch))
		for i, l := range batch {
			data, err := eventlog.Encode(l)
			if err != nil {
				return err
			}
			recs[i] = replay.Record{Item: rollout.ItemOf(l, len(data)), Bytes: data}
		}
		res, err := st.Append(ctx, recs)
		if err != nil {
			return err
		}
		for i, r := range res {
			if r.Rejected != "" {
				return fmt.Errorf("log %s: %s", recs[i].Item.LogID, r.Rejected)
			}
		}
	}
	return nil
}

// demonstrations writes the first n demonstrations of the source as full-tier
// logs; those too long for a rollout are left out.
func (p *parts) demonstrations(ctx context.Context, n int) ([]*eventlog.Log, error) {
	// The embedded model writes calls without blanks, as its own recipe does;
	// others as their template writes them.
	var format func([]tool.Call) string
	if p.model.Name == EmbeddedTiny {
		format = rollout.FormatCalls
	}
	var logs []*eventlog.Log
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
		l, err := rollout.DemoLog(p.chat, t, messages, eventlog.Meta{Run: BaseRun(p.cfg.Run), Group: fmt.Sprintf("demo/%d", i), Attempt: 1, Worker: "expert"})
		if err != nil {
			return nil, err
		}
		if len(l.Branches[0].IDs) <= p.cfg.Rollout.MaxLen {
			logs = append(logs, l)
		}
	}
	if len(logs) == 0 {
		return nil, fmt.Errorf("no demonstration of %s fits into rollout.max_len %d: raise it", p.source.Name(), p.cfg.Rollout.MaxLen)
	}
	return logs, nil
}

// warmUp trains a fresh adapter on demonstrations. It resumes from dir.
func (p *parts) warmUp(ctx context.Context, demos []*eventlog.Log, dir string, log *slog.Logger, progress io.Writer) (*model.Adapter, error) {
	rows := make([]data.Example, len(demos))
	for i, l := range demos {
		var err error
		if rows[i], err = supervised.Row(l); err != nil {
			return nil, err
		}
	}
	a, err := p.cfg.fresh(p.model)
	if err != nil {
		return nil, err
	}
	lora, full := p.cfg.trained(p.model)
	tr, err := p.backend.NewTrainer(model.TrainerConfig{LoRA: lora, Full: full})
	if err != nil {
		return nil, err
	}
	defer tr.Close()
	sc := learner.DefaultSFTConfig()
	sc.LearningRate, sc.NumTrainEpochs, sc.BatchTokens = p.cfg.Warmup.LearningRate, p.cfg.Warmup.Epochs, p.cfg.Warmup.BatchTokens
	sc.LRSchedulerType, sc.Seed, sc.TokenBudget, sc.SaveSteps = "cosine", p.cfg.Training.Seed, p.cfg.Training.TokenBudget, 20
	ident := p.identity(p.cfg.Run + "/warmup")
	ident.Critic = nil
	set := data.NewSet(p.source.Name()+" demonstrations", rows, data.Order{Shuffle: true})
	ident.Dataset = learner.DatasetOf(set)
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
	err = learner.RunOffline(ctx, l, set, learner.OfflineOptions{Dir: dir, OnStep: func(s learner.OfflineStep) error {
		if s.Step%5 == 0 || s.Step == s.Steps {
			fmt.Fprintf(progress, "warm-up %3d/%-3d loss %.4f  %d tokens  %s\n", s.Step, s.Steps, s.Metrics["loss"], s.Tokens, s.Elapsed.Round(time.Second))
		}
		return nil
	}})
	if err != nil {
		return nil, err
	}
	return l.Adapter(), nil
}
