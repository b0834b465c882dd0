package replay

import (
	"fmt"
)

// Entry is one command of the replicated log, encoded.
type Entry struct {
	Index uint64 // raft index, ascending
	Cmd   []byte
}

// AppliedIndex is the raft index of the last entry in the state.
func (l *Local) AppliedIndex() uint64 {
	l.write.Lock()
	defer l.write.Unlock()
	return l.applied
}

// ApplyBatch folds entries into the state and makes them durable together with
// the last one's index: after a crash all of the batch is there or none.
// Entries at or below AppliedIndex are skipped with a zero Result, so raft may
// replay what it likes.
//
// An error means that this node's state can't be trusted to follow the others'
// (its disk failed, or a newer build wrote the command). Nothing of the batch is
// applied and nothing will be until the storage is opened again.
func (l *Local) ApplyBatch(entries []Entry) ([]Result, error) {
	l.write.Lock()
	defer l.write.Unlock()
	if l.failed != nil {
		return nil, l.failed
	}
	out, err := l.applyBatch(entries)
	if err != nil {
		l.failed = fmt.Errorf("replay: apply up to entry %d: %w", lastIndex(entries), err)
		return nil, l.failed
	}
	return out, nil
}

func lastIndex(entries []Entry) uint64 {
	if len(entries) == 0 {
		return 0
	}
	return entries[len(entries)-1].Index
}

func (l *Local) applyBatch(entries []Entry) ([]Result, error) {
	txn, prefix := l.beginState()
	defer txn.Discard()
	kv := newOverlay(txnReader{txn, prefix})
	out := make([]Result, len(entries))
	applied := l.applied
	var committed []Item
	for i, e := range entries {
		if e.Index <= applied {
			continue
		}
		cmd, err := DecodeCommand(e.Cmd)
		if err != nil {
			return nil, fmt.Errorf("entry %d: %w", e.Index, err)
		}
		res, err := Apply(kv, cmd)
		if err != nil {
			return nil, fmt.Errorf("entry %d: %w", e.Index, err)
		}
		out[i], applied = res, e.Index
		committed = append(committed, newItems(cmd, res)...)
	}
	if applied == l.applied {
		return out, nil
	}
	batch := make([]write, 0, len(kv.writes)+len(committed)+1)
	kv.each(func(k string, v []byte) {
		batch = append(batch, write{append(append([]byte(nil), prefix...), k...), v})
	})
	for _, it := range committed {
		_, here, err := l.locate(txn, it.LogID, it.Digest)
		if err != nil {
			return nil, err
		}
		if !here {
			batch = append(batch, write{missingKey(it.LogID), []byte{}})
		}
	}
	batch = append(batch, write{metaApplied, u64(applied)})
	// What became durable meanwhile is indexed along: one sync for both.
	es := l.takeQueue()
	if len(es) > 0 {
		more, err := l.indexWrites(es)
		if err != nil {
			return nil, l.indexed(es, err)
		}
		batch = append(batch, more...)
	}
	if err := l.indexed(es, l.db.commit(batch)); err != nil {
		return nil, err
	}
	l.applied = applied
	l.m.applied.Add(float64(len(entries)))
	return out, nil
}

// newItems are the logs whose bytes a command made needed; of redacted ones the
// id and the twin's digest.
func newItems(cmd Command, res Result) (out []Item) {
	var items []Item
	switch c := cmd.(type) {
	case AppendItemsCmd:
		items = c.Items
	case ImportLogsCmd:
		items = c.Items
	case AdoptPairsCmd:
		if res.Err == nil {
			out = adoptedLogs(c.Pairs)
		}
		return out
	case RedactLogsCmd:
		if res.Err == nil {
			for _, r := range c.Logs {
				out = append(out, Item{LogID: r.LogID, Digest: r.Digest})
			}
		}
		return out
	}
	for i, r := range res.Append[:min(len(items), len(res.Append))] {
		if !r.Duplicate && r.Rejected == "" && r.Busy == "" {
			out = append(out, items[i])
		}
	}
	return out
}
