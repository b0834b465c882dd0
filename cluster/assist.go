package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	pb "github.com/skein-rl/skein/cluster/internal/clusterpb"
	"github.com/skein-rl/skein/replay"
)

// Learners speak to each other without the replay nodes in between: each serves
// on a port of its own, by the same certificates, and tells it in its heartbeat.
// This file moves messages; what they say is package learner's business.

const (
	framePiece  = 1 << 20 // bytes of a message in one frame
	maxAssist   = 1 << 30 // bytes of one message
	assistConns = 16      // streams of one connection
)

// Channel carries messages between two learners. One goroutine at a time may
// send and one receive.
type Channel struct {
	from string // the other side's id
	send func(*pb.Frame) error
	recv func() (*pb.Frame, error)
	fail func(error) error
	stop func() error
}

// From is the id of the other side, by its certificate.
func (c *Channel) From() string { return c.from }

// Send writes one message.
func (c *Channel) Send(msg []byte) error {
	for {
		piece := msg[:min(len(msg), framePiece)]
		msg = msg[len(piece):]
		if err := c.send(&pb.Frame{Piece: piece, Last: len(msg) == 0}); err != nil {
			if errors.Is(err, io.EOF) { // the other side's error comes with a receive
				if _, rerr := c.recv(); rerr != nil {
					err = rerr
				}
			}
			return c.fail(err)
		}
		if len(msg) == 0 {
			return nil
		}
	}
}

// Recv reads one message; io.EOF after the other side's last one.
func (c *Channel) Recv() ([]byte, error) {
	var msg []byte
	for {
		f, err := c.recv()
		if errors.Is(err, io.EOF) && msg == nil {
			return nil, io.EOF
		}
		if err != nil {
			return nil, c.fail(err)
		}
		if len(msg)+len(f.GetPiece()) > maxAssist {
			return nil, fmt.Errorf("%w: message of %s is over %d bytes", replay.ErrInvalid, c.from, maxAssist)
		}
		msg = append(msg, f.GetPiece()...)
		if f.GetLast() {
			return msg, nil
		}
	}
}

// Close ends the channel; on the serving side returning from the handler does.
func (c *Channel) Close() error { return c.stop() }

// LearnerServer takes other learners' calls.
type LearnerServer struct {
	pb.UnimplementedLearnerServer
	addr   string
	handle func(context.Context, *Channel) error
	server *grpc.Server
	tenant string
	wg     sync.WaitGroup
}

// ServeLearner listens for other learners of the cluster and calls handle, in a
// goroutine of its own, with each channel that one of them opens; the channel
// ends when handle returns or its ctx does. listen "" is any free port of the
// address by which this process reaches the replay nodes.
func (c *Client) ServeLearner(listen string, log *slog.Logger, handle func(context.Context, *Channel) error) (*LearnerServer, error) {
	if c.id.Role != RoleLearner {
		return nil, fmt.Errorf("cluster: serve learners: %s is a %s: join as %s", c.id.ID, c.id.Role, RoleLearner)
	}
	if listen == "" {
		listen = net.JoinHostPort(localHost(c.addrs()), "0")
	}
	ln, err := net.Listen("tcp", listen)
	if err != nil {
		return nil, fmt.Errorf("cluster: serve learners: %w: choose another address, or leave it empty", err)
	}
	addr, err := Config{}.advertised(ln.Addr())
	if err != nil {
		return nil, errors.Join(err, ln.Close())
	}
	s := &LearnerServer{addr: addr, handle: handle, tenant: c.id.Tenant}
	s.server = grpc.NewServer(
		grpc.Creds(credentials.NewTLS(c.id.serverTLS())),
		grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingEvery, Timeout: pingWait}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingEvery / 2, PermitWithoutStream: true}),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.MaxConcurrentStreams(assistConns),
		grpc.StreamInterceptor(guardStream),
		grpc.WaitForHandlers(true),
	)
	pb.RegisterLearnerServer(s.server, s)
	s.wg.Go(func() {
		if err := s.server.Serve(ln); err != nil {
			log.Error("learner's server ended", "err", err)
		}
	})
	return s, nil
}

// localHost is this machine's address on the way to the first of addrs that has
// one; the loopback without any.
func localHost(addrs []string) string {
	for _, a := range addrs {
		conn, err := net.Dial("udp", a) // sends nothing: it only picks a route
		if err != nil {
			continue
		}
		host, _, err := net.SplitHostPort(conn.LocalAddr().String())
		_ = conn.Close()
		if err == nil {
			return host
		}
	}
	return "127.0.0.1"
}

// Addr is where other learners reach this one.
func (s *LearnerServer) Addr() string { return s.addr }

// Close ends the channels and waits for their handlers.
func (s *LearnerServer) Close() {
	s.server.Stop()
	s.wg.Wait()
}

// Assist implements the service. Learners of another tenant are refused.
func (s *LearnerServer) Assist(st pb.Learner_AssistServer) error {
	if who := callerOf(st.Context()); who.tenant != s.tenant {
		return toStatus(fmt.Errorf("%w: %s asks a learner of another tenant", ErrDenied, who))
	}
	return s.handle(st.Context(), &Channel{
		from: callerOf(st.Context()).id, send: st.Send, recv: st.Recv,
		fail: func(err error) error { return err }, stop: func() error { return nil },
	})
}

// DialLearner opens a channel to the learner of that id at addr. ctx bounds the
// channel's life.
func (c *Client) DialLearner(ctx context.Context, addr, id string) (*Channel, error) {
	l, err := dialRole(c.id, RoleLearner, addr, id, "")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	stop := func() error {
		cancel()
		return l.Close()
	}
	st, err := pb.NewLearnerClient(l).Assist(ctx)
	if err != nil {
		return nil, errors.Join(l.fail(err), stop())
	}
	return &Channel{from: id, send: st.Send, recv: st.Recv, fail: l.fail, stop: stop}, nil
}
