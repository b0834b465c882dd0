package replay

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	pb "github.com/skein-rl/skein/replay/internal/replaypb"
	"github.com/skein-rl/skein/replay/table"
)

// Reasons for which groups leave a table, beside those of train groups and
// what RemoveGroups and Release say.
const (
	dropTTL        = "ttl"
	dropIncomplete = "incomplete" // GroupDeadline
	dropConstant   = "constant"   // ConstantGroups
	dropDuplicate  = "duplicate"  // DedupeBy
	dropFull       = "full"       // OnFull = remove
	dropPriority   = "priority"   // of PriorityFrom = reward, and not possible here
)

// Reasons for which producers wait.
const (
	busyLimiter = "limiter"
	busyItems   = "max_items"
	busyBytes   = "max_bytes"
)

// appendToTable adds a log to its group in a configured table.
func (f *fold) appendToTable(r *runState, t *tableState, it *Item) (AppendResult, error) {
	reject := func(format string, args ...any) (AppendResult, error) {
		r.Rejected++
		return AppendResult{Rejected: fmt.Errorf("%w: item %q: "+format, append([]any{ErrInvalid, it.LogID}, args...)...).Error()}, nil
	}
	g, ok, err := f.tableItem(t, it.Group)
	if err != nil {
		return AppendResult{}, err
	}
	if !ok {
		g = &pb.TableItem{Group: it.Group, Phase: pb.GroupPhase_GROUP_PHASE_PENDING, Size: it.GroupSize, Source: it.Source, Task: it.Task}
		if n := t.cfg.GroupSize; n != 0 && it.GroupSize != n {
			return reject("GroupSize %d, table %q has groups of %d", it.GroupSize, t.name, n)
		}
	}
	at, taken := slices.BinarySearchFunc(g.Members, it.Member, func(m *pb.Member, n uint32) int { return int(m.Member) - int(n) })
	if taken || g.Phase != pb.GroupPhase_GROUP_PHASE_PENDING {
		r.Duplicates++
		t.Duplicates++
		if !taken {
			r.Late++
		}
		return AppendResult{Duplicate: true}, nil
	}
	if g.Size != it.GroupSize {
		return reject("GroupSize %d, its group %q has %d", it.GroupSize, it.Group, g.Size)
	}
	if t.cfg.MaxBytes > 0 && uint64(it.Size) > t.cfg.MaxBytes {
		return reject("it has %d bytes, table %q holds %d at most (raise max_bytes)", it.Size, t.name, t.cfg.MaxBytes)
	}
	if !ok {
		if kind, why := t.admits(); why != "" {
			return t.busy(kind, why), nil
		}
	}
	if busy, err := f.overQuota(r, it); err != nil || busy != nil {
		return orNone(busy), err
	}
	if why, err := f.roomFor(t, uint64(it.Size)); err != nil || why != "" {
		return t.busy(busyBytes, why), err
	}
	if !ok {
		t.Open++
		if t.cfg.GroupDeadline > 0 && g.Size > 1 {
			g.Deadline = f.after(time.Duration(t.cfg.GroupDeadline))
			if err := f.put(tableExpiryKey(g.Deadline, t.run, g.Group, t.name), &pb.Expiry{Run: t.run, Group: g.Group, Table: t.name}); err != nil {
				return AppendResult{}, err
			}
		}
	}
	g.Members = slices.Insert(g.Members, at, memberOf(it))
	g.Bytes += uint64(it.Size)
	t.Bytes += uint64(it.Size)
	if err := f.storeItem(r, it); err != nil {
		return AppendResult{}, err
	}
	if len(g.Members) < int(g.Size) {
		return AppendResult{}, f.putTableItem(t, g)
	}
	return AppendResult{}, f.closeGroup(t, g)
}

func memberOf(it *Item) *pb.Member {
	return &pb.Member{Member: it.Member, LogId: it.LogID, Failed: it.failed(), Tokens: it.Tokens, MinVersion: it.MinVersion}
}

// busy tells a producer to come back.
func (t *tableState) busy(kind, why string) AppendResult {
	if why == "" {
		return AppendResult{}
	}
	t.Refused = countReason(t.Refused, kind)
	return AppendResult{Busy: t.busyText(why)}
}

func (t *tableState) busyText(why string) string {
	if why == "" {
		return ""
	}
	return fmt.Sprintf("table %q of run %q: %s", t.name, t.run, why)
}

// admits says why the table takes no new group now; "" = it does. Once
// admitted a group is taken when it completes, whatever happened meanwhile.
func (t *tableState) admits() (kind, why string) {
	if why := t.cfg.Limiter.Insert(t.counts()); why != "" {
		return busyLimiter, why
	}
	held := t.Open + t.Leased
	if t.cfg.OnFull == table.Refuse {
		held += t.Ready
	}
	if most := t.cfg.Items(); held >= most {
		return busyItems, fmt.Sprintf("full: %d groups ready, %d leased and %d being collected, at most %d", t.Ready, t.Leased, t.Open, most)
	}
	return "", ""
}

