package segment

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/skein-rl/skein/replay/internal/disk"
)

// Errors callers tell apart.
var (
	// ErrDiskFull: the free-space watermark is reached; nothing was written.
	ErrDiskFull = disk.ErrFull
	// ErrClosed: the log is closed.
	ErrClosed = errors.New("segment: log closed")
)

// Options of a log. The zero value is usable.
type Options struct {
	// MaxBytes is the size at which a file is closed and the next begun;
	// 0 = 64 MiB. One batch may exceed it.
	MaxBytes int64
	// MinFree is the watermark: an append that would leave fewer bytes free is
	// refused. 0 = no watermark.
	MinFree uint64
	// FreeSpace replaces statfs, for tests.
	FreeSpace disk.FreeFunc
	// OnDurable, when set, gets the entries of each batch after its fsync and
	// before its appenders are told, in the order of their positions, from one
	// goroutine.
	OnDurable func([]Entry)
	// Logger reports recovery and failures; nil = none.
	Logger *slog.Logger
}

// Stats counts since Open.
type Stats struct {
	Segments     int
	Records      uint64 // appended
	Bytes        uint64 // written, headers included
	Syncs        uint64
	TornBytes    int64 // cut from the tail at open
	CorruptBytes int64 // without a valid record, met at open
	Refused      uint64
}

// Log is a directory of segments. Safe for concurrent use.
type Log struct {
	dir     string
	opts    Options
	reqs    chan *request
	readers readers
	packs   unpacked
	quit    chan struct{}
	done    chan struct{}

	sync func(*os.File) error // fsync, or a test's

	// The committer's own.
	f      *os.File
	number uint64
	size   int64 // durable bytes of f
	broken bool  // f must not be written again

	mu       sync.Mutex
	segments []uint64
	closed   bool
	torn     int64
	corrupt  int64

	records, bytes, syncs, refused atomic.Uint64
}

// request is one Append.
type request struct {
	parts   [][]byte // headers and payloads in turn
	size    int
	entries []Entry // Pos.Offset relative to the first part until placed
	seal    bool    // nothing to write: end the current file
	done    chan error
}

// Limits of one group commit.
const (
	maxBatchBytes = 8 << 20
	maxBatch      = 512
)

// Open opens or creates a log in dir, cutting a torn tail.
func Open(dir string, opts Options) (*Log, error) {
	if opts.MaxBytes <= 0 {
		opts.MaxBytes = 64 << 20
	}
	if opts.FreeSpace == nil {
		opts.FreeSpace = disk.Free
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("segment: open %s: %w", dir, err)
	}
	l := &Log{
		dir: dir, opts: opts,
		reqs: make(chan *request, maxBatch), quit: make(chan struct{}), done: make(chan struct{}),
		sync: (*os.File).Sync,
	}
	if err := l.recover(); err != nil {
		return nil, fmt.Errorf("segment: open %s: %w", dir, err)
	}
	go l.commitLoop()
	return l, nil
}

func (l *Log) path(number uint64) string {
	return filepath.Join(l.dir, fmt.Sprintf("%016x.seg", number))
}

// recover lists the files and makes the last one ready for appending.
func (l *Log) recover() error {
	names, err := os.ReadDir(l.dir)
	if err != nil {
		return err
	}
	for _, e := range names {
		hex, ok := strings.CutSuffix(e.Name(), ".seg")
		n, err := strconv.ParseUint(hex, 16, 64)
		if !ok || err != nil || len(hex) != 16 {
			continue
		}
		l.segments = append(l.segments, n)
	}
	slices.Sort(l.segments)
	if len(l.segments) == 0 {
		return l.begin(1)
	}
	l.number = l.segments[len(l.segments)-1]
	return l.recoverLast()
}

