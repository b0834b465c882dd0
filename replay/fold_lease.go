package replay

import (
	"encoding/binary"
	"errors"
	"fmt"

	pb "github.com/skein-rl/skein/replay/internal/replaypb"
	"github.com/skein-rl/skein/replay/table"
)

// lease loads a lease; a lease that exists is live, because time passes before
// every command.
func (f *fold) lease(run string, id uint64) (*pb.LeaseState, bool, error) {
	l := new(pb.LeaseState)
	ok, err := load(f.kv, leaseKey(run, id), l)
	return l, ok, err
}

// liveLease is lease, or a refusal.
func (f *fold) liveLease(run string, id uint64) (*pb.LeaseState, error) {
	l, ok, err := f.lease(run, id)
	if err == nil && !ok {
		err = refuse(ErrStale, "lease %d of run %q is over (expired, released, taken over or committed)", id, run)
	}
	return l, err
}

// acquireLease gives the groups asked for, or nil and why it cannot. Groups out
// of bounds at the learner's version are dropped either way.
func (f *fold) acquireLease(q LeaseRequest) (*Lease, string, error) {
	if q.Table == TableTrain {
		q.Table = ""
	}
	r, err := f.run(q.Run)
	if err != nil {
		return nil, "", err
	}
	t, err := f.checkLeaseRequest(r, q)
	if err != nil {
		return nil, "", err
	}
	if err := f.endHolder(r, q.Holder, q.Table); err != nil {
		return nil, "", err
	}
	l := &pb.LeaseState{Id: r.NextLease + 1, Holder: q.Holder, LearnerVersion: q.LearnerVersion, Expires: f.after(q.TTL), Table: q.Table}
	out := &Lease{ID: l.Id, Run: q.Run, Holder: q.Holder, Expires: fromNanos(l.Expires)}
	var blocked string
	if t == nil {
		blocked, err = f.leaseTrain(r, q, l, out)
	} else {
		blocked, err = f.leaseTable(t, q, l, out)
	}
	if err != nil || blocked != "" {
		return nil, blocked, err
	}
	r.NextLease++
	return out, "", firstError(
		f.put(leaseKey(r.run, l.Id), l),
		f.kv.Set(holderKey(r.run, l.Holder, l.Table), binary.BigEndian.AppendUint64(nil, l.Id)),
		f.putExpiry(l.Expires, &pb.Expiry{Run: r.run, Lease: l.Id}),
	)
}

// leaseTrain takes exactly the groups asked for, lowest index first.
func (f *fold) leaseTrain(r *runState, q LeaseRequest, l *pb.LeaseState, out *Lease) (blocked string, err error) {
	groups, err := f.collect(r, q)
	if err != nil {
		return "", err
	}
	if groups == nil {
		return fmt.Sprintf("%d groups are ready, %d are wanted; %d are rolling out and %d are leased", r.ReadyGroups, q.Groups, r.OpenGroups, r.LeasedGroups), nil
	}
	for _, g := range groups {
		g.Phase = pb.GroupPhase_GROUP_PHASE_LEASED
		g.Lease = l.Id
		l.Groups = append(l.Groups, g.Group)
		items, err := memberItems(f.kv, g.Group, g.Members)
		if err != nil {
			return "", err
		}
		out.Groups = append(out.Groups, LeasedGroup{Group: g.Group, Index: g.Index, Items: items})
		if err := firstError(f.putGroup(r.run, g), f.kv.Delete(readyKey(r.run, g.Index))); err != nil {
			return "", err
		}
	}
	r.ReadyGroups -= uint64(len(groups))
	r.LeasedGroups += uint64(len(groups))
	return "", nil
}

