package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	pb "github.com/skein-rl/skein/cluster/internal/clusterpb"
	"github.com/skein-rl/skein/replay"
)

// What operators ask of every node: the leader does its own part, asks the
// others for theirs at the same time, and puts the answers together. A node that
// cannot be reached is named in the answer, never left out.

// upkeepTime bounds one node's part.
const upkeepTime = 30 * time.Minute

// forgetBatch is how many ids of deleted logs one command forgets.
const forgetBatch = 1024

// everywhere runs local here and remote on every other member of the raft group.
// remote gets the peer's connection; err is why there is none.
func everywhere[T any](ctx context.Context, n *Node, local func(context.Context) T, remote func(context.Context, string, pb.UpkeepClient, error) T) []T {
	ctx, cancel := context.WithTimeout(ctx, upkeepTime)
	defer cancel()
	voters, others := n.servers()
	ids := append(voters, others...)
	slices.Sort(ids)
	out := make([]T, len(ids))
	var wg sync.WaitGroup
	for i, id := range ids {
		wg.Go(func() {
			if id == n.id {
				out[i] = local(ctx)
				return
			}
			p, err := n.peers.get(id)
			var c pb.UpkeepClient
			if err == nil {
				c = pb.NewUpkeepClient(p.link)
			}
			out[i] = remote(ctx, id, c, err)
		})
	}
	wg.Wait()
	return out
}

