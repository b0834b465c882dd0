package cluster

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/skein-rl/skein/cluster/internal/clusterpb"
	"github.com/skein-rl/skein/replay"
)

// ErrDenied: the certificate or token does not allow the call.
var ErrDenied = errors.New("cluster: denied")

// notLeaderError sends a caller on. Addr is "" when no leader is known.
type notLeaderError struct {
	node, id, addr string
}

func (e *notLeaderError) Error() string {
	if e.addr == "" {
		return fmt.Sprintf("cluster: node %s is not the leader and knows none", e.node)
	}
	return fmt.Sprintf("cluster: node %s is not the leader; %s at %s is", e.node, e.id, e.addr)
}

// Is makes a missing leader an ErrUnavailable for callers of the Store.
func (e *notLeaderError) Is(target error) bool { return target == replay.ErrUnavailable }

// codeOf pairs an error of the door with its codes on the wire.
var codeTable = []struct {
	err  error
	code pb.Error_Code
	grpc codes.Code
}{
	{replay.ErrStale, pb.Error_CODE_STALE, codes.Aborted},
	{replay.ErrDiskFull, pb.Error_CODE_DISK_FULL, codes.ResourceExhausted},
	{replay.ErrNotFound, pb.Error_CODE_NOT_FOUND, codes.NotFound},
	{replay.ErrBusy, pb.Error_CODE_BUSY, codes.ResourceExhausted},
	{replay.ErrTimeout, pb.Error_CODE_TIMEOUT, codes.DeadlineExceeded},
	{replay.ErrInvalid, pb.Error_CODE_INVALID, codes.InvalidArgument},
	{replay.ErrUnavailable, pb.Error_CODE_UNAVAILABLE, codes.Unavailable},
	{replay.ErrMoved, pb.Error_CODE_MOVED, codes.Aborted},
	{ErrDenied, pb.Error_CODE_DENIED, codes.PermissionDenied},
}

// toWire describes err for the other side.
func toWire(err error) (*pb.Error, codes.Code) {
	var nl *notLeaderError
	if errors.As(err, &nl) {
		return &pb.Error{Code: pb.Error_CODE_NOT_LEADER, Message: err.Error(), LeaderId: nl.id, LeaderAddr: nl.addr},
			codes.FailedPrecondition
	}
	for _, c := range codeTable {
		if errors.Is(err, c.err) {
			return &pb.Error{Code: c.code, Message: err.Error()}, c.grpc
		}
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return &pb.Error{Code: pb.Error_CODE_UNAVAILABLE, Message: err.Error()}, codes.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		return &pb.Error{Code: pb.Error_CODE_UNAVAILABLE, Message: err.Error()}, codes.Canceled
	}
	return &pb.Error{Code: pb.Error_CODE_INTERNAL, Message: err.Error()}, codes.Internal
}

// toStatus is toWire as a gRPC status with the details attached.
func toStatus(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	e, code := toWire(err)
	st := status.New(code, e.Message)
	if d, derr := st.WithDetails(e); derr == nil {
		st = d
	}
	return st.Err()
}

// remoteError is an error that a peer reported: its message is the peer's, and
// it matches the door's error it came from.
type remoteError struct {
	msg  string
	kind error // nil: internal
}

func (e *remoteError) Error() string { return e.msg }
func (e *remoteError) Unwrap() error { return e.kind }

// fromWire is the inverse of toWire.
func fromWire(e *pb.Error) error {
	if e.Code == pb.Error_CODE_NOT_LEADER {
		return &notLeaderError{node: "asked", id: e.LeaderId, addr: e.LeaderAddr}
	}
	for _, c := range codeTable {
		if e.Code == c.code {
			return &remoteError{e.Message, c.err}
		}
	}
	return &remoteError{e.Message, nil}
}

// fromStatus turns a gRPC error into one of the door's. Errors that a peer
// sent keep their meaning; failures of the connection become ErrUnavailable
// that names the peer.
func fromStatus(err error, peer string) error {
	if err == nil {
		return nil
	}
	st, ok := status.FromError(err)
	if !ok {
		return fmt.Errorf("cluster: %s: %w", peer, err)
	}
	for _, d := range st.Details() {
		if e, ok := d.(*pb.Error); ok {
			return fromWire(e)
		}
	}
	switch st.Code() {
	case codes.DeadlineExceeded:
		return fmt.Errorf("cluster: node %s did not answer in time: %w", peer, context.DeadlineExceeded)
	case codes.Canceled:
		return fmt.Errorf("cluster: call to node %s: %w", peer, context.Canceled)
	case codes.Unavailable:
		return fmt.Errorf("cluster: node %s: %s: %w", peer, st.Message(), replay.ErrUnavailable)
	case codes.PermissionDenied, codes.Unauthenticated:
		return fmt.Errorf("cluster: node %s: %s: %w", peer, st.Message(), ErrDenied)
	case codes.ResourceExhausted, codes.InvalidArgument, codes.Unimplemented:
		// gRPC itself says these: a message over the size limit, or another
		// version of the protocol. Retrying does not help.
		return fmt.Errorf("cluster: node %s: %s: %w", peer, st.Message(), replay.ErrInvalid)
	}
	return fmt.Errorf("cluster: node %s: %s", peer, st.Message())
}
