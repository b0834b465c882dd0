package project

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// disk is a file in memory with room bytes left; a write that does not fit
// leaves what fits, as a full disk does.
type disk struct {
	mu      sync.Mutex
	data    []byte
	room    int
	stuck   chan struct{} // writes wait for it; nil = they do not
	noTrunc bool
	closed  bool
}

func (d *disk) Write(p []byte) (int, error) {
	if d.stuck != nil {
		<-d.stuck
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	n := min(len(p), d.room)
	d.data, d.room = append(d.data, p[:n]...), d.room-n
	if n < len(p) {
		return n, syscall.ENOSPC
	}
	return n, nil
}

func (d *disk) Truncate(size int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.noTrunc {
		return syscall.EIO
	}
	d.room += len(d.data) - int(size)
	d.data = d.data[:size]
	return nil
}

func (d *disk) Close() error { d.closed = true; return nil }

func (d *disk) free(n int) { d.mu.Lock(); d.room += n; d.mu.Unlock() }

func (d *disk) text() string { d.mu.Lock(); defer d.mu.Unlock(); return string(d.data) }

func testAppender(d *disk) (*appender, *bytes.Buffer) {
	var out bytes.Buffer
	return newAppender("test", slog.New(slog.NewTextHandler(&out, nil)), func() (tail, int64, uint64, error) { return d, int64(len(d.data)), 0, nil }), &out
}

func TestAppenderOnAFullDiskLosesNothingAndSaysItOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &disk{room: 5}
		a, log := testAppender(d)
		for i, line := range []string{"one\n", "two\n", "three\n", "four\n"} {
			a.add(uint64(i+1), []byte(line))
			synctest.Wait()
		}
		require.True(t, strings.HasPrefix("one\ntwo", d.text()), "%q", d.text())
		require.Equal(t, uint64(1), a.written.Load())
		require.Equal(t, uint64(3), a.failed.Load())
		require.Equal(t, 1, strings.Count(log.String(), "level=ERROR"))
		require.Contains(t, log.String(), "no space left")
		d.free(100)
		a.add(5, []byte("five\n"))
		synctest.Wait()
		require.Equal(t, "one\ntwo\nthree\nfour\nfive\n", d.text(), "no half line, none lost")
		require.Contains(t, log.String(), "written again")
		a.Close()
		require.True(t, d.closed)
		require.Zero(t, a.dropped.Load())
	})
}

func TestAppenderThatCannotCutAHalfRecordWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &disk{room: 2, noTrunc: true}
		a, _ := testAppender(d)
		a.add(1, []byte("one\n"))
		synctest.Wait()
		d.free(100)
		a.add(2, []byte("two\n"))
		synctest.Wait()
		require.Equal(t, "on", d.text(), "nothing is glued to half a line")
		d.mu.Lock()
		d.noTrunc = false
		d.mu.Unlock()
		a.Close()
		require.Equal(t, "one\ntwo\n", d.text())
	})
}

func TestAppenderBoundsMemoryAndCountsLosses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &disk{}
		a, log := testAppender(d)
		for i := range 10 {
			a.add(uint64(i+1), make([]byte, appendPending/4))
			synctest.Wait()
		}
		require.Equal(t, uint64(6), a.dropped.Load())
		require.LessOrEqual(t, a.bytes, appendPending)
		a.Close()
		require.Equal(t, uint64(10), a.dropped.Load())
		require.Equal(t, 3, strings.Count(log.String(), "level=ERROR"), log.String()) // trouble, first drop, the end
	})
}

// A disk that never answers: the caller never waits, and Close gives up.
func TestAppenderOnAStuckDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &disk{stuck: make(chan struct{}), room: 1 << 30}
		a, log := testAppender(d)
		a.add(1, []byte("x\n"))
		synctest.Wait()
		for i := range appendQueue + 10 {
			a.add(uint64(i+2), []byte("x\n"))
		}
		require.Equal(t, uint64(10), a.dropped.Load())
		a.Close() // after appendClose of the test's clock
		require.Contains(t, log.String(), "does not answer")
		close(d.stuck)
		<-a.done
	})
}

func TestAppenderOpensLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, tries := &disk{room: 100}, 0
		a := newAppender("test", slog.New(slog.DiscardHandler), func() (tail, int64, uint64, error) {
			if tries++; tries < 3 {
				return nil, 0, 0, errors.New("no folder")
			}
			return d, 0, 2, nil
		})
		for i, line := range []string{"1\n", "2\n", "3\n", "4\n"} {
			a.add(uint64(i+1), []byte(line))
			synctest.Wait()
		}
		a.Close()
		require.Equal(t, "3\n4\n", d.text(), "the file had the first two")
	})
}
