package replay

import (
	"cmp"
	"fmt"

	pb "github.com/skein-rl/skein/replay/internal/replaypb"
	"github.com/skein-rl/skein/replay/table"
)

// sampleTable chooses groups of a configured table and marks them leased; nil
// and a reason when it cannot serve the request now. Groups out of bounds that
// were chosen on the way are dropped either way.
func (f *fold) sampleTable(t *tableState, q LeaseRequest, lease uint64) ([]*pb.TableItem, []float64, string, error) {
	n, why := t.serves(q)
	if why != "" {
		if t.cfg.MaxStaleness < 0 || t.Ready >= uint64(q.atLeast()) || t.Indexing && t.sampler != t.base {
			return nil, nil, why, nil
		}
		// Too few: those out of bounds leave all the same, as from train, or
		// they would keep others out.
		n = int(t.Ready)
	}
	draw := table.Draw{Seed: t.cfg.Seed, N: t.Draws}
	defer func() { t.Draws = draw.N }()
	var picked []*pb.TableItem
	var chances []float64
	for dropped := 0; len(picked) < n && dropped < sweepItems; {
		got, err := t.sampler.Take(n-len(picked), &t.SampleStratum, &draw)
		if err != nil {
			return nil, nil, "", err
		}
		if len(got) == 0 {
			break
		}
		for _, c := range got {
			g, err := f.mustTableItem(t, c.Group)
			if err != nil {
				return nil, nil, "", err
			}
			if err := f.withdraw(t, g, t.sampler); err != nil {
				return nil, nil, "", err
			}
			if reason := f.outOfBounds(t, g, q.LearnerVersion); reason != "" {
				if err := f.leave(t, g, pb.GroupPhase_GROUP_PHASE_DROPPED, reason); err != nil {
					return nil, nil, "", err
				}
				dropped++
				continue
			}
			picked, chances = append(picked, g), append(chances, c.Probability)
		}
	}
	if len(picked) < q.atLeast() {
		for _, g := range picked {
			if err := f.offer(t, g); err != nil {
				return nil, nil, "", err
			}
		}
		return nil, nil, cmp.Or(why, fmt.Sprintf("%d groups were chosen within bounds, %d are wanted at least; others were dropped (see removed)", len(picked), q.atLeast())), nil
	}
	for _, g := range picked {
		g.Phase = pb.GroupPhase_GROUP_PHASE_LEASED
		g.Lease = lease
		t.Epoch = max(t.Epoch, g.Epoch)
		if err := f.putTableItem(t, g); err != nil {
			return nil, nil, "", err
		}
	}
	t.Leased += uint64(len(picked))
	return picked, chances, "", nil
}

// serves says how many groups a request gets, or why none.
func (t *tableState) serves(q LeaseRequest) (n int, why string) {
	if t.Indexing && t.sampler != t.base {
		return 0, fmt.Sprintf("the selection structures of a new configuration are being built: %d of %d", t.IndexNext, t.IndexEnd)
	}
	most, why := t.cfg.Limiter.Sample(t.counts(), uint64(q.Groups))
	if n := min(most, t.Ready); n >= uint64(q.atLeast()) {
		return int(n), ""
	}
	if why == "" {
		why = fmt.Sprintf("%d groups are ready, %d leased and %d being collected; %d are wanted at least", t.Ready, t.Leased, t.Open, q.atLeast())
	}
	return 0, why
}

// outOfBounds says why a group is not sampled any more; "" = it may be.
func (f *fold) outOfBounds(t *tableState, g *pb.TableItem, version uint64) string {
	if b := t.cfg.MaxStaleness; b >= 0 && staleMembers(g.Members, version, uint64(b)) {
		return dropStale
	}
	if t.cfg.TTL > 0 && later(g.Inserted, t.cfg.TTL) <= f.now {
		return dropTTL
	}
	return ""
}

// returnGroup ends a group's lease without a sample: back to the others, or
// dropped for a reason.
func (f *fold) returnGroup(t *tableState, name, reason string) error {
	g, err := f.mustTableItem(t, name)
	if err != nil {
		return err
	}
	t.Leased--
	if reason == "" && t.cfg.TTL > 0 && later(g.Inserted, t.cfg.TTL) <= f.now {
		reason = dropTTL
	}
	if reason != "" {
		return f.leave(t, g, pb.GroupPhase_GROUP_PHASE_DROPPED, reason)
	}
	return f.offer(t, g)
}

// consumeGroup ends a group's lease with a sample.
func (f *fold) consumeGroup(t *tableState, name string) error {
	g, err := f.mustTableItem(t, name)
	if err != nil {
		return err
	}
	g.TimesSampled++
	t.Sampled++
	if n := t.cfg.MaxTimesSampled; n > 0 && g.TimesSampled >= n {
		t.Leased--
		return f.leave(t, g, pb.GroupPhase_GROUP_PHASE_CONSUMED, "")
	}
	if t.cfg.Sampler.Epochs {
		g.Epoch++
	}
	if err := f.putTableItem(t, g); err != nil {
		return err
	}
	return f.returnGroup(t, name, "")
}

// updatePriorities sets the priorities of groups; those that have left the
// table are skipped and not counted.
func (f *fold) updatePriorities(c UpdatePrioritiesCmd) (updated int, err error) {
	t, err := f.mustTable(c.Run, c.Table)
	if err != nil {
		return 0, err
	}
	for _, u := range c.Updates {
		if err := t.cfg.CheckPriority(u.Priority); err != nil {
			return 0, refuse(ErrInvalid, "table %q of run %q: group %q: %w", c.Table, c.Run, cut(u.Group, maxID), err)
		}
	}
	for _, u := range c.Updates {
		g, ok, err := f.tableItem(t, u.Group)
		if err != nil {
			return 0, err
		}
		if !ok || final(g.Phase) {
			continue
		}
		if g.Phase == pb.GroupPhase_GROUP_PHASE_READY {
			for _, s := range t.sets(g) {
				if err := s.Update(t.entry(g), u.Priority); err != nil {
					return 0, err
				}
			}
		}
		g.Priority, g.HasPriority = u.Priority, true
		t.MaxPriority = max(t.MaxPriority, u.Priority)
		if err := f.putTableItem(t, g); err != nil {
			return 0, err
		}
		updated++
	}
	return updated, nil
}

func final(p pb.GroupPhase) bool {
	return p == pb.GroupPhase_GROUP_PHASE_CONSUMED || p == pb.GroupPhase_GROUP_PHASE_DROPPED
}

// removeGroups takes groups out of a table; the logs stay. A leased one refuses
// the command.
func (f *fold) removeGroups(c RemoveGroupsCmd) (removed int, err error) {
	t, err := f.mustTable(c.Run, c.Table)
	if err != nil {
		return 0, err
	}
	if err := checkID("Reason", c.Reason); err != nil {
		return 0, refuse(ErrInvalid, "remove from table %q of run %q: %w", c.Table, c.Run, err)
	}
	for _, name := range c.Groups {
		g, ok, err := f.tableItem(t, name)
		if err != nil {
			return 0, err
		}
		if ok && g.Phase == pb.GroupPhase_GROUP_PHASE_LEASED {
			return 0, refuse(ErrStale, "group %q of table %q is leased (lease %d): wait for its end", name, c.Table, g.Lease)
		}
	}
	for _, name := range c.Groups {
		was, err := f.removeGroup(t, name, c.Reason)
		if err != nil {
			return 0, err
		}
		if was {
			removed++
		}
	}
	return removed, nil
}
