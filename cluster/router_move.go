package cluster

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"

	"lukechampine.com/blake3"

	"github.com/skein-rl/skein/replay"
)

// A run moves like this; each step is decided in a raft group, and whoever calls
// Place again goes on where a crash left it (ADR 11):
//
//	root     placement: copying      the run still lives where it was
//	source   freeze                  its commands and deadlines wait
//	target   begin, then its pairs, with the bytes of its logs on a majority first
//	both     the same digest over all pairs
//	root     placement: switched     the run lives at the target
//	target   thaw
//	source   pairs dropped, leave    what is left says where the run is
//	root     placement: at rest
//
// The placement's version fences movers: one that took over raises it first.

// adoptPairs bounds one request of a move.
const adoptPairs = 512

// Place says in which shard a run is to live and moves it there. A run that is
// not created yet is placed without more. A move to the shard where the run still
// lives takes an unfinished move back. While it moves, calls of the run wait.
// Progress, when set, is told what is done.
func (r *Router) Place(ctx context.Context, run, shard string, progress func(string)) (replay.Placement, error) {
	if progress == nil {
		progress = func(string) {}
	}
	if _, err := r.all(ctx); err != nil {
		return replay.Placement{}, err
	}
	if _, err := r.of(shard); err != nil {
		return replay.Placement{}, err
	}
	p, err := r.placeRun(ctx, replay.Placement{Run: run, Shard: shard})
	if err != nil {
		return p, err
	}
	defer r.forget(run)
	m := &mover{r, run, progress}
	switch {
	case p.Phase == replay.PlaceAtRest && p.Shard == shard:
		return p, nil
	case p.Phase == replay.PlaceAtRest:
		missing, err := m.missing(ctx, p)
		if err != nil {
			return p, err
		}
		if p.To = shard; missing { // placed, never created
			progress("the run is not created yet")
		}
	case p.Phase == replay.PlaceCopying && p.To == shard:
		progress("an unfinished move is taken over")
	case p.Phase == replay.PlaceCopying && p.Shard == shard:
		return m.takeBack(ctx, p)
	case p.Phase == replay.PlaceSwitched && p.Shard == shard:
		progress("an unfinished move is taken over")
		if p, err = r.placeRun(ctx, p); err != nil {
			return p, err
		}
		return m.finish(ctx, p)
	default:
		return p, fmt.Errorf("%w: run %q is on its way between shards %q and %q (%v): finish that first: skein cluster place %s --shard %s",
			replay.ErrInvalid, run, p.Shard, p.To, p.Phase, run, unfinished(p))
	}
	p.Phase = replay.PlaceCopying
	if p, err = r.placeRun(ctx, p); err != nil {
		return p, err
	}
	if err := m.copy(ctx, p); err != nil {
		return p, fmt.Errorf("%w; the run still lives in shard %s and waits: go on with the same command, or take the move back with skein cluster place %s --shard %s",
			err, p.Shard, run, p.Shard)
	}
	p.Shard, p.To, p.Phase = p.To, p.Shard, replay.PlaceSwitched
	if p, err = r.placeRun(ctx, p); err != nil {
		return p, err
	}
	progress("the run lives in shard " + p.Shard)
	return m.finish(ctx, p)
}

// unfinished is the shard a move leads to.
func unfinished(p replay.Placement) string {
	if p.Phase == replay.PlaceSwitched {
		return p.Shard
	}
	return p.To
}

// mover carries out one move.
type mover struct {
	*Router
	run  string
	tell func(string)
}

// missing says whether the run was never created where it is placed.
func (m *mover) missing(ctx context.Context, p replay.Placement) (bool, error) {
	c, err := m.of(p.Shard)
	if err != nil {
		return false, err
	}
	if _, err = c.Status(ctx, m.run); errors.Is(err, replay.ErrNotFound) {
		return true, nil
	} else if errors.Is(err, replay.ErrMoved) { // frozen by a mover that failed
		return false, nil
	}
	return false, err
}

// ends are the clients of both shards of a placement.
func (m *mover) ends(p replay.Placement) (shard, to *Client, err error) {
	if shard, err = m.of(p.Shard); err == nil {
		to, err = m.of(p.To)
	}
	return shard, to, err
}

