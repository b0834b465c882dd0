package rollout

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"lukechampine.com/blake3"

	"github.com/skein-rl/skein/eventlog"
	"github.com/skein-rl/skein/replay"
)

// start rolls out a ticket's group in the background.
func (w *Worker) start(ctx context.Context, t replay.Ticket, spec replay.RunSpec) {
	if w.hooks.Ticket != nil {
		w.hooks.Ticket(t)
	}
	var members []uint32
	for m := range t.GroupSize {
		if !slices.Contains(t.Done, m) {
			members = append(members, m)
		}
	}
	w.count(func(h *Heartbeat) { h.Groups++; h.Members += len(members) })
	w.groups.Go(func() {
		w.group(ctx, t, spec, members)
		w.count(func(h *Heartbeat) { h.Groups--; h.Members -= len(members) })
		select {
		case w.freed <- struct{}{}:
		default:
		}
	})
}

// group rolls out the members side by side and appends each as it ends. What
// could not be rolled out in time goes back to the scheduler.
func (w *Worker) group(ctx context.Context, t replay.Ticket, spec replay.RunSpec, members []uint32) {
	now := w.parts.Now()
	left := t.Expires.Sub(now)
	deadline := t.Expires.Add(-min(w.cfg.AppendMargin, left/4))
	keep := t.Expires.Add(spec.TicketTTL) // a log later than that is surely a duplicate

	task, taskErr := w.resolve(t)
	if taskErr != nil {
		w.report("task", taskErr)
	}
	var policy loadedPolicy
	if taskErr == nil {
		var err error
		if policy, err = w.await(ctx, t, deadline); err != nil {
			if ctx.Err() == nil {
				w.report("policy", err)
			}
			w.giveBack(ctx, t)
			return
		}
	}
	// wanted ends when the store has what it wants of the group: other members,
	// oversampled or another worker's too, are abandoned then.
	wanted, close := context.WithCancelCause(ctx)
	defer close(nil)
	var wg sync.WaitGroup
	var unfinished atomic.Int64
	for _, m := range members {
		wg.Go(func() {
			log, err := w.member(wanted, t, m, task, taskErr, policy, deadline)
			closed := false
			if err == nil {
				closed, err = w.append(log, keep)
			}
			switch {
			case err == nil && closed:
				close(errClosed)
			case err == nil:
			case errors.Is(context.Cause(wanted), errClosed): // nobody misses it
				w.count(func(h *Heartbeat) { h.Abandoned++ })
			case err != nil:
				if ctx.Err() == nil {
					w.report("rollout", err)
				}
				unfinished.Add(1)
			}
		})
	}
	wg.Wait()
	if unfinished.Load() > 0 && !errors.Is(context.Cause(wanted), errClosed) {
		w.giveBack(ctx, t)
	}
}

// errClosed: the group has all the members it wants.
var errClosed = errors.New("the group is complete")

// append records a log. One that the store can never take is recorded as failed
// with the store's reason instead: rolled out again it would be rejected again.
// closed says that its group wants no more.
func (w *Worker) append(log *eventlog.Log, keep time.Time) (closed bool, err error) {
	closed, err = w.out.append(log, keep)
	if !errors.Is(err, replay.ErrInvalid) {
		return closed, err
	}
	w.report("append", err)
	failed, ferr := failedLog(Request{ID: log.ID, Meta: log.Meta}, Task{ID: log.Meta.Task, Source: log.Meta.Source}, w.parts.Now(), "store: "+err.Error())
	if ferr != nil {
		return false, errors.Join(err, ferr)
	}
	return w.out.append(failed, keep)
}

func (w *Worker) resolve(t replay.Ticket) (Task, error) {
	switch t.Table {
	case "train":
		return w.parts.Source.Train(t.TaskIndex())
	case "eval":
		return w.parts.Source.Heldout(t.Index)
	}
	return Task{}, fmt.Errorf("ticket of group %s: unknown table %q; want train or eval", t.Group, t.Table)
}

// await gets the policy a ticket demands before anything is sampled: training
// waits until the engine serves at least its version, evaluation loads exactly
// its version, which each rollout pins later.
func (w *Worker) await(ctx context.Context, t replay.Ticket, deadline time.Time) (loadedPolicy, error) {
	ctx, cancel := context.WithDeadlineCause(ctx, deadline, fmt.Errorf("group %s: policy version %d did not arrive before the group's deadline", t.Group, t.Version))
	defer cancel()
	if t.Table == "eval" {
		return w.version(ctx, t.Version)
	}
	if err := w.gate.beginTrain(ctx, t.Version); err != nil {
		return loadedPolicy{}, err
	}
	w.gate.endTrain()
	return loadedPolicy{}, nil
}

