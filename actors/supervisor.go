package actors

import (
	"time"

	"github.com/asynkron/protoactor-go/actor"
)

// supervisor restarts one role with exponential backoff. Each role has its
// own: a failing sibling never counts against it.
type supervisor struct {
	sys     *System
	name    string
	restart Restart
}

var _ actor.SupervisorStrategy = (*supervisor)(nil)

// HandleFailure implements actor.SupervisorStrategy. It runs in the failing
// actor's own mailbox turn.
func (s *supervisor) HandleFailure(_ *actor.ActorSystem, sup actor.Supervisor, child *actor.PID, rs *actor.RestartStatistics, reason, _ any) {
	err := reason
	if f, ok := reason.(failure); ok {
		err = f.err
	}
	if isPermanent(err) {
		s.sys.log.Error("role gave up: a restart would not help", "role", s.name, "error", err)
		sup.StopChildren(child)
		return
	}
	rs.Fail()
	n := rs.FailureCount()
	if s.restart.Within > 0 {
		n = rs.NumberOfFailures(s.restart.Within)
	}
	if n > s.restart.Max {
		s.sys.log.Error("role gave up", "role", s.name, "failures", n, "error", err)
		sup.StopChildren(child)
		return
	}
	delay := s.delay(n)
	s.sys.log.Warn("role failed; restarting", "role", s.name, "failures", n, "delay", delay, "error", err)
	s.sys.after(delay, func() { sup.RestartChildren(child) })
}

// delay doubles with every failure counted in the window.
func (s *supervisor) delay(failures int) time.Duration {
	d, limit := s.restart.Backoff, s.restart.MaxBackoff
	if d == 0 {
		d = 100 * time.Millisecond
	}
	if limit == 0 {
		limit = 10 * time.Second
	}
	for i := 1; i < failures && d < limit; i++ {
		d *= 2
	}
	return min(d, limit)
}
