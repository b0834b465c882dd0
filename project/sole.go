package project

import (
	"context"
	"errors"

	"github.com/skein-rl/skein/actors"
	"github.com/skein-rl/skein/learner"
)

// soleLearner is the learner of a run that has no other. (A learner that stands
// by for others restarts after its own verdicts: that nothing is ready for it
// may mean that another one trains.)
func soleLearner(learn func(context.Context) error) actors.Role {
	return actors.Learner(final(learn), nil)
}

// final makes a loop's verdicts end the run: started again it would wait, or
// diverge, for as long once more, and bounds such as max_idle would bound
// nothing.
func final(run func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		err := run(ctx)
		if isVerdict(err) {
			return actors.Permanent(err)
		}
		return err
	}
}

// ErrUnusable ends a run whose configuration names what its learner cannot have:
// a model, a device, a task.
var ErrUnusable = errors.New("project: the configuration cannot be used here")

// isVerdict says that a run was ended by its learner's or scheduler's judgement.
func isVerdict(err error) bool {
	for _, verdict := range []error{learner.ErrIdle, learner.ErrTooManyEmpty, learner.ErrDiverged, ErrNotEvaluated, ErrOtherConfig, ErrUnusable} {
		if errors.Is(err, verdict) {
			return true
		}
	}
	return false
}

// ExitVerdict is the exit status of a process whose learner ended the run by
// its own judgement; a supervisor must not start it again.
const ExitVerdict = 3

// ExitStatus is what a skein process should exit with for a command's error:
// 130 after Ctrl-C (the run can be resumed), ExitVerdict, else 1.
func ExitStatus(err error) int {
	switch {
	case errors.Is(err, context.Canceled):
		return 130
	case isVerdict(err):
		return ExitVerdict
	}
	return 1
}
