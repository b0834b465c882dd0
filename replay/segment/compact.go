package segment

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/skein-rl/skein/replay/internal/disk"
)

// Info describes a file of the log.
type Info struct {
	Number   uint64
	Bytes    int64
	Modified time.Time // when it was last appended to
}

// Sealed lists the files that are not appended to any more, oldest first.
func (l *Log) Sealed() ([]Info, error) {
	l.mu.Lock()
	numbers := slices.Clone(l.segments[:len(l.segments)-1])
	l.mu.Unlock()
	out := make([]Info, 0, len(numbers))
	for _, n := range numbers {
		st, err := os.Stat(l.path(n))
		if err != nil {
			return nil, fmt.Errorf("segment %d: %w", n, err)
		}
		out = append(out, Info{n, st.Size(), st.ModTime()})
	}
	return out, nil
}

// Seal ends the file that is appended to, so that Sealed lists it. Nothing
// happens when it holds no record.
func (l *Log) Seal(ctx context.Context) error {
	return l.ask(ctx, &request{seal: true, done: make(chan error, 1)})
}

// ScanOne is Scan of one file.
func (l *Log) ScanOne(ctx context.Context, number uint64, fn func(Entry) error) (gaps []Gap, err error) {
	f, size, err := l.openRead(number)
	if err != nil {
		return nil, err
	}
	err = scanFile(f, number, fileHeader, size,
		logs(func(e Entry) error { return errors.Join(ctx.Err(), fn(e)) }),
		func(g Gap) error { gaps = append(gaps, g); return ctx.Err() })
	if err = errors.Join(err, f.Close()); err != nil {
		return gaps, fmt.Errorf("segment %d: scan: %w", number, err)
	}
	return gaps, nil
}

// Remove deletes a sealed file. Reads of its positions fail with an error that
// wraps fs.ErrNotExist from then on.
func (l *Log) Remove(number uint64) error {
	l.mu.Lock()
	i := slices.Index(l.segments, number)
	if i < 0 || i == len(l.segments)-1 {
		l.mu.Unlock()
		return fmt.Errorf("segment %d: remove: it is not a sealed file of this log", number)
	}
	l.segments = slices.Delete(l.segments, i, i+1)
	l.mu.Unlock()
	defer l.readers.forget(number) // after it can't be opened any more
	if err := errors.Join(os.Remove(l.path(number)), disk.SyncDir(l.dir)); err != nil {
		return fmt.Errorf("segment %d: remove: %w", number, err)
	}
	return nil
}
