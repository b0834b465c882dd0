package learner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/skein-rl/skein/eventlog"
	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/replay"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func loopConfig() LoopConfig {
	c := DefaultLoopConfig(run, "l1")
	c.MaxIdle = 5 * time.Minute
	return c
}

// rig is a learner, its loop and its store. work(n) is called before the loop
// starts and after every step, so that dispatch is a pure function of the run.
type rig struct {
	l     *Learner
	b     *bandit
	s     *foldStore
	lp    *Loop
	steps []replay.StepRecord
	ckpts []*Checkpoint
	warns []error
	empty []map[string]int
	lost  []error
	evals int
	start []string
}

func newRig(t testing.TB, c Config, lc LoopConfig, s *foldStore) *rig {
	t.Helper()
	l, b := newLearner(t, c, nil)
	g := &rig{l: l, b: b, s: s}
	lp, err := NewLoop(lc, s, l, Hooks{
		OnStart: func(step, version uint64, resumed bool) {
			g.start = append(g.start, fmt.Sprintf("%d/%d/%v", step, version, resumed))
		},
		OnStep: func(rec replay.StepRecord, res StepResult, ck *Checkpoint) {
			g.steps, g.ckpts = append(g.steps, rec), append(g.ckpts, ck)
			s.work(c.GroupsPerStep)
		},
		OnEmpty:   func(n int, why map[string]int) { g.empty = append(g.empty, why) },
		OnLost:    func(err error, step uint64) { g.lost = append(g.lost, err) },
		OnWarning: func(err error) { g.warns = append(g.warns, err) },
		OnEval:    func(replay.EvalRequest) { g.evals++ },
	})
	require.NoError(t, err)
	g.lp = lp
	return g
}

func (s *foldStore) status() replay.RunStatus {
	st, err := replay.Status(s.kv, run)
	require.NoError(s.t, err)
	return st
}

func TestLoopTrainsCommitsAndPublishes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := small(4)
		c.MaxSteps = 5
		s := newFoldStore(t, c)
		s.work(2)
		g := newRig(t, c, loopConfig(), s)
		sum, err := g.lp.Run(t.Context())
		require.NoError(t, err)
		require.Equal(t, Summary{Steps: 5, Step: 5, Version: 5, Checkpoint: g.steps[4].Checkpoint}, sum)
		require.Equal(t, []string{"0/0/false"}, g.start)
		require.Empty(t, g.warns)
		for i, rec := range g.steps {
			got, err := replay.Step(s.kv, run, rec.Step)
			require.NoError(t, err)
			require.Equal(t, rec.Adapter, got.Adapter)
			require.Equal(t, uint64(i+1), rec.Version)
			require.Len(t, rec.LogIDs, 8)
			require.Len(t, rec.Groups, 2)
			a, err := model.DecodeAdapter(s.blobs[rec.Adapter])
			require.NoError(t, err)
			require.NoError(t, a.CheckBase(base))
			ck, err := DecodeCheckpoint(s.blobs[rec.Checkpoint])
			require.NoError(t, err)
			require.Equal(t, ck.Params, a.Params)
			require.Equal(t, rec.Lease, ck.Lease)
			require.Equal(t, ck, g.ckpts[i])
			if i > 0 {
				require.Equal(t, g.steps[i-1].Checkpoint, rec.PrevCheckpoint)
			} else {
				require.Contains(t, s.blobs, rec.PrevCheckpoint)
			}
		}
		st := s.status()
		require.Equal(t, 10, st.ConsumedGroups)
		require.Zero(t, st.LeasedGroups)
		p, err := replay.Latest(s.kv, run)
		require.NoError(t, err)
		require.Equal(t, g.steps[4].Adapter, p.Adapter)
	})
}

