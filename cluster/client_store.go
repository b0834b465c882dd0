package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"

	pb "github.com/skein-rl/skein/cluster/internal/clusterpb"
	"github.com/skein-rl/skein/replay"
	"github.com/skein-rl/skein/replay/blob"
)

var _ replay.Store = (*Client)(nil)

// unary makes a call with one answer.
func unary[Q, A any](ctx context.Context, c *Client, what string, wait time.Duration, q *Q,
	rpc func(pb.ReplayClient, context.Context, *Q, ...grpc.CallOption) (*A, error)) (out *A, err error) {
	err = c.call(ctx, what, wait, func(ctx context.Context, l *link, _ bool) error {
		out, err = rpc(pb.NewReplayClient(l), ctx, q)
		return err
	})
	return out, err
}

// CreateRun implements replay.Store.
func (c *Client) CreateRun(ctx context.Context, spec replay.RunSpec) error {
	_, err := unary(ctx, c, "create run "+spec.Run, 0, &pb.CreateRunRequest{Spec: specTo(spec)},
		pb.ReplayClient.CreateRun)
	return err
}

// FinishRun implements replay.Store.
func (c *Client) FinishRun(ctx context.Context, run string) error {
	_, err := unary(ctx, c, "finish run "+run, 0, &pb.RunRequest{Run: run},
		pb.ReplayClient.FinishRun)
	return err
}

// Runs implements replay.Store.
func (c *Client) Runs(ctx context.Context) ([]string, error) {
	a, err := unary(ctx, c, "list runs", 0, &pb.Empty{},
		pb.ReplayClient.Runs)
	return a.GetRuns(), err
}

// Status implements replay.Store.
func (c *Client) Status(ctx context.Context, run string) (replay.RunStatus, error) {
	a, err := unary(ctx, c, "status of run "+run, 0, &pb.RunRequest{Run: run},
		pb.ReplayClient.Status)
	if err != nil {
		return replay.RunStatus{}, err
	}
	return statusFrom(a), nil
}

// TakeTickets implements replay.Store. A retry gets the tickets that an answer
// lost on the way gave.
func (c *Client) TakeTickets(ctx context.Context, run, worker string, serves uint64, n int, wait time.Duration) (out []replay.Ticket, err error) {
	id := uuid.NewString()
	end := time.Now().Add(wait)
	err = c.call(ctx, "take tickets of run "+run, wait, func(ctx context.Context, l *link, retry bool) error {
		a, err := pb.NewReplayClient(l).TakeTickets(ctx, &pb.TakeTicketsRequest{
			Run: run, Worker: worker, N: int64(n), Wait: int64(max(time.Until(end), 0)), RequestId: id, Retry: retry, Serves: &serves,
		})
		out = mapSlice(a.GetTickets(), ticketFrom)
		return err
	})
	return out, err
}

// ReturnTicket implements replay.Store.
func (c *Client) ReturnTicket(ctx context.Context, run, group, worker string) error {
	return c.call(ctx, "return ticket of group "+group, 0, func(ctx context.Context, l *link, retry bool) error {
		_, err := pb.NewReplayClient(l).ReturnTicket(ctx, &pb.ReturnTicketRequest{Run: run, Group: group, Worker: worker})
		return gone(l.fail(err), retry)
	})
}

// gone makes a success of a retry that finds nothing to undo any more: the
// first try did it.
func gone(err error, retry bool) error {
	if retry && (errors.Is(err, replay.ErrStale) || errors.Is(err, replay.ErrNotFound)) {
		return nil
	}
	return err
}

// Fetch implements replay.Store.
func (c *Client) Fetch(ctx context.Context, logIDs []string) (out []replay.Record, err error) {
	err = c.call(ctx, fmt.Sprintf("fetch %d logs", len(logIDs)), defaultTimeout, func(ctx context.Context, l *link, _ bool) error {
		out = make([]replay.Record, 0, len(logIDs))
		st, err := pb.NewReplayClient(l).Fetch(ctx, &pb.FetchRequest{LogIds: logIDs})
		if err != nil {
			return err
		}
		for {
			a, err := st.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return err
			}
			recs, err := unpackAll(mapSlice(a.GetRecords(), recordFrom))
			if err != nil {
				return err
			}
			out = append(out, recs...)
		}
		if len(out) != len(logIDs) {
			return fmt.Errorf("cluster: node %s sent %d of %d logs", l.addr, len(out), len(logIDs))
		}
		return nil
	})
	return out, err
}

// Scan implements replay.Store. A page has at most 4096 items.
func (c *Client) Scan(ctx context.Context, run, table, cursor string, limit int) ([]replay.Item, string, error) {
	a, err := unary(ctx, c, "scan run "+run, 0, &pb.ScanRequest{Run: run, Table: table, Cursor: cursor, Limit: int64(limit)},
		pb.ReplayClient.Scan)
	return mapSlice(a.GetItems(), itemFrom), a.GetNext(), err
}