func (l *Log) recoverLast() error {
	f, err := os.OpenFile(l.path(l.number), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	size, err := fileSize(f)
	if err == nil {
		err = checkHeaderOf(f, l.number)
	}
	if errors.Is(err, ErrCorrupt) && size <= fileHeader {
		// The crash came before the header was durable, so before any record.
		l.torn += size
		if err := errors.Join(f.Close(), os.Remove(l.path(l.number))); err != nil {
			return err
		}
		l.segments = l.segments[:len(l.segments)-1]
		return l.begin(l.number)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("%s: %w", l.path(l.number), err), f.Close())
	}
	end := int64(fileHeader)
	tail := int64(0)
	err = scanFile(f, l.number, fileHeader, size,
		func(_ Entry, next int64) error { end = next; return nil },
		func(g Gap) error {
			if g.Pos.Offset+g.Bytes == size {
				tail = g.Bytes
				return nil
			}
			l.corrupt += g.Bytes
			l.opts.Logger.Error("segment damaged, valid records follow: kept", "file", l.path(l.number), "offset", g.Pos.Offset, "bytes", g.Bytes, "err", g.Cause)
			return nil
		})
	if err == nil && tail > 0 {
		l.torn += tail
		l.opts.Logger.Warn("segment tail torn by a crash: cut", "file", l.path(l.number), "offset", end, "bytes", tail)
		err = f.Truncate(end)
	}
	if err == nil {
		// What a killed process wrote may still be in the page cache only.
		err = f.Sync()
	}
	if err != nil {
		return errors.Join(err, f.Close())
	}
	l.f, l.size = f, end
	if version, err := versionOf(f); err != nil || version == fileVersion {
		return err
	}
	return l.roll() // an older version is read, not written
}

// begin creates the segment with that number and makes it current.
func (l *Log) begin(number uint64) error {
	f, err := os.OpenFile(l.path(number), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(encodeFileHeader(number))
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = disk.SyncDir(l.dir)
	}
	if err != nil {
		return errors.Join(err, f.Close(), os.Remove(l.path(number)))
	}
	l.f, l.number, l.size, l.broken = f, number, fileHeader, false
	l.mu.Lock()
	l.segments = append(l.segments, number)
	l.mu.Unlock()
	return nil
}

// SyncFrom makes what the files from that number on hold durable. A file that was
// left behind after a failed sync may hold records that are in the page cache
// only: they must not be relied on before.
func (l *Log) SyncFrom(number uint64) error {
	l.mu.Lock()
	numbers := slices.Clone(l.segments)
	l.mu.Unlock()
	for _, n := range numbers {
		if n < number {
			continue
		}
		f, err := os.OpenFile(l.path(n), os.O_RDWR, 0)
		if err != nil {
			return fmt.Errorf("segment %d: %w", n, err)
		}
		if err := errors.Join(l.sync(f), f.Close()); err != nil {
			return fmt.Errorf("segment %d: sync: %w", n, err)
		}
	}
	return nil
}

// Append writes records behind each other and returns their entries once all
// are durable. After an error, or when ctx ends first, some may be there
// nevertheless and be found by Scan. Payloads are written from where they are:
// they must not be changed afterwards.
func (l *Log) Append(ctx context.Context, recs []Record) ([]Entry, error) {
	if len(recs) == 0 {
		return nil, nil
	}
	r, err := encode(recs)
	if err != nil {
		return nil, err
	}
	if err := l.ask(ctx, r); err != nil {
		return nil, err
	}
	return r.entries, nil
}

// ask hands a request to the committer and waits for its answer.
func (l *Log) ask(ctx context.Context, r *request) error {
	select {
	case l.reqs <- r:
	case <-l.quit:
		return ErrClosed
	case <-ctx.Done():
		return fmt.Errorf("segment: append: %w", ctx.Err())
	}
	select {
	case err := <-r.done:
		return err
	case <-l.done:
		// The committer may have answered just before it ended.
		select {
		case err := <-r.done:
			return err
		default:
			return ErrClosed
		}
	case <-ctx.Done():
		return fmt.Errorf("segment: append: %w", ctx.Err())
	}
}

