package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/skein-rl/skein/replay"
	"github.com/skein-rl/skein/replay/table"
)

// CreateRun implements replay.Store. A new run is placed where the fewest runs
// are unfinished, with the most free space among equals, unless it was placed
// before (Router.Place).
func (r *Router) CreateRun(ctx context.Context, spec replay.RunSpec) error {
	if err := spec.Validate(); err != nil {
		return err
	}
	ctx, cancel := bounded(ctx, 0)
	defer cancel()
	p, err := r.Placement(ctx, spec.Run)
	if err != nil {
		return err
	}
	if len(r.now()) == 1 {
		return r.Client.CreateRun(ctx, spec)
	}
	if p.Version == 0 {
		p.Shard, p.Tenant = r.emptiest(ctx), spec.Tenant
		if _, err = r.placeRun(ctx, p); err != nil {
			return err
		}
		r.forget(spec.Run)
	}
	return r.do(ctx, spec.Run, func(ctx context.Context, c *Client) error {
		if err := r.carry(ctx, c, append(slices.Clone(spec.Blobs), spec.StartAdapter)...); err != nil {
			return err
		}
		return c.CreateRun(ctx, spec)
	})
}

// emptiest chooses the shard of a new run among those that answer.
func (r *Router) emptiest(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, attemptTime)
	defer cancel()
	infos, _ := each(ctx, r, func(ctx context.Context, c named) (ShardInfo, error) { return c.Shard(ctx) })
	infos = slices.DeleteFunc(infos, func(i ShardInfo) bool { return i.Name == "" })
	if len(infos) == 0 {
		return replay.RootShard // the call there says what is wrong
	}
	return slices.MinFunc(infos, func(a, b ShardInfo) int {
		return cmp.Or(cmp.Compare(a.Unfinished, b.Unfinished), cmp.Compare(b.DiskFree, a.DiskFree), order(a.Name, b.Name))
	}).Name
}

// carry brings blobs to a shard that lacks them; those that no shard has are left
// to whoever needs them.
func (r *Router) carry(ctx context.Context, c *Client, digests ...string) error {
	for _, d := range digests {
		if d == "" {
			continue
		}
		_, err := c.GetBlob(ctx, d)
		if !errors.Is(err, replay.ErrNotFound) {
			if err != nil {
				return err
			}
			continue
		}
		data, err := r.GetBlob(ctx, d)
		if errors.Is(err, replay.ErrNotFound) {
			continue
		}
		if err == nil {
			_, err = c.PutBlob(ctx, data)
		}
		if err != nil {
			return fmt.Errorf("cluster: carry blob %s between shards: %w", d, err)
		}
	}
	return nil
}

// FinishRun implements replay.Store.
func (r *Router) FinishRun(ctx context.Context, run string) error {
	return r.do(ctx, run, func(ctx context.Context, c *Client) error { return c.FinishRun(ctx, run) })
}

// Runs implements replay.Store: those of all shards, by name.
func (r *Router) Runs(ctx context.Context) ([]string, error) {
	parts, err := each(ctx, r, func(ctx context.Context, c named) ([]string, error) { return c.Runs(ctx) })
	if err != nil || len(parts) == 1 {
		return slices.Concat(parts...), err
	}
	seen := map[string]bool{} // one that moves is in two
	for _, run := range slices.Concat(parts...) {
		seen[run] = true
	}
	return slices.Sorted(maps.Keys(seen)), nil
}

// Status implements replay.Store.
func (r *Router) Status(ctx context.Context, run string) (replay.RunStatus, error) {
	return to(ctx, r, run, 0, func(ctx context.Context, c *Client) (replay.RunStatus, error) { return c.Status(ctx, run) })
}

// TakeTickets implements replay.Store.
func (r *Router) TakeTickets(ctx context.Context, run, worker string, serves uint64, n int, wait time.Duration) ([]replay.Ticket, error) {
	return to(ctx, r, run, wait, func(ctx context.Context, c *Client) ([]replay.Ticket, error) {
		return c.TakeTickets(ctx, run, worker, serves, n, wait)
	})
}

// ReturnTicket implements replay.Store.
func (r *Router) ReturnTicket(ctx context.Context, run, group, worker string) error {
	return r.do(ctx, run, func(ctx context.Context, c *Client) error { return c.ReturnTicket(ctx, run, group, worker) })
}

