package project

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/skein-rl/skein/cluster"
	"github.com/skein-rl/skein/replay"
	"github.com/skein-rl/skein/replay/table"
)

// replicas reads a stopped local cluster from its nodes' folders: state from
// the replica that applied most, bytes from whichever holds them. It cannot
// write: only a majority of running nodes may decide.
type replicas struct {
	all    []*replay.Local
	newest *replay.Local
}

var _ replay.Store = (*replicas)(nil)

// openReplicas opens every replica of a stopped local cluster.
func openReplicas(ctx context.Context, dir string, l layout) (*Store, error) {
	r := &replicas{}
	for i := range l.Replay {
		rep, err := replay.OpenLocal(filepath.Join(replayDir(dir, i), "replay", cluster.StoreDir), replay.DefaultLocalOptions())
		if err != nil {
			return nil, errors.Join(fmt.Errorf("project: replica %d of %s (are its processes still running?): %w", i, dir, err), r.Close())
		}
		r.all = append(r.all, rep)
		if r.newest == nil || rep.AppliedIndex() > r.newest.AppliedIndex() {
			r.newest = rep
		}
	}
	return &Store{Store: r, Operator: r, close: r.Close}, ctx.Err()
}

// Close implements replay.Store.
func (r *replicas) Close() error {
	var errs []error
	for _, l := range r.all {
		errs = append(errs, l.Close())
	}
	return errors.Join(errs...)
}

func view[T any](r *replicas, f func(replay.Reader) (T, error)) (out T, err error) {
	err = r.newest.View(func(kv replay.Reader) (err error) {
		out, err = f(kv)
		return err
	})
	return out, err
}

func (r *replicas) Runs(context.Context) ([]string, error) { return view(r, replay.Runs) }

func (r *replicas) Status(_ context.Context, run string) (replay.RunStatus, error) {
	return view(r, func(kv replay.Reader) (replay.RunStatus, error) { return replay.Status(kv, run) })
}

func (r *replicas) Step(_ context.Context, run string, n uint64) (replay.StepRecord, error) {
	return view(r, func(kv replay.Reader) (replay.StepRecord, error) { return replay.Step(kv, run, n) })
}

func (r *replicas) Latest(_ context.Context, run string) (replay.Policy, error) {
	return view(r, func(kv replay.Reader) (replay.Policy, error) { return replay.Latest(kv, run) })
}

// WaitPolicy never waits: nothing newer can come.
func (r *replicas) WaitPolicy(_ context.Context, run string, after uint64, _ time.Duration) (replay.Policy, error) {
	return view(r, func(kv replay.Reader) (replay.Policy, error) {
		p, err := replay.Latest(kv, run)
		if err != nil || p.Version <= after {
			return p, err
		}
		return replay.PolicyAt(kv, run, after+1)
	})
}

func (r *replicas) EvalStatus(_ context.Context, run string, v uint64) (replay.EvalStatus, error) {
	return view(r, func(kv replay.Reader) (replay.EvalStatus, error) { return replay.EvalOf(kv, run, v) })
}

func (r *replicas) Scan(_ context.Context, run, table, cursor string, limit int) (items []replay.Item, next string, err error) {
	err = r.newest.View(func(kv replay.Reader) (err error) {
		items, next, err = replay.ScanItems(kv, run, table, cursor, limit)
		return err
	})
	return items, next, err
}

// Fetch takes each log from the first replica that has it.
func (r *replicas) Fetch(_ context.Context, ids []string) ([]replay.Record, error) {
	var out []replay.Record
	for _, id := range ids {
		var found []replay.Record
		var errs []error
		for _, l := range r.all {
			recs, _, err := l.ReadRecords([]string{id})
			if err == nil && len(recs) == 1 && recs[0].Bytes != nil {
				found = recs
				break
			}
			errs = append(errs, err)
		}
		if found == nil {
			return nil, fmt.Errorf("project: EventLog %s is on none of the %d replicas: %w", id, len(r.all), errors.Join(append(errs, replay.ErrNotFound)...))
		}
		out = append(out, found...)
	}
	return out, nil
}

// GetBlob takes the blob from the first replica that has it whole.
func (r *replicas) GetBlob(_ context.Context, digest string) ([]byte, error) {
	var errs []error
	for _, l := range r.all {
		b, err := l.GetBlob(digest)
		if err == nil {
			return b, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// errStopped answers everything that would change a stopped cluster.
var errStopped = fmt.Errorf("project: the cluster of this folder is not running, so nothing in it can change: start it with skein up: %w", replay.ErrUnavailable)

func (r *replicas) CreateRun(context.Context, replay.RunSpec) error { return errStopped }
func (r *replicas) FinishRun(context.Context, string) error         { return errStopped }
func (r *replicas) TakeTickets(context.Context, string, string, uint64, int, time.Duration) ([]replay.Ticket, error) {
	return nil, errStopped
}
func (r *replicas) ReturnTicket(context.Context, string, string, string) error { return errStopped }
func (r *replicas) Append(context.Context, []replay.Record) ([]replay.AppendResult, error) {
	return nil, errStopped
}
func (r *replicas) Lease(context.Context, replay.LeaseRequest) (*replay.Lease, error) {
	return nil, errStopped
}
func (r *replicas) Extend(context.Context, string, uint64, time.Duration) error { return errStopped }
func (r *replicas) Commit(context.Context, replay.StepRecord) error             { return errStopped }
func (r *replicas) Release(context.Context, string, uint64, string) error       { return errStopped }
func (r *replicas) PutBlob(context.Context, []byte) (string, error)             { return "", errStopped }
func (r *replicas) RequestEval(context.Context, replay.EvalRequest) error       { return errStopped }

func (r *replicas) Tables(_ context.Context, run string) ([]replay.TableStatus, error) {
	return view(r, func(kv replay.Reader) ([]replay.TableStatus, error) { return replay.Tables(kv, run) })
}

func (r *replicas) TableHistory(_ context.Context, run, name string) ([]replay.TableVersion, error) {
	return view(r, func(kv replay.Reader) ([]replay.TableVersion, error) { return replay.TableHistory(kv, run, name) })
}

func (r *replicas) TableGroups(_ context.Context, run, name, cursor string, limit int) (out []replay.TableGroup, next string, err error) {
	err = r.newest.View(func(kv replay.Reader) (err error) {
		out, next, err = replay.TableGroups(kv, run, name, cursor, limit)
		return err
	})
	return out, next, err
}

func (r *replicas) SetTable(context.Context, string, string, table.Config, uint64) (uint64, error) {
	return 0, errStopped
}
func (r *replicas) InsertGroups(context.Context, string, string, []replay.GroupInsert) ([]replay.AppendResult, error) {
	return nil, errStopped
}
func (r *replicas) UpdatePriorities(context.Context, string, string, []replay.GroupPriority) (int, error) {
	return 0, errStopped
}
func (r *replicas) RemoveGroups(context.Context, string, string, []string, string) (int, error) {
	return 0, errStopped
}
func (r *replicas) SetQuota(context.Context, string, replay.Quota, uint64) (uint64, error) {
	return 0, errStopped
}
func (r *replicas) Tenants(context.Context) ([]replay.TenantStatus, error) {
	return view(r, replay.Tenants)
}
func (r *replicas) DeleteLogs(context.Context, string, []string, string) (int, error) {
	return 0, errStopped
}