// runTo runs a fresh process (learner, loop) against the store.
func runTo(t *testing.T, c Config, s *foldStore, stop int) *rig {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	g := newRig(t, c, loopConfig(), s)
	hook := g.lp.hooks.OnStep
	g.lp.hooks.OnStep = func(rec replay.StepRecord, res StepResult, ck *Checkpoint) {
		hook(rec, res, ck)
		if int(rec.Step) == stop {
			cancel()
		}
	}
	_, err := g.lp.Run(ctx)
	require.NoError(t, err)
	return g
}

func TestLoopResumesFromTheRegistryBitIdentically(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := small(4)
		c.MaxSteps, c.Beta, c.NumIterations = 6, .05, 2
		a := newFoldStore(t, c)
		a.work(2)
		straight := runTo(t, c, a, 6)
		b := newFoldStore(t, c)
		b.work(2)
		runTo(t, c, b, 3)
		c.TokenBudget++ // no effect on the numbers, but told
		second := runTo(t, c, b, 6)
		require.Equal(t, []string{"3/3/true"}, second.start)
		require.Equal(t, straight.l.Params(), second.l.Params())
		require.Equal(t, straight.steps[5].Adapter, second.steps[2].Adapter)
		require.Len(t, second.warns, 1)
		require.ErrorContains(t, second.warns[0], "token_budget: 4096 -> 4097")
	})
}

// cases/training.tsv resume: "dataloader position saved, generated-but-untrained
// samples not: they are skipped after resume".
func TestCaseResumeTrainsEveryGroupExactlyOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := small(4)
		c.GroupsPerStep, c.MaxSteps, c.MaxStaleness = 2, 4, 3
		s := newFoldStore(t, c)
		made := s.work(4) // generate 4
		g := newRig(t, c, loopConfig(), s)
		g.lp.hooks.OnStep = func(rec replay.StepRecord, _ StepResult, _ *Checkpoint) {
			g.steps = append(g.steps, rec)
			// the process dies in the next step, between training and commit
			g.s.fault = func(op string) error {
				if op == "commit" || op == "release" {
					return errInjected
				}
				return nil
			}
		}
		_, err := g.lp.Run(t.Context()) // train 2
		require.ErrorIs(t, err, errInjected)
		require.Len(t, g.steps, 1)
		s.fault = nil
		require.Equal(t, 2, s.status().LeasedGroups) // held by the dead one
		made = append(made, s.work(4)...)

		h := newRig(t, c, loopConfig(), s)
		h.lp.hooks.OnStep = func(rec replay.StepRecord, _ StepResult, _ *Checkpoint) { h.steps = append(h.steps, rec) }
		_, err = h.lp.Run(t.Context())
		require.NoError(t, err)
		var trained []string
		for _, rec := range append(g.steps, h.steps...) {
			trained = append(trained, rec.Groups...)
		}
		require.Equal(t, made, trained) // all eight, once each, in order
	})
}

func TestLoopLostCommitAnswerIsAskedForAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := small(4)
		c.MaxSteps = 2
		s := newFoldStore(t, c)
		s.work(2)
		lost := 0
		s.after = func(op string) error {
			if op == "commit" && lost < 2 {
				lost++
				return fmt.Errorf("%w: no answer", replay.ErrUnavailable)
			}
			return nil
		}
		g := newRig(t, c, loopConfig(), s)
		sum, err := g.lp.Run(t.Context())
		require.NoError(t, err)
		require.Equal(t, 2, sum.Steps)
		require.Equal(t, 4, s.calls["commit"])
		require.Len(t, g.warns, 2)
		require.Equal(t, 4, s.status().ConsumedGroups)
	})
}

// The commit was applied but no answer ever comes: the lost lease sends the
// learner to the registry, which says that the step is committed.
func TestLoopCommitNeverAnsweredIsFoundInTheRegistry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := small(4)
		c.MaxSteps = 1
		s := newFoldStore(t, c)
		s.work(2)
		s.after = func(op string) error {
			if op == "commit" {
				return replay.ErrUnavailable
			}
			return nil
		}
		g := newRig(t, c, loopConfig(), s)
		sum, err := g.lp.Run(t.Context())
		require.NoError(t, err)
		require.Len(t, g.lost, 1)
		require.Equal(t, uint64(1), sum.Step)
		require.Equal(t, 2, s.status().ConsumedGroups)
	})
}