// Append implements replay.Store. Records of a run that is on its way wait for
// its arrival, the others do not.
func (r *Router) Append(ctx context.Context, recs []replay.Record) ([]replay.AppendResult, error) {
	ctx, cancel := bounded(ctx, appendWait)
	defer cancel()
	out := make([]replay.AppendResult, len(recs))
	left := make([]int, len(recs))
	for i := range recs {
		left[i] = i
	}
	name := func(i int) string { return recs[i].Item.LogID }
	for b := (backoffTimer{}); ; {
		parts := map[*Client][]int{}
		for _, i := range left {
			c, err := r.where(ctx, recs[i].Item.Run)
			if err != nil {
				return nil, err
			}
			parts[c] = append(parts[c], i)
		}
		left = nil
		for c, at := range parts {
			part := make([]replay.Record, len(at))
			for k, i := range at {
				part[k] = recs[i]
			}
			res, err := c.Append(ctx, part)
			if len(res) != len(at) {
				return nil, err
			}
			for k, i := range at {
				if out[i] = res[k]; res[k].Moved() {
					left = append(left, i)
				}
			}
		}
		if len(left) == 0 {
			return out, replay.AppendError(name, out)
		}
		for _, i := range left {
			r.forget(recs[i].Item.Run)
		}
		if !b.sleep(ctx) { // the results say what is to be sent again
			return out, replay.AppendError(name, out)
		}
	}
}

// Fetch implements replay.Store. The ids do not say which run a log is of: the
// shard asked last is asked first, the others for what it lacks.
func (r *Router) Fetch(ctx context.Context, logIDs []string) ([]replay.Record, error) {
	out, err := first(ctx, r, func(c named) ([]replay.Record, error) { return c.Fetch(ctx, logIDs) })
	if !errors.Is(err, replay.ErrNotFound) || len(logIDs) < 2 || len(r.now()) == 1 {
		return out, err
	}
	half := len(logIDs) / 2 // of several shards
	a, err := r.Fetch(ctx, logIDs[:half])
	if err != nil {
		return nil, err
	}
	b, err := r.Fetch(ctx, logIDs[half:])
	if err != nil {
		return nil, err
	}
	return append(a, b...), nil
}

// Scan implements replay.Store.
func (r *Router) Scan(ctx context.Context, run, table, cursor string, limit int) (items []replay.Item, next string, err error) {
	err = r.do(ctx, run, func(ctx context.Context, c *Client) (err error) {
		items, next, err = c.Scan(ctx, run, table, cursor, limit)
		return err
	})
	return items, next, err
}

// DeleteLogs implements replay.Store.
func (r *Router) DeleteLogs(ctx context.Context, run string, logIDs []string, reason string) (int, error) {
	return to(ctx, r, run, 0, func(ctx context.Context, c *Client) (int, error) { return c.DeleteLogs(ctx, run, logIDs, reason) })
}

// Lease implements replay.Store.
func (r *Router) Lease(ctx context.Context, req replay.LeaseRequest) (*replay.Lease, error) {
	return to(ctx, r, req.Run, req.Wait, func(ctx context.Context, c *Client) (*replay.Lease, error) { return c.Lease(ctx, req) })
}

// Extend implements replay.Store.
func (r *Router) Extend(ctx context.Context, run string, lease uint64, ttl time.Duration) error {
	return r.do(ctx, run, func(ctx context.Context, c *Client) error { return c.Extend(ctx, run, lease, ttl) })
}

// Commit implements replay.Store. Blobs that were put into another shard are
// brought along.
func (r *Router) Commit(ctx context.Context, step replay.StepRecord) error {
	return r.do(ctx, step.Run, func(ctx context.Context, c *Client) error {
		err := c.Commit(ctx, step)
		if !errors.Is(err, replay.ErrInvalid) || len(r.now()) == 1 {
			return err
		}
		if cerr := r.carry(ctx, c, step.Checkpoint, step.Adapter); cerr != nil {
			return errors.Join(err, cerr)
		}
		return c.Commit(ctx, step)
	})
}

// Release implements replay.Store.
func (r *Router) Release(ctx context.Context, run string, lease uint64, drop string) error {
	return r.do(ctx, run, func(ctx context.Context, c *Client) error { return c.Release(ctx, run, lease, drop) })
}

// Step implements replay.Store.
func (r *Router) Step(ctx context.Context, run string, step uint64) (replay.StepRecord, error) {
	return to(ctx, r, run, 0, func(ctx context.Context, c *Client) (replay.StepRecord, error) { return c.Step(ctx, run, step) })
}

// Latest implements replay.Store.
func (r *Router) Latest(ctx context.Context, run string) (replay.Policy, error) {
	return to(ctx, r, run, 0, func(ctx context.Context, c *Client) (replay.Policy, error) { return c.Latest(ctx, run) })
}

// WaitPolicy implements replay.Store.
func (r *Router) WaitPolicy(ctx context.Context, run string, after uint64, wait time.Duration) (replay.Policy, error) {
	return to(ctx, r, run, wait, func(ctx context.Context, c *Client) (replay.Policy, error) {
		return c.WaitPolicy(ctx, run, after, wait)
	})
}

// PutBlob implements replay.Store. It goes to the shard of the newest call, where
// it is most likely wanted; Commit and CreateRun bring it elsewhere.
func (r *Router) PutBlob(ctx context.Context, data []byte) (string, error) {
	return r.now()[0].PutBlob(ctx, data)
}

// GetBlob implements replay.Store.
func (r *Router) GetBlob(ctx context.Context, digest string) ([]byte, error) {
	return first(ctx, r, func(c named) ([]byte, error) { return c.GetBlob(ctx, digest) })
}

