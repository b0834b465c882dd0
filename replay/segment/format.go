package segment

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"sync"

	"github.com/klauspost/compress/zstd"
)

const (
	fileMagic   = "SKEINSEG"
	fileVersion = 2  // written; 1, which has no packs, is read as well
	fileHeader  = 24 // bytes: magic 8, version 4, number 8, CRC 4

	recordMagic  = "SKR1"
	recordHeader = 24 // bytes: magic 4, flags 1, digest length 1, id length 2, stored 4, raw 4, payload CRC 4, header CRC 4

	flagZstd = 1 << 0

	// MaxPayload bounds one record's bytes, before and after compression.
	MaxPayload = 256 << 20
	maxIDBytes = 1 << 12
	// maxRatio bounds decompression: a record that shrinks further is stored
	// as it is.
	maxRatio = 1024
	// minCompress is the size below which compression is not tried.
	minCompress = 512
)

// ErrCorrupt: bytes on disk are not what was written. Wrapped with segment and
// offset.
var ErrCorrupt = errors.New("segment: corrupt record")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Record is one record's contents. ID and Digest are opaque, at most 4096 and
// 255 bytes.
type Record struct {
	ID     string
	Digest string
	Bytes  []byte
	// Zstd, when not empty, is the payload as one zstd frame of Size bytes,
	// stored as it is; Bytes is nil then. Size is otherwise that of Bytes and
	// need not be given.
	Zstd []byte
	Size int
}

func (r Record) size() int {
	if len(r.Zstd) > 0 {
		return r.Size
	}
	return len(r.Bytes)
}

// Position locates a record: the file's number and the byte offset in it.
type Position struct {
	Segment uint64
	Offset  int64
}

// Compare orders positions as records were appended.
func (p Position) Compare(q Position) int {
	switch {
	case p.Segment < q.Segment || p.Segment == q.Segment && p.Offset < q.Offset:
		return -1
	case p == q:
		return 0
	}
	return 1
}

// Entry is a record without its bytes: what an index keeps.
type Entry struct {
	ID     string
	Digest string
	Pos    Position
	Size   int // bytes of the payload, uncompressed
	// Packed: the payload is in a pack, with others of its group.
	Packed bool
}

// zstd coders are shared by all logs of a process and kept small; both are
// safe for concurrent use in their *All forms.
var (
	encoder = sync.OnceValue(func() *zstd.Encoder {
		e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1),
			zstd.WithWindowSize(1<<20), zstd.WithLowerEncoderMem(true), zstd.WithEncoderCRC(false))
		if err != nil {
			panic(err) // the options are constants
		}
		return e
	})
	decoder = sync.OnceValue(func() *zstd.Decoder {
		d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(2), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxMemory(MaxPayload), zstd.WithDecodeAllCapLimit(true))
		if err != nil {
			panic(err)
		}
		return d
	})
)

// Compress returns a payload as a zstd frame, or nil where that would not save an
// eighth.
func Compress(payload []byte) []byte {
	if len(payload) < minCompress {
		return nil
	}
	z := encoder().EncodeAll(payload, make([]byte, 0, len(payload)))
	if len(z) >= len(payload)-len(payload)/8 || len(payload) > maxRatio*len(z) {
		return nil
	}
	return z
}

// Decompress undoes Compress. ErrCorrupt: the frame is damaged, or is not of
// size bytes; no more memory than size is taken.
func Decompress(frame []byte, size int) ([]byte, error) {
	if size < 0 || size > MaxPayload || size > maxRatio*len(frame) {
		return nil, fmt.Errorf("%w: zstd payload of %d bytes said to hold %d", ErrCorrupt, len(frame), size)
	}
	raw, err := decoder().DecodeAll(frame, make([]byte, 0, size))
	if err != nil {
		return nil, fmt.Errorf("%w: zstd payload: %w", ErrCorrupt, err)
	}
	if len(raw) != size {
		return nil, fmt.Errorf("%w: zstd payload of %d bytes, want %d", ErrCorrupt, len(raw), size)
	}
	return raw, nil
}

