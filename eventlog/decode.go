package eventlog

import (
	"fmt"
	"math"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	pb "github.com/skein-rl/skein/eventlog/internal/eventlogpb"
)

// Decode reads one encoded log and nothing after it. The result is valid and
// owns its memory. Errors: [ErrNotLog], [*VersionError], [ErrTooLarge],
// [ErrCorrupt] (with [ErrInvalid] when the bytes are whole but the log breaks an
// invariant). Memory taken is bounded by the length of data and the limits of
// this package, whatever the lengths inside say.
func Decode(data []byte) (*Log, error) {
	body, err := unframe(data)
	if err != nil {
		return nil, err
	}
	if err := checkCounts(body); err != nil {
		return nil, err
	}
	var m pb.Log
	if err := proto.Unmarshal(body, &m); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	l, err := fromProto(&m)
	if err != nil {
		return nil, err
	}
	if err := l.Validate(); err != nil {
		return nil, fmt.Errorf("%w: log %q: %w", ErrCorrupt, l.ID, err)
	}
	return l, nil
}

// checkCounts counts events and branches before memory is taken for them: a
// few bytes on the wire are some hundred in memory.
func checkCounts(body []byte) error {
	events, branches := 0, 0
	for len(body) > 0 {
		num, typ, n := protowire.ConsumeTag(body)
		if n < 0 {
			return fmt.Errorf("%w: %w", ErrCorrupt, protowire.ParseError(n))
		}
		body = body[n:]
		if n = protowire.ConsumeFieldValue(num, typ, body); n < 0 {
			return fmt.Errorf("%w: field %d: %w", ErrCorrupt, num, protowire.ParseError(n))
		}
		body = body[n:]
		switch num {
		case 4:
			events++
		case 5:
			branches++
		}
	}
	if events > MaxEvents {
		return fmt.Errorf("%w: %d events, at most %d", ErrTooLarge, events, MaxEvents)
	}
	if branches > MaxBranches {
		return fmt.Errorf("%w: %d branches, at most %d", ErrTooLarge, branches, MaxBranches)
	}
	return nil
}

func fromProto(m *pb.Log) (*Log, error) {
	if err := known("log", m); err != nil {
		return nil, err
	}
	l := &Log{ID: m.Id, Outcome: m.Outcome}
	var err error
	if l.Tier, err = enum[Tier]("tier", int32(m.Tier)); err != nil {
		return nil, err
	}
	if l.Meta, err = metaFromProto(m.Meta); err != nil {
		return nil, err
	}
	if len(m.Events) > 0 {
		l.Events = make([]Event, len(m.Events))
	}
	for i, w := range m.Events {
		if err := eventFromProto(&l.Events[i], w); err != nil {
			return nil, fmt.Errorf("event %d: %w", i+1, err)
		}
		l.Events[i].Seq = uint32(i + 1)
	}
	if len(m.Branches) > 0 {
		l.Branches = make([]Branch, len(m.Branches))
	}
	total := 0
	for i, w := range m.Branches {
		total += int(min(w.Fork, MaxTokens+1)) + len(w.Ids)
		if total > MaxTokens {
			return nil, fmt.Errorf("%w: more than %d tokens over all branches, shared prefixes included", ErrTooLarge, MaxTokens)
		}
		if err := l.branchFromProto(i, w); err != nil {
			return nil, fmt.Errorf("branch %d: %w", i, err)
		}
	}
	return l, nil
}

func metaFromProto(m *pb.Meta) (Meta, error) {
	if m == nil {
		return Meta{}, fmt.Errorf("%w: no meta", ErrCorrupt)
	}
	if err := known("meta", m); err != nil {
		return Meta{}, err
	}
	status, err := enum[Status]("meta.status", int32(m.Status))
	return Meta{
		Run: m.Run, Group: m.Group, Member: m.Member, GroupSize: m.GroupSize, Table: m.Table, Source: m.Source, Task: m.Task,
		Attempt: m.Attempt, Worker: m.Worker, Status: status, Cause: m.Cause, Created: fromNanos(m.CreatedNs),
	}, err
}

