package eventlog

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/skein-rl/skein/eventlog/internal/eventlogpb"
)

// Encode writes a valid log in wire version 1. It refuses an invalid one with
// what [Log.Validate] says and one beyond [MaxEncodedBytes] with [ErrTooLarge].
// The log is not changed.
func Encode(l *Log) ([]byte, error) {
	if err := l.Validate(); err != nil {
		return nil, fmt.Errorf("encode log %s: %w", l.ID, err)
	}
	m, err := toProto(l)
	if err != nil {
		return nil, fmt.Errorf("encode log %s: %w", l.ID, err)
	}
	body, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode log %s: %w", l.ID, err)
	}
	if len(body) > MaxEncodedBytes {
		return nil, fmt.Errorf("encode log %s: %w: %d bytes, at most %d; shorten tool outputs or split the rollout", l.ID, ErrTooLarge, len(body), MaxEncodedBytes)
	}
	return frame(body), nil
}

func toProto(l *Log) (*pb.Log, error) {
	m := &l.Meta
	out := &pb.Log{
		Id:      l.ID,
		Tier:    pb.Tier(l.Tier),
		Outcome: l.Outcome,
		Meta: &pb.Meta{
			Run: m.Run, Group: m.Group, Member: m.Member, GroupSize: m.GroupSize, Table: m.Table, Source: m.Source, Task: m.Task,
			Attempt: m.Attempt, Worker: m.Worker, Status: pb.Status(m.Status), Cause: m.Cause, CreatedNs: nanos(m.Created),
		},
		Events:   make([]*pb.Event, len(l.Events)),
		Branches: make([]*pb.Branch, len(l.Branches)),
	}
	for i := range l.Events {
		e := &l.Events[i]
		w := &pb.Event{
			Kind: pb.Kind(e.Kind), Parent: e.Parent, Scope: pb.Scope(e.Scope), Author: e.Author, CallId: e.CallID,
			StartNs: nanos(e.Start), EndNs: nanos(e.End), Partial: e.Partial,
		}
		if len(e.Payload) > 0 {
			var err error
			if w.Payload, err = CanonicalJSON(e.Payload); err != nil {
				return nil, fmt.Errorf("event %d: %w", e.Seq, err)
			}
		}
		if e.Span != nil {
			w.Branch = e.Branch
			w.Span = &pb.Span{Start: uint32(e.Span.Start), End: uint32(e.Span.End)}
		}
		out.Events[i] = w
	}
	for i := range l.Branches {
		out.Branches[i] = branchToProto(&l.Branches[i])
	}
	return out, nil
}

// branchToProto keeps the tokens from the fork on and the logprobs that exist.
func branchToProto(b *Branch) *pb.Branch {
	out := &pb.Branch{Parent: b.Parent, Fork: uint32(b.Fork), Ids: b.IDs[b.Fork:], Accepted: b.Accepted}
	start := int32(0)
	for _, r := range b.Runs {
		from := max(start, b.Fork)
		start = r.End
		if r.End <= from {
			continue
		}
		out.Runs = append(out.Runs, &pb.Run{Length: uint32(r.End - from), Writer: pb.Writer(r.Writer), Version: r.Version})
		if hasLogprobs(r.Writer) {
			out.Logprobs = append(out.Logprobs, b.Logprobs[from:r.End]...)
		}
	}
	return out
}

// hasLogprobs says whose tokens have a logprob on the wire.
func hasLogprobs(w Writer) bool { return w == Policy || w == Expert }

func nanos(t time.Time) *int64 {
	if t.IsZero() {
		return nil
	}
	ns := t.UnixNano()
	return &ns
}
