package replay

import (
	"context"
	"errors"
	"fmt"

	"github.com/skein-rl/skein/replay/internal/keys"
	"github.com/skein-rl/skein/replay/segment"
)

// ScrubReport says what a scrub read.
type ScrubReport struct {
	Records int   // valid records
	Gaps    int   // stretches without one
	Bytes   int64 // in gaps
	Lost    int   // payloads that were indexed there, now listed as missing
}

// Scrub reads every segment and verifies every record. Payloads that turn out
// damaged are listed by MissingPayloads from then on, for repair from another
// replica. It reads the whole store: call it rarely, with a deadline.
func (l *Local) Scrub(ctx context.Context) (ScrubReport, error) {
	l.scans.Lock()
	defer l.scans.Unlock()
	var rep ScrubReport
	gaps, err := l.seg.Scan(ctx, segment.Position{}, func(segment.Entry) error {
		rep.Records++
		return nil
	})
	if err != nil {
		return rep, fmt.Errorf("replay: scrub: %w", err)
	}
	if len(gaps) == 0 {
		return rep, nil
	}
	suspects, err := l.indexedIn(gaps)
	if err != nil {
		return rep, fmt.Errorf("replay: scrub: %w", err)
	}
	rep.Gaps = len(gaps)
	for _, g := range gaps {
		rep.Bytes += g.Bytes
		l.log.Warn("segment bytes without a valid record", "segment", g.Pos.Segment, "offset", g.Pos.Offset, "bytes", g.Bytes, "err", g.Cause)
	}
	txn := l.db.begin()
	defer txn.Discard()
	for _, it := range suspects {
		// A record that was being written while the scan passed is fine by now.
		_, err := l.readPayload(txn, it)
		if errors.Is(err, ErrNotFound) {
			rep.Lost++
		} else if err != nil {
			return rep, fmt.Errorf("replay: scrub: %w", err)
		}
	}
	return rep, ctx.Err()
}

// indexedIn lists the ids and digests of payloads whose position is in a gap.
func (l *Local) indexedIn(gaps []segment.Gap) ([]Item, error) {
	txn := l.db.begin()
	defer txn.Discard()
	var out []Item
	space := keys.New(spacePayload)
	err := txnReader{txn: txn}.Iterate(space, nil, func(k, v []byte) bool {
		if len(v) != 16 {
			return true
		}
		pos := decodePos(v)
		for _, g := range gaps {
			if pos.Segment == g.Pos.Segment && pos.Offset >= g.Pos.Offset && pos.Offset < g.Pos.Offset+g.Bytes {
				id := keys.Unescape(k[len(space):])
				digest := keys.Unescape(k[len(space.Str(id)):])
				out = append(out, Item{LogID: id, Digest: digest})
			}
		}
		return true
	})
	return out, err
}
