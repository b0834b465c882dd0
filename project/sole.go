package project

import (
	"context"
	"errors"

	"github.com/skein-rl/skein/actors"
	"github.com/skein-rl/skein/learner"
)

// soleLearner is the learner of a run that has no other. Its own verdicts end
// the run: started again it would wait, or diverge, for as long once more, and
// bounds such as max_idle would bound nothing. (A learner of a cluster stands by
// instead: that nothing is ready for it may mean that another one trains.)
func soleLearner(learn func(context.Context) error) actors.Role {
	return actors.Learner(func(ctx context.Context) error {
		err := learn(ctx)
		for _, verdict := range []error{learner.ErrIdle, learner.ErrTooManyEmpty, learner.ErrDiverged} {
			if errors.Is(err, verdict) {
				return actors.Permanent(err)
			}
		}
		return err
	}, nil)
}
