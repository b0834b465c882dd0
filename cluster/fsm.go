package cluster

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/skein-rl/skein/replay"
)

// fsm applies committed raft entries to the storage, as many as raft hands over
// in one write. The storage remembers the index it has reached, in the same
// write, so entries that raft replays after a restart are skipped.
type fsm struct {
	store   storage
	changes *notifier
	log     *slog.Logger
	// failed is the first error of the storage. The node's copy can't be
	// trusted to follow any further, so it stops applying and leaves.
	failed atomic.Pointer[error]
	onFail func(error)
	// onMark gets the state behind an entry that asks for it; nil = nobody does.
	onMark func(id string, state *replay.StateSnapshot)
}

var errNotApplied = errors.New("cluster: entry was applied before")

// Apply implements raft.FSM.
func (f *fsm) Apply(l *raft.Log) any { return f.ApplyBatch([]*raft.Log{l})[0] }

// ApplyBatch implements raft.BatchingFSM. Each response is a replay.Result. A
// mark ends a write, so that the state can be taken right behind it.
func (f *fsm) ApplyBatch(logs []*raft.Log) []any {
	var out []any
	for len(logs) > 0 {
		k := 0
		for k < len(logs)-1 && markOf(logs[k]) == "" {
			k++
		}
		last := logs[k]
		out = append(out, f.apply(logs[:k+1])...)
		logs = logs[k+1:]
		if id := markOf(last); id != "" && f.onMark != nil && f.failed.Load() == nil && f.store.AppliedIndex() == last.Index {
			f.onMark(id, f.store.Snapshot())
		}
	}
	return out
}

// apply folds entries in one write.
func (f *fsm) apply(logs []*raft.Log) []any {
	out := make([]any, len(logs))
	if err := f.failed.Load(); err != nil {
		return fill(out, replay.Result{Err: *err})
	}
	applied := f.store.AppliedIndex()
	var entries []replay.Entry
	var at []int
	for i, l := range logs {
		out[i] = replay.Result{}
		if l.Type != raft.LogCommand {
			continue
		}
		if l.Index <= applied {
			out[i] = replay.Result{Err: errNotApplied}
			continue
		}
		entries, at = append(entries, replay.Entry{Index: l.Index, Cmd: l.Data}), append(at, i)
	}
	if len(entries) == 0 {
		return out
	}
	res, err := f.store.ApplyBatch(entries)
	if err == nil && len(res) != len(entries) {
		err = fmt.Errorf("cluster: storage answered %d of %d commands", len(res), len(entries))
	}
	if err != nil {
		f.fail(err)
		return fill(out, replay.Result{Err: *f.failed.Load()})
	}
	for k, i := range at {
		out[i] = res[k]
	}
	f.changes.wake()
	return out
}

func fill(out []any, r replay.Result) []any {
	for i := range out {
		out[i] = r
	}
	return out
}

func (f *fsm) fail(err error) {
	err = fmt.Errorf("cluster: replica can't apply the log: %w: %w", replay.ErrUnavailable, err)
	if f.failed.CompareAndSwap(nil, &err) {
		f.log.Error("replica failed; leaving its group", "err", err)
		f.onFail(err)
	}
}

// Snapshot implements raft.FSM.
func (f *fsm) Snapshot() (raft.FSMSnapshot, error) {
	if err := f.failed.Load(); err != nil {
		return nil, *err
	}
	return &snapshot{f.store.Snapshot()}, nil
}

// Restore implements raft.FSM.
func (f *fsm) Restore(r io.ReadCloser) error {
	defer func() { _ = r.Close() }()
	if err := f.store.Restore(r); err != nil {
		f.fail(err)
		return err
	}
	f.log.Info("restored from a snapshot", "applied", f.store.AppliedIndex())
	f.changes.wake()
	return nil
}

// snapshot streams what Snapshot captured.
type snapshot struct{ *replay.StateSnapshot }

// Persist implements raft.FSMSnapshot.
func (s *snapshot) Persist(sink raft.SnapshotSink) error {
	if _, err := s.WriteTo(sink); err != nil {
		return errors.Join(err, sink.Cancel())
	}
	return sink.Close()
}

// Release implements raft.FSMSnapshot.
func (s *snapshot) Release() { s.Close() }
