package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	pb "github.com/skein-rl/skein/cluster/internal/clusterpb"
	"github.com/skein-rl/skein/replay"
)

// serve starts the gRPC services on the node's port.
func (n *Node) serve() {
	n.server = grpc.NewServer(
		grpc.Creds(doneTLS{}), grpc.WriteBufferSize(writeBuffer),
		grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingEvery, Timeout: pingWait}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingEvery / 2, PermitWithoutStream: true}),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.MaxConcurrentStreams(1024),
		grpc.ChainUnaryInterceptor(n.guardUnary),
		grpc.ChainStreamInterceptor(guardStream),
		grpc.WaitForHandlers(true),
	)
	pb.RegisterReplayServer(n.server, &replayServer{n: n, s: &nodeStore{n}})
	pb.RegisterPeerServer(n.server, &peerServer{n: n})
	pb.RegisterOperateServer(n.server, &operateServer{n: n, s: &nodeStore{n}})
	pb.RegisterUpkeepServer(n.server, &upkeepServer{n: n})
	pb.RegisterShardsServer(n.server, &shardsServer{n: n})
	pb.RegisterMembershipServer(n.server, &membershipServer{n: n})
	h := health.NewServer() // SERVING: the process answers; who leads is in ClusterStatus
	healthpb.RegisterHealthServer(n.server, h)
	n.tasks.run(func() {
		if err := n.server.Serve(n.mux.grpc); err != nil && n.ctx.Err() == nil {
			n.log.Error("gRPC server ended", "err", err)
		}
	})
}

// guardUnary admits, bounds and translates errors of unary calls.
func (n *Node) guardUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
	ctx, err := admit(ctx, info.FullMethod)
	if err != nil {
		return nil, toStatus(err)
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, 10*time.Minute) // long polls bound themselves
		defer cancel()
	}
	if err := n.elsewhere(req); err != nil {
		return nil, toStatus(err)
	}
	if err := n.authorize(ctx, req, info.FullMethod); err != nil {
		return nil, toStatus(err)
	}
	resp, err := h(ctx, req)
	return resp, toStatus(err)
}

func guardStream(srv any, st grpc.ServerStream, info *grpc.StreamServerInfo, h grpc.StreamHandler) error {
	ctx, err := admit(st.Context(), info.FullMethod)
	if err == nil {
		err = authorizeStream(callerOf(ctx), info.FullMethod)
	}
	if err != nil {
		return toStatus(err)
	}
	return toStatus(h(srv, &callerStream{st, ctx}))
}

type callerStream struct {
	grpc.ServerStream
	ctx context.Context
}

// Context carries the caller.
func (s *callerStream) Context() context.Context { return s.ctx }

// peerServer serves fellow replay nodes; its methods stand beside the side
// that calls them.
type peerServer struct {
	pb.UnimplementedPeerServer
	n *Node
}

// replayServer puts the leader's store on the wire.
type replayServer struct {
	pb.UnimplementedReplayServer
	n *Node
	s *nodeStore
}

func empty(err error) (*pb.Empty, error) { return &pb.Empty{}, err }

func (r *replayServer) CreateRun(ctx context.Context, q *pb.CreateRunRequest) (*pb.Empty, error) {
	spec := specFrom(q.GetSpec())
	if who := callerOf(ctx); !who.operator() {
		if who.tenant == AllTenants {
			return nil, fmt.Errorf("%w: create run %q: %s may not: whose run would it be?", ErrDenied, spec.Run, who)
		}
		spec.Tenant = who.tenant
	}
	if err := r.n.mustBeRegistered(); err != nil {
		return nil, fmt.Errorf("create run %q: %w", spec.Run, err)
	}
	return empty(r.s.CreateRun(ctx, spec))
}

func (r *replayServer) FinishRun(ctx context.Context, q *pb.RunRequest) (*pb.Empty, error) {
	return empty(r.s.FinishRun(ctx, q.GetRun()))
}

func (r *replayServer) Runs(ctx context.Context, _ *pb.Empty) (*pb.RunsResponse, error) {
	runs, err := r.s.Runs(ctx)
	if err == nil {
		runs, err = r.n.visibleRuns(ctx, runs)
	}
	return &pb.RunsResponse{Runs: runs}, err
}

func (r *replayServer) Status(ctx context.Context, q *pb.RunRequest) (*pb.RunStatus, error) {
	s, err := r.s.Status(ctx, q.GetRun())
	return statusTo(s), err
}

func (r *replayServer) TakeTickets(ctx context.Context, q *pb.TakeTicketsRequest) (*pb.TakeTicketsResponse, error) {
	cmd := replay.TakeTicketsCmd{Run: q.GetRun(), Worker: q.GetWorker(), N: int(q.GetN()), RequestID: q.GetRequestId()}
	serves := uint64(replay.AnyVersion) // an older worker does not tell
	if q.Serves != nil {
		serves = q.GetServes()
	}
	ts, err := r.n.takeTickets(ctx, cmd, serves, time.Duration(q.GetWait()), q.GetRetry())
	return &pb.TakeTicketsResponse{Tickets: mapSlice(ts, ticketTo)}, err
}

func (r *replayServer) ReturnTicket(ctx context.Context, q *pb.ReturnTicketRequest) (*pb.Empty, error) {
	return empty(r.s.ReturnTicket(ctx, q.GetRun(), q.GetGroup(), q.GetWorker()))
}

func (r *replayServer) Scan(ctx context.Context, q *pb.ScanRequest) (*pb.ScanResponse, error) {
	items, next, err := r.s.Scan(ctx, q.GetRun(), q.GetTable(), q.GetCursor(), int(q.GetLimit()))
	return &pb.ScanResponse{Items: mapSlice(items, itemTo), Next: next}, err
}