// roomFor makes room for bytes, or says why there is none.
func (f *fold) roomFor(t *tableState, size uint64) (why string, err error) {
	for most := t.cfg.MaxBytes; most > 0 && t.Bytes+size > most; {
		removed, err := f.removeOne(t)
		if err != nil {
			return "", err
		}
		if !removed {
			return fmt.Sprintf("full: %d bytes, %d more would be above %d", t.Bytes, size, most), nil
		}
	}
	return "", nil
}

// removeOne lets the remover choose a group that goes; false when the table
// refuses instead, or nothing can go.
func (f *fold) removeOne(t *tableState) (bool, error) {
	if t.cfg.OnFull != table.Remove || t.Ready == 0 || t.Indexing && t.remover != t.base {
		return false, nil
	}
	draw := table.Draw{Seed: t.cfg.Seed, N: t.Draws}
	got, err := t.remover.Take(1, &t.RemoveStratum, &draw)
	t.Draws = draw.N
	if err != nil || len(got) == 0 {
		return false, err
	}
	g, err := f.mustTableItem(t, got[0].Group)
	if err != nil {
		return false, err
	}
	return true, firstError(f.withdraw(t, g, t.remover), f.leave(t, g, pb.GroupPhase_GROUP_PHASE_DROPPED, dropFull))
}

// closeGroup ends the collection of a group: it is inserted, or dropped for a
// reason.
func (f *fold) closeGroup(t *tableState, g *pb.TableItem) error {
	t.Open--
	if g.Deadline != 0 {
		if err := f.kv.Delete(tableExpiryKey(g.Deadline, t.run, g.Group, t.name)); err != nil {
			return err
		}
		g.Deadline = 0
	}
	drop := func(reason string) error { return f.leave(t, g, pb.GroupPhase_GROUP_PHASE_DROPPED, reason) }
	if len(g.Members) < int(g.Size) && (t.cfg.MinMembers == 0 || len(g.Members) < int(t.cfg.MinMembers)) {
		return drop(dropIncomplete)
	}
	if allMembersFailed(g.Members) {
		return drop(dropAllFailed)
	}
	items, err := f.itemsOf(t, g)
	if err != nil {
		return err
	}
	mean, scored, constant := rewards(items)
	if constant && t.cfg.ConstantGroups == table.Drop {
		return drop(dropConstant)
	}
	if !g.HasPriority {
		g.Priority = t.cfg.Priority
		switch {
		case t.cfg.PriorityFrom == table.PriorityMax && t.Inserted > 0:
			g.Priority = t.MaxPriority
		case t.cfg.PriorityFrom == table.PriorityReward && scored > 0:
			g.Priority = mean
		}
	}
	if t.cfg.CheckPriority(g.Priority) != nil {
		return drop(dropPriority)
	}
	if first, err := f.dedupe(t, g, items); err != nil || !first {
		return cmpErr(err, drop(dropDuplicate))
	}
	for t.Ready+t.Leased+1 > t.cfg.Items() {
		if removed, err := f.removeOne(t); err != nil {
			return err
		} else if !removed {
			break // it was admitted
		}
	}
	g.Seq = t.NextSeq
	t.NextSeq++
	t.LastInserted = max(t.LastInserted, f.now) // clocks of proposers differ; order by seq is order by time
	g.Inserted = t.LastInserted
	g.Epoch = t.Epoch
	if t.Inserted == 0 || g.Priority > t.MaxPriority {
		t.MaxPriority = g.Priority
	}
	t.Inserted++
	return f.offer(t, g)
}

// itemsOf loads a group's logs, when the configuration looks at them.
func (f *fold) itemsOf(t *tableState, g *pb.TableItem) ([]Item, error) {
	if t.cfg.ConstantGroups != table.Drop && t.cfg.PriorityFrom != table.PriorityReward && t.cfg.DedupeBy != table.DedupeContent {
		return nil, nil
	}
	return memberItems(f.kv, g.Group, g.Members)
}

// rewards of a group: the mean of the scored members, and whether there is
// nothing to learn from their differences.
func rewards(items []Item) (mean float64, scored int, constant bool) {
	constant = true
	var first float64
	for i := range items {
		it := &items[i]
		switch {
		case it.HasReward && !it.failed():
			if scored == 0 {
				first = it.Reward
			}
			constant = constant && it.Reward == first
			mean += it.Reward
			scored++
		case !it.failed():
			constant = false // not known
		}
	}
	if scored > 0 {
		mean /= float64(scored)
	}
	return mean, scored, constant && scored >= 2
}

