package replay

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"
)

// openBadger opens the index with small buffers: the store shares its machine
// with a model. Values stay in the LSM tree (all are under 1 MiB), because
// errors of value-log fsyncs are only logged. Tables are mapped, so their pages
// count as the process's memory: they are compressed (names repeat a lot), and
// of one size at every level, because a compaction holds twice a table.
func openBadger(dir string, memTable int64, log *slog.Logger) (*badger.DB, error) {
	opts := badger.DefaultOptions(dir).
		WithSyncWrites(true).
		WithNumVersionsToKeep(1).
		WithDetectConflicts(false). // one writer
		WithMemTableSize(memTable).
		WithNumMemtables(2).
		WithNumCompactors(2).
		WithNumLevelZeroTables(2).
		WithNumLevelZeroTablesStall(6).
		WithBaseTableSize(1 << 20).
		WithBaseLevelSize(8 << 20).
		WithValueLogFileSize(16 << 20).
		WithCompression(options.ZSTD).
		WithZSTDCompressionLevel(1).
		WithBlockCacheSize(16 << 20).
		WithIndexCacheSize(0).
		WithMetricsEnabled(false).
		WithNumGoroutines(1).
		WithLogger(badgerLog{log})
	opts.TableSizeMultiplier = 1
	db, err := badger.Open(opts)
	if err != nil && strings.Contains(err.Error(), "Cannot acquire directory lock") {
		return nil, fmt.Errorf("%s is in use by another process (stop it, or choose another data directory): %w", dir, err)
	}
	if err != nil {
		return nil, fmt.Errorf("index %s: %w (if it is damaged: skein replay repair --node-dir makes it anew)", dir, err)
	}
	return db, nil
}

// badgerLog passes Badger's warnings on; its chatter is debug.
type badgerLog struct{ l *slog.Logger }

func (b badgerLog) log(f func(string, ...any), format string, args []any) {
	f("badger: " + strings.TrimSpace(fmt.Sprintf(format, args...)))
}
func (b badgerLog) Errorf(format string, args ...any)   { b.log(b.l.Error, format, args) }
func (b badgerLog) Warningf(format string, args ...any) { b.log(b.l.Warn, format, args) }
func (b badgerLog) Infof(format string, args ...any)    { b.log(b.l.Debug, format, args) }
func (b badgerLog) Debugf(format string, args ...any)   { b.log(b.l.Debug, format, args) }

// txnReader reads the pairs under a prefix of a Badger transaction, without it.
type txnReader struct {
	txn    *badger.Txn
	prefix []byte
}

func (t txnReader) full(key []byte) []byte {
	return append(append(make([]byte, 0, len(t.prefix)+len(key)), t.prefix...), key...)
}

func (t txnReader) Get(key []byte) ([]byte, bool, error) {
	item, err := t.txn.Get(t.full(key))
	if errors.Is(err, badger.ErrKeyNotFound) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	v, err := item.ValueCopy(nil)
	return v, err == nil, err
}

func (t txnReader) Iterate(prefix, from []byte, fn func(key, value []byte) bool) error {
	opts := badger.DefaultIteratorOptions
	opts.Prefix = t.full(prefix)
	opts.PrefetchValues = false
	it := t.txn.NewIterator(opts)
	defer it.Close()
	start := opts.Prefix
	if string(from) > string(prefix) {
		start = t.full(from)
	}
	for it.Seek(start); it.Valid(); it.Next() {
		item := it.Item()
		more := false
		err := item.Value(func(v []byte) error {
			more = fn(item.Key()[len(t.prefix):], v)
			return nil
		})
		if err != nil || !more {
			return err
		}
	}
	return nil
}