func TestLoopStoreGoneAtCommitEndsWithAnErrorAndResumesRight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := small(4)
		c.MaxSteps = 1
		s := newFoldStore(t, c)
		s.work(2)
		gone := false
		s.fault = func(string) error {
			if gone {
				return replay.ErrUnavailable
			}
			return nil
		}
		s.after = func(op string) error {
			if gone = gone || op == "commit"; gone {
				return replay.ErrUnavailable
			}
			return nil
		}
		g := newRig(t, c, loopConfig(), s)
		began := time.Now()
		_, err := g.lp.Run(t.Context())
		require.ErrorIs(t, err, replay.ErrUnavailable)
		require.LessOrEqual(t, time.Since(began), 5*time.Minute)
		require.Zero(t, g.l.StepNumber()) // the learner does not pretend
		s.after, s.fault = nil, nil
		h := newRig(t, c, loopConfig(), s)
		sum, err := h.lp.Run(t.Context())
		require.NoError(t, err)
		require.Equal(t, []string{"1/1/true"}, h.start)
		require.Zero(t, sum.Steps)
	})
}

// A step longer than its lease keeps it.
func TestLoopExtendsTheLeaseWhileItTrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := small(4)
		c.MaxSteps = 1
		s := newFoldStore(t, c)
		s.work(2)
		g := newRig(t, c, loopConfig(), s)
		g.b.onForward = func() error { time.Sleep(5 * time.Minute); return nil }
		_, err := g.lp.Run(t.Context())
		require.NoError(t, err)
		require.GreaterOrEqual(t, s.calls["extend"], 14)
		require.Empty(t, g.lost)
	})
}

// While it was cut off, another learner took the groups over and committed.
func TestLoopDropsItsWorkWhenAnotherLearnerTookOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := small(4)
		c.MaxSteps = 3
		s := newFoldStore(t, c)
		s.work(2)
		g := newRig(t, c, loopConfig(), s)
		var other *rig
		g.b.onForward = func() error {
			if other != nil {
				return nil
			}
			s.mu.Lock()
			s.fault = func(op string) error { // only "l1" is cut off
				if op == "extend" {
					return replay.ErrUnavailable
				}
				return nil
			}
			s.mu.Unlock()
			time.Sleep(2 * time.Minute)
			s.mu.Lock()
			s.fault = nil
			s.mu.Unlock()
			lc := loopConfig()
			lc.Holder = "l2"
			other = newRig(t, c, lc, s)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			hook := other.lp.hooks.OnStep
			other.lp.hooks.OnStep = func(rec replay.StepRecord, res StepResult, ck *Checkpoint) { hook(rec, res, ck); cancel() }
			_, err := other.lp.Run(ctx)
			require.NoError(t, err)
			return nil
		}
		sum, err := g.lp.Run(t.Context())
		require.NoError(t, err)
		require.Len(t, other.steps, 1)
		require.Len(t, g.lost, 1)
		require.ErrorIs(t, g.lost[0], replay.ErrStale)
		require.Equal(t, 2, sum.Steps)
		require.Equal(t, uint64(3), sum.Step)
		require.Equal(t, other.steps[0].Checkpoint, g.steps[0].PrevCheckpoint)
		var all []string
		for _, rec := range append(other.steps, g.steps...) {
			all = append(all, rec.Groups...)
		}
		slices.Sort(all)
		require.Len(t, slices.Compact(all), 6, "no group is trained twice")
	})
}

