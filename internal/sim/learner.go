package sim

import (
	"errors"
	"fmt"
	"time"

	"github.com/skein-rl/skein/replay"
)

// learner imitates learner.Loop: it resumes from the last committed step,
// leases a batch, extends the lease while it trains, and commits, asking again
// until it is told.
type learner struct {
	process
	version, step uint64
	prev          string
	lease         *replay.Lease
}

// resume loads the last committed state.
func (l *learner) resume() {
	l.lease = nil
	var st replay.RunStatus
	c := &call{
		read: func(kv replay.Reader) (err error) {
			st, err = replay.Status(kv, l.run.spec.Run)
			return err
		},
		done: func(_ replay.Result, err error) {
			if err != nil {
				l.after(time.Second, l.resume)
				return
			}
			l.version, l.step, l.prev = st.Latest.Version, 0, "start"
			if st.LastStep != nil {
				l.step, l.prev = st.LastStep.Step, st.LastStep.Checkpoint
			}
			l.next()
		},
	}
	l.ask(c, l.w.cfg.CallTimeout)
}

// next leases a batch.
func (l *learner) next() {
	if l.run.finished {
		return
	}
	q := replay.LeaseRequest{Run: l.run.spec.Run, Holder: l.name, Groups: int(l.run.spec.GroupsPerStep), LearnerVersion: l.version, TTL: l.w.cfg.LeaseTTL}
	c := &call{
		wait:  l.w.now + l.w.cfg.LeaseWait,
		ready: func(kv replay.Reader, _ time.Time) (bool, error) { return replay.ReadyFor(kv, q) },
		parks: func(r *run) *[]*attempt { return &r.leases },
		cmd:   func(now time.Time) replay.Command { return replay.AcquireLeaseCmd{Now: now, Request: q} },
		empty: func(r replay.Result) bool { return r.Lease == nil },
		done: func(res replay.Result, err error) {
			switch {
			case errors.Is(err, replay.ErrStale):
				l.resume()
			case err != nil || res.Lease == nil:
				l.after(100*time.Millisecond, l.next)
			default:
				l.train(res.Lease)
			}
		},
	}
	l.ask(c, l.w.cfg.CallTimeout)
}

// train computes a step; the lease is extended meanwhile.
func (l *learner) train(lease *replay.Lease) {
	l.lease = lease
	l.extend(lease, l.w.now+l.w.cfg.LeaseTTL)
	empty := l.w.rng.chance(l.w.cfg.Empty)
	l.after(l.w.rng.draw(l.w.cfg.Step), func() {
		switch {
		case l.lease != lease: // lost meanwhile
		case empty:
			l.release(lease)
		default:
			l.commit(lease)
		}
	})
}

// extend keeps the lease; one that cannot be kept is lost.
func (l *learner) extend(lease *replay.Lease, expires time.Duration) {
	ttl := l.w.cfg.LeaseTTL
	l.after(ttl/3, func() {
		if l.lease != lease {
			return
		}
		asked := l.w.now
		c := &call{
			cmd: func(now time.Time) replay.Command {
				return replay.ExtendLeaseCmd{Now: now, Run: l.run.spec.Run, Lease: lease.ID, TTL: ttl}
			},
			done: func(_ replay.Result, err error) {
				switch {
				case l.lease != lease:
				case err == nil:
					l.extend(lease, asked+ttl)
				case errors.Is(err, replay.ErrStale), l.w.now >= expires:
					l.lease = nil
					l.resume()
				default:
					l.extend(lease, expires)
				}
			},
		}
		l.ask(c, ttl/3)
	})
}

// release drops a batch that has nothing to train.
func (l *learner) release(lease *replay.Lease) {
	l.lease = nil
	c := &call{
		cmd: func(now time.Time) replay.Command {
			return replay.ReleaseLeaseCmd{Now: now, Run: l.run.spec.Run, Lease: lease.ID, Drop: "nothing_to_train"}
		},
		done: func(replay.Result, error) { l.next() },
	}
	l.ask(c, l.w.cfg.CallTimeout)
}

// commit publishes the step. The same record is sent until it is answered: it
// may have been decided long ago.
func (l *learner) commit(lease *replay.Lease) {
	s := replay.StepRecord{Run: l.run.spec.Run, Step: l.step + 1, Version: l.version + 1, Lease: lease.ID, PrevCheckpoint: l.prev}
	s.Checkpoint = fmt.Sprintf("%s.%d.c%d", l.name, l.life, s.Step)
	s.Adapter = fmt.Sprintf("%s.%d.a%d", l.name, l.life, s.Step)
	s.Committed = epoch.Add(l.w.now)
	for _, g := range lease.Groups {
		s.Groups = append(s.Groups, g.Group)
		for _, it := range g.Items {
			s.LogIDs = append(s.LogIDs, it.LogID)
		}
	}
	c := &call{
		cmd: func(now time.Time) replay.Command { return replay.CommitStepCmd{Now: now, Step: s} },
		done: func(_ replay.Result, err error) {
			if l.lease != lease {
				return
			}
			l.lease = nil
			if err != nil {
				l.resume()
				return
			}
			l.version, l.step, l.prev = s.Version, s.Step, s.Checkpoint
			l.evaluate()
			l.next()
		},
	}
	l.ask(c, 12*l.w.cfg.CallTimeout)
	if l.w.cfg.Faults.Learner > 0 && l.w.rng.chance(.05) { // right around its commit
		l.after(l.w.rng.exp(4*time.Millisecond), func() {
			l.w.fault("learner", "%s dies around its commit of step %d", l.name, s.Step)
			l.crash()
		})
	}
}

func (l *learner) evaluate() {
	if n := l.w.cfg.EvalEvery; n == 0 || l.step%n != 0 {
		return
	}
	q := replay.EvalRequest{Run: l.run.spec.Run, Version: l.version, From: 1 << 20, Count: l.w.cfg.EvalCount}
	c := &call{
		cmd:  func(now time.Time) replay.Command { return replay.RequestEvalCmd{Now: now, Request: q} },
		done: func(replay.Result, error) {},
	}
	l.ask(c, l.w.cfg.CallTimeout)
}

// crash ends the process; it comes back under its name.
func (l *learner) crash() {
	l.die()
	l.w.after(l.w.rng.draw(l.w.cfg.Faults.Down), func() {
		l.up = true
		l.resume()
	})
}

// published is what a committed step means for everybody else.
func (w *world) published(s replay.StepRecord) {
	for _, r := range w.runs {
		if r.spec.Run != s.Run || s.Version <= r.policy {
			continue
		}
		r.policy, r.moved = s.Version, w.now
		for _, k := range w.work {
			if k.run == r && k.up {
				k.follow(s.Version)
			}
		}
		if s.Version >= w.cfg.Steps {
			r.finished = true
			w.store.propose(replay.FinishRunCmd{Now: w.store.clock(), Run: s.Run}, nil)
		}
	}
}