func encodeFileHeader(number uint64) []byte {
	b := make([]byte, 0, fileHeader)
	b = append(b, fileMagic...)
	b = binary.LittleEndian.AppendUint32(b, fileVersion)
	b = binary.LittleEndian.AppendUint64(b, number)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

func checkFileHeader(b []byte, number uint64) error {
	switch {
	case len(b) < fileHeader || string(b[:8]) != fileMagic:
		return fmt.Errorf("%w: not a segment file", ErrCorrupt)
	case crc32.Checksum(b[:20], castagnoli) != binary.LittleEndian.Uint32(b[20:]):
		return fmt.Errorf("%w: file header checksum", ErrCorrupt)
	case binary.LittleEndian.Uint32(b[8:]) < 1 || binary.LittleEndian.Uint32(b[8:]) > fileVersion:
		return fmt.Errorf("segment: file format version %d, this build reads 1 to %d (upgrade this node)", binary.LittleEndian.Uint32(b[8:]), fileVersion)
	case binary.LittleEndian.Uint64(b[12:]) != number:
		return fmt.Errorf("%w: file says it is segment %d (renamed?)", ErrCorrupt, binary.LittleEndian.Uint64(b[12:]))
	}
	return nil
}

// appendHeader encodes what stands before r's payload behind dst, and returns the
// payload as it is stored. flag is flagPack, flagMember or 0.
func appendHeader(dst []byte, r Record, flag byte) (head, payload []byte, err error) {
	switch {
	case r.ID == "" || len(r.ID) > maxIDBytes:
		return nil, nil, fmt.Errorf("segment: record id of %d bytes: want 1 to %d", len(r.ID), maxIDBytes)
	case len(r.Digest) > 255:
		return nil, nil, fmt.Errorf("segment: record %q: digest of %d bytes, want at most 255", r.ID, len(r.Digest))
	case len(r.Bytes) > MaxPayload || len(r.Zstd) > MaxPayload || r.Size > MaxPayload:
		return nil, nil, fmt.Errorf("segment: record %q of %d bytes: want at most %d", r.ID, max(len(r.Bytes), r.Size), MaxPayload)
	case len(r.Zstd) > 0 && (r.Size < 0 || r.Size > maxRatio*len(r.Zstd)):
		return nil, nil, fmt.Errorf("segment: record %q: frame of %d bytes for %d: want 0 to %d times as many", r.ID, len(r.Zstd), r.Size, maxRatio)
	}
	raw, flags := len(r.Bytes), flag
	payload = r.Bytes
	switch {
	case len(r.Zstd) > 0:
		payload, raw, flags = r.Zstd, r.Size, flag|flagZstd
	case flag == flagMember:
		raw = r.Size
	}
	at := len(dst)
	dst = append(dst, recordMagic...)
	dst = append(dst, flags, byte(len(r.Digest)))
	dst = binary.LittleEndian.AppendUint16(dst, uint16(len(r.ID)))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(payload)))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(raw))
	dst = binary.LittleEndian.AppendUint32(dst, crc32.Checksum(payload, castagnoli))
	sum := crc32.Checksum(dst[at:], castagnoli)
	sum = crc32.Update(sum, castagnoli, []byte(r.ID))
	sum = crc32.Update(sum, castagnoli, []byte(r.Digest))
	dst = binary.LittleEndian.AppendUint32(dst, sum)
	dst = append(dst, r.ID...)
	return append(dst, r.Digest...), payload, nil
}

// header is a decoded record header.
type header struct {
	flags      byte
	id, digest string
	stored     int
	raw        int
	payloadCRC uint32
}

func (h *header) size() int64 {
	return recordHeader + int64(len(h.id)) + int64(len(h.digest)) + int64(h.stored)
}

