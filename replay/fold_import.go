package replay

import (
	"errors"
	"slices"

	pb "github.com/skein-rl/skein/replay/internal/replaypb"
)

// dropImported is the reason of train groups that were not trained where they
// come from: here no ticket was taken for them and no version they could be
// stale against is trained.
const dropImported = "imported"

// importLogs stores logs and groups as they were elsewhere, each judged alone.
// What is there already is a duplicate, or rejected when it differs.
func (f *fold) importLogs(c ImportLogsCmd) ([]AppendResult, error) {
	r, err := f.run(c.Run)
	if err != nil {
		return nil, err
	}
	if n := len(c.Items) + len(c.Groups); n > maxGroups {
		return nil, refuse(ErrInvalid, "import of %d logs and groups into run %q: at most %d at once", n, c.Run, maxGroups)
	}
	if !r.HasStep && c.Policy.Version > r.LatestVersion {
		if err := checkOptionalID("Policy.Adapter", c.Policy.Adapter); err != nil {
			return nil, refuse(ErrInvalid, "import into run %q: %w", c.Run, err)
		}
		r.LatestVersion = c.Policy.Version
		p := &pb.Policy{Run: c.Run, Version: c.Policy.Version, Adapter: c.Policy.Adapter, Step: c.Policy.Step}
		if err := f.put(policyKey(c.Run, p.Version), p); err != nil {
			return nil, err
		}
	}
	out := make([]AppendResult, 0, len(c.Items)+len(c.Groups))
	judge := func(res AppendResult, err error) error {
		if ref := (*refusal)(nil); errors.As(err, &ref) {
			res, err = AppendResult{Rejected: ref.Error()}, nil
		}
		out = append(out, res)
		return err
	}
	for i := range c.Items {
		if err := judge(f.importItem(r, &c.Items[i])); err != nil {
			return nil, err
		}
	}
	for _, g := range c.Groups {
		if err := judge(f.importGroup(r, g)); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (f *fold) importItem(r *runState, it *Item) (AppendResult, error) {
	if err := it.Validate(); err != nil {
		return AppendResult{}, &refusal{err}
	}
	s := new(pb.ItemState)
	ok, err := load(f.kv, itemKey(it.LogID), s)
	switch {
	case err != nil:
		return AppendResult{}, err
	case it.Run != r.run:
		return AppendResult{}, refuse(ErrInvalid, "item %q: it belongs to run %q, not %q", it.LogID, it.Run, r.run)
	case ok && s.Deleted:
		return AppendResult{}, refuse(ErrInvalid, "item %q: it was deleted here", it.LogID)
	case ok && (s.Item.Digest != it.Digest || s.Item.Run != it.Run):
		return AppendResult{}, refuse(ErrInvalid, "item %q: run %q has one of this id with digest %s, this one has %s", it.LogID, s.Item.Run, s.Item.Digest, it.Digest)
	case ok:
		return AppendResult{Duplicate: true}, nil
	case it.MaxVersion > r.LatestVersion:
		return AppendResult{}, refuse(ErrInvalid, "item %q: MaxVersion = %d, the latest policy of run %q is %d (import into another run)", it.LogID, it.MaxVersion, r.run, r.LatestVersion)
	}
	if busy, err := f.overQuota(r, it); err != nil || busy != nil {
		return orNone(busy), err
	}
	r.Imported++
	return AppendResult{}, f.storeItem(r, it)
}

// importGroup makes a group of logs that were imported before.
func (f *fold) importGroup(r *runState, g ImportGroup) (AppendResult, error) {
	if err := errors.Join(checkID("Group", g.Group), checkID("Table", g.Table)); err != nil {
		return AppendResult{}, refuse(ErrInvalid, "import of a group: %w", err)
	}
	phase := phaseOf(g.State)
	if phase == pb.GroupPhase_GROUP_PHASE_LEASED {
		phase = pb.GroupPhase_GROUP_PHASE_READY
	}
	if phase == pb.GroupPhase_GROUP_PHASE_UNSPECIFIED {
		return AppendResult{}, refuse(ErrInvalid, "import of group %q: State %q: want open, ready, consumed or dropped", g.Group, g.State)
	}
	if len(g.LogIDs) > maxGroupSize || g.Size > maxGroupSize || len(g.Reason) > maxID {
		return AppendResult{}, refuse(ErrInvalid, "import of group %q: %d logs of %d, a reason of %d bytes: want at most %d, and %d bytes", g.Group, len(g.LogIDs), g.Size, len(g.Reason), maxGroupSize, maxID)
	}
	if g.Table == TableTrain || g.Table == TableEval {
		return f.importTrain(r, g, phase)
	}
	t, err := f.mustTable(r.run, g.Table)
	if err != nil {
		return AppendResult{}, err
	}
	return f.importToTable(t, g, phase)
}

// importTrain makes a final group of train or eval.
func (f *fold) importTrain(r *runState, g ImportGroup, phase pb.GroupPhase) (AppendResult, error) {
	old := new(pb.GroupState)
	if ok, err := load(f.kv, groupKey(r.run, g.Group), old); err != nil || ok {
		if err == nil && old.Table != g.Table {
			err = refuse(ErrInvalid, "import of group %q of %s: it stands in %s here", g.Group, g.Table, old.Table)
		}
		return AppendResult{Duplicate: true}, err
	}
	s := &pb.GroupState{Group: g.Group, Table: g.Table, Index: g.Index, Size: g.Size, Phase: pb.GroupPhase_GROUP_PHASE_CONSUMED}
	for _, id := range g.LogIDs {
		x, err := f.importedMember(r, g, id)
		if err != nil {
			return AppendResult{}, err
		}
		it := itemFromPB(x.Item)
		s.Members = append(s.Members, memberOf(&it))
		s.Attempt, s.Worker = it.Attempt, it.Worker
	}
	slices.SortFunc(s.Members, func(a, b *pb.Member) int { return int(a.Member) - int(b.Member) })
	if g.Table == TableTrain {
		r.NextIndex = max(r.NextIndex, g.Index+1)
		switch {
		case phase == pb.GroupPhase_GROUP_PHASE_CONSUMED:
			r.ConsumedGroups++
		case phase == pb.GroupPhase_GROUP_PHASE_DROPPED && g.Reason != "":
			return AppendResult{}, f.drop(r, s, g.Reason)
		default:
			return AppendResult{}, f.drop(r, s, dropImported)
		}
	}
	return AppendResult{}, f.putGroup(r.run, s)
}

// importedMember loads a log that a group names.
func (f *fold) importedMember(r *runState, g ImportGroup, id string) (*pb.ItemState, error) {
	s, err := loadItem(f.kv, id)
	if errors.Is(err, ErrNotFound) {
		return nil, refuse(ErrNotFound, "import of group %q: log %q (import it first)", g.Group, id)
	}
	if err == nil && s.Item.Run != r.run {
		err = refuse(ErrInvalid, "import of group %q: log %q belongs to run %q", g.Group, id, s.Item.Run)
	}
	return s, err
}

// importToTable makes a group of a configured table, with the priority and
// counts it had. Its place in the order of insertion is the next one.
func (f *fold) importToTable(t *tableState, g ImportGroup, phase pb.GroupPhase) (AppendResult, error) {
	if _, ok, err := f.tableItem(t, g.Group); err != nil || ok {
		return AppendResult{Duplicate: true}, err
	}
	r, err := f.run(t.run)
	if err != nil {
		return AppendResult{}, err
	}
	x := &pb.TableItem{Group: g.Group, Phase: phase, Size: g.Size, Priority: g.Priority, TimesSampled: g.TimesSampled, Inserted: nanos(g.Inserted)}
	if final(phase) {
		x = &pb.TableItem{Group: g.Group, Phase: phase, Seq: t.NextSeq, TimesSampled: g.TimesSampled, Reason: g.Reason}
		t.NextSeq++
		if phase == pb.GroupPhase_GROUP_PHASE_CONSUMED {
			t.Consumed++
			t.Inserted++
		} else {
			t.Removed = countReason(t.Removed, g.Reason)
		}
		t.Sampled += uint64(g.TimesSampled)
		return AppendResult{}, f.putTableItem(t, x)
	}
	if err := t.cfg.CheckPriority(g.Priority); err != nil {
		return AppendResult{}, refuse(ErrInvalid, "import of group %q into table %q: %w", g.Group, t.name, err)
	}
	if most := t.cfg.Items(); t.Open+t.Ready+t.Leased >= most {
		return AppendResult{}, refuse(ErrInvalid, "import of group %q: table %q holds %d groups, its most (raise max_items)", g.Group, t.name, most)
	}
	for i, id := range g.LogIDs {
		s, err := f.importedMember(r, g, id)
		if err != nil {
			return AppendResult{}, err
		}
		it := itemFromPB(s.Item)
		m := memberOf(&it)
		if it.Table != t.name {
			x.Referred = true
			m.Member = uint32(i)
		}
		x.Members = append(x.Members, m)
		x.Bytes += uint64(it.Size)
		if i == 0 {
			x.Source, x.Task = it.Source, it.Task
		}
	}
	if len(x.Members) == 0 || int(x.Size) < len(x.Members) {
		return AppendResult{}, refuse(ErrInvalid, "import of group %q: %d logs of %d", g.Group, len(x.Members), x.Size)
	}
	slices.SortFunc(x.Members, func(a, b *pb.Member) int { return int(a.Member) - int(b.Member) })
	t.Bytes += x.Bytes
	if x.Referred {
		if err := f.refer(t, x); err != nil {
			return AppendResult{}, err
		}
	}
	if phase == pb.GroupPhase_GROUP_PHASE_PENDING {
		t.Open++
		x.Inserted = 0
		return AppendResult{}, f.putTableItem(t, x)
	}
	return AppendResult{}, f.importReady(t, x)
}

func (f *fold) importReady(t *tableState, x *pb.TableItem) error {
	x.HasPriority = true
	x.Seq = t.NextSeq
	t.NextSeq++
	t.LastInserted = max(t.LastInserted, f.now, x.Inserted)
	x.Inserted = t.LastInserted // the order of insertion is an order of time: a TTL begins anew
	x.Epoch = t.Epoch
	if t.Inserted == 0 || x.Priority > t.MaxPriority {
		t.MaxPriority = x.Priority
	}
	t.Inserted++
	t.Sampled += uint64(x.TimesSampled)
	return f.offer(t, x)
}
