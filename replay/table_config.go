package replay

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"time"

	pb "github.com/skein-rl/skein/replay/internal/replaypb"
	"github.com/skein-rl/skein/replay/table"
)

// maxTables bounds the tables of one run.
const maxTables = 256

// setTable creates a table or changes its configuration. The caller names the
// version it has seen, so that two who change it at once don't undo each other.
func (f *fold) setTable(c SetTableCmd) (uint64, error) {
	r, err := f.run(c.Run)
	if err != nil {
		return 0, err
	}
	name := fmt.Sprintf("table %q of run %q", cut(c.Table, maxID), cut(c.Run, maxID))
	if c.Table == TableTrain || c.Table == TableEval {
		return 0, refuse(ErrInvalid, "%s: it follows from the run's spec (choose another name)", name)
	}
	if err := errors.Join(checkID("Table", c.Table), c.Config.Validate()); err != nil {
		return 0, refuse(ErrInvalid, "%s: %w", name, err)
	}
	want, err := c.Config.Encode()
	if err != nil {
		return 0, refuse(ErrInvalid, "%s: %w", name, err)
	}
	t, ok, err := f.table(c.Run, c.Table)
	if err != nil {
		return 0, err
	}
	if _, going, err := f.droppedTable(c.Run, c.Table); err != nil || going {
		return 0, cmpErr(err, refuse(ErrBusy, "%s: the one of this name that was dropped is still being cleared (try again in a moment)", name))
	}
	if ok && bytes.Equal(t.Config.Config, want) {
		return t.Config.Version, nil
	}
	if have := t.version(); c.Version != have {
		return 0, refuse(ErrStale, "%s: it has configuration %d, this would replace %d (read it again)", name, have, c.Version)
	}
	if !ok {
		if n, err := f.countTables(c.Run); err != nil || n >= maxTables {
			return 0, cmpErr(err, refuse(ErrInvalid, "%s: the run has %d tables, its most", name, n))
		}
		t = &tableState{TableState: &pb.TableState{Generation: 1, OldestGeneration: 1}, run: c.Run, name: c.Table}
		f.tables = append(f.tables, t)
	}
	old := t.cfg
	t.Config = &pb.TableConfig{Config: want, Version: c.Version + 1, Set: f.now}
	if ok && (old.Sampler != c.Config.Sampler || old.Remover != c.Config.Remover) {
		t.Generation++
		t.Indexing, t.IndexNext, t.IndexEnd = true, 0, t.NextSeq
	}
	if err := f.configure(t); err != nil {
		return 0, err
	}
	if len(t.all) == 1 {
		t.Indexing = false
	}
	r.setCollector(c.Table, c.Config.Collect != "")
	return t.Config.Version, firstError(
		f.put(tableConfigPrefix(c.Run, c.Table).U64(t.Config.Version), t.Config),
		f.sweepAt(t, f.now+1), // for a TTL that is new, and the structures
	)
}

func cmpErr(err, otherwise error) error {
	if err != nil {
		return err
	}
	return otherwise
}

func (t *tableState) version() uint64 {
	if t == nil {
		return 0
	}
	return t.Config.GetVersion()
}

func (f *fold) countTables(run string) (n int, err error) {
	err = f.kv.Iterate(tablePrefix(run), nil, func(_, _ []byte) bool {
		n++
		return true
	})
	return n, err
}

// Per command, a sweep does so much at most and goes on with the next one.
const (
	sweepItems = 1024
	sweepKeys  = 2048
)

// sweepAt makes time pass for t at a moment, or before.
func (f *fold) sweepAt(t *tableState, at int64) error {
	if t.Sweep != 0 && t.Sweep <= at {
		return nil
	}
	if err := f.noSweep(t); err != nil {
		return err
	}
	t.Sweep = at
	return f.put(tableExpiryKey(at, t.run, "", t.name), &pb.Expiry{Run: t.run, Table: t.name})
}

func (f *fold) noSweep(t *tableState) error {
	if t.Sweep == 0 {
		return nil
	}
	at := t.Sweep
	t.Sweep = 0
	return f.kv.Delete(tableExpiryKey(at, t.run, "", t.name))
}

// sweep removes groups whose TTL is over and moves the structures on that a
// configuration changed.
func (f *fold) sweep(t *tableState) error {
	if err := f.noSweep(t); err != nil {
		return err
	}
	if err := f.expireItems(t); err != nil {
		return err
	}
	if t.Indexing {
		if err := f.reindex(t); err != nil {
			return err
		}
	}
	if t.OldestGeneration < t.Generation {
		if err := f.clearGeneration(t); err != nil {
			return err
		}
	}
	if t.Indexing || t.OldestGeneration < t.Generation {
		return f.sweepAt(t, f.now+1)
	}
	return nil
}

func (f *fold) expireItems(t *tableState) error {
	if t.cfg.TTL == 0 {
		return nil
	}
	groups, _, err := t.base.Walk(0, sweepItems)
	if err != nil {
		return err
	}
	for i, name := range groups {
		g, err := f.mustTableItem(t, name)
		if err != nil {
			return err
		}
		if end := later(g.Inserted, t.cfg.TTL); end > f.now {
			return f.sweepAt(t, end)
		}
		if err := firstError(f.withdraw(t, g, nil), f.leave(t, g, pb.GroupPhase_GROUP_PHASE_DROPPED, dropTTL)); err != nil {
			return err
		}
		if i == sweepItems-1 {
			return f.sweepAt(t, f.now+1)
		}
	}
	return nil
}

// later is a moment plus a duration, without overflow.
func later(at int64, d table.Duration) int64 {
	return endOf(at, time.Duration(d))
}

func (f *fold) reindex(t *tableState) error {
	groups, seqs, err := t.base.Walk(t.IndexNext, sweepItems)
	if err != nil {
		return err
	}
	for i, name := range groups {
		if seqs[i] >= t.IndexEnd {
			groups = groups[:i]
			break
		}
		g, err := f.mustTableItem(t, name)
		if err != nil {
			return err
		}
		for _, s := range t.all[1:] {
			if err := s.Insert(t.entry(g)); err != nil {
				return err
			}
		}
		t.IndexNext = seqs[i] + 1
	}
	t.Indexing = len(groups) == sweepItems
	return nil
}

func (f *fold) clearGeneration(t *tableState) error {
	var gone [][]byte
	err := f.kv.Iterate(generationPrefix(t.run, t.name, t.OldestGeneration), nil, func(k, _ []byte) bool {
		gone = append(gone, slices.Clone(k))
		return len(gone) < sweepKeys
	})
	if err != nil {
		return err
	}
	for _, k := range gone {
		if err := f.kv.Delete(k); err != nil {
			return err
		}
	}
	if len(gone) < sweepKeys {
		t.OldestGeneration++
	}
	return nil
}