// copy brings the run's state and bytes to the target and compares.
func (m *mover) copy(ctx context.Context, p replay.Placement) error {
	src, dst, err := m.ends(p)
	if err != nil {
		return err
	}
	err = src.moveRun(ctx, m.run, p.Version, replay.MoveFreeze, "")
	if errors.Is(err, replay.ErrNotFound) {
		// Never created: there is nothing to carry, and it is not created here now.
		return src.moveRun(ctx, m.run, p.Version, replay.MoveLeave, p.To)
	}
	if err == nil {
		err = dst.moveRun(ctx, m.run, p.Version, replay.MoveBegin, "")
	}
	if err != nil {
		return err
	}
	for try := 0; ; try++ {
		if _, err := m.drop(ctx, dst, p.Version); err != nil { // of an earlier try
			return err
		}
		want, n, err := m.carryPairs(ctx, src, dst, p.Version)
		if err != nil {
			return err
		}
		have, k, err := digestRun(ctx, dst, m.run)
		if err != nil {
			return err
		}
		if have == want && n == k {
			m.tell(fmt.Sprintf("copied and compared: %d keys, digest %.16s", n, have))
			return nil
		}
		if try == 2 {
			return fmt.Errorf("%w: run %q arrived as %d keys with digest %.16s, it has %d with digest %.16s: something changes it while it stands still",
				replay.ErrStale, m.run, k, have, n, want)
		}
	}
}

// carryPairs sends every pair, the bytes of logs along with theirs, and blobs.
func (m *mover) carryPairs(ctx context.Context, src, dst *Client, move uint64) (digest string, n int, err error) {
	sum := newPairSum()
	blobs := map[string]bool{}
	logs := 0
	var batch []replay.Pair
	size := 0
	flush := func() error {
		if len(batch) == 0 {
			return nil
		}
		k, err := m.adoptBatch(ctx, src, dst, move, batch)
		logs += k
		batch, size = nil, 0
		return err
	}
	err = src.runPairs(ctx, m.run, func(pairs []replay.Pair) error {
		for _, p := range pairs {
			sum.add(p)
			more, err := replay.PairBlobs(p)
			if err != nil {
				return err
			}
			for _, d := range more {
				blobs[d] = true
			}
			batch, size = append(batch, p), size+len(p.Key)+len(p.Value)
			if len(batch) >= adoptPairs || size >= chunkBytes/2 {
				if err := flush(); err != nil {
					return err
				}
			}
		}
		return ctx.Err()
	})
	if err == nil {
		err = flush()
	}
	for d := range blobs {
		if err == nil {
			err = m.carryBlob(ctx, src, dst, d)
		}
	}
	if err == nil {
		m.tell(fmt.Sprintf("%d logs and %d blobs carried", logs, len(blobs)))
	}
	return sum.String(), sum.n, err
}

// adoptBatch sends pairs in requests that fit, each with the bytes it needs.
func (m *mover) adoptBatch(ctx context.Context, src, dst *Client, move uint64, pairs []replay.Pair) (logs int, err error) {
	var plain, needy []replay.Pair
	var items []replay.Item
	for _, p := range pairs {
		if it, ok := replay.PairLog(p); ok {
			needy, items = append(needy, p), append(items, it)
		} else {
			plain = append(plain, p)
		}
	}
	if len(plain) > 0 {
		if err := dst.adopt(ctx, m.run, move, plain, nil); err != nil {
			return 0, err
		}
	}
	if len(needy) == 0 {
		return 0, nil
	}
	want := make([]replay.Exact, len(items))
	for i, it := range items {
		want[i] = replay.Exact{LogID: it.LogID, Digest: it.Digest}
	}
	got, err := src.ReadExact(ctx, want)
	if err != nil {
		return 0, err
	}
	byLog := make(map[string]replay.Record, len(got))
	for _, rec := range got {
		byLog[rec.Item.LogID] = rec
	}
	recs := make([]replay.Record, len(items))
	for i, it := range items {
		rec, ok := byLog[it.LogID]
		if !ok {
			return 0, fmt.Errorf("%w: the bytes of log %q are on no node of the shard it leaves: run skein replay repair", replay.ErrNotFound, it.LogID)
		}
		rec.Item = it
		recs[i] = rec
	}
	for _, part := range pack(recs) {
		if err := dst.adopt(ctx, m.run, move, needy[part.from:part.to], recs[part.from:part.to]); err != nil {
			return logs, err
		}
		logs += part.to - part.from
	}
	return logs, nil
}

