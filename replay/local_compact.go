package replay

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
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
	// Held counts records of deleted or redacted logs that are still here: in
	// Damaged files, which were left alone because logs in use point into bytes
	// that are no record any more. Repair first.
	Held    int
	Damaged int
}

// compactBatch is how much is copied at a time.
const compactBatch = 4 << 20

// Compact rewrites segment files of which at least the share dead is not
// needed, and those of which packing the logs of groups would save a fifth: what
// is needed is copied, the bytes of every committed log (leased, ready or
// consumed alike), and the file removed. Not needed are bytes that were never
// committed (producers that a table held back, attempts that lost), second
// copies, and the bytes of deleted and redacted logs; a file with any of the
// last is rewritten whatever its share.
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
	return l.compact(ctx, now, grace, dead, false)
}

// Purge is Compact on demand: it ends the file that is written to and looks at
// young files too, keeping what may be on its way to a commit in them. What it
// leaves of deleted and redacted logs it counts as Held.
func (l *Local) Purge(ctx context.Context, now time.Time, grace time.Duration, dead float64) (CompactReport, error) {
	return l.compact(ctx, now, grace, dead, true)
}

func (l *Local) compact(ctx context.Context, now time.Time, grace time.Duration, dead float64, all bool) (CompactReport, error) {
	var rep CompactReport
	if grace <= 0 || !(dead >= 0 && dead <= 1) {
		return rep, fmt.Errorf("%w: compact: grace = %v, dead = %v: want longer than an append may take, and 0 to 1", ErrInvalid, grace, dead)
	}
	l.scans.Lock()
	defer l.scans.Unlock()
	fresh := now.Sub(l.opened) < grace
	if fresh && !all {
		return rep, nil
	}
	l.forgetTouched(now.Add(-grace))
	if all {
		if err := l.seg.Seal(ctx); err != nil {
			return rep, fmt.Errorf("replay: compact: %w", storageError(err))
		}
	}
	files, err := l.seg.Sealed()
	if err != nil {
		return rep, fmt.Errorf("replay: compact: %w", err)
	}
	for _, f := range files {
		young := fresh || now.Sub(f.Modified) < grace
		if young && !all {
			continue
		}
		if err := l.compactFile(ctx, f, dead, young, all, &rep); err != nil {
			return rep, fmt.Errorf("replay: compact segment %d: %w", f.Number, err)
		}
	}
	return rep, nil
}

// use says what a record in a segment is.
type use uint8

const (
	useNone   use = iota // never committed, or a second copy
	useLive              // the copy in use of a committed log, or one that a producer was told is here
	useYoung             // not committed yet
	useBuried            // of a deleted log, or what a log was before it was redacted
)

// compactFile rewrites one file when that pays, or when it has to. In a young
// one, what is not committed stays.
func (l *Local) compactFile(ctx context.Context, f segment.Info, dead float64, young, all bool, rep *CompactReport) error {
	var keep, gone, buried []segment.Entry
	var keepBytes, allBytes int64
	gaps, err := l.seg.ScanOne(ctx, f.Number, func(e segment.Entry) error {
		u, err := l.useOf(e)
		if err != nil {
			return err
		}
		allBytes += int64(e.Size)
		switch {
		case u == useBuried:
			buried = append(buried, e)
		case u == useLive || u == useYoung && young:
			keep, keepBytes = append(keep, e), keepBytes+int64(e.Size)
		default:
			gone = append(gone, e)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if len(gaps) > 0 {
		// Bytes that are no record may still be readable ones of a deleted log.
		// Once nothing in use points into them they go.
		suspects, dead, err := l.hurtBy(gaps)
		if err != nil {
			return err
		}
		buried = append(buried, dead...)
		if suspects > 0 || !all {
			l.log.Warn("segment not compacted: damaged", "segment", f.Number, "gaps", len(gaps), "logs", suspects)
			rep.Damaged++
			rep.Held += len(buried)
			return nil
		}
	}
	pays := len(gone) > 0 && float64(allBytes-keepBytes) >= dead*float64(allBytes)
	if len(keep) > 0 && len(buried) == 0 && len(gaps) == 0 && !pays {
		if young {
			return nil
		}
		if pays, err = l.packingPays(keep); err != nil || !pays {
			return err
		}
	}
	written, err := l.copyOut(ctx, keep)
	if err != nil {
		return err
	}
	more, err := l.unindex(gone, buried)
	if err != nil {
		return err
	}
	// Those that a producer came back with meanwhile are needed after all.
	again, err := l.copyOut(ctx, more)
	if err != nil {
		return err
	}
	if err := l.seg.Remove(f.Number); err != nil {
		return err
	}
	rep.Segments++
	rep.Moved += len(keep) + len(more)
	rep.Dropped += len(gone) + len(buried) - len(more)
	rep.Bytes += max(f.Bytes-written-again, 0)
	return nil
}

// hurtBy counts the logs in use whose bytes were in gaps, and lists those of
// deleted or redacted ones.
func (l *Local) hurtBy(gaps []segment.Gap) (inUse int, dead []segment.Entry, err error) {
	suspects, err := l.indexedIn(gaps)
	if err != nil {
		return 0, nil, err
	}
	txn, prefix := l.beginState()
	defer txn.Discard()
	for _, it := range suspects {
		gone, err := buried(txnReader{txn, prefix}, it.LogID, it.Digest)
		if err != nil {
			return 0, nil, err
		}
		if !gone {
			inUse++
			continue
		}
		pos, ok, err := l.locate(txn, it.LogID, it.Digest)
		if err != nil {
			return 0, nil, err
		}
		if ok {
			dead = append(dead, segment.Entry{ID: it.LogID, Digest: it.Digest, Pos: pos})
		}
	}
	return inUse, dead, nil
}

// useOf judges a record.
func (l *Local) useOf(e segment.Entry) (use, error) {
	txn, prefix := l.beginState()
	defer txn.Discard()
	if gone, err := buried(txnReader{txn, prefix}, e.ID, e.Digest); err != nil || gone {
		return useBuried, err
	}
	if here, err := l.isAt(txn, e); err != nil || !here {
		return useNone, err
	}
	if l.wasTouched(e) {
		return useLive, nil
	}
	items, err := Items(txnReader{txn, prefix}, []string{e.ID})
	switch {
	case errors.Is(err, ErrNotFound):
		return useYoung, nil
	case err != nil:
		return useNone, err
	case items[0].Digest == e.Digest:
		return useLive, nil
	}
	return useYoung, nil // of another attempt, or a twin that is about to be committed
}

func (l *Local) isAt(txn *badger.Txn, e segment.Entry) (bool, error) {
	pos, ok, err := l.locate(txn, e.ID, e.Digest)
	return ok && pos == e.Pos, err
}

// unindex takes records out of the index, but for those of gone that a producer
// was told are here since they were judged: these it returns.
func (l *Local) unindex(gone, buried []segment.Entry) (more []segment.Entry, err error) {
	l.placing.Lock()
	defer l.placing.Unlock()
	txn := l.db.begin()
	defer txn.Discard()
	var batch []write
	for i, e := range slices.Concat(gone, buried) {
		here, err := l.isAt(txn, e)
		if err != nil {
			return nil, err
		}
		switch {
		case !here:
		case i < len(gone) && l.wasTouched(e):
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
