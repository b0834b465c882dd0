package replay

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/dgraph-io/badger/v4"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/skein-rl/skein/internal/durable"
	"github.com/skein-rl/skein/replay/blob"
	"github.com/skein-rl/skein/replay/internal/disk"
	"github.com/skein-rl/skein/replay/segment"
)

// LocalOptions configure one node's storage. DefaultLocalOptions gives values
// that suit a laptop and a server alike.
type LocalOptions struct {
	// MinFreeBytes is the free-space watermark: appends and blobs that would
	// leave less are refused with ErrDiskFull, while reads and commits go on.
	// Keep it well above a few hundred MB: Badger cannot bear a full disk.
	// 0 = no watermark.
	MinFreeBytes uint64
	// SegmentBytes is the size of a segment file.
	SegmentBytes int64
	// MemTableBytes is Badger's write buffer; up to three of them are held.
	// At least 8 MiB.
	MemTableBytes int64
	// GCInterval is how often Badger's value log is collected; 0 = never.
	GCInterval time.Duration
	// FreeSpace replaces statfs, for tests.
	FreeSpace func(dir string) (uint64, error)
	// Verify, when set, says whether a payload is what its item says, for
	// instance by digest. It is asked once where a log enters the store (on the
	// leader, in the goroutine of the caller), where a log is pulled for repair,
	// and by [Local.Verify]; PutChunk takes what it gets.
	Verify func(Item, []byte) error
	// Logger gets what an operator should see; nil = none.
	Logger *slog.Logger
	// Registerer gets the metrics; nil = none.
	Registerer prometheus.Registerer
}

// DefaultLocalOptions: 512 MiB watermark, 64 MiB segments, 8 MiB memtables.
func DefaultLocalOptions() LocalOptions {
	return LocalOptions{
		MinFreeBytes:  512 << 20,
		SegmentBytes:  64 << 20,
		MemTableBytes: 8 << 20,
		GCInterval:    10 * time.Minute,
	}
}

// Validate reports every problem at once.
func (o LocalOptions) Validate() error {
	var errs []error
	if o.SegmentBytes < 1<<20 {
		errs = append(errs, fmt.Errorf("SegmentBytes = %d: want at least %d", o.SegmentBytes, 1<<20))
	}
	if o.MemTableBytes < 8<<20 {
		errs = append(errs, fmt.Errorf("MemTableBytes = %d: want at least %d (a transaction is 15%% of it and holds values up to 1 MiB)", o.MemTableBytes, 8<<20))
	}
	if o.GCInterval < 0 {
		errs = append(errs, fmt.Errorf("GCInterval = %v: want 0 (never) or more", o.GCInterval))
	}
	return errors.Join(errs...)
}

// Local is one node's storage: the fold's state, the EventLogs' bytes and the
// blobs. Safe for concurrent use; ApplyBatch, Restore and Fence are ordered by
// an internal lock.
//
// Order of durability: bytes first (PutChunk), then the commit (ApplyBatch).
// A payload is acknowledged as soon as its segment is synced; its place is put
// into the index behind that, and found again by a scan after a crash.
type Local struct {
	dir   string
	opts  LocalOptions
	log   *slog.Logger
	m     *metrics
	db    store
	seg   *segment.Log
	blobs *blob.Store

	// write orders everything that goes into Badger.
	write      sync.Mutex
	applied    uint64
	generation uint64
	failed     error // the fold broke: nothing is applied any more

	// fence guards term; PutChunk reads it before and after its fsync.
	fence sync.RWMutex
	term  uint64

	// placing is held for reading while PutChunk finds out what is here, so
	// that Compact does not take it away meanwhile. scans keeps Scrub and
	// Compact apart.
	placing sync.RWMutex
	scans   sync.Mutex
	opened  time.Time

	// pending are durable payloads whose index entries are not in Badger yet.
	pmu     sync.Mutex
	pending map[string]segment.Entry
	touched map[string]time.Time // payloads that PutChunk found here, by key
	queue   []segment.Entry
	wake    chan struct{}

	indexErr error // under write: the index failed and is left as it is

	quit   chan struct{}
	wg     sync.WaitGroup
	closed sync.Once
}

// OpenLocal opens or creates the storage in dir, finishing what a crash
// interrupted.
func OpenLocal(dir string, opts LocalOptions) (*Local, error) {
	if err := opts.Validate(); err != nil {
		return nil, fmt.Errorf("%w: replay storage %s: %w", ErrInvalid, dir, err)
	}
	if opts.FreeSpace == nil {
		opts.FreeSpace = disk.Free
	}
	l := &Local{
		dir: dir, opts: opts, log: opts.Logger,
		pending: map[string]segment.Entry{}, touched: map[string]time.Time{}, opened: time.Now(), wake: make(chan struct{}, 1), quit: make(chan struct{}),
	}
	if l.log == nil {
		l.log = slog.New(slog.DiscardHandler)
	}
	if err := l.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("replay: open storage %s: %w", dir, err), l.closeParts())
	}
	l.m = newMetrics(opts.Registerer, l)
	l.wg.Add(1)
	go l.indexLoop()
	if opts.GCInterval > 0 {
		l.wg.Add(1)
		go l.gcLoop()
	}
	return l, nil
}

