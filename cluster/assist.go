package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"

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
	*roleServer
	handle func(context.Context, *Channel) error
	tenant string
}

// ServeLearner listens for other learners of the cluster and calls handle, in a
// goroutine of its own, with each channel that one of them opens; the channel
// ends when handle returns or its ctx does. listen "" is any free port of the
// address by which this process reaches the replay nodes.
func (c *Client) ServeLearner(listen string, log *slog.Logger, handle func(context.Context, *Channel) error) (*LearnerServer, error) {
	s := &LearnerServer{handle: handle, tenant: c.id.Tenant}
	var err error
	if s.roleServer, err = c.listenFor(fellows{RoleLearner, "learners", maxMessage, assistConns}, listen); err != nil {
		return nil, err
	}
	pb.RegisterLearnerServer(s.server, s)
	s.serve(log)
	return s, nil
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