func (r *replayServer) Lease(ctx context.Context, q *pb.LeaseRequest) (*pb.LeaseResponse, error) {
	l, err := r.s.Lease(ctx, leaseReqFrom(q))
	if l == nil {
		return &pb.LeaseResponse{}, err
	}
	return &pb.LeaseResponse{Lease: leaseTo(l)}, err
}

func (r *replayServer) Extend(ctx context.Context, q *pb.ExtendRequest) (*pb.Empty, error) {
	return empty(r.s.Extend(ctx, q.GetRun(), q.GetLease(), time.Duration(q.GetTtl())))
}

func (r *replayServer) Commit(ctx context.Context, q *pb.StepRecord) (*pb.Empty, error) {
	return empty(r.s.Commit(ctx, stepFrom(q)))
}

func (r *replayServer) Release(ctx context.Context, q *pb.ReleaseRequest) (*pb.Empty, error) {
	return empty(r.s.Release(ctx, q.GetRun(), q.GetLease(), q.GetDrop()))
}

func (r *replayServer) Step(ctx context.Context, q *pb.StepRequest) (*pb.StepRecord, error) {
	s, err := r.s.Step(ctx, q.GetRun(), q.GetStep())
	return stepTo(s), err
}

func (r *replayServer) Latest(ctx context.Context, q *pb.RunRequest) (*pb.Policy, error) {
	p, err := r.s.Latest(ctx, q.GetRun())
	return policyTo(p), err
}

func (r *replayServer) WaitPolicy(ctx context.Context, q *pb.WaitPolicyRequest) (*pb.Policy, error) {
	p, err := r.s.WaitPolicy(ctx, q.GetRun(), q.GetAfter(), time.Duration(q.GetWait()))
	return policyTo(p), err
}

func (r *replayServer) RequestEval(ctx context.Context, q *pb.EvalRequest) (*pb.Empty, error) {
	return empty(r.s.RequestEval(ctx, evalReqFrom(q)))
}

func (r *replayServer) EvalStatus(ctx context.Context, q *pb.EvalStatusRequest) (*pb.EvalStatus, error) {
	s, err := r.s.EvalStatus(ctx, q.GetRun(), q.GetVersion())
	return evalTo(s), err
}

func (r *replayServer) Fetch(q *pb.FetchRequest, st pb.Replay_FetchServer) error {
	ctx, cancel := bounded(st.Context(), 0)
	defer cancel()
	if err := r.n.mustLead(); err != nil {
		return err
	}
	if err := r.n.mayRead(ctx, q.GetLogIds()); err != nil {
		return err
	}
	if err := r.n.view(ctx, func(replay.Reader) error { return nil }); err != nil {
		return err
	}
	return streamRecords(q.GetLogIds(), func(ids []string) ([]replay.Record, error) { return r.n.repairs.read(ctx, ids) }, st.Send)
}

func (r *replayServer) PutBlob(st pb.Replay_PutBlobServer) error {
	if err := r.n.mustLead(); err != nil {
		return err
	}
	digest, err := r.n.blobs.receive(st.Context(), st.Recv, func(data []byte) (string, error) {
		return r.n.blobs.put(st.Context(), data)
	})
	if err != nil {
		return err
	}
	return st.SendAndClose(&pb.PutBlobResponse{Digest: digest})
}

func (r *replayServer) GetBlob(q *pb.GetBlobRequest, st pb.Replay_GetBlobServer) error {
	data, err := r.s.GetBlob(st.Context(), q.GetDigest())
	if err != nil {
		return err
	}
	return sendBlobFrom(q.GetDigest(), data, q.GetOffset(), st.Send)
}

// Append reads requests while the window has room and answers each when it is
// done, in any order.
func (r *replayServer) Append(st pb.Replay_AppendServer) error {
	if err := r.n.mustLead(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(st.Context())
	defer cancel()
	answers := make(chan *pb.AppendResponse, 64)
	sent := make(chan error, 1)
	go func() {
		for a := range answers {
			if err := st.Send(a); err != nil {
				cancel()
				for range answers { // let the others end
				}
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	answers <- &pb.AppendResponse{Window: appendWindow}
	window := semaphore.NewWeighted(appendWindow)
	var work sync.WaitGroup
	err := r.readAppends(ctx, st, window, &work, answers)
	work.Wait()
	close(answers)
	return errors.Join(err, <-sent)
}

func (r *replayServer) readAppends(ctx context.Context, st pb.Replay_AppendServer, window *semaphore.Weighted, work *sync.WaitGroup, answers chan<- *pb.AppendResponse) error {
	for {
		q, err := st.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		recs := mapSlice(q.GetRecords(), recordFrom)
		var size int64 = 1
		for _, rec := range recs {
			size += int64(rec.Stored())
		}
		size = min(size, appendWindow)
		if err := window.Acquire(ctx, size); err != nil {
			return err
		}
		work.Go(func() {
			defer window.Release(size)
			limit := time.Duration(q.GetTimeout())
			if limit <= 0 || limit > defaultTimeout {
				limit = defaultTimeout
			}
			ctx, cancel := context.WithTimeout(ctx, limit)
			defer cancel()
			res, err := r.n.appendFor(ctx, recs, r.s.Append)
			a := &pb.AppendResponse{Id: q.GetId(), Results: mapSlice(res, resultTo)}
			if err != nil {
				a.Error, _ = toWire(err)
			}
			answers <- a
		})
	}
}
