package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skein-rl/skein/cluster"
	"github.com/skein-rl/skein/learner"
	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/model/tiny"
	"github.com/skein-rl/skein/replay"
	"github.com/skein-rl/skein/rollout"
)

// setup is a training: the store, workers and loop are the real ones, in this
// process; engines and trainer are of known speed.
type setup struct {
	workers, slots           int // slots of each worker's engine
	groupSize, groupsPerStep int
	staleness                uint64
	oversample               int
	idleSwap                 bool
	steps                    int
	token                    time.Duration // of a slot
	lengths                  lengths
	sequence                 time.Duration // the learner's for one
}

// outcome is measured from the first step to the last.
type outcome struct {
	stepSeconds float64
	busy        float64 // share of the slots' time
	tokens      float64 // sampled per second, wasted ones included
	waited      float64 // seconds of a step that the learner waited for groups
	lag         float64 // mean staleness of trained logs, in versions
	stale       int     // groups dropped
}

func (o outcome) detail() map[string]any {
	return map[string]any{"step_seconds": round3(o.stepSeconds), "slots_busy": round3(o.busy), "tokens_per_second": round3(o.tokens),
		"learner_waits_seconds": round3(o.waited), "mean_staleness": round3(o.lag), "groups_dropped": o.stale}
}

func round3(x float64) float64 { return float64(int(x*1000+.5)) / 1000 }

const runName = "bench"

// questions is a task source that rewards every second rollout, so that groups
// have something to compare: the learner skips those of equal rewards.
type questions struct{}

var scored atomic.Uint64

func (questions) Name() string     { return "bench" }
func (questions) HeldoutSize() int { return 0 }
func (q questions) Heldout(i uint64) (rollout.Task, error) {
	return q.Train(i | 1<<62)
}
func (questions) Train(i uint64) (rollout.Task, error) {
	return rollout.Task{Source: "bench", ID: fmt.Sprint(i), User: fmt.Sprintf("Question %d?", i),
		Score: func(rollout.Episode) (float64, error) { return float64(scored.Add(1) % 2), nil }}, nil
}

// train runs one training and measures it.
func (s *session) train(ctx context.Context, c setup) (out outcome, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	base, err := tiny.Open()
	if err != nil {
		return out, err
	}
	chat, err := rollout.NewModelChat(base)
	if err != nil {
		return out, err
	}
	word := chat.Encode("a")[0]
	dir, err := os.MkdirTemp(s.dir, "train-")
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	cfg := cluster.DefaultConfig(dir)
	cfg.Heartbeat = 0
	cfg.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	node, err := cluster.OpenLocal(cfg)
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, node.Close()) }()
	if err := node.WaitReady(ctx, 1); err != nil {
		return out, err
	}
	st := node.Store()
	if err := st.CreateRun(ctx, replay.RunSpec{
		Run: runName, GroupSize: uint32(c.groupSize), GroupsPerStep: uint32(c.groupsPerStep), MaxStaleness: c.staleness, TicketTTL: time.Minute,
		MaxAttempts: 2, BaseDigest: base.Digest, Stragglers: replay.Stragglers{Oversample: uint32(c.oversample)},
	}); err != nil {
		return out, err
	}
	loop, err := newLoop(base, st, c)
	if err != nil {
		return out, err
	}

	var engines []*engine
	working, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	failed := make(chan error, c.workers)
	for i := range c.workers {
		e := newEngine(c.slots, c.token, c.lengths, word, c.idleSwap)
		engines = append(engines, e)
		wc := rollout.DefaultWorkerConfig()
		wc.Run, wc.Name, wc.Members, wc.DrainTimeout = runName, fmt.Sprintf("w%d", i), 2*c.slots, time.Second
		lc := rollout.DefaultLoopConfig()
		lc.MaxCompletionLength = c.lengths.most + 1
		w, err := rollout.NewWorker(wc, rollout.Parts{Store: st, Source: questions{}, Engine: e, Chat: chat, Loop: lc, Base: base}, rollout.Hooks{})
		if err != nil {
			stop()
			return out, err
		}
		wg.Go(func() {
			if err := w.Run(working); err != nil {
				failed <- err
				cancel()
			}
		})
	}
	used := func() (busy time.Duration, tokens int) {
		for _, e := range engines {
			b, t := e.used()
			busy, tokens = busy+b, tokens+t
		}
		return busy, tokens
	}
	m := &meter{used: used}
	_, err = loop(ctx, m)
	stop()
	wg.Wait()
	select {
	case werr := <-failed:
		err = errors.Join(werr, err)
	default:
	}
	if err != nil {
		return out, err
	}
	status, err := st.Status(context.WithoutCancel(ctx), runName)
	if err != nil {
		return out, err
	}
	return m.outcome(c, status), nil
}

// meter notes each step.
type meter struct {
	used   func() (time.Duration, int)
	times  []time.Time
	busy   []time.Duration
	tokens []int
	waited float64
}

func (m *meter) step(_ replay.StepRecord, res learner.StepResult, _ *learner.Checkpoint) {
	b, t := m.used()
	m.times, m.busy, m.tokens = append(m.times, time.Now()), append(m.busy, b), append(m.tokens, t)
	if len(m.times) > 1 {
		m.waited += res.Metrics["time/wait_s"]
	}
}

func (m *meter) outcome(c setup, st replay.RunStatus) outcome {
	last := len(m.times) - 1
	d := m.times[last].Sub(m.times[0])
	n, lag := 0, 0
	for l, k := range st.StalenessCounts {
		n, lag = n+k, lag+k*int(l)
	}
	return outcome{
		stepSeconds: d.Seconds() / float64(last), busy: (m.busy[last] - m.busy[0]).Seconds() / d.Seconds() / float64(c.workers*c.slots),
		tokens: float64(m.tokens[last]-m.tokens[0]) / d.Seconds(), waited: m.waited / float64(last),
		lag: float64(lag) / float64(max(n, 1)), stale: st.DroppedGroups,
	}
}

// newLoop makes the learner and its loop.
func newLoop(base *model.Model, st replay.Store, c setup) (func(context.Context, *meter) (learner.Summary, error), error) {
	lora := model.LoRAConfig{Rank: 1, Alpha: 1, Targets: []string{"q_proj"}}.Resolve(base.Config)
	start, err := model.NewAdapter(base.Config, lora, base.Digest, 1)
	if err != nil {
		return nil, err
	}
	layout, err := model.LoRALayout(base.Config, lora)
	if err != nil {
		return nil, err
	}
	tr := &trainer{layout: layout, grad: make([]float32, layout.Size()), sequence: c.sequence}
	lc := learner.DefaultConfig()
	lc.NumGenerations, lc.GroupsPerStep, lc.MaxStaleness, lc.MaxSteps = c.groupSize, c.groupsPerStep, c.staleness, c.steps
	lc.MaxCompletionLength, lc.LearningRate, lc.LRSchedulerType = c.lengths.most+1, 1e-3, "constant"
	l, err := learner.New(lc, learner.Identity{Run: runName, Base: base.Digest, LoRA: lora, Dataset: learner.Dataset{Name: "bench", Digest: "bench"}}, tr, start.Params)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, m *meter) (learner.Summary, error) {
		loop, err := learner.NewLoop(learner.DefaultLoopConfig(runName, "learner"), st, l, learner.Hooks{OnStep: m.step})
		if err != nil {
			return learner.Summary{}, err
		}
		return loop.Run(ctx)
	}, nil
}
