package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"google.golang.org/grpc"

	pb "github.com/skein-rl/skein/cluster/internal/clusterpb"
	"github.com/skein-rl/skein/replay"
)

var (
	_ replay.Operator = (*Client)(nil)
	_ replay.Operator = (*nodeStore)(nil)
)

// operate makes a call of the Operate service with one answer.
func operate[Q, A any](ctx context.Context, c *Client, what string, wait time.Duration, q *Q,
	rpc func(pb.OperateClient, context.Context, *Q, ...grpc.CallOption) (*A, error)) (out *A, err error) {
	err = c.call(ctx, what, wait, func(ctx context.Context, l *link, _ bool) error {
		out, err = rpc(pb.NewOperateClient(l), ctx, q)
		return err
	})
	return out, err
}

// Tail implements replay.Operator.
func (c *Client) Tail(ctx context.Context, q replay.TailRequest) (out []replay.TailItem, err error) {
	end := time.Now().Add(q.Wait)
	err = c.call(ctx, "follow run "+q.Run, q.Wait, func(ctx context.Context, l *link, _ bool) error {
		a, err := pb.NewOperateClient(l).Tail(ctx, &pb.TailRequest{Run: q.Run, Table: q.Table, Token: q.Token, Limit: int64(q.Limit), Wait: int64(max(time.Until(end), 0))})
		if err != nil {
			return err
		}
		if len(a.GetTokens()) != len(a.GetItems()) {
			return fmt.Errorf("cluster: node %s sent %d tokens for %d items", l.addr, len(a.GetTokens()), len(a.GetItems()))
		}
		out = nil
		for i, it := range a.GetItems() {
			out = append(out, replay.TailItem{Item: itemFrom(it), Token: a.GetTokens()[i]})
		}
		return nil
	})
	return out, err
}

// TablesWithLogs implements replay.Operator.
func (c *Client) TablesWithLogs(ctx context.Context, run string) ([]string, error) {
	a, err := operate(ctx, c, "tables of run "+run, 0, &pb.RunRequest{Run: run}, pb.OperateClient.TablesWithLogs)
	return a.GetNames(), err
}

// packTwins cuts twins into requests that fit a message.
func packTwins(twins []replay.Twin) (out [][]replay.Twin) {
	size := 0
	for i, t := range twins {
		if i == 0 || size+len(t.Bytes) > chunkBytes || len(out[len(out)-1]) >= maxItems {
			out, size = append(out, nil), 0
		}
		out[len(out)-1] = append(out[len(out)-1], t)
		size += len(t.Bytes)
	}
	return out
}

// Redact implements replay.Operator. Twins go in requests of about a megabyte,
// each redacted as one. After a retry the count may leave out what the first try
// did.
func (c *Client) Redact(ctx context.Context, run string, twins []replay.Twin, reason string) (n int, err error) {
	for _, part := range packTwins(twins) {
		a, err := operate(ctx, c, fmt.Sprintf("redact %d logs", len(part)), appendWait,
			&pb.RedactRequest{Run: run, Reason: reason, Twins: mapSlice(part, twinTo)}, pb.OperateClient.Redact)
		if n += int(a.GetCount()); err != nil {
			return n, err
		}
	}
	return n, nil
}

// DropTable implements replay.Operator.
func (c *Client) DropTable(ctx context.Context, run, table string) error {
	return c.call(ctx, "drop table "+table, 0, func(ctx context.Context, l *link, retry bool) error {
		_, err := pb.NewOperateClient(l).DropTable(ctx, &pb.TableRequest{Run: run, Table: table})
		if err = l.fail(err); retry && errors.Is(err, replay.ErrNotFound) {
			return nil // the first try did it
		}
		return err
	})
}

// Import implements replay.Operator. Records go in requests of about a megabyte.
func (c *Client) Import(ctx context.Context, in replay.Import) (out replay.ImportResult, err error) {
	send := func(q *pb.ImportRequest) (*pb.ImportResponse, error) {
		q.Run, q.Policy = in.Run, policyTo(in.Policy)
		return operate(ctx, c, "import into run "+in.Run, appendWait, q, pb.OperateClient.Import)
	}
	for _, p := range pack(in.Records) {
		a, err := send(&pb.ImportRequest{Records: mapSlice(in.Records[p.from:p.to], recordTo)})
		if err != nil {
			return out, err
		}
		out.Records = append(out.Records, mapSlice(a.GetRecords(), resultFrom)...)
	}
	for part := range slices.Chunk(in.Groups, maxItems) {
		a, err := send(&pb.ImportRequest{Groups: mapSlice(part, importGroupTo)})
		if err != nil {
			return out, err
		}
		out.Groups = append(out.Groups, mapSlice(a.GetGroups(), resultFrom)...)
	}
	if len(out.Records) != len(in.Records) || len(out.Groups) != len(in.Groups) {
		return out, fmt.Errorf("cluster: import: %d and %d answers for %d logs and %d groups", len(out.Records), len(out.Groups), len(in.Records), len(in.Groups))
	}
	return out, nil
}

