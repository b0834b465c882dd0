package project

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/skein-rl/skein/actors"
	"github.com/skein-rl/skein/cluster"
	"github.com/skein-rl/skein/eventlog"
	"github.com/skein-rl/skein/learner"
	"github.com/skein-rl/skein/replay"
)

// LocalOptions are the surroundings of a single-process run.
type LocalOptions struct {
	Dir      string // of the run: store, checkpoints, summary, report
	Log      *slog.Logger
	Progress io.Writer // a line a step; never nil
	// Metrics is the address to serve Prometheus on, HOST:PORT; "" = none. The
	// bound address is written to Dir/metrics-addr.
	Metrics string
	// Join has learners of a cluster help a training on files: by its Join, Token and
	// Listen this process joins too. nil = alone.
	Join *NodeOptions
	// bases are shared with other runs of the process; nil = own.
	bases *bases
}

func (o LocalOptions) shared() *bases {
	if o.bases == nil {
		return newBases()
	}
	return o.bases
}

// RunLocal plays every role of a run in this process, from where the run in
// Dir stands, and writes summary.json and report.html there. When ctx ends it
// stops at a safe point and returns the summary so far with ctx's error: the
// same call goes on from there.
func RunLocal(ctx context.Context, c Config, opt LocalOptions) (Summary, error) {
	began := time.Now()
	if err := onRollouts(c); err != nil {
		return Summary{}, err
	}
	mine := layout{Kind: kindLocal, Run: c.Run, Replay: 1}
	if err := checkDir(opt.Dir, mine); err != nil {
		return Summary{}, err
	}
	mx, err := serveMetrics(opt.Metrics, opt.Log)
	if err != nil {
		return Summary{}, err
	}
	defer mx.Close()
	p, err := openPartsOn(opt.shared(), c, opt.Log)
	if err != nil {
		return Summary{}, err
	}
	defer p.Close()
	if err := os.MkdirAll(opt.Dir, 0o755); err != nil {
		return Summary{}, fmt.Errorf("project: run folder: %w", err)
	}
	if err := checkSpace(opt.Dir, replay.DefaultLocalOptions().MinFreeBytes); err != nil {
		return Summary{}, err
	}
	if err := claimDir(opt.Dir, mine); err != nil {
		return Summary{}, err
	}
	cfg := localNode(opt.Dir, opt.Log)
	cfg.Registerer = mx.registerer()
	node, err := cluster.OpenLocal(cfg)
	if err != nil {
		return Summary{}, err
	}
	defer node.Close()
	mx.replayNode(node)
	defer mx.replayNode(nil)
	p.metrics, p.dir, p.told = mx, opt.Dir, true
	if err := mx.announce(opt.Dir); err != nil {
		return Summary{}, err
	}
	if err := node.WaitReady(ctx, 1); err != nil {
		return Summary{}, err
	}
	st := node.Store()
	if err := p.checkRun(ctx, st); err != nil {
		return Summary{}, err
	}
	if err := p.prepareLocal(ctx, st, opt); err != nil {
		return Summary{}, err
	}
	runErr := playRoles(ctx, p, st, opt)
	return conclude(ctx, st, c, opt.Dir, began, func() float64 { return peakRSSMB(os.Getpid()) }, runErr)
}

// onRollouts refuses an algorithm that trains on files, where roles are played.
func onRollouts(c Config) error {
	if c.Training.Offline() {
		return fmt.Errorf("project: training.algorithm %s trains on files, in one process: use skein train %s", c.Training.Algorithm, c.Training.Algorithm)
	}
	return nil
}

// prepareLocal makes the run exist. During a warm-up a worker of this process
// evaluates the base model.
func (p *parts) prepareLocal(ctx context.Context, st replay.Store, opt LocalOptions) error {
	if p.cfg.Warmup.Examples == 0 || p.cfg.Eval.Tasks == 0 {
		return p.ensureRun(ctx, st, opt.Dir, opt.Log, opt.Progress)
	}
	working, stop := context.WithCancelCause(ctx)
	done := make(chan struct{})
	base := *p // ensureRun completes p's configuration
	go func() {
		defer close(done)
		if err := base.evaluateBase(working, st, opt.Log); err != nil && working.Err() == nil {
			stop(fmt.Errorf("project: evaluating the base model: %w", err))
		}
	}()
	err := p.ensureRun(working, st, opt.Dir, opt.Log, opt.Progress)
	stop(nil)
	<-done
	if cause := context.Cause(working); err != nil && !errors.Is(cause, context.Canceled) && !errors.Is(err, cause) {
		return errors.Join(cause, err) // the worker's error ended the warm-up
	}
	return err
}

