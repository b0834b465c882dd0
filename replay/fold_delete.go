package replay

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/skein-rl/skein/replay/internal/keys"
	pb "github.com/skein-rl/skein/replay/internal/replaypb"
)

// deleteLogs forgets logs: no query finds them, no table gives them out, and the
// next compaction takes their bytes. What remains of each is its id, so that a
// late copy of it stays out. Groups that hold one leave their tables; a group
// that is leased or being rolled out refuses the command, before anything is
// deleted. Steps that trained on a log keep its id.
func (f *fold) deleteLogs(c DeleteLogsCmd) (deleted int, err error) {
	r, err := f.run(c.Run)
	if err != nil {
		return 0, err
	}
	if err := checkID("Reason", c.Reason); err != nil {
		return 0, refuse(ErrInvalid, "delete logs of run %q: %w", c.Run, err)
	}
	if len(c.LogIDs) > maxGroups {
		return 0, refuse(ErrInvalid, "delete %d logs of run %q: at most %d at once", len(c.LogIDs), c.Run, maxGroups)
	}
	for _, pass := range []func(*runState, *pb.ItemState, string) error{f.checkDelete, f.deleteLog} {
		deleted = 0
		for _, id := range c.LogIDs {
			s := new(pb.ItemState)
			ok, err := load(f.kv, itemKey(id), s)
			if err != nil {
				return 0, err
			}
			if !ok || s.Deleted {
				continue
			}
			if s.Item.Run != c.Run {
				return 0, refuse(ErrInvalid, "log %q belongs to run %q, not %q", id, s.Item.Run, c.Run)
			}
			if err := pass(r, s, c.Reason); err != nil {
				return 0, err
			}
			deleted++
		}
	}
	r.Deleted += uint64(deleted)
	return deleted, nil
}

// holder is a group of a configured table that holds a log.
type holder struct{ table, group string }

// holders lists the groups of configured tables that hold a log: the one it was
// appended to, and those it was inserted into.
func (f *fold) holders(it *pb.Item) ([]holder, error) {
	var out []holder
	if it.Table != TableTrain && it.Table != TableEval {
		out = append(out, holder{it.Table, it.Group})
	}
	prefix := referencePrefix(it.LogId)
	err := f.kv.Iterate(prefix, nil, func(k, _ []byte) bool {
		rest := k[len(prefix):]
		table := keys.Unescape(rest)
		out = append(out, holder{table, keys.Unescape(rest[len(keys.Key(nil).Str(table)):])})
		return true
	})
	return out, err
}

func (f *fold) checkDelete(r *runState, s *pb.ItemState, _ string) error {
	it := s.Item
	if it.Table == TableTrain || it.Table == TableEval {
		g, err := f.groupOf(r, it)
		if err != nil {
			return err
		}
		switch g.Phase {
		case pb.GroupPhase_GROUP_PHASE_LEASED:
			return refuse(ErrStale, "delete log %q: its group %q is leased (lease %d): wait for its end", it.LogId, g.Group, g.Lease)
		case pb.GroupPhase_GROUP_PHASE_PENDING, pb.GroupPhase_GROUP_PHASE_RUNNING:
			return refuse(ErrStale, "delete log %q: its group %q is being rolled out: wait for its end", it.LogId, g.Group)
		}
	}
	holders, err := f.holders(it)
	if err != nil {
		return err
	}
	for _, h := range holders {
		t, ok, err := f.table(r.run, h.table)
		if err != nil {
			return err
		}
		if !ok {
			continue // not a configured one; another holder may be
		}
		g, ok, err := f.tableItem(t, h.group)
		if err != nil {
			return err
		}
		if ok && g.Phase == pb.GroupPhase_GROUP_PHASE_LEASED {
			return refuse(ErrStale, "delete log %q: group %q of table %q is leased (lease %d): wait for its end", it.LogId, h.group, h.table, g.Lease)
		}
	}
	return nil
}