// version returns a verified policy of exactly that version.
func (w *Worker) version(ctx context.Context, version uint64) (loadedPolicy, error) {
	serving, latest := w.gate.current()
	for _, p := range []loadedPolicy{serving, latest} {
		if p.version == version {
			return p, nil
		}
	}
	var p replay.Policy
	var err error
	if version == 0 {
		var st replay.RunStatus
		if st, err = w.parts.Store.Status(ctx, w.cfg.Run); err == nil {
			p = replay.Policy{Run: w.cfg.Run, Adapter: st.Spec.StartAdapter}
		}
	} else {
		p, err = w.parts.Store.WaitPolicy(ctx, w.cfg.Run, version-1, 0)
	}
	if err != nil {
		return loadedPolicy{}, err
	}
	if p.Version != version {
		return loadedPolicy{}, fmt.Errorf("policy version %d is not to be had; the store answers with %d", version, p.Version)
	}
	return loadPolicy(ctx, w.fetchPolicy, w.parts.Base, p)
}

// member rolls out one member. A task that could not be made is a failed
// rollout like any other.
func (w *Worker) member(ctx context.Context, t replay.Ticket, m uint32, task Task, taskErr error, policy loadedPolicy, deadline time.Time) (*eventlog.Log, error) {
	req := Request{
		ID: logID(t, m, w.cfg.Name),
		Meta: eventlog.Meta{
			Run: t.Run, Group: t.Group, Member: m, GroupSize: t.GroupSize, Table: t.Table,
			Attempt: t.Attempt, Worker: w.cfg.Name,
		},
		Seed: memberSeed(w.cfg.Seed, t.Seed, m), Greedy: t.Greedy, Deadline: deadline,
	}
	if t.Table == "eval" {
		req.Version = &t.Version
	} else {
		req.MinVersion = t.Version
	}
	log, err := w.episode(ctx, task, taskErr, policy, req)
	if err != nil {
		return nil, err
	}
	w.count(func(h *Heartbeat) {
		h.Rollouts++
		if log.Meta.Status == eventlog.Failed || log.Meta.Status == eventlog.TimedOut {
			h.Failed++
		}
	})
	if w.hooks.Rollout != nil {
		w.hooks.Rollout(log)
	}
	return log, nil
}

func (w *Worker) episode(ctx context.Context, task Task, taskErr error, policy loadedPolicy, req Request) (*eventlog.Log, error) {
	if taskErr != nil {
		return failedLog(req, task, w.parts.Now(), "task: "+taskErr.Error())
	}
	if req.Version != nil {
		pinCtx, cancel := context.WithDeadline(ctx, req.Deadline)
		err := w.gate.beginEval(pinCtx, policy)
		cancel()
		if err != nil {
			return nil, fmt.Errorf("pin policy version %d: %w", *req.Version, err)
		}
		defer w.gate.endEval()
	}
	log, err := w.loop.Run(ctx, task, req)
	if err != nil {
		return nil, err
	}
	if err := w.gate.vouch(ctx, log); err != nil {
		if !errors.Is(err, errProbe) {
			return nil, err
		}
		return failedLog(req, task, w.parts.Now(), "policy: "+err.Error())
	}
	return log, nil
}

// failedLog records a rollout of which nothing else can be kept.
func failedLog(req Request, task Task, now time.Time, cause string) (*eventlog.Log, error) {
	meta := req.Meta
	meta.Source, meta.Task, meta.Created = task.Source, task.ID, now.UTC().Round(0)
	b := eventlog.NewBuilder(meta)
	b.SetID(req.ID)
	b.SetTier(eventlog.Full)
	return b.Finish(eventlog.Failed, strings.ToValidUTF8(cause, "\uFFFD"))
}

// giveBack returns the group's ticket, also while draining.
func (w *Worker) giveBack(ctx context.Context, t replay.Ticket) {
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(w.cfg.CallTimeout, w.cfg.DrainTimeout))
	defer cancel()
	if err := w.parts.Store.ReturnTicket(call, t.Run, t.Group, w.cfg.Name); err != nil {
		w.report("return", err)
	}
	select {
	case w.back <- struct{}{}:
	default:
	}
}

// logID is the same for the same rollout, so that a repeated append is a
// duplicate and not a second log.
func logID(t replay.Ticket, member uint32, worker string) string {
	h := blake3.New(16, nil)
	for _, s := range []string{t.Run, t.Table, t.Group, fmt.Sprint(member), fmt.Sprint(t.Attempt), worker} {
		fmt.Fprintf(h, "%d:%s", len(s), s)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// memberSeed mixes the run's seed, the ticket's and the member
// (splitmix64's finaliser).
func memberSeed(run, ticket uint64, member uint32) uint64 {
	x := run
	for _, y := range []uint64{ticket, uint64(member)} {
		x += y + 0x9e3779b97f4a7c15
		x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
		x = (x ^ x>>27) * 0x94d049bb133111eb
		x ^= x >> 31
	}
	return x
}
