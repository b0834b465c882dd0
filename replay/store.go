package replay

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/dgraph-io/badger/v4"
)

// write is one pair to set, or to delete when value is nil.
type write struct {
	key   []byte
	value []byte
}

// store is Badger with atomic batches of any size. Writers take turns (the
// caller's lock); readers see whole batches only.
//
// A batch that fits one Badger transaction is one. A larger one is written to a
// redo journal first; then one small write makes the journal valid; then its
// pairs are written in as many transactions as it takes, and the journal is
// removed. Writing a pair twice is harmless, so a crash anywhere leaves either
// a journal without its mark (dropped at open: nothing happened) or one with it
// (redone at open: all happened). Badger's WriteBatch would not do: it commits
// in parts as it goes.
type store struct {
	db *badger.DB
	// view excludes readers while the parts of a large batch go in.
	view sync.RWMutex
}

// begin opens a read transaction on a whole state.
func (s *store) begin() *badger.Txn {
	s.view.RLock()
	defer s.view.RUnlock()
	return s.db.NewTransaction(false)
}

// commit writes a batch atomically and durably.
func (s *store) commit(batch []write) error {
	err := s.tryOne(batch)
	if !errors.Is(err, badger.ErrTxnTooBig) {
		return err
	}
	for _, stage := range s.stages(batch) {
		if err := stage(); err != nil {
			return err
		}
	}
	return nil
}

// stages are the steps of a large commit; a crash may come between any two and
// within any one.
func (s *store) stages(batch []write) []func() error {
	return []func() error{
		func() error { return s.writeJournal(batch) },
		func() error { return s.tryOne([]write{{metaJournal, u64(uint64(len(batch)))}}) },
		func() error {
			s.view.Lock()
			defer s.view.Unlock()
			return s.inParts(batch)
		},
		s.dropJournal,
	}
}

// writeJournal writes what commit is about to do. It means nothing until
// metaJournal marks it complete.
func (s *store) writeJournal(batch []write) error {
	journal := make([]write, len(batch))
	for i, w := range batch {
		k := binary.BigEndian.AppendUint64([]byte{spaceJournal}, uint64(i))
		if w.value == nil {
			k = append(k, 'd')
		} else {
			k = append(k, 's')
		}
		journal[i] = write{append(k, w.key...), orEmpty(w.value)}
	}
	return s.inParts(journal)
}

// recover finishes or drops the journal a crash left.
func (s *store) recover() error {
	txn := s.begin()
	defer txn.Discard()
	n, ok, err := getU64(txn, metaJournal)
	if err != nil {
		return err
	}
	if !ok {
		return s.dropPrefix([]byte{spaceJournal})
	}
	var batch []write
	size, found := 0, uint64(0)
	flush := func() error {
		err := s.inParts(batch)
		batch, size = batch[:0], 0
		return err
	}
	var bad error
	err = txnReader{txn: txn}.Iterate([]byte{spaceJournal}, nil, func(k, v []byte) bool {
		if len(k) < 10 {
			bad = fmt.Errorf("redo journal holds the key %q", k)
			return false
		}
		w := write{key: append([]byte(nil), k[10:]...)}
		if k[9] == 's' {
			w.value = orEmpty(append([]byte(nil), v...))
		}
		batch = append(batch, w)
		found++
		if size += len(k) + len(v); size > 1<<20 {
			bad = flush()
		}
		return bad == nil
	})
	if err = errors.Join(err, bad); err != nil {
		return err
	}
	if err := flush(); err != nil {
		return err
	}
	if found != n {
		return fmt.Errorf("redo journal has %d of its %d writes", found, n)
	}
	return s.dropJournal()
}

// dropJournal removes the mark first: without it the rest means nothing.
func (s *store) dropJournal() error {
	if err := s.tryOne([]write{{key: metaJournal}}); err != nil {
		return err
	}
	return s.dropPrefix([]byte{spaceJournal})
}

// dropPrefix deletes every key with the prefix, not atomically. Open
// transactions keep seeing them.
func (s *store) dropPrefix(prefix []byte) error {
	txn := s.begin()
	defer txn.Discard()
	opts := badger.DefaultIteratorOptions
	opts.PrefetchValues = false
	opts.Prefix = prefix
	it := txn.NewIterator(opts)
	defer it.Close()
	var batch []write
	for it.Rewind(); it.Valid(); it.Next() {
		batch = append(batch, write{key: it.Item().KeyCopy(nil)})
		if len(batch) == 4096 {
			if err := s.inParts(batch); err != nil {
				return err
			}
			batch = batch[:0]
		}
	}
	return s.inParts(batch)
}

// tryOne writes a batch as one transaction; ErrTxnTooBig when it does not fit.
func (s *store) tryOne(batch []write) error {
	if len(batch) == 0 {
		return nil
	}
	txn := s.db.NewTransaction(true)
	defer txn.Discard()
	for _, w := range batch {
		if err := put(txn, w); err != nil {
			return err
		}
	}
	return txn.Commit()
}

// inParts writes a batch as as many transactions as it takes.
func (s *store) inParts(batch []write) error {
	if len(batch) == 0 {
		return nil
	}
	txn := s.db.NewTransaction(true)
	defer func() { txn.Discard() }()
	for _, w := range batch {
		err := put(txn, w)
		if errors.Is(err, badger.ErrTxnTooBig) {
			if err := txn.Commit(); err != nil {
				return err
			}
			txn = s.db.NewTransaction(true)
			err = put(txn, w)
		}
		if err != nil {
			return fmt.Errorf("write of %d bytes under key %.80q: %w", len(w.value), w.key, err)
		}
	}
	return txn.Commit()
}

func put(txn *badger.Txn, w write) error {
	if w.value == nil {
		return txn.Delete(w.key)
	}
	return txn.Set(w.key, w.value)
}

func orEmpty(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// getU64 reads a number; ok == false when there is none.
func getU64(txn *badger.Txn, key []byte) (n uint64, ok bool, err error) {
	b, ok, err := txnReader{txn: txn}.Get(key)
	if err != nil || !ok {
		return 0, false, err
	}
	if len(b) != 8 {
		return 0, false, fmt.Errorf("%q holds %d bytes, want 8", key, len(b))
	}
	return binary.BigEndian.Uint64(b), true, nil
}
