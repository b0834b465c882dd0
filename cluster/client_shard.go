package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"

	pb "github.com/skein-rl/skein/cluster/internal/clusterpb"
	"github.com/skein-rl/skein/replay"
)

// onShard makes a call of the Shards service with one answer.
func onShard[Q, A any](ctx context.Context, c *Client, what string, wait time.Duration, q *Q,
	rpc func(pb.ShardsClient, context.Context, *Q, ...grpc.CallOption) (*A, error)) (out *A, err error) {
	err = c.call(ctx, what, wait, func(ctx context.Context, l *link, _ bool) error {
		out, err = rpc(pb.NewShardsClient(l), ctx, q)
		return err
	})
	return out, err
}

// Shard says which shard this client speaks to.
func (c *Client) Shard(ctx context.Context) (ShardInfo, error) {
	a, err := onShard(ctx, c, "ask for the shard", 0, &pb.Empty{}, pb.ShardsClient.Shard)
	return ShardInfo{Name: a.GetName(), Group: a.GetGroup(), Root: shardFrom(a.GetRoot()),
		Runs: int(a.GetRuns()), Unfinished: int(a.GetUnfinished()), DiskFree: a.GetDiskFree()}, err
}

// placements asks the root for the shards and for where a run lives, or ("") all.
func (c *Client) placements(ctx context.Context, run string) ([]replay.Shard, []replay.Placement, error) {
	a, err := onShard(ctx, c, "ask where runs live", 0, &pb.PlacementsRequest{Name: run}, pb.ShardsClient.Placements)
	return mapSlice(a.GetShards(), shardFrom), mapSlice(a.GetPlacements(), placementFrom), err
}

func (c *Client) setShard(ctx context.Context, s replay.Shard) (replay.Shard, error) {
	a, err := onShard(ctx, c, "register shard "+s.Name, 0, shardTo(s), pb.ShardsClient.SetShard)
	return shardFrom(a), err
}

func (c *Client) placeRun(ctx context.Context, p replay.Placement) (replay.Placement, error) {
	a, err := onShard(ctx, c, "place run "+p.Run, 0, placementTo(p), pb.ShardsClient.PlaceRun)
	return placementFrom(a), err
}

func (c *Client) moveRun(ctx context.Context, run string, move uint64, step replay.MoveStep, to string) error {
	_, err := onShard(ctx, c, "move run "+run, 0, &pb.MoveRunRequest{Name: run, Move: move, Step: uint32(step), To: to}, pb.ShardsClient.MoveRun)
	return err
}

func (c *Client) adopt(ctx context.Context, run string, move uint64, pairs []replay.Pair, recs []replay.Record) error {
	q := &pb.AdoptRequest{Name: run, Move: move, Records: mapSlice(recs, recordTo)}
	for _, p := range pairs {
		q.Pairs = append(q.Pairs, &pb.Pair{Key: p.Key, Value: p.Value})
	}
	_, err := onShard(ctx, c, "adopt run "+run, appendWait, q, pb.ShardsClient.Adopt)
	return err
}

func (c *Client) dropPairs(ctx context.Context, run string, move uint64, keys [][]byte) error {
	_, err := onShard(ctx, c, "clean up after run "+run, 0, &pb.DropPairsRequest{Name: run, Move: move, Keys: keys}, pb.ShardsClient.DropPairs)
	return err
}

// runPairs calls fn with the state of a run that stands still. A stream that
// breaks is an error: begin again.
func (c *Client) runPairs(ctx context.Context, run string, fn func([]replay.Pair) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var st pb.Shards_RunPairsClient
	var first *pb.PairsPiece
	var from *link
	err := c.call(ctx, "read run "+run, 0, func(_ context.Context, l *link, _ bool) (err error) {
		from = l
		if st, err = pb.NewShardsClient(l).RunPairs(ctx, &pb.RunPairsRequest{Name: run}); err == nil {
			first, err = st.Recv() // a node that does not lead says so here
		}
		return err
	})
	if err != nil {
		return err
	}
	for m := first; ; {
		pairs := make([]replay.Pair, 0, len(m.GetPairs()))
		for _, p := range m.GetPairs() {
			pairs = append(pairs, replay.Pair{Key: p.GetKey(), Value: p.GetValue()})
		}
		if err := fn(pairs); err != nil || m.GetEnd() {
			return err
		}
		if m, err = st.Recv(); errors.Is(err, io.EOF) {
			return fmt.Errorf("cluster: the state of run %q was cut short by %s: %w", run, from.addr, replay.ErrUnavailable)
		} else if err != nil {
			return from.fail(err)
		}
	}
}

// NodeHoldings says which of the asked logs a node holds the bytes of.
type NodeHoldings struct {
	Node  string
	Err   string // why it could not be asked, or a log not be read
	Holds []bool // in the order asked
}

// Replicas asks every node of the group which of the logs' bytes it holds. It
// reads them: damaged bytes are no copy. ErrNotFound: the group lacks a log.
func (c *Client) Replicas(ctx context.Context, logIDs []string) ([]NodeHoldings, error) {
	a, err := onShard(ctx, c, "ask for replicas", appendWait, &pb.ReplicasRequest{LogIds: logIDs}, pb.ShardsClient.Replicas)
	return mapSlice(a.GetNodes(), func(m *pb.NodeHoldings) NodeHoldings {
		h := m.GetHolds()
		return NodeHoldings{m.GetNode(), m.GetErr(), append(h, make([]bool, max(0, len(logIDs)-len(h)))...)}
	}), err
}
