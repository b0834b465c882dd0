package segment

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
)

// maxReaders is how many files are kept open for reading.
const maxReaders = 16

// readers keeps the files read last open: a read then costs no open and close.
type readers struct {
	mu     sync.Mutex
	files  map[uint64]*os.File
	recent []uint64 // most recently used last
	closed bool
}

// get returns the file with that number, opened by open when it is not there.
// The caller must not close it; it may be closed meanwhile, see [Log.ReadStored].
func (r *readers) get(number uint64, open func() (*os.File, error)) (*os.File, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if f := r.files[number]; f != nil {
		r.use(number)
		return f, nil
	}
	if r.closed {
		return nil, ErrClosed
	}
	f, err := open()
	if err != nil {
		return nil, err
	}
	if len(r.recent) >= maxReaders {
		r.drop(r.recent[0])
	}
	if r.files == nil {
		r.files = map[uint64]*os.File{}
	}
	r.files[number] = f
	r.recent = append(r.recent, number)
	return f, nil
}

func (r *readers) use(number uint64) {
	for i, n := range r.recent {
		if n == number {
			copy(r.recent[i:], r.recent[i+1:])
			r.recent[len(r.recent)-1] = number
			return
		}
	}
}

func (r *readers) drop(number uint64) {
	if f := r.files[number]; f != nil {
		_ = f.Close() // only read from
		delete(r.files, number)
	}
	for i, n := range r.recent {
		if n == number {
			r.recent = append(r.recent[:i], r.recent[i+1:]...)
			return
		}
	}
}

// forget closes a file that is about to be removed.
func (r *readers) forget(number uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drop(number)
}

func (r *readers) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	for _, f := range r.files {
		_ = f.Close()
	}
	r.files, r.recent = nil, nil
}

// ReadStored is Read without decompression: the record has Bytes or Zstd, as it
// was stored.
func (l *Log) ReadStored(pos Position) (Record, error) {
	for {
		f, err := l.readers.get(pos.Segment, func() (*os.File, error) { return os.Open(l.path(pos.Segment)) })
		if err != nil {
			return Record{}, fmt.Errorf("segment %d: %w", pos.Segment, err)
		}
		size, err := fileSize(f)
		var rec Record
		if err == nil {
			rec, err = readRecord(&aheadReader{r: f, off: pos.Offset, size: size}, pos.Offset, size, l.packs.get(pos.Segment))
		}
		if errors.Is(err, os.ErrClosed) {
			continue // others were read meanwhile, or it is removed: then it can't be opened
		}
		if err != nil {
			return Record{}, fmt.Errorf("segment %d offset %d: %w", pos.Segment, pos.Offset, err)
		}
		return rec, nil
	}
}

// aheadBytes covers most records' header, id and digest.
const aheadBytes = 256

// aheadReader reads the first bytes of a record once.
type aheadReader struct {
	r         io.ReaderAt
	off, size int64
	n         int // of buf; 0 = nothing read yet
	buf       [aheadBytes]byte
}

// ReadAt implements io.ReaderAt.
func (a *aheadReader) ReadAt(b []byte, off int64) (int, error) {
	at := off - a.off
	if at < 0 || at+int64(len(b)) > aheadBytes {
		return a.r.ReadAt(b, off)
	}
	if a.n == 0 {
		n, err := a.r.ReadAt(a.buf[:max(min(aheadBytes, a.size-a.off), 0)], a.off)
		if err != nil {
			return 0, err
		}
		a.n = n
	}
	if at+int64(len(b)) > int64(a.n) {
		return 0, io.ErrUnexpectedEOF
	}
	return copy(b, a.buf[at:]), nil
}