// The trainer is stopped as soon as the store says that the lease is over.
func TestLoopStopsTheStepWhenTheLeaseIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := small(4)
		c.MaxSteps = 1
		s := newFoldStore(t, c)
		s.work(2)
		g := newRig(t, c, loopConfig(), s)
		var waited time.Duration
		g.b.onForward = func() error {
			if waited > 0 {
				return nil
			}
			if err := s.Release(t.Context(), run, 1, ""); err != nil {
				return err
			}
			at := time.Now()
			<-g.b.ctx.Done()
			waited = time.Since(at)
			return context.Cause(g.b.ctx)
		}
		sum, err := g.lp.Run(t.Context())
		require.NoError(t, err)
		require.Equal(t, 20*time.Second, waited) // the first extension after
		require.Len(t, g.lost, 1)
		require.Equal(t, 1, sum.Steps)
	})
}

func TestLoopTwoLearnersForeverIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := small(4)
		s := newFoldStore(t, c)
		s.work(2)
		lc := loopConfig()
		lc.MaxLost = 3
		g := newRig(t, c, lc, s)
		s.fault = func(op string) error {
			if op == "commit" {
				return replay.ErrStale
			}
			return nil
		}
		_, err := g.lp.Run(t.Context())
		require.ErrorIs(t, err, ErrLost)
		require.Len(t, g.lost, 2)
	})
}

// cases/training.tsv empty-batch: "the learner makes no step, says why, backs
// off, stops after a configured bound with non-zero exit".
func TestCaseEmptyBatchBacksOffAndStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := small(2)
		s := newFoldStore(t, c)
		lc := loopConfig()
		lc.MaxEmpty = 4
		g := newRig(t, c, lc, s)
		unscored := func() {
			for _, tk := range s.tickets(2) {
				for m := range uint32(2) {
					s.append(entry{group: tk.Group, member: m, size: 2, parts: []part{pol(0, 3)}}.log(t))
				}
			}
		}
		unscored()
		g.lp.hooks.OnEmpty = func(n int, why map[string]int) { g.empty = append(g.empty, why); unscored() }
		began := time.Now()
		sum, err := g.lp.Run(t.Context())
		require.ErrorIs(t, err, ErrTooManyEmpty)
		require.ErrorContains(t, err, "4 in a row, the last with group_empty=2, unscored=4")
		require.Zero(t, sum.Steps)
		require.Equal(t, map[string]int{"unscored": 4, "group_empty": 2}, g.empty[0])
		require.Equal(t, (1+2+4)*time.Second, time.Since(began))
		require.Equal(t, 8, s.status().DroppedGroups) // consumed untrained, never offered again
		require.Equal(t, make([]float32, vocab*vocab), g.l.Params())
	})
}

// An environment that only errors: no group ever becomes ready.
func TestCaseEmptyBatchAllRolloutsFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := small(2)
		s := newFoldStore(t, c)
		for _, tk := range s.tickets(2) {
			for m := range uint32(2) {
				s.append(entry{group: tk.Group, member: m, size: 2, status: eventlog.Failed, cause: "tool: connection refused"}.log(t))
			}
		}
		g := newRig(t, c, loopConfig(), s)
		waits := 0
		g.lp.hooks.OnWait = func(time.Duration, replay.RunStatus) { waits++ }
		began := time.Now()
		_, err := g.lp.Run(t.Context())
		require.ErrorIs(t, err, ErrIdle)
		require.ErrorContains(t, err, "dropped=2 groups and failed=4 rollouts (tool")
		require.InDelta(t, 5*60, time.Since(began).Seconds(), 15)
		require.Greater(t, waits, 10)
	})
}

