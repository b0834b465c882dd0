package replay

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/skein-rl/skein/replay/internal/keys"
	pb "github.com/skein-rl/skein/replay/internal/replaypb"
)

// VerifyReport says what one node's check of everything found.
type VerifyReport struct {
	Records int   // valid ones in segments
	Bytes   int64 // of the payloads of committed logs
	Gaps    int   // stretches of segments without a valid record
	// GapBytes are in gaps. Gaps that no log in use points into are harmless and
	// go with the next compaction on demand.
	GapBytes     int64
	Logs         int      // committed ones
	Missing      int      // of these: bytes not here, or damaged, or not those of the digest
	Bad          []string // ids of the first of them
	Blobs        int
	MissingBlobs int
}

const maxBad = 20

// VerifyAll reads every segment, the bytes of every committed log and every
// blob, and checks their checksums and digests. Damaged logs are listed by
// MissingPayloads from then on, for repair. It reads the whole store: call it
// rarely, with a deadline.
func (l *Local) VerifyAll(ctx context.Context) (VerifyReport, error) {
	scrub, err := l.Scrub(ctx)
	rep := VerifyReport{Records: scrub.Records, Gaps: scrub.Gaps, GapBytes: scrub.Bytes}
	if err != nil {
		return rep, err
	}
	var suspects []Item
	err = l.eachItem(ctx, func(it Item) error {
		rep.Logs++
		n, err := l.verifyItem(it)
		rep.Bytes += int64(n)
		if errors.Is(err, ErrNotFound) {
			suspects = append(suspects, it)
			return nil
		}
		return err
	})
	if err != nil {
		return rep, fmt.Errorf("replay: verify: %w", err)
	}
	for _, it := range suspects { // what was on its way may be here by now
		n, err := l.verifyItem(it)
		switch {
		case errors.Is(err, ErrNotFound):
			if now, ierr := l.itemNow(it.LogID); ierr != nil || now.Digest != it.Digest {
				continue // deleted or redacted meanwhile
			}
			rep.Missing++
			if len(rep.Bad) < maxBad {
				rep.Bad = append(rep.Bad, it.LogID)
			}
		case err != nil:
			return rep, fmt.Errorf("replay: verify: %w", err)
		}
		rep.Bytes += int64(n)
	}
	return rep, l.verifyBlobs(ctx, &rep)
}

// eachItem calls fn with every committed log as of now.
func (l *Local) eachItem(ctx context.Context, fn func(Item) error) error {
	txn, prefix := l.beginState()
	defer txn.Discard()
	var bad error
	err := txnReader{txn, prefix}.Iterate(keys.New('l'), nil, func(_, v []byte) bool {
		s := new(pb.ItemState)
		if bad = proto.Unmarshal(v, s); bad == nil && !s.Deleted {
			bad = fn(itemFromPB(s.Item))
		}
		if bad == nil {
			bad = ctx.Err()
		}
		return bad == nil
	})
	return firstError(err, bad)
}

func (l *Local) itemNow(logID string) (Item, error) {
	txn, prefix := l.beginState()
	defer txn.Discard()
	items, err := Items(txnReader{txn, prefix}, []string{logID})
	if err != nil {
		return Item{}, err
	}
	return items[0], nil
}

// verifyItem reads a log's bytes; ErrNotFound: they are not here, or not what
// the item says.
func (l *Local) verifyItem(it Item) (int, error) {
	txn := l.db.begin()
	defer txn.Discard()
	stored, err := l.readPayload(txn, it)
	if err != nil {
		return 0, err
	}
	r, err := Record{Item: it, Bytes: stored.Bytes, Zstd: stored.Zstd}.Unpack()
	if err == nil && l.opts.Verify != nil {
		err = l.opts.Verify(it, r.Bytes)
	}
	if err != nil {
		return 0, l.damaged(it, err)
	}
	return len(r.Bytes), nil
}

func (l *Local) verifyBlobs(ctx context.Context, rep *VerifyReport) error {
	var digests []string
	seen := map[string]bool{}
	if err := l.View(func(kv Reader) error {
		return eachBlob(kv, func(digest string, keep bool) {
			if keep && !seen[digest] {
				seen[digest] = true
				digests = append(digests, digest)
			}
		})
	}); err != nil {
		return err
	}
	for _, d := range digests {
		if err := ctx.Err(); err != nil {
			return err
		}
		_, err := l.GetBlob(d)
		switch {
		case err == nil:
			rep.Blobs++
		case errors.Is(err, ErrNotFound):
			rep.MissingBlobs++
			if len(rep.Bad) < maxBad {
				rep.Bad = append(rep.Bad, d)
			}
		default:
			return fmt.Errorf("replay: verify blob %s: %w", d, err)
		}
	}
	return nil
}

// Digest is the SHA-256 of the state's pairs in key order, each with its
// lengths: equal on replicas that applied the same entries.
func (s *StateSnapshot) Digest() (digest string, pairs int, err error) {
	h := sha256.New()
	var head []byte
	err = txnReader{s.txn, s.prefix}.Iterate(nil, nil, func(k, v []byte) bool {
		head = binary.AppendUvarint(binary.AppendUvarint(head[:0], uint64(len(k))), uint64(len(v)))
		h.Write(head)
		h.Write(k)
		h.Write(v)
		pairs++
		return true
	})
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), pairs, err
}

// ReadExact returns bytes of logs by id and digest, as they are stored, whether
// these are the ones in use or not. Those not here are left out.
func (l *Local) ReadExact(logs []Exact) ([]Record, error) {
	txn := l.db.begin()
	defer txn.Discard()
	var out []Record
	for _, x := range logs {
		r, err := l.readStored(txn, Item{LogID: x.LogID, Digest: x.Digest})
		if errors.Is(err, ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		out = append(out, Record{Item: Item{LogID: x.LogID, Digest: x.Digest, Size: uint32(r.Size)}, Bytes: r.Bytes, Zstd: r.Zstd})
	}
	return out, nil
}
