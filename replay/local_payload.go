package replay

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/dgraph-io/badger/v4"

	"github.com/skein-rl/skein/replay/internal/keys"
	"github.com/skein-rl/skein/replay/segment"
)

// Term is the highest raft term this node has seen a writer of.
func (l *Local) Term() uint64 {
	l.fence.RLock()
	defer l.fence.RUnlock()
	return l.term
}

// Fence refuses writers of terms below term from now on, durably. A chunk of an
// older term that is being written is not acknowledged either.
func (l *Local) Fence(term uint64) error {
	l.fence.Lock()
	defer l.fence.Unlock()
	if term <= l.term {
		return nil
	}
	l.write.Lock()
	err := l.db.commit([]write{{metaTerm, u64(term)}})
	l.write.Unlock()
	if err != nil {
		return fmt.Errorf("replay: fence term %d: %w", term, err)
	}
	l.term = term
	return nil
}

func (l *Local) checkTerm(term uint64) error {
	if now := l.Term(); term < now {
		return fmt.Errorf("%w: chunk of term %d, this node has seen term %d", ErrStale, term, now)
	}
	return nil
}

// PutChunk makes records durable here, packed or not; they are not committed. A
// newer term raises the fence, an older one is ErrStale. Records already here
// cost nothing. ErrDiskFull: the watermark; ErrInvalid: a record that could
// never be committed. Whether the bytes are what the item says is checked once,
// by who lets a record into the cluster, not by every replica (ADR 10).
func (l *Local) PutChunk(ctx context.Context, term uint64, recs []Record) error {
	for i := range recs {
		if err := checkRecord(&recs[i]); err != nil {
			return err
		}
	}
	if term > l.Term() {
		if err := l.Fence(term); err != nil {
			return err
		}
	}
	if err := l.checkTerm(term); err != nil {
		return err
	}
	todo, err := l.notHere(recs)
	if err != nil {
		return err
	}
	if _, err := l.seg.Append(ctx, todo); err != nil {
		err = storageError(err)
		if errors.Is(err, ErrDiskFull) {
			l.m.diskFull.Inc()
		}
		return fmt.Errorf("replay: store %d records: %w", len(todo), err)
	}
	for _, r := range todo {
		l.m.payloadBytes.Add(float64(r.Size))
	}
	l.m.payloads.Add(float64(len(todo)))
	return l.checkTerm(term)
}

// notHere lists the records whose bytes are not here yet.
func (l *Local) notHere(recs []Record) (todo []segment.Record, err error) {
	l.placing.RLock()
	defer l.placing.RUnlock()
	txn, prefix := l.beginState()
	defer txn.Discard()
	for _, r := range recs {
		gone, err := buried(txnReader{txn, prefix}, r.Item.LogID, r.Item.Digest)
		if err != nil {
			return nil, err
		}
		if gone {
			continue // a late copy: its bytes stay out, and the fold says that it is a duplicate
		}
		_, here, err := l.locate(txn, r.Item.LogID, r.Item.Digest)
		if err != nil {
			return nil, err
		}
		if here {
			l.touch(r.Item)
			continue
		}
		todo = append(todo, segment.Record{ID: r.Item.LogID, Digest: r.Item.Digest, Bytes: r.Bytes, Zstd: r.Zstd, Size: int(r.Item.Size)})
	}
	return todo, nil
}

