package replay

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/skein-rl/skein/replay/internal/keys"
	pb "github.com/skein-rl/skein/replay/internal/replaypb"
	"github.com/skein-rl/skein/replay/table"
)

// readTable loads a table for a query.
func readTable(kv Reader, run, name string) (*tableState, error) {
	f := &fold{kv: readOnly{kv}}
	t, ok, err := f.table(run, name)
	if err == nil && !ok {
		err = fmt.Errorf("%w: table %q of run %q", ErrNotFound, name, run)
	}
	return t, err
}

// readOnly makes a KV of a Reader for code that will not write.
type readOnly struct{ Reader }

func (readOnly) Set(_, _ []byte) error { return fmt.Errorf("write in a query") }
func (readOnly) Delete(_ []byte) error { return fmt.Errorf("write in a query") }

// Tables lists the tables of a run: train, then the configured ones by name.
func Tables(kv Reader, run string) ([]TableStatus, error) {
	r, err := readRun(kv, run)
	if err != nil {
		return nil, err
	}
	var names []string
	prefix := tablePrefix(run)
	if err := kv.Iterate(prefix, nil, func(k, _ []byte) bool {
		names = append(names, keys.Unescape(k[len(prefix):]))
		return true
	}); err != nil {
		return nil, err
	}
	out := append(make([]TableStatus, 0, 1+len(names)), trainStatus(r))
	for _, name := range names {
		t, err := readTable(kv, run, name)
		if errors.Is(err, ErrNotFound) {
			continue // being dropped
		}
		if err != nil {
			return nil, err
		}
		out = append(out, t.status())
	}
	return out, nil
}

func (t *tableState) status() TableStatus {
	s := TableStatus{
		Run: t.run, Table: t.name, Config: t.cfg, Version: t.Config.Version, Set: fromNanos(t.Config.Set),
		Open: t.Open, Ready: t.Ready, Leased: t.Leased, Bytes: t.Bytes, Inserted: t.Inserted, Sampled: t.Sampled,
		Consumed: t.Consumed, Epoch: t.Epoch, Removed: counts(t.Removed), Refused: counts(t.Refused), Duplicates: t.Duplicates,
		Indexing: t.Indexing,
	}
	_, s.InsertBlocked = t.admits()
	_, s.SampleBlocked = t.serves(LeaseRequest{Groups: 1})
	return s
}

// TableHistory lists the configurations a table had, oldest first.
func TableHistory(kv Reader, run, name string) ([]TableVersion, error) {
	if _, err := readTable(kv, run, name); err != nil {
		return nil, err
	}
	var out []TableVersion
	var bad error
	err := kv.Iterate(tableConfigPrefix(run, name), nil, func(_, v []byte) bool {
		m := new(pb.TableConfig)
		if bad = proto.Unmarshal(v, m); bad != nil {
			return false
		}
		var cfg table.Config
		if cfg, bad = table.Decode(m.Config, table.Config{}); bad != nil {
			return false
		}
		out = append(out, TableVersion{m.Version, cfg, fromNanos(m.Set)})
		return true
	})
	return out, firstError(err, bad)
}

var phaseNames = map[pb.GroupPhase]string{
	pb.GroupPhase_GROUP_PHASE_PENDING: "open", pb.GroupPhase_GROUP_PHASE_READY: "ready", pb.GroupPhase_GROUP_PHASE_LEASED: "leased",
	pb.GroupPhase_GROUP_PHASE_CONSUMED: "consumed", pb.GroupPhase_GROUP_PHASE_DROPPED: "dropped",
}