// leaseTable takes what the table's sampler chooses.
func (f *fold) leaseTable(t *tableState, q LeaseRequest, l *pb.LeaseState, out *Lease) (blocked string, err error) {
	groups, chances, blocked, err := f.sampleTable(t, q, l.Id)
	if err != nil {
		return "", err
	}
	for i, g := range groups {
		l.Groups = append(l.Groups, g.Group)
		items, err := memberItems(f.kv, g.Group, g.Members)
		if err != nil {
			return "", err
		}
		out.Groups = append(out.Groups, LeasedGroup{Group: g.Group, Index: g.Seq, Items: items,
			Priority: g.Priority, Probability: chances[i], TimesSampled: g.TimesSampled})
	}
	return blocked, nil
}

// checkLeaseRequest refuses what can never be served; t is nil for train.
func (f *fold) checkLeaseRequest(r *runState, q LeaseRequest) (t *tableState, err error) {
	most := min(capacity(r.Spec), maxGroups)
	if q.Table != "" {
		if t, err = f.mustTable(q.Run, q.Table); err != nil {
			return nil, err
		}
		if most = maxGroups; t.cfg.Limiter.Most() > 0 {
			most = min(most, t.cfg.Limiter.Most())
		}
	}
	return t, checkLease(r, q, most)
}

func checkLease(r *runState, q LeaseRequest, most uint64) error {
	if r.Finished {
		return refuse(ErrInvalid, "lease of run %q: the run is finished", q.Run)
	}
	var errs []error
	errs = append(errs, checkID("Holder", q.Holder))
	switch {
	case q.Groups >= 1 && uint64(q.Groups) <= most:
	case q.Table == "":
		errs = append(errs, fmt.Errorf("Groups = %d: want 1 to %d, the least of (MaxStaleness+1)*GroupsPerStep and %d", q.Groups, most, maxGroups))
	case q.Groups < 1 || q.Groups > maxGroups || uint64(q.atLeast()) > most:
		errs = append(errs, fmt.Errorf("Groups = %d, at least %d: want 1 to %d, and no more at least than the %d the table's rate limiter ever gives at once", q.Groups, q.atLeast(), maxGroups, most))
	}
	if q.AtLeast < 0 || q.AtLeast > max(q.Groups, 0) || q.AtLeast != 0 && q.Table == "" {
		errs = append(errs, fmt.Errorf("AtLeast = %d of Groups = %d: want 0 (all of them) to Groups, and 0 for train", q.AtLeast, q.Groups))
	}
	if q.TTL <= 0 {
		errs = append(errs, fmt.Errorf("TTL = %v: want above 0", q.TTL))
	}
	if q.LearnerVersion > r.LatestVersion+1 {
		errs = append(errs, fmt.Errorf("LearnerVersion = %d: the latest published policy is %d", q.LearnerVersion, r.LatestVersion))
	}
	if err := errors.Join(errs...); err != nil {
		return refuse(ErrInvalid, "lease of run %q: %w", q.Run, err)
	}
	if q.LearnerVersion < r.LatestVersion {
		return refuse(ErrStale, "lease of run %q: the learner is at version %d, version %d is published (reload the last checkpoint)",
			q.Run, q.LearnerVersion, r.LatestVersion)
	}
	return nil
}

// endHolder returns the groups of the holder's earlier lease of the table.
func (f *fold) endHolder(r *runState, holder, table string) error {
	b, ok, err := f.kv.Get(holderKey(r.run, holder, table))
	if err != nil || !ok {
		return err
	}
	if len(b) != 8 {
		return fmt.Errorf("holder %q of run %q: lease id of %d bytes", holder, r.run, len(b))
	}
	l, ok, err := f.lease(r.run, binary.BigEndian.Uint64(b))
	if err != nil || !ok {
		return err
	}
	return f.endLease(r, l, "")
}

