package replay

import (
	"time"

	pb "github.com/skein-rl/skein/replay/internal/replaypb"
)

// Stragglers say what becomes of groups that take longer than the others. The
// zero value waits for every member until the group's deadline, has another
// worker fill the gaps up to MaxAttempts times, and closes a group that is
// incomplete then with what it has.
type Stragglers struct {
	// Oversample members are rolled out beyond GroupSize. A group is complete,
	// and the rest of it abandoned, with the first GroupSize members that did
	// not fail. What ends first is shorter than the rest: the trained lengths
	// are biased by it.
	Oversample uint32
	// DuplicateAfter: a worker that finds nothing else to do gets the group
	// whose ticket is out for the longest, at least so long, as a second worker
	// of it. Of each member the log that comes first is accepted. 0 = never.
	DuplicateAfter time.Duration
	// Drop: a group that is incomplete after MaxAttempts is dropped instead of
	// going to the learner with what it has.
	Drop bool
}

func (s Stragglers) validate(spec RunSpec, add func(string, ...any)) {
	if n := uint64(spec.GroupSize) + uint64(s.Oversample); n > maxGroupSize {
		add("Stragglers.Oversample = %d with GroupSize %d: want at most %d together", s.Oversample, spec.GroupSize, maxGroupSize)
	}
	if s.DuplicateAfter < 0 || s.DuplicateAfter >= spec.TicketTTL && s.DuplicateAfter > 0 {
		add("Stragglers.DuplicateAfter = %v: want 0, or a time below TicketTTL (%v), when the group goes to another worker anyway", s.DuplicateAfter, spec.TicketTTL)
	}
}

func stragglersToPB(s Stragglers) *pb.Stragglers {
	if s == (Stragglers{}) {
		return nil
	}
	return &pb.Stragglers{Oversample: s.Oversample, DuplicateAfter: int64(s.DuplicateAfter), Drop: s.Drop}
}

func stragglersFromPB(m *pb.Stragglers) Stragglers {
	return Stragglers{Oversample: m.GetOversample(), DuplicateAfter: time.Duration(m.GetDuplicateAfter()), Drop: m.GetDrop()}
}
