package replay

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/dgraph-io/badger/v4"

	"github.com/skein-rl/skein/replay/segment"
)

// CompactReport says what a compaction did.
type CompactReport struct {
	Segments int   // files removed
	Moved    int   // records copied out of them
	Dropped  int   // records gone with them
	Bytes    int64 // of the files removed, less what was copied
}

// compactBatch is how much is copied at a time.
const compactBatch = 4 << 20

// Compact removes segment files of which at least the share dead is not
// needed, after copying what is: the bytes of every committed log (leased,
// ready or consumed alike). Not needed are bytes that were never committed
// (producers that a table held back, attempts that lost) and second copies.
//
// Only files untouched for grace are looked at, and none before the storage has
// been open as long: by then whatever was on its way has been committed. grace
// must be well above the time an append may take, and the caller must have
// applied what the cluster has committed. dead 0 rewrites every file that has
// anything to drop.
//
// A crash anywhere loses nothing: copies are durable before their file goes,
// and are found again by the scan of the next open. Files with damage are left
// for repair. ErrDiskFull: no room for the copies of the file at hand.
func (l *Local) Compact(ctx context.Context, now time.Time, grace time.Duration, dead float64) (CompactReport, error) {
	var rep CompactReport
	if grace <= 0 || !(dead >= 0 && dead <= 1) {
		return rep, fmt.Errorf("%w: compact: grace = %v, dead = %v: want longer than an append may take, and 0 to 1", ErrInvalid, grace, dead)
	}
	l.scans.Lock()
	defer l.scans.Unlock()
	if now.Sub(l.opened) < grace {
		return rep, nil
	}
	l.forgetTouched(now.Add(-grace))
	files, err := l.seg.Sealed()
	if err != nil {
		return rep, fmt.Errorf("replay: compact: %w", err)
	}
	for _, f := range files {
		if now.Sub(f.Modified) < grace {
			continue
		}
		if err := l.compactFile(ctx, f, dead, &rep); err != nil {
			return rep, fmt.Errorf("replay: compact segment %d: %w", f.Number, err)
		}
	}
	return rep, nil
}

// compactFile rewrites one file when that pays.
func (l *Local) compactFile(ctx context.Context, f segment.Info, dead float64, rep *CompactReport) error {
	var live, gone []segment.Entry
	var liveBytes, allBytes int64
	gaps, err := l.seg.ScanOne(ctx, f.Number, func(e segment.Entry) error {
		needed, err := l.needed(e)
		if err != nil {
			return err
		}
		allBytes += int64(e.Size)
		if needed {
			live, liveBytes = append(live, e), liveBytes+int64(e.Size)
		} else {
			gone = append(gone, e)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if len(gaps) > 0 {
		l.log.Warn("segment not compacted: damaged", "segment", f.Number, "gaps", len(gaps))
		return nil
	}
	if len(live) > 0 && (len(gone) == 0 || float64(allBytes-liveBytes) < dead*float64(allBytes)) {
		return nil
	}
	if err := l.copyOut(ctx, live); err != nil {
		return err
	}
	more, err := l.unindex(gone)
	if err != nil {
		return err
	}
	// Those that a producer came back with meanwhile are needed after all.
	if err := l.copyOut(ctx, more); err != nil {
		return err
	}
	if err := l.seg.Remove(f.Number); err != nil {
		return err
	}
	rep.Segments++
	rep.Moved += len(live) + len(more)
	rep.Dropped += len(gone) - len(more)
	rep.Bytes += max(f.Bytes-liveBytes, 0)
	return nil
}

// needed says whether a record is the copy in use of a committed log, or one
// that a producer was told is here.
func (l *Local) needed(e segment.Entry) (bool, error) {
	txn, prefix := l.beginState()
	defer txn.Discard()
	if here, err := l.isAt(txn, e); err != nil || !here {
		return false, err
	}
	if l.wasTouched(e) {
		return true, nil
	}
	items, err := Items(txnReader{txn, prefix}, []string{e.ID})
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	return err == nil && items[0].Digest == e.Digest, err
}

func (l *Local) isAt(txn *badger.Txn, e segment.Entry) (bool, error) {
	pos, ok, err := l.locate(txn, e.ID, e.Digest)
	return ok && pos == e.Pos, err
}

// copyOut appends records again; their new places replace the old ones in the
// index.
func (l *Local) copyOut(ctx context.Context, es []segment.Entry) error {
	var batch []segment.Record
	size := 0
	flush := func() error {
		_, err := l.seg.Append(ctx, batch)
		batch, size = nil, 0
		return storageError(err)
	}
	for _, e := range es {
		r, err := l.seg.Read(e.Pos)
		if err != nil {
			return err
		}
		batch, size = append(batch, r), size+len(r.Bytes)
		if size >= compactBatch {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	return flush()
}

// unindex takes records out of the index, but for those that a producer was
// told are here since they were judged: these it returns.
func (l *Local) unindex(gone []segment.Entry) (more []segment.Entry, err error) {
	l.placing.Lock()
	defer l.placing.Unlock()
	txn := l.db.begin()
	defer txn.Discard()
	var batch []write
	for _, e := range gone {
		here, err := l.isAt(txn, e)
		if err != nil {
			return nil, err
		}
		switch {
		case !here:
		case l.wasTouched(e):
			more = append(more, e)
		default:
			batch = append(batch, write{key: payloadKey(e.ID, e.Digest)})
		}
	}
	l.write.Lock()
	defer l.write.Unlock()
	return more, l.db.commit(batch)
}

// touch notes that a producer was told its record is here already, which its
// commit relies on. The caller holds placing.
func (l *Local) touch(it Item) {
	l.pmu.Lock()
	defer l.pmu.Unlock()
	l.touched[string(payloadKey(it.LogID, it.Digest))] = time.Now()
}

func (l *Local) wasTouched(e segment.Entry) bool {
	l.pmu.Lock()
	defer l.pmu.Unlock()
	_, ok := l.touched[string(payloadKey(e.ID, e.Digest))]
	return ok
}

func (l *Local) forgetTouched(before time.Time) {
	l.pmu.Lock()
	defer l.pmu.Unlock()
	maps.DeleteFunc(l.touched, func(_ string, at time.Time) bool { return at.Before(before) })
}
