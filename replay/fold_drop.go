package replay

import (
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/skein-rl/skein/replay/internal/keys"
	pb "github.com/skein-rl/skein/replay/internal/replaypb"
)

// dropTable takes a configured table away. It is gone for everybody at once; its
// keys are deleted by sweeps, a bounded number at a time.
func (f *fold) dropTable(c DropTableCmd) error {
	r, err := f.run(c.Run)
	if err != nil {
		return err
	}
	if c.Table == TableTrain || c.Table == TableEval {
		return refuse(ErrInvalid, "drop table %q of run %q: it belongs to the run", c.Table, c.Run)
	}
	t, err := f.mustTable(c.Run, c.Table)
	if err != nil {
		return err
	}
	if t.Leased > 0 {
		return refuse(ErrStale, "drop table %q of run %q: %d of its groups are leased: release them, or wait for the end of their leases", c.Table, c.Run, t.Leased)
	}
	r.setCollector(c.Table, false)
	t.Dropped = true
	return f.sweepAt(t, f.now+1)
}

// droppedTable loads a table that is being dropped.
func (f *fold) droppedTable(run, name string) (*tableState, bool, error) {
	for _, t := range f.tables {
		if t.run == run && t.name == name {
			return t, t.Dropped, nil
		}
	}
	t, ok, err := f.anyTable(run, name)
	if err != nil || !ok || !t.Dropped {
		return nil, false, err
	}
	f.tables = append(f.tables, t)
	return t, true, nil
}

// clearTable deletes some of a dropped table's keys, the table itself last.
func (f *fold) clearTable(t *tableState) error {
	if err := f.noSweep(t); err != nil {
		return err
	}
	left := sweepKeys
	if err := f.clearItems(t, &left); err != nil {
		return err
	}
	for _, prefix := range []key{
		keys.New('u').Str(t.run).Str(t.name), keys.New('k').Str(t.run).Str(t.name), tableConfigPrefix(t.run, t.name),
	} {
		if err := f.clearPrefix(prefix, &left); err != nil {
			return err
		}
	}
	if left <= 0 {
		return f.sweepAt(t, f.now+1)
	}
	f.tables = slices.DeleteFunc(f.tables, func(o *tableState) bool { return o == t })
	return f.kv.Delete(tableKey(t.run, t.name))
}

// clearItems deletes groups with what points to and from them.
func (f *fold) clearItems(t *tableState, left *int) error {
	var items []*pb.TableItem
	var bad error
	err := f.kv.Iterate(tableItemPrefix(t.run, t.name), nil, func(_, v []byte) bool {
		g := new(pb.TableItem)
		if bad = proto.Unmarshal(v, g); bad != nil {
			return false
		}
		items = append(items, g)
		*left -= 1 + len(g.Members)
		return *left > 0
	})
	if err := firstError(err, bad); err != nil {
		return err
	}
	for _, g := range items {
		if g.Deadline != 0 {
			if err := f.kv.Delete(tableExpiryKey(g.Deadline, t.run, g.Group, t.name)); err != nil {
				return err
			}
		}
		if err := firstError(f.unrefer(t, g), f.kv.Delete(tableItemKey(t.run, t.name, g.Group))); err != nil {
			return err
		}
	}
	return nil
}

func (f *fold) clearPrefix(prefix key, left *int) error {
	var gone [][]byte
	err := f.kv.Iterate(prefix, nil, func(k, _ []byte) bool {
		if *left <= 0 {
			return false
		}
		gone = append(gone, slices.Clone(k))
		*left--
		return true
	})
	for _, k := range gone {
		err = firstError(err, f.kv.Delete(k))
	}
	return err
}