func eventFromProto(e *Event, w *pb.Event) error {
	if err := known("event", w); err != nil {
		return err
	}
	kind, err := enum[Kind]("kind", int32(w.Kind))
	if err != nil {
		return err
	}
	scope, err := enum[Scope]("scope", int32(w.Scope))
	if err != nil {
		return err
	}
	*e = Event{
		Parent: w.Parent, Kind: kind, Scope: scope, Author: w.Author, CallID: w.CallId,
		Start: fromNanos(w.StartNs), End: fromNanos(w.EndNs), Partial: w.Partial,
	}
	if e.Payload, err = decodePayload(w.Payload); err != nil {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if w.Span == nil {
		return nil
	}
	if err := known("span", w.Span); err != nil {
		return err
	}
	if w.Span.Start > MaxTokens || w.Span.End > MaxTokens {
		return fmt.Errorf("%w: span [%d,%d), at most %d tokens", ErrTooLarge, w.Span.Start, w.Span.End, MaxTokens)
	}
	e.Branch = w.Branch
	e.Span = &Span{Start: int32(w.Span.Start), End: int32(w.Span.End)}
	return nil
}

// branchFromProto rebuilds branch i: the parent's prefix, then its own tokens.
func (l *Log) branchFromProto(i int, w *pb.Branch) error {
	if err := known("branch", w); err != nil {
		return err
	}
	b := &l.Branches[i]
	b.Parent, b.Accepted = w.Parent, w.Accepted
	fork, n := int(w.Fork), int(w.Fork)+len(w.Ids)
	if fork > 0 {
		if int64(w.Parent) >= int64(i) || fork > len(l.Branches[w.Parent].IDs) {
			return fmt.Errorf("%w: fork %d of branch %d, which has no such token", ErrCorrupt, fork, w.Parent)
		}
		p := &l.Branches[w.Parent]
		b.Fork = int32(fork)
		b.IDs = append(make([]int32, 0, n), p.IDs[:fork]...)
		b.Logprobs = append(make([]float32, 0, n), p.Logprobs[:fork]...)
		b.copyRuns(p, int32(fork))
	} else if n > 0 {
		b.IDs = make([]int32, 0, n)
		b.Logprobs = make([]float32, 0, n)
	}
	b.IDs = append(b.IDs, w.Ids...)
	rest := w.Logprobs
	for j, r := range w.Runs {
		if err := known("run", r); err != nil {
			return err
		}
		writer, err := enum[Writer]("writer", int32(r.Writer))
		if err != nil {
			return err
		}
		k := int64(r.Length)
		if k == 0 || k > int64(n-len(b.Logprobs)) {
			return fmt.Errorf("%w: run %d has %d tokens, %d are left", ErrCorrupt, j, k, n-len(b.Logprobs))
		}
		if !hasLogprobs(writer) {
			for range k {
				b.Logprobs = append(b.Logprobs, nan)
			}
		} else if k > int64(len(rest)) {
			return fmt.Errorf("%w: run %d needs %d logprobs, %d are left", ErrCorrupt, j, k, len(rest))
		} else {
			b.Logprobs, rest = append(b.Logprobs, rest[:k]...), rest[k:]
		}
		b.addRun(Run{End: int32(len(b.Logprobs)), Writer: writer, Version: r.Version})
	}
	if len(b.Logprobs) != n || len(rest) > 0 {
		return fmt.Errorf("%w: %d tokens, runs cover %d and leave %d logprobs", ErrCorrupt, n, len(b.Logprobs), len(rest))
	}
	return nil
}

var nan = math.Float32frombits(0x7fc00000)

// copyRuns takes over a parent's runs up to the fork.
func (b *Branch) copyRuns(p *Branch, fork int32) {
	for _, r := range p.Runs {
		cut := r
		cut.End = min(r.End, fork)
		b.addRun(cut)
		if r.End >= fork {
			return
		}
	}
}

// addRun appends a run, merging it with an equal neighbour.
func (b *Branch) addRun(r Run) {
	if n := len(b.Runs); n > 0 && b.Runs[n-1].Writer == r.Writer && b.Runs[n-1].Version == r.Version {
		b.Runs[n-1].End = r.End
		return
	}
	b.Runs = append(b.Runs, r)
}

// known refuses fields this version does not have: they would be lost.
func known(what string, m proto.Message) error {
	if u := m.ProtoReflect().GetUnknown(); len(u) > 0 {
		num, _, _ := protowire.ConsumeTag(u)
		return fmt.Errorf("%w: %s has a field %d that version %d does not know", ErrCorrupt, what, num, Version)
	}
	return nil
}

// enum narrows a wire enum; Validate judges the value.
func enum[T ~uint8](field string, v int32) (T, error) {
	if v < 0 || v > 255 {
		return 0, fmt.Errorf("%w: %s = %d is not one of version %d", ErrCorrupt, field, v, Version)
	}
	return T(v), nil
}

func fromNanos(ns *int64) time.Time {
	if ns == nil {
		return time.Time{}
	}
	return time.Unix(0, *ns).UTC()
}
