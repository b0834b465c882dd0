package replay

import (
	"slices"

	pb "github.com/skein-rl/skein/replay/internal/replaypb"
)

// Tables with Config.Collect get groups of train by themselves, so that
// experience is kept for off-policy training. Their names stand in the run's
// state: a group that ends asks no table for nothing.

// busySize counts groups of train that a collecting table's group_size or
// max_bytes excludes.
const busySize = "group_size"

// setCollector notes whether a table collects.
func (r *runState) setCollector(table string, on bool) {
	i, found := slices.BinarySearch(r.Collect, table)
	switch {
	case on && !found:
		r.Collect = slices.Insert(r.Collect, i, table)
	case !on && found:
		r.Collect = slices.Delete(r.Collect, i, i+1)
	}
}

// collectTrain puts a group of train into the tables that collect at that
// moment and do not have it yet. What a table has no place for is counted
// there: train does not wait for it.
func (f *fold) collectTrain(r *runState, g *pb.GroupState, when string) error {
	if g.Table != TableTrain {
		return nil
	}
	for _, name := range r.Collect {
		t, ok, err := f.table(r.run, name)
		if err != nil {
			return err
		}
		if !ok || t.cfg.Collect != when {
			continue
		}
		if _, has, err := f.tableItem(t, g.Group); err != nil {
			return err
		} else if has {
			continue
		}
		if n := t.cfg.GroupSize; n != 0 && int(n) != len(g.Members) {
			t.Refused = countReason(t.Refused, busySize)
			continue
		}
		items, err := memberItems(f.kv, g.Group, g.Members)
		if err != nil {
			return err
		}
		res, err := f.placeGroup(t, GroupInsert{Group: g.Group}, items)
		if err != nil {
			return err
		}
		if res.Rejected != "" {
			t.Refused = countReason(t.Refused, busySize)
		}
	}
	return nil
}
