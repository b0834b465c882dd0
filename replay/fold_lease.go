package replay

import (
	"encoding/binary"
	"errors"
	"fmt"

	pb "github.com/skein-rl/skein/replay/internal/replaypb"
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

// acquireLease gives exactly the groups asked for, lowest index first, or nil.
// Groups out of bounds at the learner's version are dropped either way.
func (f *fold) acquireLease(q LeaseRequest) (*Lease, error) {
	r, err := f.run(q.Run)
	if err != nil {
		return nil, err
	}
	if err := checkLeaseRequest(r, q); err != nil {
		return nil, err
	}
	if err := f.endHolder(r, q.Holder); err != nil {
		return nil, err
	}
	groups, err := f.collect(r, q)
	if err != nil || groups == nil {
		return nil, err
	}
	r.NextLease++
	l := &pb.LeaseState{Id: r.NextLease, Holder: q.Holder, LearnerVersion: q.LearnerVersion, Expires: f.after(q.TTL)}
	out := &Lease{ID: l.Id, Run: q.Run, Holder: q.Holder, Expires: fromNanos(l.Expires)}
	for _, g := range groups {
		g.Phase = pb.GroupPhase_GROUP_PHASE_LEASED
		g.Lease = l.Id
		l.Groups = append(l.Groups, g.Group)
		lg, err := leasedGroup(f.kv, g)
		if err != nil {
			return nil, err
		}
		out.Groups = append(out.Groups, lg)
		if err := firstError(f.putGroup(r.run, g), f.kv.Delete(readyKey(r.run, g.Index))); err != nil {
			return nil, err
		}
	}
	r.ReadyGroups -= uint64(len(groups))
	r.LeasedGroups += uint64(len(groups))
	return out, firstError(
		f.put(leaseKey(r.run, l.Id), l),
		f.kv.Set(holderKey(r.run, l.Holder), binary.BigEndian.AppendUint64(nil, l.Id)),
		f.putExpiry(l.Expires, &pb.Expiry{Run: r.run, Lease: l.Id}),
	)
}

func checkLeaseRequest(r *runState, q LeaseRequest) error {
	if r.Finished {
		return refuse(ErrInvalid, "lease of run %q: the run is finished", q.Run)
	}
	var errs []error
	errs = append(errs, checkID("Holder", q.Holder))
	if most := min(capacity(r.Spec), maxGroups); q.Groups < 1 || uint64(q.Groups) > most {
		errs = append(errs, fmt.Errorf("Groups = %d: want 1 to %d, the least of (MaxStaleness+1)*GroupsPerStep and %d", q.Groups, most, maxGroups))
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

// endHolder returns the groups of the holder's earlier lease.
func (f *fold) endHolder(r *runState, holder string) error {
	b, ok, err := f.kv.Get(holderKey(r.run, holder))
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
			if !stale(g, q.LearnerVersion, r.Spec.MaxStaleness) {
				picked = append(picked, g)
				continue
			}
			r.ReadyGroups--
			if err := firstError(f.kv.Delete(readyKey(r.run, g.Index)), f.drop(r, g, dropStale)); err != nil {
				return nil, err
			}
		}
	}
	return picked, nil
}

// leasedGroup lists a group with its items in member order.
func leasedGroup(kv Reader, g *pb.GroupState) (LeasedGroup, error) {
	lg := LeasedGroup{Group: g.Group, Index: g.Index}
	for _, m := range g.Members {
		s := new(pb.ItemState)
		ok, err := load(kv, itemKey(m.LogId), s)
		if err == nil && !ok {
			err = fmt.Errorf("group %q lacks its log %q", g.Group, m.LogId)
		}
		if err != nil {
			return LeasedGroup{}, err
		}
		lg.Items = append(lg.Items, itemFromPB(s.Item))
	}
	return lg, nil
}

// forget removes a lease's own keys.
func (f *fold) forget(r *runState, l *pb.LeaseState) error {
	r.LeasedGroups -= uint64(len(l.Groups))
	return firstError(
		f.kv.Delete(leaseKey(r.run, l.Id)),
		f.kv.Delete(holderKey(r.run, l.Holder)),
		f.dropExpiry(l.Expires, r.run, "", l.Id),
	)
}

// endLease returns the groups of a lease to the learner's queue, or drops them.
func (f *fold) endLease(r *runState, l *pb.LeaseState, dropFor string) error {
	if err := f.forget(r, l); err != nil {
		return err
	}
	for _, name := range l.Groups {
		g, err := f.mustGroup(r.run, name)
		if err != nil {
			return err
		}
		if dropFor != "" {
			err = f.drop(r, g, dropFor)
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