// readHeader reads the record header at off of a file of size bytes.
func readHeader(r io.ReaderAt, off, size int64) (header, error) {
	var b [recordHeader]byte
	if off < fileHeader || size-off < recordHeader {
		return header{}, fmt.Errorf("%w: no room for a record", ErrCorrupt)
	}
	if _, err := r.ReadAt(b[:], off); err != nil {
		return header{}, readError(err)
	}
	if string(b[:4]) != recordMagic {
		return header{}, fmt.Errorf("%w: no record begins here", ErrCorrupt)
	}
	h := header{
		flags:      b[4],
		stored:     int(binary.LittleEndian.Uint32(b[8:])),
		raw:        int(binary.LittleEndian.Uint32(b[12:])),
		payloadCRC: binary.LittleEndian.Uint32(b[16:]),
	}
	digestLen, idLen := int(b[5]), int(binary.LittleEndian.Uint16(b[6:]))
	switch {
	case idLen == 0 || idLen > maxIDBytes || h.stored > MaxPayload || h.raw > MaxPayload || !known(h.flags):
		return header{}, fmt.Errorf("%w: lengths out of range", ErrCorrupt)
	case h.flags == 0 && h.raw != h.stored, h.flags&flagZstd != 0 && h.raw > maxRatio*h.stored, h.flags&flagMember != 0 && h.stored != memberSize:
		return header{}, fmt.Errorf("%w: lengths disagree", ErrCorrupt)
	case size-off < recordHeader+int64(idLen+digestLen+h.stored):
		return header{}, fmt.Errorf("%w: the file ends inside the record", ErrCorrupt)
	}
	names := make([]byte, idLen+digestLen)
	if _, err := r.ReadAt(names, off+recordHeader); err != nil {
		return header{}, readError(err)
	}
	sum := crc32.Update(crc32.Checksum(b[:20], castagnoli), castagnoli, names)
	if sum != binary.LittleEndian.Uint32(b[20:]) {
		return header{}, fmt.Errorf("%w: header checksum", ErrCorrupt)
	}
	h.id, h.digest = string(names[:idLen]), string(names[idLen:])
	return h, nil
}

// known says whether this version writes a record with these flags.
func known(flags byte) bool {
	return flags == 0 || flags == flagZstd || flags == flagPack|flagZstd || flags == flagMember
}

// readStored reads and verifies a record's payload as it is stored.
func readStored(r io.ReaderAt, off int64, h header, buf []byte) ([]byte, error) {
	if cap(buf) < h.stored {
		buf = make([]byte, h.stored)
	}
	buf = buf[:h.stored]
	if _, err := r.ReadAt(buf, off+h.size()-int64(h.stored)); err != nil {
		return nil, readError(err)
	}
	if crc32.Checksum(buf, castagnoli) != h.payloadCRC {
		return nil, fmt.Errorf("%w: payload checksum", ErrCorrupt)
	}
	return buf, nil
}

// readRecord reads and verifies the record at off, compressed or not; unpack is
// for members of packs.
func readRecord(r io.ReaderAt, off, size int64, unpack func(pack int64, read func() ([]byte, error)) ([]byte, error)) (Record, error) {
	h, err := readHeader(r, off, size)
	switch {
	case err != nil:
		return Record{}, err
	case h.flags&flagPack != 0:
		return Record{}, fmt.Errorf("%w: %w", ErrCorrupt, errNotRecord)
	case h.flags&flagMember != 0:
		return readMember(r, off, size, h, unpack)
	}
	b, err := readStored(r, off, h, nil)
	if err != nil {
		return Record{}, err
	}
	rec := Record{ID: h.id, Digest: h.digest, Size: h.raw}
	if h.flags&flagZstd != 0 {
		rec.Zstd = b
	} else {
		rec.Bytes = b
	}
	return rec, nil
}

// readError makes a short read a corruption and leaves I/O errors alone.
func readError(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return err
}