// An environment that fails fast is given up by count, long before max_idle.
func TestCaseEmptyBatchFailingFastStopsByCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := small(2)
		s := newFoldStore(t, c)
		lc := loopConfig()
		lc.MaxEmpty = 3
		g := newRig(t, c, lc, s)
		g.lp.hooks.OnWait = func(time.Duration, replay.RunStatus) {
			for _, tk := range s.tickets(2) {
				for m := range uint32(2) {
					s.append(entry{group: tk.Group, member: m, size: 2, status: eventlog.Failed, cause: "engine: prompt fills the context"}.log(t))
				}
			}
		}
		began := time.Now()
		_, err := g.lp.Run(t.Context())
		require.ErrorIs(t, err, ErrTooManyEmpty)
		require.ErrorContains(t, err, "6 groups in a row, 3 batches, came to nothing")
		require.ErrorContains(t, err, "engine")
		require.Less(t, time.Since(began), time.Minute)
	})
}

// cases/training.tsv staleness: "trainer ran ahead of the orchestrator and
// trained again on old rollouts".
func TestCaseStalenessLearnerWaitsAndTrainsNoGroupTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := small(4)
		c.MaxSteps = 2
		s := newFoldStore(t, c)
		s.work(2)
		g := newRig(t, c, loopConfig(), s)
		g.lp.hooks.OnStep = func(rec replay.StepRecord, _ StepResult, _ *Checkpoint) { g.steps = append(g.steps, rec) }
		g.lp.hooks.OnWait = func(d time.Duration, _ replay.RunStatus) {
			require.Len(t, g.steps, 1)
			if d > time.Minute {
				s.work(2) // the rollouts come at last
			}
		}
		_, err := g.lp.Run(t.Context())
		require.NoError(t, err)
		require.Len(t, g.steps, 2)
		for _, id := range g.steps[1].LogIDs {
			require.NotContains(t, g.steps[0].LogIDs, id)
		}
		// and a store that leases a trained group again is caught
		c.MaxSteps = 3
		g.l.cfg.MaxSteps = 3
		s.work(2)
		ready := s.status().ReadyGroups
		require.Equal(t, 2, ready)
		lease, err := s.Lease(t.Context(), replay.LeaseRequest{Run: run, Holder: "peek", Groups: 2, LearnerVersion: 2, TTL: time.Minute})
		require.NoError(t, err)
		g.lp.trained[lease.Groups[1].Group] = 1
		require.NoError(t, s.Release(t.Context(), run, lease.ID, ""))
		_, err = g.lp.Run(t.Context())
		require.ErrorIs(t, err, ErrTrainedTwice)
	})
}

func TestLoopInterruptReleasesTheLease(t *testing.T) {
	for _, where := range []string{"waiting", "training"} {
		t.Run(where, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := small(4)
				s := newFoldStore(t, c)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				g := newRig(t, c, loopConfig(), s)
				if where == "training" {
					s.work(2)
					g.b.onForward = func() error { cancel(); return nil }
				} else {
					time.AfterFunc(3*time.Second, cancel)
				}
				sum, err := g.lp.Run(ctx)
				require.NoError(t, err)
				require.True(t, sum.Interrupted)
				st := s.status()
				require.Zero(t, st.LeasedGroups)
				if where == "training" {
					require.Equal(t, 2, st.ReadyGroups)
					require.Equal(t, 1, s.calls["release"])
				}
				require.Zero(t, g.l.StepNumber())
			})
		})
	}
}

// cases/training.tsv eval: "eval condition true for each micro-iteration".
func TestCaseEvalOncePerStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := small(4)
		c.MaxSteps, c.NumIterations, c.TokenBudget = 4, 4, 1
		s := newFoldStore(t, c)
		s.work(2)
		lc := loopConfig()
		lc.EvalEvery, lc.EvalCount, lc.EvalFrom, lc.EvalStart = 1, 16, 5, true
		g := newRig(t, c, lc, s)
		_, err := g.lp.Run(t.Context())
		require.NoError(t, err)
		require.Greater(t, g.b.forward, 16)
		require.Len(t, s.evals, 5)
		require.Equal(t, 5, g.evals)
		for v, q := range s.evals {
			require.Equal(t, replay.EvalRequest{Run: run, Version: uint64(v), From: 5, Count: 16}, q)
		}
		// every third step and the last
		s = newFoldStore(t, c)
		s.work(2)
		lc.EvalEvery, lc.EvalStart = 3, false
		g = newRig(t, c, lc, s)
		s.fault = func(op string) error {
			if op == "eval" && len(s.evals) == 1 {
				return errInjected
			}
			return nil
		}
		_, err = g.lp.Run(t.Context())
		require.NoError(t, err, "an evaluation that cannot be placed does not stop training")
		require.Equal(t, uint64(3), s.evals[0].Version)
		require.Len(t, s.evals, 1)
		require.ErrorContains(t, g.warns[0], "evaluation of version 4")
	})
}

