package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/skein-rl/skein/replay"
)

// Store is the node's own store: it answers while the node leads and sends the
// caller on otherwise. In a single process it is the Store to use; where there
// are several nodes use Dial, which follows the leader.
func (n *Node) Store() replay.Store { return &nodeStore{n} }

// nodeStore implements replay.Store on the leader.
type nodeStore struct{ n *Node }

const defaultTimeout = 60 * time.Second // of a call whose ctx has no deadline

func bounded(ctx context.Context, wait time.Duration) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, defaultTimeout+max(wait, 0))
}

func (s *nodeStore) do(ctx context.Context, cmd replay.Command) error {
	ctx, cancel := bounded(ctx, 0)
	defer cancel()
	_, err := s.n.propose(ctx, cmd)
	return err
}

func query[T any](ctx context.Context, n *Node, fn func(kv replay.Reader) (T, error)) (out T, err error) {
	ctx, cancel := bounded(ctx, 0)
	defer cancel()
	err = n.view(ctx, func(kv replay.Reader) (err error) {
		out, err = fn(kv)
		return err
	})
	return out, err
}

// CreateRun implements replay.Store.
func (s *nodeStore) CreateRun(ctx context.Context, spec replay.RunSpec) error {
	if err := spec.Validate(); err != nil {
		return err
	}
	if spec.StartAdapter != "" {
		if err := s.n.blobs.need(ctx, "start_adapter", spec.StartAdapter); err != nil {
			return err
		}
	}
	return s.do(ctx, replay.CreateRunCmd{Now: s.n.now(), Spec: spec})
}

// FinishRun implements replay.Store.
func (s *nodeStore) FinishRun(ctx context.Context, run string) error {
	return s.do(ctx, replay.FinishRunCmd{Now: s.n.now(), Run: run})
}

// Runs implements replay.Store.
func (s *nodeStore) Runs(ctx context.Context) ([]string, error) {
	return query(ctx, s.n, replay.Runs)
}

// Status implements replay.Store.
func (s *nodeStore) Status(ctx context.Context, run string) (replay.RunStatus, error) {
	return query(ctx, s.n, func(kv replay.Reader) (replay.RunStatus, error) { return replay.Status(kv, run) })
}

// TakeTickets implements replay.Store.
func (s *nodeStore) TakeTickets(ctx context.Context, run, worker string, serves uint64, n int, wait time.Duration) ([]replay.Ticket, error) {
	return s.n.takeTickets(ctx, replay.TakeTicketsCmd{Run: run, Worker: worker, N: n}, serves, wait, false)
}

// takeTickets proposes only when there is something to hand out, or on a
// retry, whose first try may have taken tickets that did not arrive: those a
// worker gets however old its policy is by now.
func (n *Node) takeTickets(ctx context.Context, cmd replay.TakeTicketsCmd, serves uint64, wait time.Duration, retry bool) (out []replay.Ticket, err error) {
	err = n.pollRun(ctx, cmd.Run, wait, func(ctx context.Context) (bool, error) {
		some := retry
		if !some {
			err := n.store.View(func(kv replay.Reader) (err error) {
				if some, err = replay.HasTickets(kv, cmd.Run, cmd.Worker, n.now()); err != nil || !some {
					return err
				}
				return replay.CheckServes(kv, cmd.Run, cmd.Worker, serves)
			})
			if errors.Is(err, replay.ErrStale) {
				n.metrics.staleTakes.Inc()
			}
			if err != nil || !some {
				return false, err
			}
		}
		retry = false
		cmd.Now = n.now()
		res, err := n.propose(ctx, cmd)
		out = res.Tickets
		return len(out) > 0, err
	})
	return out, err
}

// pollRun is poll for what a run has: a run that leaves for another shard meanwhile
// ends it with replay.ErrMoved, whatever try sees of what is left.
func (n *Node) pollRun(ctx context.Context, run string, wait time.Duration, try func(context.Context) (done bool, err error)) error {
	err := n.poll(ctx, wait, func(ctx context.Context) (bool, error) {
		if err := n.awayFrom(run); err != nil {
			return false, err
		}
		return try(ctx)
	})
	if err == nil {
		return nil
	}
	if away := n.awayFrom(run); errors.Is(away, replay.ErrMoved) {
		return away
	}
	return err
}

