package eventlog

import (
	"encoding/json"
	"math"
	"time"
)

// The JSON form is for readers and scripts: names instead of numbers, null
// where a token has no logprob. Encode and Decode are the storage format.

type jsonLog struct {
	ID       string       `json:"id"`
	Tier     string       `json:"tier"`
	Digest   string       `json:"digest"`
	Meta     jsonMeta     `json:"meta"`
	Events   []jsonEvent  `json:"events"`
	Branches []jsonBranch `json:"branches"`
}

type jsonMeta struct {
	Run       string     `json:"run,omitempty"`
	Group     string     `json:"group,omitempty"`
	Member    uint32     `json:"member"`
	GroupSize uint32     `json:"group_size"`
	Table     string     `json:"table,omitempty"`
	Source    string     `json:"source,omitempty"`
	Task      string     `json:"task,omitempty"`
	Attempt   uint32     `json:"attempt"`
	Worker    string     `json:"worker,omitempty"`
	Status    string     `json:"status"`
	Cause     string     `json:"cause,omitempty"`
	Created   *time.Time `json:"created,omitempty"`
}

type jsonEvent struct {
	Seq     uint32         `json:"seq"`
	Parent  uint32         `json:"parent"`
	Kind    string         `json:"kind"`
	Payload map[string]any `json:"payload,omitempty"`
	Branch  *uint32        `json:"branch,omitempty"`
	Span    *[2]int32      `json:"span,omitempty"`
	Scope   string         `json:"scope,omitempty"`
	Author  string         `json:"author,omitempty"`
	CallID  string         `json:"call_id,omitempty"`
	Start   *time.Time     `json:"start,omitempty"`
	End     *time.Time     `json:"end,omitempty"`
	Partial bool           `json:"partial,omitempty"`
}

type jsonBranch struct {
	Parent   uint32     `json:"parent"`
	Fork     int32      `json:"fork"`
	Accepted bool       `json:"accepted"`
	IDs      []int32    `json:"ids"`
	Logprobs []*float32 `json:"logprobs"`
	Runs     []jsonRun  `json:"runs"`
}

type jsonRun struct {
	End     int32   `json:"end"`
	Writer  string  `json:"writer"`
	Version *uint64 `json:"version,omitempty"`
}

// MarshalJSON writes the whole log for readers.
func (l *Log) MarshalJSON() ([]byte, error) {
	m := l.Meta
	out := jsonLog{
		ID: l.ID, Tier: l.Tier.String(), Digest: l.Digest(),
		Meta: jsonMeta{
			Run: m.Run, Group: m.Group, Member: m.Member, GroupSize: m.GroupSize, Table: m.Table, Source: m.Source,
			Task: m.Task, Attempt: m.Attempt, Worker: m.Worker, Status: m.Status.String(), Cause: m.Cause, Created: stamp(m.Created),
		},
		Events:   make([]jsonEvent, len(l.Events)),
		Branches: make([]jsonBranch, len(l.Branches)),
	}
	for i := range l.Events {
		out.Events[i] = l.Events[i].json()
	}
	for i := range l.Branches {
		out.Branches[i] = l.Branches[i].json()
	}
	return json.Marshal(out)
}

func (e *Event) json() jsonEvent {
	out := jsonEvent{
		Seq: e.Seq, Parent: e.Parent, Kind: e.Kind.String(), Payload: e.Payload, Author: e.Author, CallID: e.CallID,
		Start: stamp(e.Start), End: stamp(e.End), Partial: e.Partial,
	}
	if e.Span != nil {
		branch := e.Branch
		out.Branch, out.Span = &branch, &[2]int32{e.Span.Start, e.Span.End}
	}
	if e.Scope != NoScope {
		out.Scope = e.Scope.String()
	}
	return out
}

func (b *Branch) json() jsonBranch {
	out := jsonBranch{Parent: b.Parent, Fork: b.Fork, Accepted: b.Accepted, IDs: b.IDs, Logprobs: make([]*float32, len(b.Logprobs))}
	for i := range b.Logprobs {
		if !math.IsNaN(float64(b.Logprobs[i])) {
			out.Logprobs[i] = &b.Logprobs[i]
		}
	}
	for _, r := range b.Runs {
		run := jsonRun{End: r.End, Writer: r.Writer.String()}
		if r.Writer == Policy {
			version := r.Version
			run.Version = &version
		}
		out.Runs = append(out.Runs, run)
	}
	return out
}

func stamp(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