// collect picks the first ready groups within the staleness bound and drops the
// others it meets; nil when there are too few.
func (f *fold) collect(r *runState, q LeaseRequest) ([]*pb.GroupState, error) {
	var from key
	var picked []*pb.GroupState
	for len(picked) < q.Groups {
		var names []string
		err := f.kv.Iterate(readyPrefix(r.run), from, func(k, v []byte) bool {
			names = append(names, string(v))
			from = append(append(from[:0], k...), 0)
			return len(names) < q.Groups-len(picked)
		})
		if err != nil {
			return nil, err
		}
		if len(names) == 0 {
			return nil, nil
		}
		for _, name := range names {
			g, err := f.mustGroup(r.run, name)
			if err != nil {
				return nil, err
			}
			if !stale(r.RunState, g, q.LearnerVersion) {
				picked = append(picked, g)
				continue
			}
			r.ReadyGroups--
			if err := firstError(f.kv.Delete(readyKey(r.run, g.Index)), f.drop(r, g, dropStale),
				f.collectTrain(r, g, table.CollectFinished)); err != nil {
				return nil, err
			}
		}
	}
	return picked, nil
}

// memberItems lists a group's items in member order.
func memberItems(kv Reader, group string, members []*pb.Member) ([]Item, error) {
	out := make([]Item, 0, len(members))
	for _, m := range members {
		s := new(pb.ItemState)
		ok, err := load(kv, itemKey(m.LogId), s)
		if err == nil && !ok {
			err = fmt.Errorf("group %q lacks its log %q", group, m.LogId)
		}
		if err != nil {
			return nil, err
		}
		out = append(out, itemFromPB(s.Item))
	}
	return out, nil
}

// forget removes a lease's own keys.
func (f *fold) forget(r *runState, l *pb.LeaseState) error {
	if l.Table == "" {
		r.LeasedGroups -= uint64(len(l.Groups))
	}
	return firstError(
		f.kv.Delete(leaseKey(r.run, l.Id)),
		f.kv.Delete(holderKey(r.run, l.Holder, l.Table)),
		f.dropExpiry(l.Expires, r.run, "", l.Id),
	)
}

// endLease returns the groups of a lease to their table, or drops them.
func (f *fold) endLease(r *runState, l *pb.LeaseState, dropFor string) error {
	if err := f.forget(r, l); err != nil {
		return err
	}
	if l.Table != "" {
		t, err := f.mustTable(r.run, l.Table)
		if err != nil {
			return unexpected(err)
		}
		for _, name := range l.Groups {
			if err := f.returnGroup(t, name, dropFor); err != nil {
				return err
			}
		}
		return nil
	}
	for _, name := range l.Groups {
		g, err := f.mustGroup(r.run, name)
		if err != nil {
			return err
		}
		if dropFor != "" {
			err = firstError(f.learnTask(r, g), f.drop(r, g, dropFor), f.collectTrain(r, g, table.CollectFinished))
		} else {
			err = f.makeReady(r, g)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (f *fold) extendLease(c ExtendLeaseCmd) error {
	r, err := f.run(c.Run)
	if err != nil {
		return err
	}
	if c.TTL <= 0 {
		return refuse(ErrInvalid, "extend lease %d of run %q: TTL = %v, want above 0", c.Lease, c.Run, c.TTL)
	}
	l, err := f.liveLease(c.Run, c.Lease)
	if err != nil {
		return err
	}
	if err := f.dropExpiry(l.Expires, r.run, "", l.Id); err != nil {
		return err
	}
	l.Expires = f.after(c.TTL)
	return firstError(
		f.put(leaseKey(r.run, l.Id), l),
		f.putExpiry(l.Expires, &pb.Expiry{Run: r.run, Lease: l.Id}),
	)
}

func (f *fold) releaseLease(c ReleaseLeaseCmd) error {
	r, err := f.run(c.Run)
	if err != nil {
		return err
	}
	if err := checkOptionalID("Drop", c.Drop); err != nil {
		return refuse(ErrInvalid, "release lease %d of run %q: %w", c.Lease, c.Run, err)
	}
	l, err := f.liveLease(c.Run, c.Lease)
	if err != nil {
		return err
	}
	return f.endLease(r, l, c.Drop)
}
