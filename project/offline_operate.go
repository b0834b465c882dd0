package project

import (
	"context"
	"io"

	"github.com/skein-rl/skein/replay"
)

// replicas as an operator sees a stopped cluster: it can be read, not changed.

// Tail never waits: nothing newer can come.
func (r *replicas) Tail(_ context.Context, q replay.TailRequest) ([]replay.TailItem, error) {
	return view(r, func(kv replay.Reader) ([]replay.TailItem, error) { return replay.Tail(kv, q) })
}

func (r *replicas) TablesWithLogs(_ context.Context, run string) ([]string, error) {
	return view(r, func(kv replay.Reader) ([]string, error) { return replay.TablesWithLogs(kv, run) })
}

// Snapshot is that of the replica that is furthest.
func (r *replicas) Snapshot(context.Context) (io.ReadCloser, error) {
	snap := r.newest.Snapshot()
	out, in := io.Pipe()
	go func() { // ends when the reader has read or closed it
		_, err := snap.WriteTo(in)
		snap.Close()
		_ = in.CloseWithError(err)
	}()
	return out, nil
}

// ReadExact takes each log from the first replica that has it.
func (r *replicas) ReadExact(_ context.Context, logs []replay.Exact) (out []replay.Record, err error) {
	for _, l := range r.all {
		recs, err := l.ReadExact(logs)
		if err != nil {
			return nil, err
		}
		found := map[replay.Exact]bool{}
		for _, rec := range recs {
			if rec, err = rec.Unpack(); err != nil {
				continue // damaged here
			}
			out = append(out, rec)
			found[replay.Exact{LogID: rec.Item.LogID, Digest: rec.Item.Digest}] = true
		}
		var left []replay.Exact
		for _, x := range logs {
			if !found[x] {
				left = append(left, x)
			}
		}
		if logs = left; len(logs) == 0 {
			break
		}
	}
	return out, nil
}

func (r *replicas) Redact(context.Context, string, []replay.Twin, string) (int, error) {
	return 0, errStopped
}
func (r *replicas) DropTable(context.Context, string, string) error { return errStopped }
func (r *replicas) Import(context.Context, replay.Import) (replay.ImportResult, error) {
	return replay.ImportResult{}, errStopped
}
func (r *replicas) Compact(context.Context, replay.CompactRequest) (replay.CompactResult, error) {
	return replay.CompactResult{}, errStopped
}
func (r *replicas) Verify(context.Context) (replay.VerifyResult, error) {
	return replay.VerifyResult{}, errStopped
}
func (r *replicas) Repair(context.Context) ([]replay.NodeRepair, error) { return nil, errStopped }