// A damaged log costs its own group, not the step.
func TestLoopRefusesACorruptLogsGroupOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := small(4)
		c.MaxSteps = 1
		s := newFoldStore(t, c)
		ids := s.work(2)
		for id, data := range s.bytes {
			if l, err := eventlog.Decode(data); err == nil && l.Meta.Group == ids[0] && l.Meta.Member == 2 {
				l.Meta.Task = "forged"
				forged, err := eventlog.Encode(l)
				require.NoError(t, err)
				s.bytes[id] = forged
			}
		}
		g := newRig(t, c, loopConfig(), s)
		_, err := g.lp.Run(t.Context())
		require.NoError(t, err)
		require.Len(t, g.steps, 1)
		require.Len(t, g.steps[0].LogIDs, 4)
		require.Equal(t, 1.0, g.steps[0].Metrics["excluded/group_refused: corrupt"])
		require.ErrorIs(t, g.warns[0], ErrCorruptLog)
		require.Equal(t, 2, s.status().ConsumedGroups)
	})
}

func TestLoopTrainerErrorReturnsTheGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := small(4)
		s := newFoldStore(t, c)
		s.work(2)
		g := newRig(t, c, loopConfig(), s)
		g.b.onForward = func() error { return errInjected }
		sum, err := g.lp.Run(t.Context())
		require.ErrorIs(t, err, errInjected)
		require.False(t, sum.Interrupted)
		require.Equal(t, 2, s.status().ReadyGroups)
	})
}

func TestLoopStoreUnavailableIsRetriedThenReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := small(4)
		c.MaxSteps = 1
		s := newFoldStore(t, c)
		s.work(2)
		down := map[string]int{"status": 1, "putblob": 2, "lease": 1, "fetch": 3, "commit": 1}
		s.fault = func(op string) error {
			if down[op] > 0 {
				down[op]--
				return fmt.Errorf("%w: no leader", replay.ErrUnavailable)
			}
			return nil
		}
		g := newRig(t, c, loopConfig(), s)
		sum, err := g.lp.Run(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, sum.Steps)
		require.Len(t, g.warns, 8)
		s.fault = func(string) error { return replay.ErrUnavailable }
		began := time.Now()
		_, err = newRig(t, c, loopConfig(), s).lp.Run(t.Context())
		require.ErrorIs(t, err, replay.ErrUnavailable)
		require.LessOrEqual(t, time.Since(began), 2*time.Minute)
	})
}

// The store collects blobs that no step refers to, so one that is stored long
// before its commit would be gone by then.
func TestLoopStoresTheStartWithTheFirstStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := small(4)
		c.MaxSteps = 1
		s := newFoldStore(t, c)
		g := newRig(t, c, loopConfig(), s)
		s.fault = func(op string) error {
			if op == "fetch" {
				require.Empty(t, s.blobs)
			}
			return nil
		}
		s.work(2)
		_, err := g.lp.Run(t.Context())
		require.NoError(t, err)
		start, err := DecodeCheckpoint(s.blobs[g.steps[0].PrevCheckpoint])
		require.NoError(t, err)
		require.Zero(t, start.Step)
	})
}