// reached waits until this node has applied a raft index.
func (n *Node) reached(ctx context.Context, index uint64) error {
	for {
		changed := n.changes.changed()
		have := n.store.AppliedIndex()
		if have >= index {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("cluster: node %s has applied raft index %d, %d is wanted: %w", n.id, have, index, ctx.Err())
		case <-n.ctx.Done():
			return fmt.Errorf("cluster: node %s is closing: %w", n.id, replay.ErrUnavailable)
		}
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// Compact implements replay.Operator.
func (s *nodeStore) Compact(ctx context.Context, q replay.CompactRequest) (replay.CompactResult, error) {
	n := s.n
	if q.Grace == 0 {
		q.Grace = compactGrace
	}
	if q.ForgetAfter == 0 {
		q.ForgetAfter = 24 * time.Hour
	}
	if q.Grace <= n.cfg.AppendTimeout || !(q.Dead >= 0 && q.Dead <= 1) {
		return replay.CompactResult{}, fmt.Errorf("%w: compact: grace = %v, dead = %v: want longer than an append may take (%v), and 0 to 1",
			replay.ErrInvalid, q.Grace, q.Dead, n.cfg.AppendTimeout)
	}
	start := n.now() // deletions carry the group's time
	if err := n.view(ctx, func(replay.Reader) error { return nil }); err != nil {
		return replay.CompactResult{}, err
	}
	q.Applied = n.store.AppliedIndex()
	var out replay.CompactResult
	out.Nodes = everywhere(ctx, n, func(ctx context.Context) replay.NodeCompaction { return n.compactNode(ctx, q) },
		func(ctx context.Context, id string, c pb.UpkeepClient, err error) replay.NodeCompaction {
			if err == nil {
				var m *pb.NodeCompaction
				if m, err = c.CompactNode(ctx, compactTo(q)); err == nil {
					return nodeCompactionFrom(m)
				}
			}
			return replay.NodeCompaction{Node: id, Err: text(fromStatus(err, id))}
		})
	if q.ForgetAfter < 0 {
		return out, nil
	}
	for _, c := range out.Nodes {
		if c.Err != "" || c.Held > 0 || c.Damaged > 0 {
			return out, nil // bytes may be there: the ids stay
		}
	}
	for {
		before := start.Add(-q.ForgetAfter)
		some := 0
		if err := n.store.View(func(kv replay.Reader) (err error) {
			some, err = replay.Deleted(kv, before)
			return err
		}); err != nil || some == 0 {
			return out, err
		}
		res, err := s.result(ctx, replay.ForgetDeletedCmd{Now: s.n.now(), Before: before, Limit: forgetBatch})
		if err != nil {
			return out, err
		}
		out.Forgotten += res.Updated
	}
}

func (n *Node) compactNode(ctx context.Context, q replay.CompactRequest) replay.NodeCompaction {
	err := n.reached(ctx, q.Applied)
	var rep replay.CompactReport
	if err == nil {
		rep, err = n.store.Purge(ctx, time.Now(), q.Grace, q.Dead)
	}
	return replay.NodeCompaction{Node: n.id, Err: text(err), CompactReport: rep}
}

// Verify implements replay.Operator.
func (s *nodeStore) Verify(ctx context.Context) (replay.VerifyResult, error) {
	n := s.n
	if err := n.view(ctx, func(replay.Reader) error { return nil }); err != nil {
		return replay.VerifyResult{}, err
	}
	mark := uuid.NewString()
	index, err := n.proposeMark(ctx, mark)
	if err != nil {
		return replay.VerifyResult{}, err
	}
	out := replay.VerifyResult{Index: index}
	out.Nodes = everywhere(ctx, n, func(ctx context.Context) replay.NodeVerification { return n.verifyNode(ctx, index, mark) },
		func(ctx context.Context, id string, c pb.UpkeepClient, err error) replay.NodeVerification {
			if err == nil {
				var m *pb.NodeVerification
				if m, err = c.VerifyNode(ctx, &pb.VerifyRequest{Applied: index, Mark: mark}); err == nil {
					return nodeVerificationFrom(m)
				}
			}
			return replay.NodeVerification{Node: id, Err: text(fromStatus(err, id))}
		})
	return out, nil
}

func (n *Node) verifyNode(ctx context.Context, index uint64, mark string) replay.NodeVerification {
	out := replay.NodeVerification{Node: n.id}
	err := n.reached(ctx, index)
	if err == nil {
		out.VerifyReport, err = n.store.VerifyAll(ctx)
	}
	if err == nil {
		var m markResult
		if m, err = n.marks.wait(ctx, mark); err == nil {
			out.Index, out.State, out.Pairs, err = m.index, m.digest, m.pairs, m.err
		}
	}
	out.Err = text(err)
	return out
}

// Repair implements replay.Operator.
func (s *nodeStore) Repair(ctx context.Context) ([]replay.NodeRepair, error) {
	n := s.n
	if err := n.view(ctx, func(replay.Reader) error { return nil }); err != nil {
		return nil, err
	}
	index := n.store.AppliedIndex()
	return everywhere(ctx, n, func(ctx context.Context) replay.NodeRepair { return n.repairNode(ctx, index) },
		func(ctx context.Context, id string, c pb.UpkeepClient, err error) replay.NodeRepair {
			if err == nil {
				var m *pb.NodeRepair
				if m, err = c.RepairNode(ctx, &pb.RepairRequest{Applied: index}); err == nil {
					return nodeRepairFrom(m)
				}
			}
			return replay.NodeRepair{Node: id, Err: text(fromStatus(err, id))}
		}), nil
}

// repairNode looks at everything here and pulls what is lacking.
func (n *Node) repairNode(ctx context.Context, index uint64) replay.NodeRepair {
	out := replay.NodeRepair{Node: n.id}
	err := n.reached(ctx, index)
	if err == nil {
		var rep replay.VerifyReport
		rep, err = n.store.VerifyAll(ctx)
		out.Damaged = rep.Missing
	}
	for err == nil {
		var missing, left []replay.Item
		if missing, err = n.store.MissingPayloads(repairBatch); err != nil || len(missing) == 0 {
			break
		}
		left, err = n.repairs.pull(ctx, missing)
		out.Pulled += len(missing) - len(left)
		if out.Left = len(left); len(left) > 0 {
			break
		}
	}
	if merr := n.pullBlobs(ctx, &out); err == nil {
		err = merr
	}
	out.Err = text(err)
	return out
}

func (n *Node) pullBlobs(ctx context.Context, out *replay.NodeRepair) error {
	missing, err := n.store.MissingBlobs()
	if err != nil {
		return err
	}
	var errs []error
	for _, d := range missing {
		if _, err := n.blobs.get(ctx, d); err != nil {
			out.BlobsLeft++
			if len(errs) < 3 {
				errs = append(errs, err)
			}
			continue
		}
		out.Blobs++
	}
	return errors.Join(errs...)
}

// upkeepServer serves the leader; only replay nodes may call.
type upkeepServer struct {
	pb.UnimplementedUpkeepServer
	n *Node
}

// CompactNode implements the service.
func (u *upkeepServer) CompactNode(ctx context.Context, q *pb.CompactRequest) (*pb.NodeCompaction, error) {
	return nodeCompactionTo(u.n.compactNode(ctx, compactFrom(q))), nil
}

// VerifyNode implements the service.
func (u *upkeepServer) VerifyNode(ctx context.Context, q *pb.VerifyRequest) (*pb.NodeVerification, error) {
	return nodeVerificationTo(u.n.verifyNode(ctx, q.GetApplied(), q.GetMark())), nil
}

// RepairNode implements the service.
func (u *upkeepServer) RepairNode(ctx context.Context, q *pb.RepairRequest) (*pb.NodeRepair, error) {
	return nodeRepairTo(u.n.repairNode(ctx, q.GetApplied())), nil
}

// PullExact implements the service.
func (u *upkeepServer) PullExact(q *pb.ReadExactRequest, st pb.Upkeep_PullExactServer) error {
	return toStatus(streamExact(mapSlice(q.GetLogs(), exactFrom), u.n.store.ReadExact, st.Send))
}

// streamExact sends records in messages of about a chunk.
func streamExact(logs []replay.Exact, read func([]replay.Exact) ([]replay.Record, error), send func(*pb.FetchResponse) error) error {
	if len(logs) > repairBatch {
		return fmt.Errorf("%w: read of %d logs: ask for at most %d", replay.ErrInvalid, len(logs), repairBatch)
	}
	for part := range slices.Chunk(logs, 16) {
		recs, err := read(part)
		if err != nil {
			return err
		}
		for _, p := range pack(recs) {
			if err := send(&pb.FetchResponse{Records: mapSlice(recs[p.from:p.to], recordTo)}); err != nil {
				return err
			}
		}
	}
	return nil
}

func pullExact(ctx context.Context, p *peer, logs []replay.Exact) (out []replay.Record, err error) {
	for part := range slices.Chunk(logs, repairBatch) {
		st, err := pb.NewUpkeepClient(p.link).PullExact(ctx, &pb.ReadExactRequest{Logs: mapSlice(part, exactTo)})
		if err != nil {
			return out, p.fail(err)
		}
		for {
			a, err := st.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return out, p.fail(err)
			}
			out = append(out, mapSlice(a.GetRecords(), recordFrom)...)
		}
	}
	return out, nil
}