// RequestEval implements replay.Store.
func (r *Router) RequestEval(ctx context.Context, req replay.EvalRequest) error {
	return r.do(ctx, req.Run, func(ctx context.Context, c *Client) error { return c.RequestEval(ctx, req) })
}

// EvalStatus implements replay.Store.
func (r *Router) EvalStatus(ctx context.Context, run string, version uint64) (replay.EvalStatus, error) {
	return to(ctx, r, run, 0, func(ctx context.Context, c *Client) (replay.EvalStatus, error) {
		return c.EvalStatus(ctx, run, version)
	})
}

// SetTable implements replay.TableStore.
func (r *Router) SetTable(ctx context.Context, run, name string, cfg table.Config, version uint64) (uint64, error) {
	return to(ctx, r, run, 0, func(ctx context.Context, c *Client) (uint64, error) { return c.SetTable(ctx, run, name, cfg, version) })
}

// Tables implements replay.TableStore.
func (r *Router) Tables(ctx context.Context, run string) ([]replay.TableStatus, error) {
	return to(ctx, r, run, 0, func(ctx context.Context, c *Client) ([]replay.TableStatus, error) { return c.Tables(ctx, run) })
}

// TableHistory implements replay.TableStore.
func (r *Router) TableHistory(ctx context.Context, run, name string) ([]replay.TableVersion, error) {
	return to(ctx, r, run, 0, func(ctx context.Context, c *Client) ([]replay.TableVersion, error) {
		return c.TableHistory(ctx, run, name)
	})
}

// TableGroups implements replay.TableStore.
func (r *Router) TableGroups(ctx context.Context, run, name, cursor string, limit int) (groups []replay.TableGroup, next string, err error) {
	err = r.do(ctx, run, func(ctx context.Context, c *Client) (err error) {
		groups, next, err = c.TableGroups(ctx, run, name, cursor, limit)
		return err
	})
	return groups, next, err
}

// InsertGroups implements replay.TableStore.
func (r *Router) InsertGroups(ctx context.Context, run, name string, groups []replay.GroupInsert) ([]replay.AppendResult, error) {
	return to(ctx, r, run, 0, func(ctx context.Context, c *Client) ([]replay.AppendResult, error) {
		return c.InsertGroups(ctx, run, name, groups)
	})
}

// UpdatePriorities implements replay.TableStore.
func (r *Router) UpdatePriorities(ctx context.Context, run, name string, updates []replay.GroupPriority) (int, error) {
	return to(ctx, r, run, 0, func(ctx context.Context, c *Client) (int, error) { return c.UpdatePriorities(ctx, run, name, updates) })
}

// RemoveGroups implements replay.TableStore.
func (r *Router) RemoveGroups(ctx context.Context, run, name string, groups []string, reason string) (int, error) {
	return to(ctx, r, run, 0, func(ctx context.Context, c *Client) (int, error) {
		return c.RemoveGroups(ctx, run, name, groups, reason)
	})
}

// SetQuota implements replay.TenantStore. Every shard bounds what the tenant's
// runs use there; the version is the root's.
func (r *Router) SetQuota(ctx context.Context, tenant string, q replay.Quota, version uint64) (uint64, error) {
	v, err := r.Client.SetQuota(ctx, tenant, q, version)
	if err != nil {
		return v, err
	}
	_, err = each(ctx, r, func(ctx context.Context, c named) (uint64, error) {
		if c.name == replay.RootShard {
			return v, nil
		}
		have, err := c.Tenants(ctx)
		if err != nil {
			return 0, err
		}
		var old uint64
		for _, t := range have {
			if t.Tenant == tenant {
				old = t.Version
			}
		}
		return c.SetQuota(ctx, tenant, q, old)
	})
	return v, err
}

// Tenants implements replay.TenantStore: sums over the shards, with the root's
// quotas.
func (r *Router) Tenants(ctx context.Context) ([]replay.TenantStatus, error) {
	parts, err := each(ctx, r, func(ctx context.Context, c named) ([]replay.TenantStatus, error) { return c.Tenants(ctx) })
	if err != nil || len(parts) == 1 {
		return slices.Concat(parts...), err
	}
	sums := map[string]replay.TenantStatus{}
	for _, t := range slices.Concat(parts...) { // the root's first
		s, ok := sums[t.Tenant]
		if !ok {
			sums[t.Tenant] = t
			continue
		}
		s.Bytes, s.Logs, s.Tickets = s.Bytes+t.Bytes, s.Logs+t.Logs, s.Tickets+t.Tickets
		s.Runs = slices.Compact(slices.Sorted(slices.Values(slices.Concat(s.Runs, t.Runs))))
		s.Refused = maps.Clone(s.Refused)
		for why, n := range t.Refused {
			if s.Refused == nil {
				s.Refused = map[string]int{}
			}
			s.Refused[why] += n
		}
		sums[t.Tenant] = s
	}
	var out []replay.TenantStatus
	for _, name := range slices.Sorted(maps.Keys(sums)) {
		out = append(out, sums[name])
	}
	return out, nil
}
