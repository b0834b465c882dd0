package learner

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/skein-rl/skein/eventlog"
	"github.com/skein-rl/skein/replay"
)

// ErrCorruptLog: a log is not what the index says.
var ErrCorruptLog = errors.New("learner: corrupt log")

// dropEmpty is the reason given to the store for groups of an empty batch.
const dropEmpty = "nothing_to_train"

// train makes one step of a lease and commits it. On any error the learner is
// as before and the lease is over or released.
func (lp *Loop) train(ctx context.Context, lease *replay.Lease) (err error) {
	tctx, stop := lp.keep(ctx, lease)
	defer stop()
	defer lp.lender.take()()
	lp.crew.gather(ctx)
	before := lp.l.Checkpoint()
	res, data, err := lp.step(tctx, lease)
	if err == nil {
		err = lp.commit(tctx, lease, before, res, data)
		if err == nil {
			return nil
		}
	}
	if cause := context.Cause(tctx); cause != nil && !errors.Is(err, cause) {
		err = errors.Join(cause, err)
	}
	if rerr := lp.l.Restore(before); rerr != nil {
		return errors.Join(err, rerr)
	}
	if errors.Is(err, replay.ErrStale) {
		return err // not ours to release
	}
	drop := ""
	var none *EmptyBatchError
	if errors.As(err, &none) || errors.Is(err, ErrTrainedTwice) {
		drop = dropEmpty
	}
	lp.release(ctx, lease, drop)
	return err
}

// release gives a lease back even when ctx has ended.
func (lp *Loop) release(ctx context.Context, lease *replay.Lease, drop string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lp.cfg.CallTimeout)
	defer cancel()
	if err := lp.store.Release(ctx, lp.cfg.Run, lease.ID, drop); err != nil && !errors.Is(err, replay.ErrStale) {
		lp.hooks.warn(fmt.Errorf("learner: release lease %d: %w (it expires by itself)", lease.ID, err))
	}
}

// keep extends the lease until stop. The context it returns ends with
// replay.ErrStale as soon as the lease cannot be ours any more.
func (lp *Loop) keep(ctx context.Context, lease *replay.Lease) (context.Context, func()) {
	tctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		expires := time.Now().Add(lp.cfg.LeaseTTL)
		tick := time.NewTicker(lp.cfg.LeaseTTL / 3)
		defer tick.Stop()
		for {
			select {
			case <-tctx.Done():
				return
			case <-tick.C:
			}
			at := time.Now()
			cctx, done := context.WithTimeout(tctx, lp.cfg.LeaseTTL/3)
			err := lp.store.Extend(cctx, lp.cfg.Run, lease.ID, lp.cfg.LeaseTTL)
			done()
			switch {
			case err == nil:
				expires = at.Add(lp.cfg.LeaseTTL)
			case errors.Is(err, replay.ErrStale), errors.Is(err, replay.ErrNotFound):
				cancel(fmt.Errorf("%w: lease %d: %w", replay.ErrStale, lease.ID, err))
				return
			case !time.Now().Before(expires):
				cancel(fmt.Errorf("%w: lease %d could not be extended in time: %w", replay.ErrStale, lease.ID, err))
				return
			}
		}
	})
	return tctx, func() {
		cancel(nil)
		wg.Wait()
	}
}

// step fetches a lease's logs and trains them; the learner has moved when it
// returns without error. data is the encoded new checkpoint.
func (lp *Loop) step(ctx context.Context, lease *replay.Lease) (res StepResult, data []byte, err error) {
	for _, g := range lease.Groups {
		if step, twice := lp.trained[g.Group]; twice {
			return res, nil, fmt.Errorf("%w: lease %d holds group %q, trained in step %d", ErrTrainedTwice, lease.ID, g.Group, step)
		}
	}
	t0 := time.Now()
	groups, refused, err := lp.fetch(ctx, lease)
	if err != nil {
		return res, nil, err
	}
	fetched := time.Since(t0)
	ok, more := Admit(lp.l.cfg, lp.l.version, groups)
	counts := map[string]int{}
	for _, r := range append(refused, more...) {
		counts["group_refused: "+refusal(r)]++
		lp.hooks.warn(r)
	}
	if len(ok) == 0 {
		return res, nil, &EmptyBatchError{counts}
	}
	res, err = lp.l.Step(ctx, ok)
	if err != nil {
		var none *EmptyBatchError
		if errors.As(err, &none) {
			for k, n := range counts {
				none.Excluded[k] += n
			}
		}
		return res, nil, err
	}
	res.Metrics["time/wait_s"], res.Metrics["time/fetch_s"] = lp.waited.Seconds(), fetched.Seconds()
	for k, n := range counts {
		res.Excluded[k] += n
		res.Metrics["excluded/"+k] = float64(n)
	}
	lp.l.lease = lease.ID
	data, err = lp.l.Checkpoint().Encode()
	return res, data, err
}

// refusal is a short name of a refusal's reason.
func refusal(e *GroupError) string {
	for _, r := range []struct {
		err  error
		name string
	}{{ErrPartialGroup, "partial"}, {ErrMixedGroup, "mixed"}, {ErrDuplicateMember, "duplicate"}, {ErrStaleTokens, "stale"}, {ErrCorruptLog, "corrupt"}} {
		if errors.Is(e, r.err) {
			return r.name
		}
	}
	return "other"
}

