package segment

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// A pack is one zstd frame of the payloads of several records, so that what they
// share (the prompt of a group) is stored once. It is a record of its own that
// holds nothing for anybody; behind it stand its members, records with id and
// digest whose stored payload says where in the pack theirs is:
//
//	back u64 | at u32 | crc u32
//
// back is how many bytes before the member's own record the pack's begins, at is
// where the payload begins in the unpacked bytes, crc is that of the payload.
const (
	flagPack   = 1 << 1
	flagMember = 1 << 2
	memberSize = 16

	packID = "pack" // of the pack's record: ids are not empty

	// MaxPack bounds the payloads of one pack: a read of one unpacks all.
	MaxPack = 4 << 20
)

var packEncoder = sync.OnceValue(func() *zstd.Encoder {
	e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedDefault), zstd.WithEncoderConcurrency(1),
		zstd.WithWindowSize(MaxPack), zstd.WithLowerEncoderMem(true), zstd.WithEncoderCRC(false))
	if err != nil {
		panic(err) // the options are constants
	}
	return e
})

// Group is records that are stored close to each other, packed where that pays.
type Group []Record

// AppendGroups is Append of groups of records, at most MaxPack bytes each. A group
// becomes a pack when that saves an eighth of what its records take by
// themselves. written is what was added to the file.
func (l *Log) AppendGroups(ctx context.Context, groups []Group) (written int, err error) {
	r := &request{done: make(chan error, 1)}
	for _, g := range groups {
		part, err := encodeGroup(g)
		if err != nil {
			return 0, err
		}
		for _, e := range part.entries {
			e.Pos.Offset += int64(r.size)
			r.entries = append(r.entries, e)
		}
		r.parts, r.size = append(r.parts, part.parts...), r.size+part.size
	}
	if r.size == 0 {
		return 0, nil
	}
	return r.size, l.ask(ctx, r)
}

// Packed is how many bytes a group would take as AppendGroups stores it, and how
// many its records take by themselves.
func Packed(g Group) (together, alone int, err error) {
	r, err := encodeGroup(g)
	if err != nil {
		return 0, 0, err
	}
	for _, rec := range compressed(g) {
		alone += recordHeader + len(rec.ID) + len(rec.Digest) + len(rec.Bytes) + len(rec.Zstd)
	}
	return r.size, alone, nil
}

func encodeGroup(g Group) (*request, error) {
	alone, err := encode(compressed(g))
	if err != nil || len(g) < 2 {
		return alone, err
	}
	var raw []byte
	members := make([]Record, len(g))
	for i, rec := range g {
		b := rec.Bytes
		if len(rec.Zstd) > 0 {
			if b, err = Decompress(rec.Zstd, rec.Size); err != nil {
				return nil, fmt.Errorf("segment: record %q: %w", rec.ID, err)
			}
		}
		if len(raw)+len(b) > MaxPack {
			return alone, nil
		}
		at := binary.LittleEndian.AppendUint32(make([]byte, 8, memberSize), uint32(len(raw)))
		members[i] = Record{ID: rec.ID, Digest: rec.Digest, Bytes: binary.LittleEndian.AppendUint32(at, crc32.Checksum(b, castagnoli)), Size: len(b)}
		raw = append(raw, b...)
	}
	frame := packEncoder().EncodeAll(raw, nil)
	if len(raw) > maxRatio*len(frame) {
		return alone, nil
	}
	r := &request{done: make(chan error, 1)}
	if err := r.add(Record{ID: packID, Zstd: frame, Size: len(raw)}, flagPack); err != nil {
		return nil, err
	}
	for _, m := range members {
		binary.LittleEndian.PutUint64(m.Bytes, uint64(r.size))
		r.entries = append(r.entries, Entry{ID: m.ID, Digest: m.Digest, Pos: Position{Offset: int64(r.size)}, Size: m.Size, Packed: true})
		if err := r.add(m, flagMember); err != nil {
			return nil, err
		}
	}
	if r.size >= alone.size-alone.size/8 {
		return alone, nil
	}
	return r, nil
}

