package replay

import (
	"fmt"
	"sync"

	pb "github.com/skein-rl/skein/replay/internal/replaypb"
	"github.com/skein-rl/skein/replay/table"
)

// tableState is a loaded table; changes are written by fold.flush.
type tableState struct {
	*pb.TableState
	run, name string
	cfg       table.Config
	// Selection structures: base has every ready group in order of insertion,
	// the others may be the same set. all lists each once.
	base, sampler, remover *table.Set
	all                    []*table.Set
}

// table loads a configured table to be changed; ok == false when there is none.
func (f *fold) table(run, name string) (t *tableState, ok bool, err error) {
	for _, t := range f.tables {
		if t.run == run && t.name == name {
			return t, !t.Dropped, nil
		}
	}
	t, ok, err = f.anyTable(run, name)
	if err != nil || !ok || t.Dropped {
		return nil, false, err
	}
	f.tables = append(f.tables, t)
	return t, true, nil
}

// anyTable loads a table, even one that is being dropped, without remembering
// to write it back.
func (f *fold) anyTable(run, name string) (t *tableState, ok bool, err error) {
	m := new(pb.TableState)
	if ok, err = load(f.kv, tableKey(run, name), m); err != nil || !ok {
		return nil, false, err
	}
	t = &tableState{TableState: m, run: run, name: name}
	if err := f.configure(t); err != nil {
		return nil, false, err
	}
	return t, true, nil
}

// mustTable is table, or a refusal.
func (f *fold) mustTable(run, name string) (*tableState, error) {
	t, ok, err := f.table(run, name)
	if err == nil && !ok {
		err = refuse(ErrNotFound, "table %q of run %q (configure it first)", name, run)
	}
	return t, err
}

// configure opens the structures that the configuration needs.
func (f *fold) configure(t *tableState) (err error) {
	// Every field is recorded, so what a later build adds keeps its zero value
	// here: zero must mean the old behaviour.
	if t.cfg, err = decodeConfig(t.Config.GetConfig()); err != nil {
		return fmt.Errorf("table %q of run %q: %w", t.name, t.run, err)
	}
	open := func(generation uint64, n byte, sel table.Selector) (s *table.Set) {
		if err == nil {
			s, err = table.NewSet(f.kv, generationPrefix(t.run, t.name, generation).Byte(n), sel)
		}
		return s
	}
	fifo := table.Selector{Kind: table.FIFO}
	t.base = open(0, 0, fifo)
	t.all = []*table.Set{t.base}
	t.sampler, t.remover = t.base, t.base
	if t.cfg.Sampler != fifo {
		t.sampler = open(t.Generation, 1, t.cfg.Sampler)
		t.all = append(t.all, t.sampler)
	}
	switch t.cfg.Remover {
	case fifo:
	case t.cfg.Sampler:
		t.remover = t.sampler
	default:
		t.remover = open(t.Generation, 2, t.cfg.Remover)
		t.all = append(t.all, t.remover)
	}
	return err
}

func (t *tableState) counts() table.Counts {
	return table.Counts{Open: t.Open, Ready: t.Ready, Leased: t.Leased, Inserted: t.Inserted - t.Lost, Sampled: t.Sampled}
}

// entry is what the structures know of a group.
func (t *tableState) entry(g *pb.TableItem) table.Entry {
	return table.Entry{Group: g.Group, Seq: g.Seq, Priority: g.Priority, Epoch: g.Epoch, Stratum: t.stratum(g)}
}

// stratum is the same for sampler and remover unless both are stratified, by
// different fields; then both go by both.
func (t *tableState) stratum(g *pb.TableItem) string {
	a, b := t.cfg.Sampler.Stratify, t.cfg.Remover.Stratify
	switch {
	case a != "" && b != "" && a != b:
		return g.Source + "\x00" + g.Task
	case a == table.BySource || a == "" && b == table.BySource:
		return g.Source
	}
	return g.Task
}

