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

// scanFile calls rec for every valid record of a file from offset off on, and
// gap for every stretch without one, in order. A gap that reaches the end is
// the last call.
func scanFile(r io.ReaderAt, number uint64, off, size int64, rec func(Entry, int64) error, gap func(Gap) error) error {
	var buf []byte
	for off < size {
		h, err := readHeader(r, off, size)
		if err == nil {
			buf, err = readStored(r, off, h, buf)
		}
		if err == nil {
			e := Entry{ID: h.id, Digest: h.digest, Pos: Position{number, off}, Size: h.raw}
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
