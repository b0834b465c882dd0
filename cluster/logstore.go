package cluster

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// errDiskStalled: a write to the raft log did not return in time.
var errDiskStalled = errors.New("cluster: raft log write stalled")

// deadlineLog is a log store whose writes end. Raft writes its log in its main
// loop while heartbeats go on beside it, so on a stalled disk a leader would
// keep its followers loyal and commit nothing for ever (hashicorp/raft#503).
// A failed write instead makes raft step down.
//
// A write that was given up may still reach the disk. Until it returns every
// write is refused at once; when it returns late, its entries are cut off
// again, because raft believes that they are not there.
type deadlineLog struct {
	raft.LogStore
	limit time.Duration
	log   *slog.Logger

	mu      sync.Mutex
	stalled error // not nil while a given-up write is still out
	wg      sync.WaitGroup
}

func newDeadlineLog(s raft.LogStore, limit time.Duration, log *slog.Logger) *deadlineLog {
	return &deadlineLog{LogStore: s, limit: limit, log: log}
}

// IsMonotonic tells raft what the store below requires.
func (d *deadlineLog) IsMonotonic() bool {
	m, ok := d.LogStore.(raft.MonotonicLogStore)
	return ok && m.IsMonotonic()
}

// StoreLog implements raft.LogStore.
func (d *deadlineLog) StoreLog(l *raft.Log) error { return d.StoreLogs([]*raft.Log{l}) }

// StoreLogs implements raft.LogStore.
func (d *deadlineLog) StoreLogs(logs []*raft.Log) error {
	if len(logs) == 0 {
		return nil
	}
	first, last := logs[0].Index, logs[len(logs)-1].Index
	return d.bounded(fmt.Sprintf("append %d..%d", first, last),
		func() error { return d.LogStore.StoreLogs(logs) },
		func() error { return d.LogStore.DeleteRange(first, last) })
}

// DeleteRange implements raft.LogStore. Deleting late what raft gave up
// deleting is harmless at the head; at the tail raft does not go on.
func (d *deadlineLog) DeleteRange(lo, hi uint64) error {
	return d.bounded(fmt.Sprintf("delete %d..%d", lo, hi),
		func() error { return d.LogStore.DeleteRange(lo, hi) },
		func() error { return nil })
}

// bounded runs write with the deadline, and undo when it ends too late.
func (d *deadlineLog) bounded(what string, write, undo func() error) error {
	d.mu.Lock()
	if err := d.stalled; err != nil {
		d.mu.Unlock()
		return err
	}
	d.mu.Unlock()
	done := make(chan error, 1)
	d.wg.Add(1)
	go func() {
		defer d.wg.Done()
		done <- write()
	}()
	t := time.NewTimer(d.limit)
	defer t.Stop()
	select {
	case err := <-done:
		return err
	case <-t.C:
	}
	err := fmt.Errorf("%w: %s took over %s: check the disk of this node", errDiskStalled, what, d.limit)
	d.mu.Lock()
	d.stalled = err
	d.mu.Unlock()
	d.log.Error("raft log write stalled; stepping down", "write", what, "limit", d.limit)
	d.wg.Add(1)
	go func() {
		defer d.wg.Done()
		werr := <-done
		if werr == nil {
			werr = undo()
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		if werr != nil {
			// The log's state is unknown: refuse until restart.
			d.stalled = fmt.Errorf("%w: then failed: %w: restart this node", errDiskStalled, werr)
			return
		}
		d.stalled = nil
		d.log.Info("raft log write came back", "write", what)
	}()
	return err
}

// wait returns when no write is out any more.
func (d *deadlineLog) wait() { d.wg.Wait() }