// encode lays records out behind each other.
func encode(recs []Record) (*request, error) {
	r := &request{done: make(chan error, 1), entries: make([]Entry, len(recs)), parts: make([][]byte, 0, 2*len(recs))}
	heads := 0
	for _, rec := range recs {
		heads += recordHeader + len(rec.ID) + len(rec.Digest)
	}
	buf := make([]byte, 0, heads)
	for i, rec := range recs {
		r.entries[i] = Entry{ID: rec.ID, Digest: rec.Digest, Pos: Position{Offset: int64(r.size)}, Size: rec.size()}
		from := len(buf)
		var payload []byte
		var err error
		if buf, payload, err = appendHeader(buf, rec, 0); err != nil {
			return nil, err
		}
		r.parts = append(r.parts, buf[from:], payload)
		r.size += len(buf) - from + len(payload)
	}
	return r, nil
}

// Read returns the record at pos, verified and decompressed. ErrCorrupt and I/O
// errors are wrapped with the position.
func (l *Log) Read(pos Position) (Record, error) {
	rec, err := l.ReadStored(pos)
	if err != nil || len(rec.Zstd) == 0 {
		return rec, err
	}
	if rec.Bytes, err = Decompress(rec.Zstd, rec.Size); err != nil {
		return Record{}, fmt.Errorf("segment %d offset %d: %w", pos.Segment, pos.Offset, err)
	}
	rec.Zstd = nil
	return rec, nil
}

func (l *Log) openRead(number uint64) (*os.File, int64, error) {
	f, err := os.Open(l.path(number))
	if err != nil {
		return nil, 0, fmt.Errorf("segment %d: %w", number, err)
	}
	size, err := fileSize(f)
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, size, nil
}

// Scan calls fn for every valid record from position from on (the zero
// Position = the first), in order, verifying each. Damaged stretches are
// skipped and returned.
func (l *Log) Scan(ctx context.Context, from Position, fn func(Entry) error) ([]Gap, error) {
	l.mu.Lock()
	numbers := slices.Clone(l.segments)
	l.mu.Unlock()
	var gaps []Gap
	for _, n := range numbers {
		if n < from.Segment {
			continue
		}
		f, size, err := l.openRead(n)
		if err != nil {
			return gaps, err
		}
		off := int64(fileHeader)
		if n == from.Segment {
			off = max(off, from.Offset)
		}
		err = checkHeaderOf(f, n)
		if errors.Is(err, ErrCorrupt) {
			gaps = append(gaps, Gap{Pos: Position{n, 0}, Bytes: fileHeader, Cause: err})
			err = nil
		}
		if err == nil {
			err = scanFile(f, n, off, size,
				logs(func(e Entry) error {
					if err := ctx.Err(); err != nil {
						return err
					}
					return fn(e)
				}),
				func(g Gap) error { gaps = append(gaps, g); return ctx.Err() })
		}
		if err = errors.Join(err, f.Close()); err != nil {
			return gaps, fmt.Errorf("segment %d: scan: %w", n, err)
		}
	}
	return gaps, nil
}

// Stats returns the counters.
func (l *Log) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Stats{
		Segments: len(l.segments), Records: l.records.Load(), Bytes: l.bytes.Load(), Syncs: l.syncs.Load(),
		TornBytes: l.torn, CorruptBytes: l.corrupt, Refused: l.refused.Load(),
	}
}

// Close refuses new appends, finishes those that wait, and closes the file.
func (l *Log) Close() error {
	l.mu.Lock()
	closed := l.closed
	l.closed = true
	l.mu.Unlock()
	if closed {
		return nil
	}
	close(l.quit)
	<-l.done
	l.readers.close()
	return l.f.Close()
}

func fileSize(f *os.File) (int64, error) {
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return st.Size(), nil
}

// versionOf reads the version of a file whose header is valid.
func versionOf(r io.ReaderAt) (uint32, error) {
	var b [12]byte
	_, err := r.ReadAt(b[:], 0)
	return binary.LittleEndian.Uint32(b[8:]), err
}

func checkHeaderOf(r io.ReaderAt, number uint64) error {
	b := make([]byte, fileHeader)
	n, err := r.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return checkFileHeader(b[:n], number)
}