// Has says for each item whether its bytes are here.
func (l *Local) Has(items []Item) ([]bool, error) {
	txn := l.db.begin()
	defer txn.Discard()
	out := make([]bool, len(items))
	for i, it := range items {
		var err error
		if _, out[i], err = l.locate(txn, it.LogID, it.Digest); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// ReadRecords returns committed records in the order asked, with their Bytes. An
// id that was never committed is ErrNotFound. A committed one whose bytes are
// not here, or are damaged, has neither Bytes nor a frame and is listed in
// missing: get it from another replica.
func (l *Local) ReadRecords(logIDs []string) (recs []Record, missing []Item, err error) {
	if recs, missing, err = l.ReadPacked(logIDs); err != nil {
		return nil, nil, err
	}
	for i, r := range recs {
		if recs[i], err = r.Unpack(); err == nil {
			continue
		}
		if err = l.damaged(r.Item, err); !errors.Is(err, ErrNotFound) {
			return nil, nil, err
		}
		recs[i], missing = Record{Item: r.Item}, append(missing, r.Item)
	}
	return recs, missing, nil
}

// ReadPacked is ReadRecords with every record as it is stored.
func (l *Local) ReadPacked(logIDs []string) (recs []Record, missing []Item, err error) {
	txn, prefix := l.beginState()
	defer txn.Discard()
	items, err := Items(txnReader{txn, prefix}, logIDs)
	if err != nil {
		return nil, nil, err
	}
	recs = make([]Record, len(items))
	for i, it := range items {
		recs[i].Item = it
		r, err := l.readPayload(txn, it)
		if errors.Is(err, ErrNotFound) {
			missing = append(missing, it)
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		recs[i].Bytes, recs[i].Zstd = r.Bytes, r.Zstd
	}
	return recs, missing, nil
}

// readPayload reads and verifies an item's bytes, packed or not. Damaged ones are
// reported and marked missing, so that repair replaces them.
func (l *Local) readPayload(txn *badger.Txn, it Item) (segment.Record, error) {
	r, err := l.readStored(txn, it)
	if err == nil && r.Size != int(it.Size) {
		err = l.damaged(it, fmt.Errorf("%w: it has %d bytes, its item says %d", segment.ErrCorrupt, r.Size, it.Size))
	}
	return r, err
}

// readStored is readPayload for an item of which only id and digest are known.
func (l *Local) readStored(txn *badger.Txn, it Item) (r segment.Record, err error) {
	pos, ok, err := l.locate(txn, it.LogID, it.Digest)
	if err != nil {
		return r, err
	}
	if !ok {
		return r, fmt.Errorf("%w: bytes of log %q", ErrNotFound, it.LogID)
	}
	r, err = l.seg.ReadStored(pos)
	for moved := false; errors.Is(err, fs.ErrNotExist); {
		// Compact moved it after it was located, or its file is lost.
		old := pos
		if pos, moved, err = l.locateNow(it); err != nil {
			return r, err
		}
		if !moved || pos == old {
			err = fmt.Errorf("%w: segment %d is gone", segment.ErrCorrupt, old.Segment)
			break
		}
		r, err = l.seg.ReadStored(pos)
	}
	if err == nil && (r.ID != it.LogID || r.Digest != it.Digest) {
		err = fmt.Errorf("%w: log %q is where %q should be", segment.ErrCorrupt, r.ID, it.LogID)
	}
	if errors.Is(err, segment.ErrCorrupt) {
		err = l.damaged(it, err)
	}
	return r, err
}

// damaged marks an item's bytes missing and returns ErrNotFound with the cause.
func (l *Local) damaged(it Item, cause error) error {
	l.log.Error("stored log damaged: to be repaired from another replica", "log_id", it.LogID, "err", cause)
	l.m.corrupt.Inc()
	if err := l.markMissing(it); err != nil {
		return err
	}
	return fmt.Errorf("%w: bytes of log %q: %w", ErrNotFound, it.LogID, cause)
}

func (l *Local) markMissing(it Item) error {
	l.write.Lock()
	defer l.write.Unlock()
	return l.db.commit([]write{
		{key: payloadKey(it.LogID, it.Digest)},
		{missingKey(it.LogID), []byte{}},
	})
}

// MissingPayloads lists up to limit committed items whose bytes are not here;
// PutChunk of the bytes takes them off the list.
func (l *Local) MissingPayloads(limit int) ([]Item, error) {
	txn, prefix := l.beginState()
	defer txn.Discard()
	var out []Item
	space := keys.New(spaceMissing)
	var bad error
	err := txnReader{txn: txn}.Iterate(space, nil, func(k, _ []byte) bool {
		items, err := Items(txnReader{txn, prefix}, []string{keys.Unescape(k[len(space):])})
		if errors.Is(err, ErrNotFound) {
			return true // a mark of a state that Restore replaced
		}
		if err != nil {
			bad = err
			return false
		}
		_, here, err := l.locate(txn, items[0].LogID, items[0].Digest)
		if err != nil {
			bad = err
			return false
		}
		if !here {
			out = append(out, items[0])
		}
		return len(out) < limit
	})
	return out, errors.Join(err, bad)
}

// locateNow is locate without an older view of the index.
func (l *Local) locateNow(it Item) (segment.Position, bool, error) {
	txn := l.db.begin()
	defer txn.Discard()
	return l.locate(txn, it.LogID, it.Digest)
}

// locate finds where a payload is, indexed or about to be.
func (l *Local) locate(txn *badger.Txn, logID, digest string) (segment.Position, bool, error) {
	k := payloadKey(logID, digest)
	l.pmu.Lock()
	e, ok := l.pending[string(k)]
	l.pmu.Unlock()
	if ok {
		return e.Pos, true, nil
	}
	b, ok, err := txnReader{txn: txn}.Get(k)
	if err == nil && !ok {
		// It may have moved from pending to the index after txn began.
		now := l.db.begin()
		defer now.Discard()
		b, ok, err = txnReader{txn: now}.Get(k)
	}
	if err != nil || !ok {
		return segment.Position{}, false, err
	}
	if len(b) != 16 {
		return segment.Position{}, false, fmt.Errorf("index of log %q holds %d bytes, want 16", logID, len(b))
	}
	return decodePos(b), true, nil
}

func encodePos(p segment.Position) []byte {
	return binary.BigEndian.AppendUint64(u64(p.Segment), uint64(p.Offset))
}

func decodePos(b []byte) segment.Position {
	return segment.Position{Segment: binary.BigEndian.Uint64(b), Offset: int64(binary.BigEndian.Uint64(b[8:]))}
}

// onDurable gets every batch of synced records, in order. They can be read from
// now on; the index follows, with the next entries applied or after indexDelay.
func (l *Local) onDurable(es []segment.Entry) {
	l.pmu.Lock()
	for _, e := range es {
		l.pending[string(payloadKey(e.ID, e.Digest))] = e
	}
	l.queue = append(l.queue, es...)
	many := len(l.queue) >= indexMany
	l.pmu.Unlock()
	if many {
		select {
		case l.wake <- struct{}{}:
		default:
		}
	}
}

const (
	indexDelay = 200 * time.Millisecond
	indexMany  = 4096
)

// indexLoop moves pending entries into Badger that no applied entry takes along.
func (l *Local) indexLoop() {
	defer l.wg.Done()
	t := time.NewTicker(indexDelay)
	defer t.Stop()
	for stop := false; !stop; {
		select {
		case <-l.wake:
		case <-t.C:
		case <-l.quit:
			stop = true
		}
		l.write.Lock()
		err := l.indexQueue()
		l.write.Unlock()
		if err != nil {
			l.log.Error("payload index failed: kept in memory until restart", "err", err)
			return
		}
	}
}

// indexQueue writes what is pending now. The caller holds the write lock.
func (l *Local) indexQueue() error {
	es := l.takeQueue()
	if len(es) == 0 {
		return nil
	}
	batch, err := l.indexWrites(es)
	if err == nil {
		err = l.db.commit(batch)
	}
	return l.indexed(es, err)
}

// takeQueue returns the entries to be indexed, none after a failure. The caller
// holds the write lock.
func (l *Local) takeQueue() []segment.Entry {
	if l.indexErr != nil {
		return nil
	}
	l.pmu.Lock()
	defer l.pmu.Unlock()
	es := l.queue
	l.queue = nil
	return es
}

// indexed notes that entries are in the index now. After a failure they stay
// pending, readable now and found by the scan of the next open; the mark of the
// last indexed record must not pass them, so nothing is indexed any more.
func (l *Local) indexed(es []segment.Entry, err error) error {
	if err != nil {
		l.indexErr = err
		return err
	}
	l.pmu.Lock()
	defer l.pmu.Unlock()
	for _, e := range es {
		k := string(payloadKey(e.ID, e.Digest))
		if l.pending[k].Pos == e.Pos {
			delete(l.pending, k)
		}
	}
	return nil
}

// index writes entries. The caller holds the write lock.
func (l *Local) index(es []segment.Entry) error {
	if len(es) == 0 {
		return nil
	}
	batch, err := l.indexWrites(es)
	if err != nil {
		return err
	}
	return l.db.commit(batch)
}

// indexWrites are the writes that index entries and take them off the list of
// missing ones.
func (l *Local) indexWrites(es []segment.Entry) ([]write, error) {
	batch := make([]write, 0, len(es)+1)
	for _, e := range es {
		batch = append(batch, write{payloadKey(e.ID, e.Digest), encodePos(e.Pos)})
	}
	gone, err := l.found(es)
	if err != nil {
		return nil, err
	}
	return append(append(batch, gone...), write{metaIndexed, encodePos(es[len(es)-1].Pos)}), nil
}

// found returns the deletions of missing marks that entries fulfil.
func (l *Local) found(es []segment.Entry) ([]write, error) {
	txn, prefix := l.beginState()
	defer txn.Discard()
	var out []write
	for _, e := range es {
		k := missingKey(e.ID)
		_, marked, err := txnReader{txn: txn}.Get(k)
		if err != nil {
			return nil, err
		}
		if !marked {
			continue
		}
		items, err := Items(txnReader{txn, prefix}, []string{e.ID})
		if errors.Is(err, ErrNotFound) || err == nil && items[0].Digest == e.Digest {
			out = append(out, write{key: k})
		} else if err != nil {
			return nil, err
		}
	}
	return out, nil
}
