package segment

import (
	"bytes"
	"errors"
	"io"
)

// Gap is a stretch of a segment that holds no valid record.
type Gap struct {
	Pos   Position
	Bytes int64
	Cause error
}

// scanFile calls rec for every valid record of a file from offset off on, with
// where the next begins, and gap for every stretch without one, in order. A gap
// that reaches the end is the last call. A pack is a record without an ID.
func scanFile(r io.ReaderAt, number uint64, off, size int64, rec func(Entry, int64) error, gap func(Gap) error) error {
	var buf []byte
	checked := int64(-1) // offset of the pack that was verified last
	for off < size {
		h, err := readHeader(r, off, size)
		if err == nil {
			buf, err = readStored(r, off, h, buf)
		}
		if err == nil && h.flags&flagPack != 0 {
			checked = off
			if err := rec(Entry{Pos: Position{number, off}}, off+h.size()); err != nil {
				return err
			}
			off += h.size()
			continue
		}
		if err == nil && h.flags&flagMember != 0 {
			// Without its pack a member is worth nothing.
			var p place
			if p, err = readPlace(r, off, h); err == nil && p.pack != checked {
				if err = checkPack(r, p, size, h); err == nil {
					checked = p.pack
				}
			}
		}
		if err == nil {
			e := Entry{ID: h.id, Digest: h.digest, Pos: Position{number, off}, Size: h.raw, Packed: h.flags&flagMember != 0}
			if err := rec(e, off+h.size()); err != nil {
				return err
			}
			off += h.size()
			continue
		}
		if !errors.Is(err, ErrCorrupt) {
			return err // the device, not the bytes
		}
		next, ferr := nextRecord(r, off+1, size)
		if ferr != nil {
			return ferr
		}
		if err := gap(Gap{Pos: Position{number, off}, Bytes: next - off, Cause: err}); err != nil {
			return err
		}
		off = next
	}
	return nil
}

// nextRecord finds the first offset from off on where a valid record begins,
// or size.
func nextRecord(r io.ReaderAt, off, size int64) (int64, error) {
	const chunk = 1 << 16
	buf := make([]byte, chunk+len(recordMagic)-1)
	for ; off < size; off += chunk {
		n, err := r.ReadAt(buf[:min(int64(len(buf)), size-off)], off)
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		for at := 0; ; at++ {
			i := bytes.Index(buf[at:n], []byte(recordMagic))
			if i < 0 {
				break
			}
			at += i
			h, err := readHeader(r, off+int64(at), size)
			if err == nil {
				_, err = readStored(r, off+int64(at), h, nil)
			}
			if err == nil {
				return off + int64(at), nil
			}
			if !errors.Is(err, ErrCorrupt) {
				return 0, err
			}
		}
	}
	return size, nil
}

// logs is a callback of scanFile that leaves packs out.
func logs(fn func(Entry) error) func(Entry, int64) error {
	return func(e Entry, _ int64) error {
		if e.ID == "" {
			return nil
		}
		return fn(e)
	}
}