// Lease implements replay.Store. A retry ends what an answer lost on the way
// gave: a holder has one lease.
func (c *Client) Lease(ctx context.Context, req replay.LeaseRequest) (out *replay.Lease, err error) {
	end := time.Now().Add(req.Wait)
	err = c.call(ctx, "lease of run "+req.Run, req.Wait, func(ctx context.Context, l *link, _ bool) error {
		req.Wait = max(time.Until(end), 0)
		a, err := pb.NewReplayClient(l).Lease(ctx, leaseReqTo(req))
		if out = nil; a.GetLease() != nil {
			out = leaseFrom(a.GetLease())
		}
		return err
	})
	return out, err
}

// Extend implements replay.Store.
func (c *Client) Extend(ctx context.Context, run string, lease uint64, ttl time.Duration) error {
	_, err := unary(ctx, c, "extend lease", 0, &pb.ExtendRequest{Run: run, Lease: lease, Ttl: int64(ttl)},
		pb.ReplayClient.Extend)
	return err
}

// Commit implements replay.Store. The fold takes the same record again as a
// success.
func (c *Client) Commit(ctx context.Context, step replay.StepRecord) error {
	_, err := unary(ctx, c, fmt.Sprintf("commit step %d of run %s", step.Step, step.Run), 0, stepTo(step),
		pb.ReplayClient.Commit)
	return err
}

// Release implements replay.Store.
func (c *Client) Release(ctx context.Context, run string, lease uint64, drop string) error {
	return c.call(ctx, "release lease", 0, func(ctx context.Context, l *link, retry bool) error {
		_, err := pb.NewReplayClient(l).Release(ctx, &pb.ReleaseRequest{Run: run, Lease: lease, Drop: drop})
		return gone(l.fail(err), retry)
	})
}

// Step implements replay.Store.
func (c *Client) Step(ctx context.Context, run string, step uint64) (replay.StepRecord, error) {
	a, err := unary(ctx, c, fmt.Sprintf("step %d of run %s", step, run), 0, &pb.StepRequest{Run: run, Step: step},
		pb.ReplayClient.Step)
	if err != nil {
		return replay.StepRecord{}, err
	}
	return stepFrom(a), nil
}

// Latest implements replay.Store.
func (c *Client) Latest(ctx context.Context, run string) (replay.Policy, error) {
	a, err := unary(ctx, c, "latest policy of run "+run, 0, &pb.RunRequest{Run: run},
		pb.ReplayClient.Latest)
	return policyFrom(a), err
}

// WaitPolicy implements replay.Store.
func (c *Client) WaitPolicy(ctx context.Context, run string, after uint64, wait time.Duration) (out replay.Policy, err error) {
	end := time.Now().Add(wait)
	err = c.call(ctx, "wait for a policy of run "+run, wait, func(ctx context.Context, l *link, _ bool) error {
		a, err := pb.NewReplayClient(l).WaitPolicy(ctx, &pb.WaitPolicyRequest{
			Run: run, After: after, Wait: int64(max(time.Until(end), 0))})
		out = policyFrom(a)
		return err
	})
	return out, err
}

// PutBlob implements replay.Store.
func (c *Client) PutBlob(ctx context.Context, data []byte) (string, error) {
	if len(data) > maxBlob {
		return "", fmt.Errorf("%w: blob of %d bytes: at most %d", replay.ErrInvalid, len(data), maxBlob)
	}
	digest := blob.Digest(data)
	err := c.call(ctx, "put blob "+digest, blobTime(len(data)), func(ctx context.Context, l *link, _ bool) error {
		st, err := pb.NewReplayClient(l).PutBlob(ctx)
		if err != nil {
			return err
		}
		return finishPut(sendBlob(digest, data, st.Send), st.CloseAndRecv, l.fail)
	})
	return digest, err
}

// GetBlob implements replay.Store. The digest is checked here as well.
func (c *Client) GetBlob(ctx context.Context, digest string) (data []byte, err error) {
	err = c.call(ctx, "get blob "+digest, blobTime(maxBlob), func(ctx context.Context, l *link, _ bool) error {
		st, err := pb.NewReplayClient(l).GetBlob(ctx, &pb.GetBlobRequest{Digest: digest})
		if err != nil {
			return err
		}
		data, err = receiveBlob(ctx, digest, st.Recv, semaphore.NewWeighted(maxBlob))
		return err
	})
	return data, err
}

// RequestEval implements replay.Store.
func (c *Client) RequestEval(ctx context.Context, req replay.EvalRequest) error {
	_, err := unary(ctx, c, "request evaluation", 0, evalReqTo(req),
		pb.ReplayClient.RequestEval)
	return err
}

// EvalStatus implements replay.Store.
func (c *Client) EvalStatus(ctx context.Context, run string, version uint64) (replay.EvalStatus, error) {
	a, err := unary(ctx, c, "evaluation status", 0, &pb.EvalStatusRequest{Run: run, Version: version},
		pb.ReplayClient.EvalStatus)
	if err != nil {
		return replay.EvalStatus{}, err
	}
	return evalFrom(a), nil
}
