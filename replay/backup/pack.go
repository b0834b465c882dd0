package backup

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/klauspost/compress/zstd"

	"github.com/skein-rl/skein/replay"
	"github.com/skein-rl/skein/replay/blob"
)

// A pack is the bytes of many logs, compressed as one:
//
//	"SKEINPK1" | zstd of { idLen uvarint | digestLen uvarint | dataLen uvarint | id | digest | data }
//
// Its index is the zstd-compressed JSON list of what is in it, in order.
const packMagic = "SKEINPK1"

// packBytes is about how many bytes of logs are put into one pack.
const packBytes = 32 << 20

// packEntry is a log in a pack.
type packEntry struct {
	LogID  string `json:"log_id"`
	Digest string `json:"digest"`
	Size   int    `json:"size"`
}

var (
	encoder = sync.OnceValue(func() *zstd.Encoder {
		e, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(8<<20))
		if err != nil {
			panic(err) // the options are constants
		}
		return e
	})
	decoder = sync.OnceValue(func() *zstd.Decoder {
		d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(1<<30))
		if err != nil {
			panic(err)
		}
		return d
	})
)

func encodePack(recs []replay.Record) []byte {
	var raw []byte
	for _, r := range recs {
		raw = binary.AppendUvarint(raw, uint64(len(r.Item.LogID)))
		raw = binary.AppendUvarint(raw, uint64(len(r.Item.Digest)))
		raw = binary.AppendUvarint(raw, uint64(len(r.Bytes)))
		raw = append(append(append(raw, r.Item.LogID...), r.Item.Digest...), r.Bytes...)
	}
	return encoder().EncodeAll(raw, []byte(packMagic))
}

var errPack = errors.New("backup: not a pack, or a damaged one")

// decodePack returns records of which the item has id, digest and size.
func decodePack(b []byte) ([]replay.Record, error) {
	z, ok := strings.CutPrefix(string(b), packMagic)
	if !ok {
		return nil, fmt.Errorf("%w: it does not begin with %q", errPack, packMagic)
	}
	raw, err := decoder().DecodeAll([]byte(z), nil)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errPack, err)
	}
	var out []replay.Record
	for len(raw) > 0 {
		var n [3]uint64
		for i := range n {
			v, k := binary.Uvarint(raw)
			if k <= 0 {
				return nil, fmt.Errorf("%w: lengths of record %d", errPack, len(out))
			}
			n[i], raw = v, raw[k:]
		}
		if n[0] > uint64(len(raw)) || n[1] > uint64(len(raw))-n[0] || n[2] > uint64(len(raw))-n[0]-n[1] {
			return nil, fmt.Errorf("%w: record %d is cut short", errPack, len(out))
		}
		r := replay.Record{Item: replay.Item{LogID: string(raw[:n[0]]), Digest: string(raw[n[0] : n[0]+n[1]]), Size: uint32(n[2])}}
		r.Bytes = raw[n[0]+n[1] : n[0]+n[1]+n[2] : n[0]+n[1]+n[2]]
		out, raw = append(out, r), raw[n[0]+n[1]+n[2]:]
	}
	return out, nil
}

// Keys of objects. A digest stands in a key without its prefix.
func stateKey(digest string) string { return "states/" + strings.TrimPrefix(digest, blob.Prefix) }
func packKey(digest string) string  { return "packs/" + strings.TrimPrefix(digest, blob.Prefix) }
func indexKey(digest string) string { return packKey(digest) + ".idx" }
func blobKey(digest string) string  { return "blobs/" + strings.TrimPrefix(digest, blob.Prefix) }
func nameKey(name string) string    { return "backups/" + name + ".json" }

// putPack stores records as a pack and returns its digest and stored size. The
// index comes last: a pack without one does not count.
func putPack(ctx context.Context, t Target, recs []replay.Record) (digest string, stored int64, err error) {
	data := encodePack(recs)
	digest = blob.Digest(data)
	entries := make([]packEntry, len(recs))
	for i, r := range recs {
		entries[i] = packEntry{r.Item.LogID, r.Item.Digest, len(r.Bytes)}
	}
	index, err := json.Marshal(entries)
	if err != nil {
		return "", 0, err
	}
	index = encoder().EncodeAll(index, nil)
	if err := t.Put(ctx, packKey(digest), data); err != nil {
		return "", 0, err
	}
	return digest, int64(len(data) + len(index)), t.Put(ctx, indexKey(digest), index)
}

func getIndex(ctx context.Context, t Target, digest string) ([]packEntry, error) {
	b, err := t.Get(ctx, indexKey(digest))
	if err != nil {
		return nil, err
	}
	raw, err := decoder().DecodeAll(b, nil)
	var out []packEntry
	if err == nil {
		err = json.Unmarshal(raw, &out)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: index of pack %s: %w", errPack, digest, err)
	}
	return out, nil
}

// getChecked returns an object whose contents are those of its digest.
func getChecked(ctx context.Context, t Target, key, digest string) ([]byte, error) {
	b, err := t.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	if got := blob.Digest(b); got != digest {
		return nil, fmt.Errorf("backup: %s in %s is damaged: its contents have digest %s", key, t, got)
	}
	return b, nil
}
