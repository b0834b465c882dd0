package rollout

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/skein-rl/skein/eventlog"
	"github.com/skein-rl/skein/replay"
)

// outbox appends finished logs to the store in batches, in one call whatever
// has gathered, and tries again until the store has them. It is unbuffered
// towards the groups: while the store refuses (disk full, no majority), groups
// stay in flight and the worker takes no more tickets.
type outbox struct {
	w    *Worker
	in   chan *parcel
	done chan struct{} // run has returned
}

type parcel struct {
	rec    replay.Record
	keep   time.Time // no use after that
	result chan settled
}

// settled is how an append ended: the group wants no more, or an error.
type settled struct {
	closed bool
	err    error
}

// batchLimit bounds one append, in logs.
const batchLimit = 64

func newOutbox(w *Worker) *outbox {
	return &outbox{w: w, in: make(chan *parcel), done: make(chan struct{})}
}

// append returns once the store has the log, or no longer wants it; closed says
// that it wants no more of its group. An error means that the log is lost: it
// could not be encoded, was rejected, or the worker stopped first.
func (o *outbox) append(log *eventlog.Log, keep time.Time) (closed bool, err error) {
	data, err := eventlog.Encode(log)
	if err != nil {
		o.w.count(func(h *Heartbeat) { h.Lost++ })
		return false, fmt.Errorf("encode log %s: %w", log.ID, err)
	}
	p := &parcel{rec: replay.Record{Item: ItemOf(log, len(data)), Bytes: data}, keep: keep, result: make(chan settled, 1)}
	select {
	case o.in <- p:
		out := <-p.result
		return out.closed, out.err
	case <-o.done:
		o.w.count(func(h *Heartbeat) { h.Lost++ })
		return false, fmt.Errorf("append log %s: the worker stopped", log.ID)
	}
}

// run owns the sending side until ctx ends.
func (o *outbox) run(ctx context.Context) {
	defer close(o.done)
	for {
		var batch []*parcel
		select {
		case p := <-o.in:
			batch = append(batch, p)
		case <-ctx.Done():
			return
		}
		for gathering := true; gathering && len(batch) < batchLimit; {
			select {
			case p := <-o.in:
				batch = append(batch, p)
			default:
				gathering = false
			}
		}
		o.send(ctx, batch)
	}
}

// send appends a batch, trying again until it is in, expired, or ctx ends.
func (o *outbox) send(ctx context.Context, batch []*parcel) {
	w := o.w
	wait := newBackoff()
	for {
		recs := make([]replay.Record, len(batch))
		for i, p := range batch {
			recs[i] = p.rec
		}
		call, cancel := context.WithTimeout(ctx, w.cfg.CallTimeout)
		results, err := w.parts.Store.Append(call, recs)
		cancel()
		if len(results) == len(batch) && (err == nil || errors.Is(err, replay.ErrInvalid) || errors.Is(err, replay.ErrBusy)) {
			var busy []*parcel
			for i, p := range batch {
				if results[i].Busy != "" {
					busy = append(busy, p)
					continue
				}
				p.result <- settled{results[i].Closed, o.settle(p.rec.Item, results[i])}
			}
			if batch = busy; len(batch) == 0 {
				return
			}
			// The learner is behind: what is left waits here, and with it the
			// worker.
			for _, r := range results {
				if r.Busy != "" {
					err = fmt.Errorf("%w: %s", replay.ErrBusy, r.Busy)
					break
				}
			}
		}
		if err == nil {
			err = fmt.Errorf("%d records gave %d results", len(batch), len(results))
		}
		if ctx.Err() == nil {
			w.report("append", err)
		}
		var rest []*parcel
		for _, p := range batch {
			if ctx.Err() != nil || errors.Is(err, replay.ErrInvalid) || w.parts.Now().After(p.keep) {
				w.count(func(h *Heartbeat) { h.Lost++ })
				p.result <- settled{err: fmt.Errorf("append log %s: %w", p.rec.Item.LogID, err)}
				continue
			}
			rest = append(rest, p)
		}
		if batch = rest; len(batch) == 0 {
			return
		}
		wait.sleep(ctx)
	}
}

func (o *outbox) settle(item replay.Item, r replay.AppendResult) error {
	w := o.w
	w.count(func(h *Heartbeat) {
		switch {
		case r.Rejected != "":
			h.Rejected++
		case r.Duplicate:
			h.Duplicates++
		default:
			h.Appended++
		}
	})
	if w.hooks.Appended != nil {
		w.hooks.Appended(item, r)
	}
	if r.Rejected != "" {
		return fmt.Errorf("append log %s: %w: %s", item.LogID, replay.ErrInvalid, r.Rejected)
	}
	return nil
}

// maxCause bounds a cause in the index, in bytes; the log has all of it.
const maxCause = 1024

// ItemOf is what the store's index knows of a log whose encoding has the given
// size.
func ItemOf(log *eventlog.Log, size int) replay.Item {
	m := log.Meta
	lowest, highest, sampled := log.PolicyVersions()
	item := replay.Item{
		LogID: log.ID, Run: m.Run, Table: m.Table, Group: m.Group, Member: m.Member, GroupSize: m.GroupSize,
		Source: m.Source, Task: m.Task, Attempt: m.Attempt, Worker: m.Worker,
		Status: uint8(m.Status), Cause: clip(m.Cause, maxCause),
		MinVersion: lowest, MaxVersion: highest, Tokens: uint32(sampled),
		Digest: log.Digest(), Size: uint32(size), Created: m.Created,
	}
	item.Reward, item.HasReward = log.EpisodeReward()
	return item
}