// compressed are the records with frames where that pays; members of a pack come
// without.
func compressed(g Group) Group {
	out := slices.Clone(g)
	for i, rec := range out {
		if len(rec.Zstd) > 0 {
			continue
		}
		if z := Compress(rec.Bytes); z != nil {
			out[i] = Record{ID: rec.ID, Digest: rec.Digest, Zstd: z, Size: len(rec.Bytes)}
		}
	}
	return out
}

func (r *request) add(rec Record, flag byte) error {
	head, payload, err := appendHeader(nil, rec, flag)
	if err != nil {
		return err
	}
	r.parts = append(r.parts, head, payload)
	r.size += len(head) + len(payload)
	return nil
}

// place is a member's payload in its pack.
type place struct {
	pack int64 // offset of the pack's record
	at   int
	crc  uint32
}

// readPlace reads where the payload of the member at off is.
func readPlace(r io.ReaderAt, off int64, h header) (place, error) {
	b, err := readStored(r, off, h, nil)
	if err != nil {
		return place{}, err
	}
	back := binary.LittleEndian.Uint64(b)
	if back == 0 || back > uint64(off-fileHeader) {
		return place{}, fmt.Errorf("%w: member of a pack %d bytes before it", ErrCorrupt, back)
	}
	return place{off - int64(back), int(binary.LittleEndian.Uint32(b[8:])), binary.LittleEndian.Uint32(b[12:])}, nil
}

// checkPack verifies the pack that a member refers to, without unpacking it.
func checkPack(r io.ReaderAt, p place, size int64, h header) error {
	ph, err := readHeader(r, p.pack, size)
	if err == nil && (ph.flags&flagPack == 0 || p.at+h.raw > ph.raw) {
		err = fmt.Errorf("%w: member of what is not its pack", ErrCorrupt)
	}
	if err == nil {
		_, err = readStored(r, p.pack, ph, nil)
	}
	return err
}

// readMember reads the payload of a member, unpacking with unpack.
func readMember(r io.ReaderAt, off, size int64, h header, unpack func(pack int64, read func() ([]byte, error)) ([]byte, error)) (Record, error) {
	p, err := readPlace(r, off, h)
	if err != nil {
		return Record{}, err
	}
	raw, err := unpack(p.pack, func() ([]byte, error) {
		ph, err := readHeader(r, p.pack, size)
		if err == nil && ph.flags&flagPack == 0 {
			err = fmt.Errorf("%w: member of what is not its pack", ErrCorrupt)
		}
		if err != nil {
			return nil, err
		}
		frame, err := readStored(r, p.pack, ph, nil)
		if err != nil {
			return nil, err
		}
		return Decompress(frame, ph.raw)
	})
	if err != nil {
		return Record{}, err
	}
	if p.at+h.raw > len(raw) {
		return Record{}, fmt.Errorf("%w: member ends at byte %d of a pack of %d", ErrCorrupt, p.at+h.raw, len(raw))
	}
	b := raw[p.at : p.at+h.raw : p.at+h.raw]
	if crc32.Checksum(b, castagnoli) != p.crc {
		return Record{}, fmt.Errorf("%w: checksum of a member's payload", ErrCorrupt)
	}
	return Record{ID: h.id, Digest: h.digest, Bytes: b, Size: h.raw}, nil
}

// unpacked keeps the pack unpacked last: the members of a group are read one after
// the other.
type unpacked struct {
	mu  sync.Mutex
	pos Position
	raw []byte
}

func (u *unpacked) get(segment uint64) func(pack int64, read func() ([]byte, error)) ([]byte, error) {
	return func(pack int64, read func() ([]byte, error)) ([]byte, error) {
		pos := Position{segment, pack}
		u.mu.Lock()
		if u.raw != nil && u.pos == pos {
			defer u.mu.Unlock()
			return u.raw, nil
		}
		u.mu.Unlock()
		raw, err := read()
		if err != nil {
			return nil, err
		}
		u.mu.Lock()
		defer u.mu.Unlock()
		u.pos, u.raw = pos, raw
		return raw, nil
	}
}

// errNotRecord: a pack, which no reader asks for.
var errNotRecord = errors.New("segment: a pack is no record of anybody's")
