package cluster

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/skein-rl/skein/replay"
)

// Tail implements replay.Operator. Tokens stay good when the run moves.
func (r *Router) Tail(ctx context.Context, q replay.TailRequest) ([]replay.TailItem, error) {
	return to(ctx, r, q.Run, q.Wait, func(ctx context.Context, c *Client) ([]replay.TailItem, error) { return c.Tail(ctx, q) })
}

// TablesWithLogs implements replay.Operator.
func (r *Router) TablesWithLogs(ctx context.Context, run string) ([]string, error) {
	return to(ctx, r, run, 0, func(ctx context.Context, c *Client) ([]string, error) { return c.TablesWithLogs(ctx, run) })
}

// Redact implements replay.Operator.
func (r *Router) Redact(ctx context.Context, run string, twins []replay.Twin, reason string) (int, error) {
	return to(ctx, r, run, appendWait, func(ctx context.Context, c *Client) (int, error) { return c.Redact(ctx, run, twins, reason) })
}

// DropTable implements replay.Operator.
func (r *Router) DropTable(ctx context.Context, run, table string) error {
	return r.do(ctx, run, func(ctx context.Context, c *Client) error { return c.DropTable(ctx, run, table) })
}

// Import implements replay.Operator.
func (r *Router) Import(ctx context.Context, in replay.Import) (replay.ImportResult, error) {
	return to(ctx, r, in.Run, appendWait, func(ctx context.Context, c *Client) (replay.ImportResult, error) { return c.Import(ctx, in) })
}

// Compact implements replay.Operator, in every shard.
func (r *Router) Compact(ctx context.Context, q replay.CompactRequest) (out replay.CompactResult, err error) {
	ctx, cancel := longer(ctx)
	defer cancel()
	parts, err := each(ctx, r, func(ctx context.Context, c named) (replay.CompactResult, error) {
		res, err := c.Compact(ctx, q)
		for i := range res.Nodes {
			res.Nodes[i].Node = r.nodeName(c.name, res.Nodes[i].Node)
		}
		return res, err
	})
	for _, p := range parts {
		out.Nodes = append(out.Nodes, p.Nodes...)
		out.Forgotten += p.Forgotten
	}
	return out, err
}

// Verify implements replay.Operator, in every shard; Index is the root's.
func (r *Router) Verify(ctx context.Context) (out replay.VerifyResult, err error) {
	ctx, cancel := longer(ctx)
	defer cancel()
	parts, err := each(ctx, r, func(ctx context.Context, c named) (replay.VerifyResult, error) {
		res, err := c.Verify(ctx)
		for i := range res.Nodes {
			res.Nodes[i].Node = r.nodeName(c.name, res.Nodes[i].Node)
			if n := &res.Nodes[i]; n.Err == "" && n.Index != res.Index {
				n.Err = fmt.Sprintf("compared at raft index %d, the others at %d", n.Index, res.Index)
			}
		}
		return res, err
	})
	for i, p := range parts {
		if i == 0 {
			out.Index = p.Index
		}
		out.Nodes = append(out.Nodes, p.Nodes...)
	}
	return out, err
}

// Repair implements replay.Operator, in every shard.
func (r *Router) Repair(ctx context.Context) ([]replay.NodeRepair, error) {
	ctx, cancel := longer(ctx)
	defer cancel()
	parts, err := each(ctx, r, func(ctx context.Context, c named) ([]replay.NodeRepair, error) {
		res, err := c.Repair(ctx)
		for i := range res {
			res[i].Node = r.nodeName(c.name, res[i].Node)
		}
		return res, err
	})
	return slices.Concat(parts...), err
}

// Snapshot implements replay.Operator. It is of one shard: with several use
// ShardClient.
func (r *Router) Snapshot(ctx context.Context) (io.ReadCloser, error) {
	if err := r.one(ctx, "a snapshot"); err != nil {
		return nil, err
	}
	return r.Client.Snapshot(ctx)
}

// ReadExact implements replay.Operator, as Snapshot.
func (r *Router) ReadExact(ctx context.Context, logs []replay.Exact) ([]replay.Record, error) {
	if err := r.one(ctx, "reading exact bytes"); err != nil {
		return nil, err
	}
	return r.Client.ReadExact(ctx, logs)
}

// nodeName tells the nodes of further shards apart from the root's: "SHARD/NODE".
func (r *Router) nodeName(shard, node string) string {
	if shard == replay.RootShard {
		return node
	}
	return shard + "/" + node
}

func (r *Router) one(ctx context.Context, what string) error {
	all, err := r.all(ctx)
	if err == nil && len(all) > 1 {
		err = fmt.Errorf("%w: %s is of one shard, there are %d: name one with --shard", replay.ErrInvalid, what, len(all))
	}
	return err
}

// Replicas says which nodes hold the bytes of a log, and of which shard.
func (r *Router) Replicas(ctx context.Context, logID string) (shard string, nodes []NodeHoldings, err error) {
	nodes, err = first(ctx, r, func(c named) ([]NodeHoldings, error) {
		shard = c.name
		return c.Replicas(ctx, []string{logID})
	})
	return shard, nodes, err
}
