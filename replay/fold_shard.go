package replay

import (
	"errors"
	"slices"
)

// maxShards bounds a cluster.
const maxShards = 256

func (f *fold) setShard(s Shard) (Shard, error) {
	if err := CheckShard(s.Name); err != nil {
		return s, refuse(ErrInvalid, "%w", err)
	}
	if len(s.Addrs) == 0 || len(s.Addrs) > maxShards {
		return s, refuse(ErrInvalid, "shard %q: %d addresses: name 1 to %d of its nodes", s.Name, len(s.Addrs), maxShards)
	}
	for _, a := range append([]string{s.Group}, s.Addrs...) {
		if err := checkID("group or address", a); err != nil {
			return s, refuse(ErrInvalid, "shard %q: %w", s.Name, err)
		}
	}
	all, err := Shards(f.kv)
	if err != nil {
		return s, err
	}
	have := Shard{}
	for _, x := range all {
		if x.Name == s.Name {
			have = x
		} else if x.Group == s.Group {
			return s, refuse(ErrInvalid, "shard %q: its raft group %s is registered as shard %q", s.Name, s.Group, x.Name)
		}
	}
	switch {
	case have.Version > 0 && have.Group != s.Group:
		return s, refuse(ErrInvalid, "shard %q is raft group %s, this is group %s: the runs placed there would be lost: choose another name", s.Name, have.Group, s.Group)
	case have.Version > 0 && slices.Equal(have.Addrs, s.Addrs):
		return have, nil
	case have.Version != s.Version:
		return s, refuse(ErrStale, "shard %q has version %d, this would replace %d (read it again)", s.Name, have.Version, s.Version)
	case len(all) >= maxShards:
		return s, refuse(ErrInvalid, "shard %q: there are %d, the most", s.Name, maxShards)
	}
	s.Version, s.Set = have.Version+1, fromNanos(f.now)
	return s, f.put(shardKey(s.Name), shardToPB(s))
}

// placeRun decides where a run lives. Shards are checked against those
// registered; "root" always is.
func (f *fold) placeRun(p Placement) (Placement, error) {
	if err := errors.Join(checkID("Run", p.Run), CheckTenant(p.Tenant)); err != nil {
		return p, refuse(ErrInvalid, "place run %q: %w", cut(p.Run, maxID), err)
	}
	have, err := PlacementOf(f.kv, p.Run)
	if err != nil {
		return p, err
	}
	if have.Version == 0 {
		if r, err := readRun(f.kv, p.Run); err == nil { // created here before there were shards
			have = Placement{Run: p.Run, Shard: RootShard, Tenant: r.GetSpec().GetTenant()}
			if p.Version == 0 {
				p.Shard, p.Tenant = RootShard, have.Tenant
			}
		} else if !errors.Is(err, ErrNotFound) {
			return p, err
		}
	}
	if have.Version > 0 && p.Version == 0 {
		return have, nil
	}
	if p.Version != have.Version {
		return p, refuse(ErrStale, "placement of run %q: it has version %d, this would replace %d (read it again)", p.Run, have.Version, p.Version)
	}
	names := []string{p.Shard}
	if p.Phase != PlaceAtRest {
		names = append(names, p.To)
	} else {
		p.To = ""
	}
	for _, name := range names {
		if ok, err := f.isShard(name); err != nil {
			return p, err
		} else if !ok {
			return p, refuse(ErrNotFound, "place run %q: there is no shard %q (skein cluster shards lists them)", p.Run, name)
		}
	}
	switch {
	case p.Phase > PlaceSwitched || p.Phase != PlaceAtRest && p.To == p.Shard:
		return p, refuse(ErrInvalid, "place run %q: phase %d from shard %q to %q", p.Run, p.Phase, p.Shard, p.To)
	case have.Version == 0 && p.Phase == PlaceAtRest:
	case have.Version == 0:
		return p, refuse(ErrInvalid, "place run %q: it is not placed yet", p.Run)
	case !mayFollow(have, p):
		return p, refuse(ErrInvalid, "place run %q: it is in shard %q (%v, %q), which cannot become shard %q (%v, %q)",
			p.Run, have.Shard, have.Phase, have.To, p.Shard, p.Phase, p.To)
	}
	if have.Shard != "" {
		p.Tenant = have.Tenant
	}
	p.Version, p.Set = have.Version+1, fromNanos(f.now)
	return p, f.put(placementKey(p.Run), placementToPB(p))
}

// mayFollow is the state machine of a move: at rest -> copying -> switched -> at
// rest, with copying -> at rest where it is taken back. A phase may be entered
// again: another mover takes over.
func mayFollow(have, next Placement) bool {
	switch next.Phase {
	case PlaceAtRest:
		return next.Shard == have.Shard
	case PlaceCopying:
		return next.Shard == have.Shard && (have.Phase == PlaceAtRest || have.Phase == PlaceCopying && next.To == have.To)
	}
	return have.Phase == PlaceCopying && next.Shard == have.To && next.To == have.Shard ||
		have.Phase == PlaceSwitched && next.Shard == have.Shard && next.To == have.To
}

func (f *fold) isShard(name string) (bool, error) {
	if name == RootShard {
		return true, nil
	}
	_, ok, err := f.kv.Get(shardKey(name))
	return ok, err
}