func (l *Local) open() error {
	for _, part := range []string{"index", "blobs", "segments"} {
		if err := durable.MkdirAll(filepath.Join(l.dir, part), 0o700); err != nil {
			return err
		}
	}
	// Badger maps its files and dies of SIGBUS on a full disk, so look first.
	if l.opts.MinFreeBytes > 0 {
		if err := disk.Check(l.dir, l.opts.FreeSpace, min(l.opts.MinFreeBytes, openReserve), 0); err != nil {
			return storageError(err)
		}
	}
	db, err := openBadger(filepath.Join(l.dir, "index"), l.opts.MemTableBytes, l.log)
	if err != nil {
		return err
	}
	l.db.db = db
	if err := l.db.recover(); err != nil {
		return fmt.Errorf("finish the redo journal: %w", err)
	}
	if err := l.readMeta(); err != nil {
		return err
	}
	l.blobs, err = blob.Open(filepath.Join(l.dir, "blobs"), blob.Options{MinFree: l.opts.MinFreeBytes, FreeSpace: l.opts.FreeSpace})
	if err != nil {
		return err
	}
	l.seg, err = segment.Open(filepath.Join(l.dir, "segments"), segment.Options{
		MaxBytes: l.opts.SegmentBytes, MinFree: l.opts.MinFreeBytes, FreeSpace: l.opts.FreeSpace,
		OnDurable: l.onDurable, Logger: l.log,
	})
	if err != nil {
		return err
	}
	return l.reindex()
}

// openReserve is what a start needs: Badger's maps and a little work.
const openReserve = 64 << 20

// readMeta loads the node's numbers and drops generations a crash left behind.
func (l *Local) readMeta() error {
	txn := l.db.begin()
	defer txn.Discard()
	format, ok, err := getU64(txn, metaFormat)
	if err != nil {
		return err
	}
	if ok && format != localFormat {
		return fmt.Errorf("storage layout %d, this build reads %d (use the build that wrote it)", format, localFormat)
	}
	var errs [3]error
	l.applied, _, errs[0] = getU64(txn, metaApplied)
	l.generation, _, errs[1] = getU64(txn, metaGeneration)
	l.term, _, errs[2] = getU64(txn, metaTerm)
	if err := errors.Join(errs[:]...); err != nil {
		return err
	}
	if !ok {
		if err := l.db.commit([]write{{metaFormat, u64(localFormat)}}); err != nil {
			return err
		}
	}
	return l.dropOtherGenerations()
}

func (l *Local) dropOtherGenerations() error {
	for _, g := range []uint64{l.generation - 1, l.generation + 1} {
		if err := l.db.dropPrefix(statePrefix(g)); err != nil {
			return err
		}
	}
	return nil
}

// reindex puts durable records the index does not know of into it: those after
// the last one indexed.
func (l *Local) reindex() error {
	txn := l.db.begin()
	b, ok, err := txnReader{txn: txn}.Get(metaIndexed)
	txn.Discard()
	if err != nil {
		return err
	}
	var from segment.Position
	if ok && len(b) == 16 {
		from.Segment, from.Offset = binary.BigEndian.Uint64(b), int64(binary.BigEndian.Uint64(b[8:]))
	}
	if err := l.seg.SyncFrom(from.Segment); err != nil {
		return err // what is indexed counts as durable
	}
	var batch []segment.Entry
	gaps, err := l.seg.Scan(context.Background(), from, func(e segment.Entry) error {
		batch = append(batch, e)
		if len(batch) < 4096 {
			return nil
		}
		err := l.index(batch)
		batch = batch[:0]
		return err
	})
	if err != nil {
		return err
	}
	for _, g := range gaps {
		l.log.Error("segment bytes without a valid record", "segment", g.Pos.Segment, "offset", g.Pos.Offset, "bytes", g.Bytes, "err", g.Cause)
	}
	return l.index(batch)
}

// Close finishes what is under way and closes the files.
func (l *Local) Close() error {
	var err error
	l.closed.Do(func() {
		// Segments first: their last batch still reaches the index loop.
		err = l.seg.Close()
		close(l.quit)
		l.wg.Wait()
		l.m.close()
		l.seg = nil
		err = errors.Join(err, l.closeParts())
	})
	return err
}

func (l *Local) closeParts() error {
	var err error
	if l.seg != nil {
		err = l.seg.Close()
	}
	if l.db.db != nil {
		err = errors.Join(err, l.db.db.Close())
	}
	return err
}

// gcLoop collects Badger's value log. Our values stay in the tree, so there is
// rarely anything to do; tables are compacted by Badger itself.
func (l *Local) gcLoop() {
	defer l.wg.Done()
	t := time.NewTicker(l.opts.GCInterval)
	defer t.Stop()
	for {
		select {
		case <-l.quit:
			return
		case <-t.C:
			for l.db.db.RunValueLogGC(0.5) == nil {
			}
		}
	}
}

// Space reports the free bytes and whether appends are refused for want of
// them.
func (l *Local) Space() (free uint64, full bool, err error) {
	free, err = l.opts.FreeSpace(l.dir)
	return free, err == nil && free < l.opts.MinFreeBytes, err
}

// View runs fn on the fold's state as of one applied batch.
func (l *Local) View(fn func(kv Reader) error) error {
	txn, prefix := l.beginState()
	defer txn.Discard()
	return fn(txnReader{txn, prefix})
}

// beginState opens a read transaction and the state's prefix in it, which
// Restore changes.
func (l *Local) beginState() (*badger.Txn, []byte) {
	l.db.view.RLock()
	defer l.db.view.RUnlock()
	return l.db.db.NewTransaction(false), statePrefix(l.generation)
}

// storageError gives errors of the parts the names of this room.
func storageError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, disk.ErrFull):
		return fmt.Errorf("%w: %w", ErrDiskFull, err)
	case errors.Is(err, blob.ErrNotFound), errors.Is(err, blob.ErrCorrupt):
		return fmt.Errorf("%w: %w", ErrNotFound, err)
	case errors.Is(err, blob.ErrBadDigest):
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return err
}
