package project

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"
	"time"
)

// Bounds of an appender: what a disk that is full, slow or gone may cost.
const (
	appendQueue   = 1024            // records on their way to the writing goroutine
	appendPending = 8 << 20         // bytes kept for a disk that may have space again
	appendClose   = 3 * time.Second // waited for a disk that does not answer
)

// tail is an append-only file as an appender sees it; os.File is one.
type tail interface {
	io.WriteCloser
	Truncate(size int64) error
}

// appender writes records to the end of a file, on a goroutine of its own, so
// that nothing that happens to the file reaches the caller: a queue that is full
// drops, a write that fails is cut off again and tried with the next record, in
// memory up to a bound. Every loss is counted; the log says when trouble begins
// and when it ends.
type appender struct {
	name string
	log  *slog.Logger
	in   chan entry
	done chan struct{}

	written, failed, dropped atomic.Uint64 // records; attempts; records

	// Of the goroutine.
	open    func() (f tail, size int64, last uint64, err error)
	f       tail
	good    int64  // bytes of whole records
	last    uint64 // step of the last whole record
	torn    bool   // bytes after good may be part of a record
	pending []entry
	bytes   int
	trouble bool
}

// entry is a whole record. One of a step that the file already has is left out.
type entry struct {
	step uint64
	data []byte
}

// newAppender starts the goroutine. open, called on it and again until it
// succeeds, gives the file, its size and the last step in it. Close ends it.
func newAppender(name string, log *slog.Logger, open func() (f tail, size int64, last uint64, err error)) *appender {
	a := &appender{name: name, log: log, open: open, in: make(chan entry, appendQueue), done: make(chan struct{})}
	go a.run()
	return a
}

// add never waits.
func (a *appender) add(step uint64, data []byte) {
	select {
	case a.in <- entry{step, data}:
	default:
		a.drop(1, errors.New("its queue is full"))
	}
}

// Close writes what is left and waits for that, but not for ever. Nothing may be
// added any more.
func (a *appender) Close() {
	close(a.in)
	t := time.NewTimer(appendClose)
	defer t.Stop()
	select {
	case <-a.done:
	case <-t.C:
		a.log.Error("metrics file does not answer; it lacks its last records, which the store has", "file", a.name)
	}
}

func (a *appender) run() {
	defer close(a.done)
	for e := range a.in {
		a.pending, a.bytes = append(a.pending, e), a.bytes+len(e.data)
		if len(a.in) == 0 || a.bytes > appendPending/2 {
			a.flush()
		}
	}
	a.flush()
	if n := len(a.pending); n > 0 {
		a.dropped.Add(uint64(n))
		a.log.Error("metrics file could not be written; it lacks its last records, which the store has", "file", a.name, "records", n)
	}
	if a.f != nil {
		if err := a.f.Close(); err != nil {
			a.failed.Add(1)
			a.log.Error("metrics file", "file", a.name, "error", err)
		}
	}
}

func (a *appender) flush() {
	if err := a.write(); err != nil {
		a.failed.Add(1)
		if !a.trouble {
			a.trouble = true
			a.log.Error("metrics cannot be written to this file; training goes on and writing is tried again", "file", a.name, "error", err)
		}
		n := 0
		for ; a.bytes > appendPending; n++ {
			a.bytes -= len(a.pending[n].data)
		}
		if n > 0 {
			a.pending = a.pending[n:]
			a.drop(n, err)
		}
		return
	}
	if a.trouble {
		a.trouble = false
		a.log.Info("metrics are written again", "file", a.name, "dropped", a.dropped.Load())
	}
}

// drop counts records that will never be written.
func (a *appender) drop(n int, why error) {
	if a.dropped.Add(uint64(n)) == uint64(n) {
		a.log.Error("records of a metrics file are dropped; the store has them", "file", a.name, "error", why)
	}
}

func (a *appender) write() (err error) {
	if a.f == nil {
		if a.f, a.good, a.last, err = a.open(); err != nil {
			a.f = nil
			return err
		}
	}
	if a.torn {
		if err := a.f.Truncate(a.good); err != nil {
			return fmt.Errorf("cutting a half record off: %w", err)
		}
		a.torn = false
	}
	for len(a.pending) > 0 {
		e := a.pending[0]
		if e.step > a.last {
			n, err := a.f.Write(e.data)
			if err == nil && n < len(e.data) {
				err = io.ErrShortWrite
			}
			if err != nil {
				a.torn = n > 0
				return err
			}
			a.good += int64(n)
			a.last = e.step
			a.written.Add(1)
		}
		a.pending, a.bytes = a.pending[1:], a.bytes-len(e.data)
	}
	a.pending = nil
	return nil
}
