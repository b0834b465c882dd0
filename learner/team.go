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
func (lp *Loop) Share(team Team, lender *Lender) {
	lp.team, lp.lender = team, lender
	lp.crew = crew{team: team, l: lp.l, hello: lender.hello, warn: lp.hooks.warn}
}

// crew are the helpers a learner is connected to; its zero value has none.
type crew struct {
	team    Team
	l       *Learner
	hello   Hello
	warn    func(error)
	helpers []*helper
	refused map[string]string // id -> last refusal, told once
}

// gather connects to helpers that are new and forgets those that were lost. ctx
// is their channels' life.
func (c *crew) gather(ctx context.Context) {
	if c.team == nil {
		return
	}
	c.helpers = slices.DeleteFunc(c.helpers, func(h *helper) bool {
		if h.lost() {
			c.warn(fmt.Errorf("%w (its share is computed by the others)", h.lose(nil)))
			return true
		}
		return false
	})
	asked, done := context.WithTimeout(ctx, helpersWait)
	ids, err := c.team.Helpers(asked)
	done()
	if err != nil {
		c.warn(fmt.Errorf("learner: who can help: %w", err))
	}
	ids = slices.DeleteFunc(ids, func(id string) bool {
		return slices.ContainsFunc(c.helpers, func(h *helper) bool { return h.id == id })
	})
	found, errs := make([]*helper, len(ids)), make([]error, len(ids))
	var wg sync.WaitGroup
	for i, id := range ids {
		wg.Go(func() { found[i], errs[i] = c.enlist(ctx, id) })
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
			c.warn(fmt.Errorf("learner: %s does not help: %w", ids[i], errs[i]))
		}
	}
	slices.SortFunc(c.helpers, func(a, b *helper) int { return strings.Compare(a.id, b.id) })
	c.l.helpers = c.helpers
}

func (c *crew) enlist(ctx context.Context, id string) (*helper, error) {
	ch, err := c.team.Dial(ctx, id)
	if err != nil {
		return nil, err
	}
	limit, done := context.WithTimeout(ctx, connectWait)
	defer done()
	h, err := connect(limit, id, ch, c.hello)
	if err != nil {
		return nil, errors.Join(err, ch.Close())
	}
	return h, nil
}

// dismiss ends the helpers' channels.
func (c *crew) dismiss() {
	if c.team == nil {
		return
	}
	for _, h := range c.helpers {
		_ = h.lose(context.Canceled)
	}
	c.helpers, c.l.helpers = nil, nil
}