// carryBlob copies one blob. One that the source has no more, such as a
// checkpoint that its run no longer keeps, is left out.
func (m *mover) carryBlob(ctx context.Context, src, dst *Client, digest string) error {
	data, err := src.GetBlob(ctx, digest)
	if errors.Is(err, replay.ErrNotFound) {
		return nil
	}
	if err == nil {
		_, err = dst.PutBlob(ctx, data)
	}
	if err != nil {
		return fmt.Errorf("blob %s: %w", digest, err)
	}
	return nil
}

// finish lets the run go on at its new place and cleans the old one.
func (m *mover) finish(ctx context.Context, p replay.Placement) (replay.Placement, error) {
	dst, src, err := m.ends(p)
	if err != nil {
		return p, err
	}
	if err := dst.moveRun(ctx, m.run, p.Version, replay.MoveThaw, ""); err != nil && !errors.Is(err, replay.ErrNotFound) {
		return p, err
	}
	err = src.moveRun(ctx, m.run, p.Version, replay.MoveFreeze, "") // as this mover's
	if err == nil {
		_, err = m.drop(ctx, src, p.Version)
	} else if errors.Is(err, replay.ErrNotFound) {
		err = nil
	}
	if err == nil {
		err = src.moveRun(ctx, m.run, p.Version, replay.MoveLeave, p.Shard)
	}
	if err != nil {
		return p, fmt.Errorf("run %q lives in shard %s; cleaning shard %s: %w: go on with the same command", m.run, p.Shard, p.To, err)
	}
	m.tell("shard " + p.To + " is clean")
	p.Phase = replay.PlaceAtRest
	return m.placeRun(ctx, p)
}

// takeBack undoes a move that has not switched.
func (m *mover) takeBack(ctx context.Context, p replay.Placement) (replay.Placement, error) {
	p, err := m.placeRun(ctx, p) // from here on no other mover switches
	if err != nil {
		return p, err
	}
	src, dst, err := m.ends(p)
	if err != nil {
		return p, err
	}
	if err = dst.moveRun(ctx, m.run, p.Version, replay.MoveBegin, ""); err == nil {
		if _, err = m.drop(ctx, dst, p.Version); err == nil {
			err = dst.moveRun(ctx, m.run, p.Version, replay.MoveLeave, p.Shard)
		}
	}
	if err == nil {
		if err = src.moveRun(ctx, m.run, p.Version, replay.MoveThaw, ""); errors.Is(err, replay.ErrNotFound) {
			err = nil // never created
		}
	}
	if err != nil {
		return p, err
	}
	m.tell("the move is taken back")
	p.Phase = replay.PlaceAtRest
	return m.placeRun(ctx, p)
}

// drop deletes what a shard has of the run, the run's own state excepted.
func (m *mover) drop(ctx context.Context, c *Client, move uint64) (n int, err error) {
	err = c.runPairs(ctx, m.run, func(pairs []replay.Pair) error {
		for len(pairs) > 0 {
			k := min(len(pairs), adoptPairs)
			keys := make([][]byte, k)
			for i, p := range pairs[:k] {
				keys[i] = p.Key
			}
			if err := c.dropPairs(ctx, m.run, move, keys); err != nil {
				return err
			}
			n, pairs = n+k, pairs[k:]
		}
		return ctx.Err()
	})
	return n, err
}

// pairSum is a digest over pairs in their order.
type pairSum struct {
	h *blake3.Hasher
	n int
}

func newPairSum() *pairSum { return &pairSum{h: blake3.New(32, nil)} }

func (s *pairSum) add(p replay.Pair) {
	for _, b := range [][]byte{p.Key, p.Value} {
		_, _ = s.h.Write(binary.AppendUvarint(nil, uint64(len(b))))
		_, _ = s.h.Write(b)
	}
	s.n++
}

func (s *pairSum) String() string { return hex.EncodeToString(s.h.Sum(nil)) }

func digestRun(ctx context.Context, c *Client, run string) (string, int, error) {
	s := newPairSum()
	err := c.runPairs(ctx, run, func(pairs []replay.Pair) error {
		for _, p := range pairs {
			s.add(p)
		}
		return nil
	})
	return s.String(), s.n, err
}