func (f *fold) deleteLog(r *runState, s *pb.ItemState, reason string) error {
	it := s.Item
	if err := f.leaveTables(r, it, reason); err != nil {
		return err
	}
	if it.Table == TableEval {
		g, err := f.groupOf(r, it)
		if err != nil {
			return err
		}
		if err := f.kv.Delete(evalLogKey(r.run, g.Version, g.Index)); err != nil {
			return err
		}
	}
	return firstError(
		f.refund(r, it),
		f.kv.Delete(scanPrefix(it.Run, it.Table).U64(s.Seq)),
		f.put(itemKey(it.LogId), &pb.ItemState{Item: &pb.Item{LogId: it.LogId, Run: it.Run, Table: it.Table}, Seq: s.Seq, Deleted: true, DeletedAt: f.now}),
		f.mark(deletedKey(f.now, it.LogId)),
	)
}

// groupOf is the group of a log of train or eval; one without phase when it was
// imported without its group.
func (f *fold) groupOf(r *runState, it *pb.Item) (*pb.GroupState, error) {
	g := new(pb.GroupState)
	_, err := load(f.kv, groupKey(r.run, it.Group), g)
	return g, err
}

// leaveTables takes the groups that hold a log out of their tables.
func (f *fold) leaveTables(r *runState, it *pb.Item, reason string) error {
	if it.Table == TableTrain || it.Table == TableEval {
		g, err := f.groupOf(r, it)
		if err != nil {
			return err
		}
		if g.Phase == pb.GroupPhase_GROUP_PHASE_READY {
			r.ReadyGroups--
			if err := firstError(f.kv.Delete(readyKey(r.run, g.Index)), f.drop(r, g, reason)); err != nil {
				return err
			}
		}
	}
	holders, err := f.holders(it)
	if err != nil {
		return err
	}
	for _, h := range holders {
		t, ok, err := f.table(r.run, h.table)
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		if _, err := f.removeGroup(t, h.group, reason); err != nil {
			return err
		}
	}
	return nil
}

// removeGroup takes one group out of a table unless it is out already.
func (f *fold) removeGroup(t *tableState, name, reason string) (bool, error) {
	g, ok, err := f.tableItem(t, name)
	if err != nil || !ok || final(g.Phase) {
		return false, err
	}
	if g.Phase == pb.GroupPhase_GROUP_PHASE_PENDING {
		t.Open--
		if g.Deadline != 0 {
			err = f.kv.Delete(tableExpiryKey(g.Deadline, t.run, g.Group, t.name))
		}
	} else {
		err = f.withdraw(t, g, nil)
	}
	return true, firstError(err, f.leave(t, g, pb.GroupPhase_GROUP_PHASE_DROPPED, reason))
}

// refer notes that a group inserted by reference holds its logs, so that
// deleting one finds it; unrefer undoes it.
func (f *fold) refer(t *tableState, g *pb.TableItem) error {
	for _, m := range g.Members {
		if err := f.mark(referencePrefix(m.LogId).Str(t.name).Str(g.Group)); err != nil {
			return err
		}
	}
	return nil
}

func (f *fold) unrefer(t *tableState, g *pb.TableItem) error {
	if !g.Referred {
		return nil
	}
	for _, m := range g.Members {
		if err := f.kv.Delete(referencePrefix(m.LogId).Str(t.name).Str(g.Group)); err != nil {
			return err
		}
	}
	return nil
}

// loadItem loads a log that is there and not deleted.
func loadItem(kv Reader, logID string) (*pb.ItemState, error) {
	s := new(pb.ItemState)
	b, ok, err := kv.Get(itemKey(logID))
	if err != nil {
		return nil, err
	}
	if ok {
		if err := proto.Unmarshal(b, s); err != nil {
			return nil, fmt.Errorf("state of log %q: %w", logID, err)
		}
	}
	switch {
	case !ok:
		return nil, fmt.Errorf("%w: log %q", ErrNotFound, logID)
	case s.Deleted:
		return nil, fmt.Errorf("%w: log %q was deleted", ErrNotFound, logID)
	}
	return s, nil
}
