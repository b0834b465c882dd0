package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	pb "github.com/skein-rl/skein/cluster/internal/clusterpb"
	"github.com/skein-rl/skein/replay"
)

// operateServer puts the leader's replay.Operator on the wire. Calls that name a
// run are for those who see it (authorize.go), all others for operators.
type operateServer struct {
	pb.UnimplementedOperateServer
	n *Node
	s *nodeStore
}

// mayChange refuses workers and learners, who have no business with what is
// stored already.
func mayChange(ctx context.Context, what string) error {
	if who := callerOf(ctx); who.role != RoleClient && who.role != RoleReplay {
		return fmt.Errorf("%w: %s: %s may not: use a certificate of role %s", ErrDenied, what, who, RoleClient)
	}
	return nil
}

// Tail implements the service.
func (o *operateServer) Tail(ctx context.Context, q *pb.TailRequest) (*pb.TailResponse, error) {
	items, err := o.s.Tail(ctx, replay.TailRequest{Run: q.GetRun(), Table: q.GetTable(), Token: q.GetToken(), Limit: int(q.GetLimit()), Wait: time.Duration(q.GetWait())})
	if err != nil {
		return nil, err
	}
	out := new(pb.TailResponse)
	for _, x := range items {
		out.Items, out.Tokens = append(out.Items, itemTo(x.Item)), append(out.Tokens, x.Token)
	}
	return out, nil
}

// TablesWithLogs implements the service.
func (o *operateServer) TablesWithLogs(ctx context.Context, q *pb.RunRequest) (*pb.NamesResponse, error) {
	names, err := o.s.TablesWithLogs(ctx, q.GetRun())
	return &pb.NamesResponse{Names: names}, err
}

// Redact implements the service.
func (o *operateServer) Redact(ctx context.Context, q *pb.RedactRequest) (*pb.CountResponse, error) {
	if err := mayChange(ctx, "redact logs"); err != nil {
		return nil, err
	}
	n, err := o.s.Redact(ctx, q.GetRun(), mapSlice(q.GetTwins(), twinFrom), q.GetReason())
	return &pb.CountResponse{Count: int64(n)}, err
}

// DropTable implements the service.
func (o *operateServer) DropTable(ctx context.Context, q *pb.TableRequest) (*pb.Empty, error) {
	if err := mayChange(ctx, "drop table"); err != nil {
		return nil, err
	}
	return empty(o.s.DropTable(ctx, q.GetRun(), q.GetTable()))
}

// Import implements the service.
func (o *operateServer) Import(ctx context.Context, q *pb.ImportRequest) (*pb.ImportResponse, error) {
	if err := mayChange(ctx, "import"); err != nil {
		return nil, err
	}
	res, err := o.s.Import(ctx, replay.Import{Run: q.GetRun(), Records: mapSlice(q.GetRecords(), recordFrom),
		Groups: mapSlice(q.GetGroups(), importGroupFrom), Policy: policyFrom(q.GetPolicy())})
	return &pb.ImportResponse{Records: mapSlice(res.Records, resultTo), Groups: mapSlice(res.Groups, resultTo)}, err
}

// Compact implements the service.
func (o *operateServer) Compact(ctx context.Context, q *pb.CompactRequest) (*pb.CompactResponse, error) {
	res, err := o.s.Compact(ctx, compactFrom(q))
	return &pb.CompactResponse{Nodes: mapSlice(res.Nodes, nodeCompactionTo), Forgotten: int64(res.Forgotten)}, err
}

// Verify implements the service.
func (o *operateServer) Verify(ctx context.Context, _ *pb.VerifyRequest) (*pb.VerifyResponse, error) {
	res, err := o.s.Verify(ctx)
	return &pb.VerifyResponse{Index: res.Index, Nodes: mapSlice(res.Nodes, nodeVerificationTo)}, err
}

// Repair implements the service.
func (o *operateServer) Repair(ctx context.Context, _ *pb.RepairRequest) (*pb.RepairResponse, error) {
	res, err := o.s.Repair(ctx)
	return &pb.RepairResponse{Nodes: mapSlice(res, nodeRepairTo)}, err
}

// Snapshot implements the service.
func (o *operateServer) Snapshot(_ *pb.Empty, st pb.Operate_SnapshotServer) error {
	r, err := o.s.Snapshot(st.Context())
	if err != nil {
		return err
	}
	defer r.Close()
	buf := make([]byte, 256<<10)
	for {
		k, err := io.ReadFull(r, buf)
		if k > 0 {
			if serr := st.Send(&pb.SnapshotPiece{Data: buf[:k]}); serr != nil {
				return serr
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// ReadExact implements the service.
func (o *operateServer) ReadExact(q *pb.ReadExactRequest, st pb.Operate_ReadExactServer) error {
	if err := o.n.mustLead(); err != nil {
		return err
	}
	ctx, cancel := bounded(st.Context(), 0)
	defer cancel()
	return streamExact(mapSlice(q.GetLogs(), exactFrom), func(logs []replay.Exact) ([]replay.Record, error) { return o.n.readExact(ctx, logs) }, st.Send)
}