// evaluateBase works for the base run until ctx ends.
func (p *parts) evaluateBase(ctx context.Context, st replay.Store, log *slog.Logger) error {
	if err := awaitRun(ctx, st, BaseRun(p.cfg.Run), p.cfg.Run); err != nil {
		return err
	}
	base := *p
	base.cfg.Run = BaseRun(p.cfg.Run)
	return base.work(ctx, st, "worker", log, nil)
}

// awaitRun returns when any of the runs exists.
func awaitRun(ctx context.Context, st replay.Store, runs ...string) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		for _, r := range runs {
			if _, err := st.Status(ctx, r); err == nil {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// localNode is the store of a single process, under the run's folder.
func localNode(dir string, log *slog.Logger) cluster.Config {
	cfg := cluster.DefaultConfig(filepath.Join(dir, "node"))
	cfg.Heartbeat = 0 // its own default for one node
	cfg.Store.Verify = verifyLog
	cfg.Logger = log
	return cfg
}

// verifyLog refuses bytes that are not the EventLog their item describes, at
// every replica, before they are stored.
func verifyLog(it replay.Item, data []byte) error {
	l, err := eventlog.Decode(data)
	if err != nil {
		return err
	}
	if d := l.Digest(); d != it.Digest {
		return fmt.Errorf("project: log %s has digest %s, its item says %s", it.LogID, d, it.Digest)
	}
	return nil
}

// playRoles runs worker, learner and scheduler as supervised actors until the
// run is finished, one of them gives up, or ctx ends.
func playRoles(ctx context.Context, p *parts, st replay.Store, opt LocalOptions) error {
	sys := actors.NewSystem(opt.Log)
	defer sys.Close()
	watching, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { follow(watching, st, p.cfg, opt.Progress, nil, nil) })
	defer wg.Wait()
	defer stop()

	roles := []actors.Role{
		actors.Worker(func(ctx context.Context) error { return p.work(ctx, st, "worker", opt.Log, nil) }, nil),
		soleLearner(func(ctx context.Context) error { return p.learn(ctx, st, "learner", learnerHooks(opt.Log), nil) }),
		actors.Scheduler(final(func(ctx context.Context) error { return finishRun(ctx, st, p.cfg) })),
	}
	var handles []*actors.Handle
	for _, r := range roles {
		h, err := sys.Spawn(r, actors.Restart{Max: 3, Within: time.Minute})
		if err != nil {
			return err
		}
		handles = append(handles, h)
	}
	scheduler := handles[len(handles)-1]
	ended := make(chan error, len(handles))
	for i, h := range handles {
		go func() {
			<-h.Done()
			if err := h.Err(); err != nil {
				ended <- fmt.Errorf("project: %s: %w", roles[i].Name, err)
			} else if h == scheduler {
				ended <- nil
			}
		}()
	}
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func learnerHooks(log *slog.Logger) learner.Hooks {
	return learner.Hooks{
		OnStart: func(step, version uint64, resumed bool) {
			log.Info("learner starts", "step", step, "policy_version", version, "resumed", resumed)
		},
		OnStep: func(rec replay.StepRecord, _ learner.StepResult, _ *learner.Checkpoint) {
			log.Info("step committed", "step", rec.Step, "policy_version", rec.Version, "reward", rec.Metrics["reward"], "loss", rec.Metrics["loss"],
				"logs", len(rec.LogIDs), "adapter", rec.Adapter)
		},
		OnEmpty:   func(n int, why map[string]int) { log.Warn("nothing to train", "consecutive", n, "reasons", why) },
		OnLost:    func(err error, step uint64) { log.Warn("lease lost; going on", "step", step, "error", err) },
		OnWarning: func(err error) { log.Warn("learner", "error", err) },
	}
}
