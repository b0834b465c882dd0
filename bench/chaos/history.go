package main

import (
	"encoding/json"
	"errors"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/skein-rl/skein/replay"
)

// Outcome of an operation as its caller saw it.
type Outcome string

const (
	OK      Outcome = "ok"
	Failed  Outcome = "failed"  // refused: it has had no effect and never will
	Unknown Outcome = "unknown" // it may have had its effect, or have it still
)

// Op is one operation of a client, with all that is needed to judge it.
type Op struct {
	Kind    string        `json:"kind"`
	Client  string        `json:"client"`
	Run     string        `json:"run"`
	Table   string        `json:"table,omitempty"`
	Call    time.Duration `json:"call"` // since the episode began
	Return  time.Duration `json:"return"`
	Outcome Outcome       `json:"outcome"`
	Err     string        `json:"err,omitempty"`

	// append, insert
	Appends []Append `json:"appends,omitempty"`
	// take, return; lease, extend, commit, release
	Groups  []Held        `json:"groups,omitempty"`
	Lease   uint64        `json:"lease,omitempty"`
	TTL     time.Duration `json:"ttl,omitempty"`
	Drop    bool          `json:"drop,omitempty"`
	Max     uint32        `json:"max,omitempty"`   // max_times_sampled of the table
	Ended   uint64        `json:"ended,omitempty"` // lease: the holder's earlier one, which this request ends
	EndedOf []string      `json:"ended_of,omitempty"`
	// commit, latest
	Version    uint64 `json:"version,omitempty"`
	Prev       string `json:"prev,omitempty"`
	Checkpoint string `json:"checkpoint,omitempty"`
}

// Append is one log of an append, or one group of an insert.
type Append struct {
	Group  string   `json:"group"`
	Member uint32   `json:"member"`
	Size   uint32   `json:"size"` // of the group
	Log    string   `json:"log"`
	Logs   []string `json:"logs,omitempty"` // insert: all members
	Result string   `json:"result"`         // accepted, duplicate, busy or rejected
}

// Held is a group that a ticket or lease gave.
type Held struct {
	Group   string   `json:"group"`
	Logs    []string `json:"logs,omitempty"` // lease: in member order
	Size    uint32   `json:"size"`
	Attempt uint32   `json:"attempt,omitempty"`
	Sampled uint32   `json:"sampled,omitempty"`
}

// history records operations.
type history struct {
	began time.Time
	mu    sync.Mutex
	ops   []Op
	acked map[string]*logFacts // by LogID: stored, says an answer
	tried map[string]*logFacts // appended at least once
	bad   []string             // violations seen on the way
}

// logFacts is what a reader must find.
type logFacts struct {
	run, table, digest string
	sum                uint64 // of the bytes
	group              string
}

func newHistory(began time.Time) *history {
	return &history{began: began, acked: make(map[string]*logFacts), tried: make(map[string]*logFacts)}
}

func (h *history) now() time.Duration { return time.Since(h.began) }

// end notes how an operation ended.
func (h *history) end(op *Op, err error) {
	op.Return = h.now()
	op.Outcome = outcome(err)
	if err != nil {
		op.Err = err.Error()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, *op)
}

// outcome judges an error. Only what the fold itself answers is a failure: the
// client tries again by itself, so that behind any other error there may be a
// try that came through.
func outcome(err error) Outcome {
	switch {
	case err == nil:
		return OK
	case errors.Is(err, replay.ErrUnavailable):
		return Unknown
	case errors.Is(err, replay.ErrStale), errors.Is(err, replay.ErrInvalid), errors.Is(err, replay.ErrBusy), errors.Is(err, replay.ErrNotFound),
		errors.Is(err, replay.ErrTimeout):
		return Failed
	}
	return Unknown
}

func (h *history) violation(s string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.bad = append(h.bad, s)
}

func (h *history) violations() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.bad)
}

// trying notes a log before it is sent.
func (h *history) trying(id string, f *logFacts) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tried[id] = f
}

// stored notes that an answer said a log is stored.
func (h *history) stored(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.acked[id] = h.tried[id]
}

// counts: operations, those acknowledged, those of unknown outcome.
func (h *history) counts() (ops, ok, unknown int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range h.ops {
		switch h.ops[i].Outcome {
		case OK:
			ok++
		case Unknown:
			unknown++
		}
	}
	return len(h.ops), ok, unknown
}

// write saves the history as lines of JSON.
func (h *history) write(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	enc := json.NewEncoder(f)
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range h.ops {
		if err = enc.Encode(&h.ops[i]); err != nil {
			break
		}
	}
	return errors.Join(err, f.Close())
}
