package learner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// Team is the learner processes of one run. One of them leads: it leases, trains
// and commits, and deals micro-batches to the others. That only one leads saves
// work; what keeps a step from being trained twice is the lease.
type Team interface {
	// Lead returns when this process leads. waited says that it did not at first,
	// so that another may have trained; an unfinished run's learner waits until ctx
	// ends.
	Lead(ctx context.Context) (waited bool, err error)
	// Helpers are the ids of the others that are there now.
	Helpers(ctx context.Context) ([]string, error)
	// Dial opens a channel to one of them, which lives until ctx ends.
	Dial(ctx context.Context, id string) (Channel, error)
}

// Bounds of finding helpers before a step.
const (
	helpersWait = 2 * time.Second
	connectWait = 5 * time.Second
)

// Share makes the loop one of several: it trains only while it leads, with the
// help of the others; lender serves them while it does not. Call it before Run.
func (lp *Loop) Share(team Team, lender *Lender) { lp.team, lp.lender = team, lender }

// crew are the helpers a leader is connected to.
type crew struct {
	helpers []*helper
	refused map[string]string // id -> last refusal, told once
}

// gather connects to helpers that are new and forgets those that were lost. ctx
// is their channels' life.
func (lp *Loop) gather(ctx context.Context) {
	if lp.team == nil {
		return
	}
	c := &lp.crew
	c.helpers = slices.DeleteFunc(c.helpers, func(h *helper) bool {
		if h.lost() {
			lp.hooks.warn(fmt.Errorf("%w (its share is computed by the others)", h.lose(nil)))
			return true
		}
		return false
	})
	asked, done := context.WithTimeout(ctx, helpersWait)
	ids, err := lp.team.Helpers(asked)
	done()
	if err != nil {
		lp.hooks.warn(fmt.Errorf("learner: who can help: %w", err))
	}
	ids = slices.DeleteFunc(ids, func(id string) bool {
		return slices.ContainsFunc(c.helpers, func(h *helper) bool { return h.id == id })
	})
	found, errs := make([]*helper, len(ids)), make([]error, len(ids))
	var wg sync.WaitGroup
	for i, id := range ids {
		wg.Go(func() { found[i], errs[i] = lp.enlist(ctx, id) })
	}
	wg.Wait()
	for i, h := range found {
		switch {
		case h != nil:
			delete(c.refused, h.id)
			c.helpers = append(c.helpers, h)
		case c.refused[ids[i]] != errs[i].Error():
			if c.refused == nil {
				c.refused = map[string]string{}
			}
			c.refused[ids[i]] = errs[i].Error()
			lp.hooks.warn(fmt.Errorf("learner: %s does not help: %w", ids[i], errs[i]))
		}
	}
	slices.SortFunc(c.helpers, func(a, b *helper) int { return strings.Compare(a.id, b.id) })
	lp.l.helpers = c.helpers
}

func (lp *Loop) enlist(ctx context.Context, id string) (*helper, error) {
	ch, err := lp.team.Dial(ctx, id)
	if err != nil {
		return nil, err
	}
	limit, done := context.WithTimeout(ctx, connectWait)
	defer done()
	h, err := connect(limit, id, ch, lp.lender.hello)
	if err != nil {
		return nil, errors.Join(err, ch.Close())
	}
	return h, nil
}

// dismiss ends the helpers' channels.
func (lp *Loop) dismiss() {
	for _, h := range lp.crew.helpers {
		_ = h.lose(context.Canceled)
	}
	lp.crew.helpers, lp.l.helpers = nil, nil
}