// sets are the structures that hold a ready group: while they are built anew,
// a group that its turn has not come to is in the base only.
func (t *tableState) sets(g *pb.TableItem) []*table.Set {
	if t.Indexing && g.Seq >= t.IndexNext && g.Seq < t.IndexEnd {
		return t.all[:1]
	}
	return t.all
}

func (f *fold) tableItem(t *tableState, group string) (*pb.TableItem, bool, error) {
	g := new(pb.TableItem)
	ok, err := load(f.kv, tableItemKey(t.run, t.name, group), g)
	return g, ok, err
}

// mustTableItem loads a group that another key says exists.
func (f *fold) mustTableItem(t *tableState, group string) (*pb.TableItem, error) {
	g, ok, err := f.tableItem(t, group)
	if err == nil && !ok {
		err = fmt.Errorf("table %q of run %q lacks the group %q another key names", t.name, t.run, group)
	}
	return g, err
}

func (f *fold) putTableItem(t *tableState, g *pb.TableItem) error {
	return f.put(tableItemKey(t.run, t.name, g.Group), g)
}

// offer makes a group one that can be sampled.
func (f *fold) offer(t *tableState, g *pb.TableItem) error {
	g.Phase = pb.GroupPhase_GROUP_PHASE_READY
	g.Lease = 0
	t.Ready++
	for _, s := range t.sets(g) {
		if err := s.Insert(t.entry(g)); err != nil {
			return err
		}
	}
	if err := f.putTableItem(t, g); err != nil {
		return err
	}
	if t.cfg.TTL == 0 {
		return nil
	}
	return f.sweepAt(t, later(g.Inserted, t.cfg.TTL))
}

// withdraw undoes offer; from is the set that has lost the group already.
func (f *fold) withdraw(t *tableState, g *pb.TableItem, from *table.Set) error {
	t.Ready--
	for _, s := range t.sets(g) {
		if s == from {
			continue
		}
		if err := s.Remove(t.entry(g)); err != nil {
			return err
		}
	}
	return nil
}

// leave ends a group that is in no set any more. What remains keeps late
// members and other attempts from making it anew.
func (f *fold) leave(t *tableState, g *pb.TableItem, phase pb.GroupPhase, reason string) error {
	t.Bytes -= g.Bytes
	if err := f.unrefer(t, g); err != nil {
		return err
	}
	if phase == pb.GroupPhase_GROUP_PHASE_CONSUMED {
		t.Consumed++
	} else {
		t.Removed = countReason(t.Removed, reason)
		// What was inserted and can't be sampled any more asks for no samples.
		// Room is made because producers are ahead: there the debt stays.
		if g.Inserted != 0 && g.TimesSampled == 0 && reason != dropFull {
			t.Lost++
		}
	}
	if g.SameAs != "" {
		k := sameKey(t.run, t.name, g.SameAs)
		owner, ok, err := f.kv.Get(k)
		if err != nil {
			return err
		}
		if ok && string(owner) == g.Group {
			if err := f.kv.Delete(k); err != nil {
				return err
			}
		}
	}
	return f.putTableItem(t, &pb.TableItem{Group: g.Group, Phase: phase, Seq: g.Seq, TimesSampled: g.TimesSampled, Reason: reason})
}

// decoded are configurations by their recorded bytes: a table is loaded for
// every command, and its configuration hardly ever changes.
var decoded = struct {
	sync.Mutex
	by map[string]table.Config
}{by: map[string]table.Config{}}

const maxDecoded = 256

// decodeConfig is table.Decode of a recorded configuration, remembered.
func decodeConfig(b []byte) (table.Config, error) {
	decoded.Lock()
	defer decoded.Unlock()
	if cfg, ok := decoded.by[string(b)]; ok {
		return cfg, nil
	}
	cfg, err := table.Decode(b, table.Config{})
	if err != nil {
		return cfg, err
	}
	if len(decoded.by) >= maxDecoded {
		clear(decoded.by)
	}
	decoded.by[string(b)] = cfg
	return cfg, nil
}