// poll calls try now and after every change until it is done or wait is over.
func (n *Node) poll(ctx context.Context, wait time.Duration, try func(context.Context) (done bool, err error)) error {
	ctx, cancel := bounded(ctx, wait)
	defer cancel()
	t := time.NewTimer(wait)
	defer t.Stop()
	for {
		changed := n.changes.changed()
		if err := n.mustLead(); err != nil {
			return err
		}
		if done, err := try(ctx); done || err != nil {
			return err
		}
		if wait <= 0 {
			return nil
		}
		select {
		case <-changed:
		case <-t.C:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("cluster: node %s: wait: %w", n.id, ctx.Err())
		case <-n.ctx.Done():
			return fmt.Errorf("cluster: node %s is closing: %w", n.id, replay.ErrUnavailable)
		}
	}
}

// ReturnTicket implements replay.Store.
func (s *nodeStore) ReturnTicket(ctx context.Context, run, group, worker string) error {
	return s.do(ctx, replay.ReturnTicketCmd{Now: s.n.now(), Run: run, Group: group, Worker: worker})
}

// Append implements replay.Store.
func (s *nodeStore) Append(ctx context.Context, recs []replay.Record) ([]replay.AppendResult, error) {
	ctx, cancel := bounded(ctx, 0)
	defer cancel()
	return s.n.app.append(ctx, recs)
}

// Fetch implements replay.Store.
func (s *nodeStore) Fetch(ctx context.Context, logIDs []string) ([]replay.Record, error) {
	ctx, cancel := bounded(ctx, 0)
	defer cancel()
	if err := s.n.view(ctx, func(replay.Reader) error { return nil }); err != nil {
		return nil, err
	}
	recs, err := s.n.repairs.read(ctx, logIDs)
	if err != nil {
		return nil, err
	}
	return unpackAll(recs)
}

// unpackAll unpacks records in place.
func unpackAll(recs []replay.Record) (_ []replay.Record, err error) {
	for i := range recs {
		if recs[i], err = recs[i].Unpack(); err != nil {
			return nil, fmt.Errorf("cluster: stored log: %w", err)
		}
	}
	return recs, nil
}

// Scan implements replay.Store. A page has at most maxPage items, whatever the
// limit.
func (s *nodeStore) Scan(ctx context.Context, run, table, cursor string, limit int) (items []replay.Item, next string, err error) {
	ctx, cancel := bounded(ctx, 0)
	defer cancel()
	err = s.n.view(ctx, func(kv replay.Reader) (err error) {
		items, next, err = replay.ScanItems(kv, run, table, cursor, min(limit, maxPage))
		return err
	})
	return items, next, err
}

// Lease implements replay.Store.
func (s *nodeStore) Lease(ctx context.Context, req replay.LeaseRequest) (lease *replay.Lease, err error) {
	n, first := s.n, true // the first try also reports what is wrong with the request
	blocked := ""
	err = n.pollRun(ctx, req.Run, req.Wait, func(ctx context.Context) (bool, error) {
		ready := first
		if first = false; !ready {
			err := n.store.View(func(kv replay.Reader) (err error) {
				ready, err = replay.ReadyFor(kv, req)
				return err
			})
			if err != nil || !ready {
				return false, err
			}
		}
		res, err := n.propose(ctx, replay.AcquireLeaseCmd{Now: n.now(), Request: req})
		lease, blocked = res.Lease, res.Blocked
		return lease != nil, err
	})
	if err == nil && lease == nil && req.Table != "" && req.Table != replay.TableTrain {
		err = n.store.View(func(kv replay.Reader) error {
			why, err := replay.Blocked(kv, req)
			return cmp.Or(err, fmt.Errorf("%w: %d groups of table %q of run %q after %v: %s", replay.ErrTimeout, req.Groups, req.Table, req.Run, req.Wait, cmp.Or(why, blocked)))
		})
	}
	return lease, err
}