// TableGroups lists groups of a table by name, after the cursor. Those of train
// and eval have the index of their task as Seq.
func TableGroups(kv Reader, run, name, cursor string, limit int) ([]TableGroup, string, error) {
	if limit < 1 {
		return nil, "", fmt.Errorf("%w: groups of table %q: limit = %d, want at least 1", ErrInvalid, name, limit)
	}
	if name == TableTrain || name == TableEval {
		return trainGroups(kv, run, name, cursor, limit)
	}
	if _, err := readTable(kv, run, name); err != nil {
		return nil, "", err
	}
	var from []byte
	if cursor != "" {
		from = tableItemKey(run, name, cursor).Byte(0)
	}
	var out []TableGroup
	var bad error
	err := kv.Iterate(tableItemPrefix(run, name), from, func(_, v []byte) bool {
		g := new(pb.TableItem)
		if bad = proto.Unmarshal(v, g); bad != nil {
			return false
		}
		x := TableGroup{Group: g.Group, State: phaseNames[g.Phase], Reason: g.Reason, Seq: g.Seq, Size: g.Size, Priority: g.Priority,
			TimesSampled: g.TimesSampled, Inserted: fromNanos(g.Inserted), Bytes: g.Bytes, Lease: g.Lease}
		for _, m := range g.Members {
			x.LogIDs = append(x.LogIDs, m.LogId)
		}
		out = append(out, x)
		return len(out) < limit
	})
	next := ""
	if len(out) == limit {
		next = out[limit-1].Group
	}
	return out, next, firstError(err, bad)
}

// trainGroups is TableGroups of train and eval, which share their keys.
func trainGroups(kv Reader, run, name, cursor string, limit int) (out []TableGroup, next string, err error) {
	if _, err := readRun(kv, run); err != nil {
		return nil, "", err
	}
	prefix := keys.New('g').Str(run)
	var from []byte
	if cursor != "" {
		from = groupKey(run, cursor).Byte(0)
	}
	var bad error
	err = kv.Iterate(prefix, from, func(_, v []byte) bool {
		g := new(pb.GroupState)
		if bad = proto.Unmarshal(v, g); bad != nil {
			return false
		}
		if g.Table != name {
			return true
		}
		if g.Phase == pb.GroupPhase_GROUP_PHASE_RUNNING {
			g.Phase = pb.GroupPhase_GROUP_PHASE_PENDING
		}
		x := TableGroup{Group: g.Group, State: phaseNames[g.Phase], Seq: g.Index, Size: g.Size}
		if g.Phase == pb.GroupPhase_GROUP_PHASE_LEASED {
			x.Lease = g.Lease
		}
		if g.Phase == pb.GroupPhase_GROUP_PHASE_CONSUMED {
			x.TimesSampled = 1
		}
		for _, m := range g.Members {
			x.LogIDs = append(x.LogIDs, m.LogId)
		}
		out = append(out, x)
		return len(out) < limit
	})
	if len(out) == limit {
		next = out[limit-1].Group
	}
	return out, next, firstError(err, bad)
}

// BusyTable says why the table of an item would not take it now, without asking
// for its bytes: "" when it would, or when the table is not configured. Only
// the first log of a group is held back.
func BusyTable(kv Reader, it Item) (string, error) {
	if it.Table == TableTrain || it.Table == TableEval {
		return "", nil
	}
	f := &fold{kv: readOnly{kv}}
	t, ok, err := f.table(it.Run, it.Table)
	if err != nil || !ok {
		return "", err
	}
	for _, k := range []key{itemKey(it.LogID), tableItemKey(it.Run, it.Table, it.Group)} {
		if _, ok, err := kv.Get(k); err != nil || ok {
			return "", err
		}
	}
	_, why := t.admits()
	return t.busyText(why), nil
}

// Blocked says why a lease of a configured table cannot be served now; "" when
// it may be. Some of the groups may still turn out stale.
func Blocked(kv Reader, q LeaseRequest) (string, error) {
	t, err := readTable(kv, q.Run, q.Table)
	if err != nil {
		return "", err
	}
	if b, ok, err := kv.Get(holderKey(q.Run, q.Holder, q.Table)); err != nil {
		return "", err
	} else if ok && len(b) == 8 { // what the holder has comes back first
		l := new(pb.LeaseState)
		if _, err := load(kv, leaseKey(q.Run, versionOf(b)), l); err != nil {
			return "", err
		}
		t.Leased -= uint64(len(l.Groups))
		t.Ready += uint64(len(l.Groups))
	}
	_, why := t.serves(q)
	return why, nil
}
