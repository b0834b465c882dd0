package cluster

import (
	"context"
	"errors"
	"fmt"

	pb "github.com/skein-rl/skein/cluster/internal/clusterpb"
	"github.com/skein-rl/skein/replay"
)

// The server's side of moves between shards, and of where bytes are.

func (s *shardsServer) MoveRun(ctx context.Context, q *pb.MoveRunRequest) (*pb.Empty, error) {
	if err := callerOf(ctx).mustOperate("move run " + q.GetName()); err != nil {
		return nil, err
	}
	return s.decide(ctx, replay.MoveRunCmd{Now: s.n.now(), Run: q.GetName(), Move: q.GetMove(), Step: replay.MoveStep(q.GetStep()), To: q.GetTo()})
}

func (s *shardsServer) decide(ctx context.Context, cmd replay.Command) (*pb.Empty, error) {
	ctx, cancel := bounded(ctx, 0)
	defer cancel()
	_, err := s.n.propose(ctx, cmd)
	return empty(err)
}

// RunPairs streams a run's state in pieces of about a megabyte.
func (s *shardsServer) RunPairs(q *pb.RunPairsRequest, st pb.Shards_RunPairsServer) error {
	piece, size := new(pb.PairsPiece), 0
	flush := func() error {
		err := st.Send(piece)
		piece, size = new(pb.PairsPiece), 0
		return err
	}
	if err := s.n.view(st.Context(), func(replay.Reader) error { return nil }); err != nil {
		return err
	}
	if err := s.n.store.View(func(kv replay.Reader) error {
		return replay.RunPairs(kv, q.GetName(), func(p replay.Pair) error {
			piece.Pairs = append(piece.Pairs, &pb.Pair{Key: p.Key, Value: p.Value})
			if size += len(p.Key) + len(p.Value); size < chunkBytes {
				return nil
			}
			return flush()
		})
	}); err != nil {
		return err
	}
	piece.End = true
	return flush()
}

// Adopt makes bytes durable on a majority before the pairs that need them are
// decided.
func (s *shardsServer) Adopt(ctx context.Context, q *pb.AdoptRequest) (*pb.Empty, error) {
	if err := callerOf(ctx).mustOperate("adopt run " + q.GetName()); err != nil {
		return nil, err
	}
	cmd := replay.AdoptPairsCmd{Now: s.n.now(), Run: q.GetName(), Move: q.GetMove()}
	for _, p := range q.GetPairs() {
		cmd.Pairs = append(cmd.Pairs, replay.Pair{Key: p.GetKey(), Value: p.GetValue()})
	}
	recs := mapSlice(q.GetRecords(), recordFrom)
	if len(recs) == 0 {
		return s.decide(ctx, cmd)
	}
	good := sift(recs, s.n.cfg.Store.Verify)
	if len(good.good) < len(recs) {
		return nil, fmt.Errorf("%w: adopt run %q: %w", replay.ErrInvalid, q.GetName(),
			replay.AppendError(func(i int) string { return recs[i].Item.LogID }, good.out))
	}
	ctx, cancel := bounded(ctx, 0)
	defer cancel()
	_, err := s.n.app.decide(ctx, recs, cmd)
	return empty(err)
}

func (s *shardsServer) DropPairs(ctx context.Context, q *pb.DropPairsRequest) (*pb.Empty, error) {
	if err := callerOf(ctx).mustOperate("clean up after run " + q.GetName()); err != nil {
		return nil, err
	}
	return s.decide(ctx, replay.DropPairsCmd{Now: s.n.now(), Run: q.GetName(), Move: q.GetMove(), Keys: q.GetKeys()})
}

// Replicas asks every node of the group, and names those that do not answer.
func (s *shardsServer) Replicas(ctx context.Context, q *pb.ReplicasRequest) (*pb.ReplicasResponse, error) {
	n := s.n
	if err := callerOf(ctx).mustOperate("replicas"); err != nil {
		return nil, err
	}
	if err := n.view(ctx, func(kv replay.Reader) error {
		_, err := replay.Items(kv, q.GetLogIds()) // ErrNotFound: no such log
		return err
	}); err != nil {
		return nil, err
	}
	return &pb.ReplicasResponse{Nodes: everywhere(ctx, n,
		func(context.Context) *pb.NodeHoldings { return n.holds(q.GetLogIds()) },
		func(ctx context.Context, id string, c pb.UpkeepClient, err error) *pb.NodeHoldings {
			if err == nil {
				ctx, cancel := context.WithTimeout(ctx, n.cfg.AppendTimeout)
				defer cancel()
				var m *pb.NodeHoldings
				if m, err = c.Holds(ctx, q); err == nil {
					return m
				}
			}
			return &pb.NodeHoldings{Node: id, Err: text(fromStatus(err, id))}
		})}, nil
}

// Holds implements the service.
func (u *upkeepServer) Holds(_ context.Context, q *pb.ReplicasRequest) (*pb.NodeHoldings, error) {
	return u.n.holds(q.GetLogIds()), nil
}

// holds reads the bytes, so that damage is not taken for a copy.
func (n *Node) holds(ids []string) *pb.NodeHoldings {
	out := &pb.NodeHoldings{Node: n.id, Holds: make([]bool, len(ids))}
	for i, id := range ids {
		var items []replay.Item
		err := n.store.View(func(kv replay.Reader) (err error) {
			items, err = replay.Items(kv, []string{id})
			return err
		})
		if errors.Is(err, replay.ErrNotFound) { // not applied here yet
			continue
		}
		var recs []replay.Record
		if err == nil {
			recs, err = n.store.ReadExact([]replay.Exact{{LogID: id, Digest: items[0].Digest}})
		}
		if err != nil {
			out.Err = fmt.Sprintf("log %q: %v", id, err)
			continue
		}
		out.Holds[i] = len(recs) == 1
	}
	return out
}