// Extend implements replay.Store.
func (s *nodeStore) Extend(ctx context.Context, run string, lease uint64, ttl time.Duration) error {
	return s.do(ctx, replay.ExtendLeaseCmd{Now: s.n.now(), Run: run, Lease: lease, TTL: ttl})
}

// Commit implements replay.Store. The blobs a step names must be stored: a
// policy that nobody can fetch would stop every worker.
func (s *nodeStore) Commit(ctx context.Context, step replay.StepRecord) error {
	ctx, cancel := bounded(ctx, 0)
	defer cancel()
	if err := s.n.mustLead(); err != nil {
		return err
	}
	for _, b := range []struct{ field, digest string }{{"checkpoint", step.Checkpoint}, {"adapter", step.Adapter}} {
		if b.digest == "" {
			continue
		}
		if err := s.n.blobs.need(ctx, b.field, b.digest); err != nil {
			return fmt.Errorf("commit step %d of run %q: %w", step.Step, step.Run, err)
		}
	}
	return s.do(ctx, replay.CommitStepCmd{Now: s.n.now(), Step: step})
}

// Release implements replay.Store.
func (s *nodeStore) Release(ctx context.Context, run string, lease uint64, drop string) error {
	return s.do(ctx, replay.ReleaseLeaseCmd{Now: s.n.now(), Run: run, Lease: lease, Drop: drop})
}

// Step implements replay.Store.
func (s *nodeStore) Step(ctx context.Context, run string, step uint64) (replay.StepRecord, error) {
	return query(ctx, s.n, func(kv replay.Reader) (replay.StepRecord, error) { return replay.Step(kv, run, step) })
}

// Latest implements replay.Store.
func (s *nodeStore) Latest(ctx context.Context, run string) (replay.Policy, error) {
	return query(ctx, s.n, func(kv replay.Reader) (replay.Policy, error) { return replay.Latest(kv, run) })
}

// WaitPolicy implements replay.Store.
func (s *nodeStore) WaitPolicy(ctx context.Context, run string, after uint64, wait time.Duration) (replay.Policy, error) {
	err := s.n.pollRun(ctx, run, wait, func(context.Context) (newer bool, err error) {
		err = s.n.store.View(func(kv replay.Reader) error {
			p, err := replay.Latest(kv, run)
			newer = p.Version > after
			return err
		})
		return newer, err
	})
	if err != nil {
		return replay.Policy{}, err
	}
	return query(ctx, s.n, func(kv replay.Reader) (replay.Policy, error) {
		if err := replay.Elsewhere(kv, run); err != nil {
			return replay.Policy{}, err
		}
		p, err := replay.Latest(kv, run)
		if err != nil || p.Version <= after {
			return p, err
		}
		return replay.PolicyAt(kv, run, after+1)
	})
}

// PutBlob implements replay.Store.
func (s *nodeStore) PutBlob(ctx context.Context, data []byte) (string, error) {
	ctx, cancel := bounded(ctx, 0)
	defer cancel()
	return s.n.blobs.put(ctx, data)
}

// GetBlob implements replay.Store.
func (s *nodeStore) GetBlob(ctx context.Context, digest string) ([]byte, error) {
	ctx, cancel := bounded(ctx, 0)
	defer cancel()
	if err := s.n.mustLead(); err != nil {
		return nil, err
	}
	return s.n.blobs.get(ctx, digest)
}

// RequestEval implements replay.Store.
func (s *nodeStore) RequestEval(ctx context.Context, req replay.EvalRequest) error {
	return s.do(ctx, replay.RequestEvalCmd{Now: s.n.now(), Request: req})
}

// EvalStatus implements replay.Store.
func (s *nodeStore) EvalStatus(ctx context.Context, run string, version uint64) (replay.EvalStatus, error) {
	return query(ctx, s.n, func(kv replay.Reader) (replay.EvalStatus, error) { return replay.EvalOf(kv, run, version) })
}

// Close implements replay.Store. The node goes on; close it by itself.
func (s *nodeStore) Close() error { return nil }
