package replay

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	pb "github.com/skein-rl/skein/replay/internal/replaypb"
)

// Result is the fold's answer to one command. Which fields are set follows from
// the command.
type Result struct {
	// Err refuses the command: ErrStale, ErrNotFound or ErrInvalid, wrapped
	// with ids. Refusals are the same on every replica and change nothing.
	Err     error
	Tickets []Ticket       // TakeTicketsCmd
	Append  []AppendResult // AppendItemsCmd, in order of the items
	Lease   *Lease         // AcquireLeaseCmd; nil = not enough groups yet
}

// remoteError is an error that crossed the wire: its text and its sentinel.
type remoteError struct {
	text string
	kind error
}

func (e *remoteError) Error() string { return e.text }
func (e *remoteError) Unwrap() error { return e.kind }

var errorCodes = []struct {
	code pb.ErrorCode
	err  error
}{
	{pb.ErrorCode_ERROR_CODE_STALE, ErrStale},
	{pb.ErrorCode_ERROR_CODE_DISK_FULL, ErrDiskFull},
	{pb.ErrorCode_ERROR_CODE_NOT_FOUND, ErrNotFound},
	{pb.ErrorCode_ERROR_CODE_INVALID, ErrInvalid},
	{pb.ErrorCode_ERROR_CODE_UNAVAILABLE, ErrUnavailable},
}

// EncodeResult encodes a result; an Err keeps its text and its sentinel.
func EncodeResult(r Result) ([]byte, error) {
	m := &pb.Result{}
	if r.Err != nil {
		m.Message = r.Err.Error()
		for _, c := range errorCodes {
			if errors.Is(r.Err, c.err) {
				m.Code = c.code
				break
			}
		}
		if m.Code == pb.ErrorCode_ERROR_CODE_NONE {
			return nil, fmt.Errorf("replay: encode result: error of no known kind: %w", r.Err)
		}
	}
	for i := range r.Tickets {
		m.Tickets = append(m.Tickets, ticketToPB(&r.Tickets[i]))
	}
	for _, a := range r.Append {
		m.Append = append(m.Append, &pb.AppendOutcome{Duplicate: a.Duplicate, Rejected: a.Rejected})
	}
	if r.Lease != nil {
		m.Lease = leaseToPB(r.Lease)
	}
	b, err := marshal.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("replay: encode result: %w", err)
	}
	return b, nil
}

// DecodeResult is the inverse of EncodeResult. Errors wrap ErrInvalid.
func DecodeResult(b []byte) (Result, error) {
	m := new(pb.Result)
	if err := proto.Unmarshal(b, m); err != nil {
		return Result{}, fmt.Errorf("%w: decode result: %w", ErrInvalid, err)
	}
	var r Result
	if m.Code != pb.ErrorCode_ERROR_CODE_NONE {
		e := &remoteError{text: m.Message, kind: ErrInvalid}
		for _, c := range errorCodes {
			if c.code == m.Code {
				e.kind = c.err
			}
		}
		r.Err = e
	}
	for _, t := range m.Tickets {
		r.Tickets = append(r.Tickets, ticketFromPB(t))
	}
	for _, a := range m.Append {
		r.Append = append(r.Append, AppendResult{Duplicate: a.Duplicate, Rejected: a.Rejected})
	}
	if m.Lease != nil {
		l := leaseFromPB(m.Lease)
		r.Lease = &l
	}
	return r, nil
}