// longer gives ctx time for work on every node when it has no deadline.
func longer(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, upkeepTime+defaultTimeout)
}

// Compact implements replay.Operator.
func (c *Client) Compact(ctx context.Context, q replay.CompactRequest) (replay.CompactResult, error) {
	ctx, cancel := longer(ctx)
	defer cancel()
	a, err := operate(ctx, c, "compact", upkeepTime, compactTo(q), pb.OperateClient.Compact)
	return replay.CompactResult{Nodes: mapSlice(a.GetNodes(), nodeCompactionFrom), Forgotten: int(a.GetForgotten())}, err
}

// Verify implements replay.Operator.
func (c *Client) Verify(ctx context.Context) (replay.VerifyResult, error) {
	ctx, cancel := longer(ctx)
	defer cancel()
	a, err := operate(ctx, c, "verify", upkeepTime, &pb.VerifyRequest{}, pb.OperateClient.Verify)
	return replay.VerifyResult{Index: a.GetIndex(), Nodes: mapSlice(a.GetNodes(), nodeVerificationFrom)}, err
}

// Repair implements replay.Operator.
func (c *Client) Repair(ctx context.Context) ([]replay.NodeRepair, error) {
	ctx, cancel := longer(ctx)
	defer cancel()
	a, err := operate(ctx, c, "repair", upkeepTime, &pb.RepairRequest{}, pb.OperateClient.Repair)
	return mapSlice(a.GetNodes(), nodeRepairFrom), err
}

// Snapshot implements replay.Operator. A stream that breaks is an error of its
// reader: begin again.
func (c *Client) Snapshot(ctx context.Context) (io.ReadCloser, error) {
	ctx, cancel := context.WithCancel(ctx)
	var r *pieceReader
	err := c.call(ctx, "snapshot", 0, func(_ context.Context, l *link, _ bool) error {
		st, err := pb.NewOperateClient(l).Snapshot(ctx, &pb.Empty{})
		if err != nil {
			return err
		}
		first, err := st.Recv() // a node that does not lead says so here
		if err != nil {
			return err
		}
		r = &pieceReader{st: st, fail: l.fail, left: first.GetData(), cancel: cancel}
		return nil
	})
	if err != nil {
		cancel()
		return nil, err
	}
	return r, nil
}

// pieceReader reads the pieces of a stream.
type pieceReader struct {
	st     pb.Operate_SnapshotClient
	fail   func(error) error
	left   []byte
	cancel context.CancelFunc
}

func (r *pieceReader) Read(b []byte) (int, error) {
	for len(r.left) == 0 {
		m, err := r.st.Recv()
		if errors.Is(err, io.EOF) {
			return 0, io.EOF
		}
		if err != nil {
			return 0, r.fail(err)
		}
		r.left = m.GetData()
	}
	n := copy(b, r.left)
	r.left = r.left[n:]
	return n, nil
}

func (r *pieceReader) Close() error {
	r.cancel()
	return nil
}

// ReadExact implements replay.Operator.
func (c *Client) ReadExact(ctx context.Context, logs []replay.Exact) (out []replay.Record, err error) {
	for part := range slices.Chunk(logs, repairBatch) {
		var got []replay.Record
		err := c.call(ctx, fmt.Sprintf("read %d logs", len(part)), defaultTimeout, func(ctx context.Context, l *link, _ bool) error {
			got = nil
			st, err := pb.NewOperateClient(l).ReadExact(ctx, &pb.ReadExactRequest{Logs: mapSlice(part, exactTo)})
			for err == nil {
				var a *pb.FetchResponse
				if a, err = st.Recv(); err == nil {
					got = append(got, mapSlice(a.GetRecords(), recordFrom)...)
				}
			}
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		})
		if err != nil {
			return out, err
		}
		if got, err = unpackAll(got); err != nil {
			return out, err
		}
		out = append(out, got...)
	}
	return out, nil
}