// fetch reads and verifies the logs of a lease. A group with a log that is not
// what the index says is refused, the others go on.
func (lp *Loop) fetch(ctx context.Context, lease *replay.Lease) (groups []Group, refused []*GroupError, err error) {
	var ids []string
	for _, g := range lease.Groups {
		for _, it := range g.Items {
			ids = append(ids, it.LogID)
		}
	}
	var recs []replay.Record
	if err := lp.call(ctx, fmt.Sprintf("fetch %d logs of lease %d", len(ids), lease.ID), func(ctx context.Context) (err error) {
		recs, err = lp.store.Fetch(ctx, ids)
		return err
	}); err != nil {
		return nil, nil, err
	}
	if len(recs) != len(ids) {
		return nil, nil, fmt.Errorf("learner: fetch of lease %d returned %d records for %d ids", lease.ID, len(recs), len(ids))
	}
	at := 0
	for _, lg := range lease.Groups {
		g, err := assemble(lg.Group, lg.Index, lg.Items, recs[at:at+len(lg.Items)])
		at += len(lg.Items)
		if err != nil {
			refused = append(refused, &GroupError{lg.Group, err})
			continue
		}
		g.Extra = lp.status.Spec.Stragglers.Oversample
		groups = append(groups, g)
	}
	return groups, refused, nil
}

// assemble decodes and verifies one group's records. A group shorter than its
// size is one the store closed.
func assemble(id string, index uint64, items []replay.Item, recs []replay.Record) (Group, error) {
	g := Group{ID: id, Index: index}
	for i, it := range items {
		l, err := eventlog.Decode(recs[i].Bytes)
		if err != nil {
			return g, fmt.Errorf("%w: %s: %w", ErrCorruptLog, it.LogID, err)
		}
		if l.ID != it.LogID {
			return g, fmt.Errorf("%w: asked for %s, got %s", ErrCorruptLog, it.LogID, l.ID)
		}
		if d := l.Digest(); d != it.Digest {
			return g, fmt.Errorf("%w: %s has digest %s, the index says %s", ErrCorruptLog, it.LogID, d, it.Digest)
		}
		g.Logs = append(g.Logs, l)
		g.Closed = len(items) < int(it.GroupSize)
	}
	return g, nil
}

// commit stores the new blobs and commits the step. It finishes what it began
// when ctx is cancelled by the user, but not when the lease is lost. before is
// the state the step started from.
func (lp *Loop) commit(tctx context.Context, lease *replay.Lease, before *Checkpoint, res StepResult, data []byte) error {
	if cause := context.Cause(tctx); cause != nil {
		return cause
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(tctx), lp.cfg.RetryFor+blobTime(3*len(data)))
	defer cancel()
	rec := replay.StepRecord{Run: lp.cfg.Run, Step: res.Step, Version: res.Version, Lease: lease.ID,
		LogIDs: res.Trained, PrevCheckpoint: lp.prev, Metrics: res.Metrics}
	for _, g := range lease.Groups {
		rec.Groups = append(rec.Groups, g.Group)
	}
	put := func(what string, data []byte) (digest string, err error) {
		err = lp.callFor(ctx, fmt.Sprintf("store the %s of step %d", what, res.Step), lp.cfg.CallTimeout+blobTime(len(data)), func(ctx context.Context) (err error) {
			digest, err = lp.store.PutBlob(ctx, data)
			return err
		})
		return digest, err
	}
	var err error
	if res.Step == 1 { // so that it can be recomputed too
		start, err := before.Encode()
		if err != nil {
			return err
		}
		if rec.PrevCheckpoint, err = put("start", start); err != nil {
			return err
		}
	}
	if rec.Adapter, err = put("adapter", lp.l.published().Encode()); err != nil {
		return err
	}
	if rec.Checkpoint, err = put("checkpoint", data); err != nil {
		return err
	}
	if cause := context.Cause(tctx); errors.Is(cause, replay.ErrStale) {
		return cause
	}
	// The same commit again is a success, so an answer that got lost is asked
	// for again.
	if err := lp.call(ctx, fmt.Sprintf("commit step %d", res.Step), func(ctx context.Context) error {
		return lp.store.Commit(ctx, rec)
	}); err != nil {
		return err
	}
	lp.prev = rec.Checkpoint
	for _, g := range rec.Groups {
		lp.trained[g] = rec.Step
	}
	if lp.hooks.OnStep != nil {
		lp.hooks.OnStep(rec, res, lp.l.Checkpoint())
	}
	if n := lp.cfg.EvalEvery; n > 0 && (res.Step%n == 0 || res.Step == uint64(lp.l.cfg.MaxSteps)) {
		lp.eval(ctx)
	}
	return nil
}

// blobTime is how long a blob of n bytes may travel beside the time for an
// answer: as if by a line of 4 MB/s.
func blobTime(n int) time.Duration { return time.Duration(n) * time.Second / (4 << 20) }