// dedupe says whether g may be inserted, after removing the one it replaces.
func (f *fold) dedupe(t *tableState, g *pb.TableItem, items []Item) (bool, error) {
	switch t.cfg.DedupeBy {
	case "":
		return true, nil
	case table.DedupeTask:
		g.SameAs = "t" + g.Source + "\x00" + g.Task
	case table.DedupeContent:
		var b strings.Builder
		b.WriteString("c")
		for i := range items {
			b.WriteString(items[i].Digest)
			b.WriteByte(0)
		}
		g.SameAs = fmt.Sprintf("%x", sha256.Sum256([]byte(b.String())))
	}
	k := sameKey(t.run, t.name, g.SameAs)
	owner, ok, err := f.kv.Get(k)
	if err != nil {
		return false, err
	}
	if ok {
		old, err := f.mustTableItem(t, string(owner))
		if err != nil {
			return false, err
		}
		if !t.cfg.Replace || old.Phase != pb.GroupPhase_GROUP_PHASE_READY {
			return false, nil
		}
		if err := firstError(f.withdraw(t, old, nil), f.leave(t, old, pb.GroupPhase_GROUP_PHASE_DROPPED, dropDuplicate)); err != nil {
			return false, err
		}
	}
	return true, f.kv.Set(k, []byte(g.Group))
}

// insertGroups puts stored logs into a table as groups, each judged alone.
func (f *fold) insertGroups(c InsertGroupsCmd) ([]AppendResult, error) {
	if _, err := f.run(c.Run); err != nil {
		return nil, err
	}
	t, err := f.mustTable(c.Run, c.Table)
	if err != nil {
		return nil, err
	}
	if len(c.Groups) > maxGroups {
		return nil, refuse(ErrInvalid, "insert %d groups into table %q of run %q: at most %d at once", len(c.Groups), c.Table, c.Run, maxGroups)
	}
	out := make([]AppendResult, len(c.Groups))
	for i, in := range c.Groups {
		if out[i], err = f.insertGroup(t, in); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (f *fold) insertGroup(t *tableState, in GroupInsert) (AppendResult, error) {
	items, err := f.checkInsert(t, in)
	if ref := (*refusal)(nil); errors.As(err, &ref) {
		return AppendResult{Rejected: ref.Error()}, nil
	}
	if err != nil {
		return AppendResult{}, err
	}
	if _, ok, err := f.tableItem(t, in.Group); err != nil || ok {
		t.Duplicates++
		return AppendResult{Duplicate: true}, err
	}
	return f.placeGroup(t, in, items)
}

// placeGroup puts stored logs into a table that does not have the group yet.
func (f *fold) placeGroup(t *tableState, in GroupInsert, items []Item) (AppendResult, error) {
	if kind, why := t.admits(); why != "" {
		return t.busy(kind, why), nil
	}
	g := &pb.TableItem{Group: in.Group, Size: uint32(len(items)), HasPriority: in.HasPriority, Priority: in.Priority,
		Source: items[0].Source, Task: items[0].Task}
	for i := range items {
		m := memberOf(&items[i])
		m.Member = uint32(i)
		g.Members = append(g.Members, m)
		g.Bytes += uint64(items[i].Size)
	}
	if t.cfg.MaxBytes > 0 && g.Bytes > t.cfg.MaxBytes {
		return AppendResult{Rejected: fmt.Sprintf("group %q has %d bytes, table %q holds %d at most", in.Group, g.Bytes, t.name, t.cfg.MaxBytes)}, nil
	}
	if why, err := f.roomFor(t, g.Bytes); err != nil || why != "" {
		return t.busy(busyBytes, why), err
	}
	t.Bytes += g.Bytes
	t.Open++
	g.Referred = true
	return AppendResult{}, firstError(f.refer(t, g), f.closeGroup(t, g))
}

func (f *fold) checkInsert(t *tableState, in GroupInsert) ([]Item, error) {
	if err := checkID("Group", in.Group); err != nil {
		return nil, refuse(ErrInvalid, "insert into table %q: %w", t.name, err)
	}
	n := len(in.LogIDs)
	if n < 1 || n > maxGroupSize || t.cfg.GroupSize != 0 && n != int(t.cfg.GroupSize) {
		return nil, refuse(ErrInvalid, "group %q of %d logs: want 1 to %d, or the table's group_size %d", in.Group, n, maxGroupSize, t.cfg.GroupSize)
	}
	if in.HasPriority {
		if err := t.cfg.CheckPriority(in.Priority); err != nil {
			return nil, refuse(ErrInvalid, "group %q: %w", in.Group, err)
		}
	}
	items := make([]Item, 0, n)
	for i, id := range in.LogIDs {
		if slices.Contains(in.LogIDs[:i], id) {
			return nil, refuse(ErrInvalid, "group %q: log %q is listed twice", in.Group, id)
		}
		s, err := loadItem(f.kv, id)
		if errors.Is(err, ErrNotFound) {
			return nil, refuse(ErrNotFound, "group %q: log %q (append it first)", in.Group, id)
		}
		if err != nil {
			return nil, err
		}
		it := itemFromPB(s.Item)
		if it.Run != t.run {
			return nil, refuse(ErrInvalid, "group %q: log %q belongs to run %q, not %q: its policy versions mean something else there", in.Group, id, it.Run, t.run)
		}
		items = append(items, it)
	}
	return items, nil
}
