package learner

import (
	"context"

	"github.com/skein-rl/skein/replay"
)

// lease takes the next step's groups. With constant_groups: resample it takes
// more while too few of them teach, each time as many as are missing: a request
// ends the lease before it and gets its groups again, the first in the order of
// the stream. Bounds are MaxResample and what may be rolled out ahead at all.
func (lp *Loop) lease(ctx context.Context) (*replay.Lease, error) {
	c := lp.l.cfg
	lease, err := lp.wait(ctx, c.GroupsPerStep)
	if c.ConstantGroups != ResampleConstant {
		return lease, err
	}
	most := c.GroupsPerStep * min(c.MaxResample, int(min(c.MaxStaleness, 1<<20))+1)
	teaches := map[string]bool{} // by group
	for err == nil && len(lease.Groups) < most {
		var missing int
		if missing, err = lp.missing(ctx, lease, teaches); err != nil || missing <= 0 {
			break
		}
		lease, err = lp.wait(ctx, min(len(lease.Groups)+missing, most))
	}
	return lease, err
}

// missing is how many groups that teach a lease lacks. It reads those that are
// not known yet.
func (lp *Loop) missing(ctx context.Context, lease *replay.Lease, teaches map[string]bool) (int, error) {
	tctx, stop := lp.keep(ctx, lease)
	defer stop()
	fresh := *lease
	fresh.Groups = nil
	for _, g := range lease.Groups {
		if _, known := teaches[g.Group]; !known {
			teaches[g.Group] = false
			fresh.Groups = append(fresh.Groups, g)
		}
	}
	groups, _, err := lp.fetch(tctx, &fresh)
	if err != nil {
		return 0, err
	}
	for _, g := range groups {
		one := lp.l.cfg
		one.ConstantGroups = DropConstant
		b, err := Build(one, lp.l.version, []Group{g})
		teaches[g.ID] = err == nil && b.Groups > 0 // else the step counts why not
	}
	n := lp.l.cfg.GroupsPerStep
	for _, g := range lease.Groups {
		if teaches[g.Group] {
			n--
		}
	}
	return n, nil
}