func TestLoopRefusesAContradictingRun(t *testing.T) {
	c := small(4)
	s := newFoldStore(t, c)
	other := c
	other.NumGenerations, other.GroupsPerStep, other.MaxStaleness = 8, 3, 9
	g := newRig(t, other, loopConfig(), s)
	g.l.ident.Base = "blake3:other"
	_, err := g.lp.Run(t.Context())
	for _, f := range []string{"base blake3:base", "num_generations 4, this learner has 8", "groups_per_step 2", "max_staleness 2"} {
		require.ErrorContains(t, err, f)
	}
	// a start the workers would not know
	l, _ := newLearner(t, c, noisy(1))
	lp, err := NewLoop(loopConfig(), s, l, Hooks{})
	require.NoError(t, err)
	_, err = lp.Run(t.Context())
	require.ErrorContains(t, err, "create the run with StartAdapter blake3:")
	lp.status.Spec.StartAdapter = l.Adapter().Digest()
	require.NoError(t, lp.checkStart(lp.status.Spec))
	lp.status.Spec.StartAdapter = "blake3:x"
	require.ErrorContains(t, lp.checkStart(lp.status.Spec), "load the run's start adapter")

	_, err = NewLoop(LoopConfig{}, s, l, Hooks{})
	for _, f := range []string{"run:", "holder:", "lease_ttl:", "max_idle:", "max_empty:", "max_lost:"} {
		require.ErrorContains(t, err, f)
	}
	_, err = NewLoop(DefaultLoopConfig("x", "h"), s, l, Hooks{})
	require.ErrorContains(t, err, `run "x"`)
}

func TestVerifyStepRecomputesAndNamesDifferences(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := small(4)
		c.MaxSteps, c.Beta, c.NumIterations, c.ConstantGroups, c.ScaleRewards = 3, .05, 2, DropConstant, "batch"
		s := newFoldStore(t, c)
		s.work(2)
		g := newRig(t, c, loopConfig(), s)
		_, err := g.lp.Run(t.Context())
		require.NoError(t, err)
		exact := func(model.TrainerConfig) (model.Trainer, error) { return newBandit(vocab), nil }
		for n := uint64(1); n <= 3; n++ {
			r, err := VerifyStep(t.Context(), s, run, n, exact)
			require.NoError(t, err)
			require.True(t, r.OK)
			require.Equal(t, r.CheckpointRecorded, r.CheckpointRecomputed)
			require.Zero(t, r.Different)
			require.Equal(t, r.LogsRecorded, r.LogsVerified)
			for _, d := range r.Metrics {
				require.True(t, strings.HasPrefix(d.Name, "groups"), "%+v", d)
			}
		}
		var made *bandit
		r, err := VerifyStep(t.Context(), s, run, 2, func(c model.TrainerConfig) (model.Trainer, error) {
			require.Equal(t, model.TrainerConfig{LoRA: lora()}, c)
			made = newBandit(vocab)
			made.onForward = func() error { made.params[2*vocab+3] += .01; return nil } // another machine
			return made, nil
		})
		require.NoError(t, err)
		require.True(t, made.closed)
		require.False(t, r.OK)
		require.NotEqual(t, r.AdapterRecorded, r.AdapterRecomputed)
		require.Positive(t, r.Different)
		require.Positive(t, r.MaxAbsDiff)
		require.NotEmpty(t, r.Metrics)

		_, err = VerifyStep(t.Context(), s, run, 9, exact)
		require.ErrorIs(t, err, replay.ErrNotFound)
		_, err = VerifyStep(t.Context(), s, run, 1, func(model.TrainerConfig) (model.Trainer, error) { return nil, errInjected })
		require.ErrorIs(t, err, errInjected)
		delete(s.blobs, g.steps[0].PrevCheckpoint)
		_, err = VerifyStep(t.Context(), s, run, 1, exact)
		require.True(t, errors.Is(err, replay.ErrNotFound))
	})
}
