package rollout

import (
	"context"
	"fmt"
	"slices"

	"github.com/skein-rl/skein/model"
)

// scheduler is the part of a LocalEngine that decides: which request gets which
// slot, what of its prompt is already cached, what is decoded next. It has no
// goroutine and no lock; the engine's goroutine calls it.
type scheduler struct {
	dec     model.Decoder
	slots   []slot
	waiting []*request
	// epoch counts policy swaps: a cache of another epoch is stale, even when
	// the version number is the same.
	epoch  uint64
	tick   uint64
	counts EngineStats
}

// slot mirrors one of the decoder's caches.
type slot struct {
	ids     []int32 // tokens cached; len(ids) == decoder's Len
	epoch   uint64  // policy epoch they were computed under
	session string  // whose turns it waits for; "" = anybody's
	req     *request
	used    uint64 // tick of the last use
}

// outcome is a request that leaves the engine; err nil means completed.
type outcome struct {
	*request
	err error
}

func newScheduler(dec model.Decoder, slots int) scheduler {
	return scheduler{dec: dec, slots: make([]slot, slots)}
}

func (s *scheduler) active() int {
	n := 0
	for i := range s.slots {
		if s.slots[i].req != nil {
			n++
		}
	}
	return n
}

func (s *scheduler) endSession(session string) {
	for i := range s.slots {
		if session != "" && s.slots[i].session == session {
			s.slots[i].session = ""
		}
	}
}

// drain empties the scheduler and returns every request it held.
func (s *scheduler) drain() []*request {
	out := s.waiting
	s.waiting = nil
	for i := range s.slots {
		if r := s.slots[i].req; r != nil {
			out = append(out, r)
			s.slots[i].req = nil
		}
	}
	return out
}

// place drops the requests that were cancelled or demand another version, and
// gives free slots to the oldest of the others.
func (s *scheduler) place(version uint64) (left []outcome) {
	refuse := func(r *request) error {
		if err := r.ctx.Err(); err != nil {
			return fmt.Errorf("engine: %w", context.Cause(r.ctx))
		}
		if v := r.req.Version; v != nil && *v != version {
			return fmt.Errorf("%w: need exactly %d, serving %d", ErrVersion, *v, version)
		}
		if version < r.req.MinVersion {
			return fmt.Errorf("%w: need at least %d, serving %d", ErrVersion, r.req.MinVersion, version)
		}
		return nil
	}
	for i := range s.slots {
		if r := s.slots[i].req; r != nil {
			if err := refuse(r); err != nil {
				s.slots[i].req = nil
				left = append(left, outcome{r, err})
			}
		}
	}
	s.waiting = slices.DeleteFunc(s.waiting, func(r *request) bool {
		err := refuse(r)
		if err != nil {
			left = append(left, outcome{r, err})
		}
		return err != nil
	})
	for len(s.waiting) > 0 {
		r := s.waiting[0]
		i := s.choose(r)
		if i < 0 {
			break
		}
		s.waiting = s.waiting[1:]
		s.tick++
		sl := &s.slots[i]
		sl.req, sl.session, sl.used = r, r.req.Session, s.tick
	}
	return left
}

// choose picks an idle slot for a request, or -1: the session's own, else the
// nobody's slot that caches most of the prompt, else the session's slot that
// was used longest ago.
func (s *scheduler) choose(r *request) int {
	best, bestRank, bestShared := -1, -1, 0
	for i := range s.slots {
		sl := &s.slots[i]
		if sl.req != nil {
			continue
		}
		rank, shared := 0, s.shared(i, r.req.Prompt)
		switch {
		case sl.session != "" && sl.session == r.req.Session:
			rank = 2
		case sl.session == "":
			rank = 1
		default:
			shared = 0 // among strangers' slots only age counts
		}
		better := rank > bestRank ||
			rank == bestRank && shared > bestShared ||
			rank == bestRank && shared == bestShared && sl.used < s.slots[best].used
		if better {
			best, bestRank, bestShared = i, rank, shared
		}
	}
	return best
}

// shared is how many leading tokens of seq slot i has cached under the current
// policy.
func (s *scheduler) shared(i int, seq []int32) int {
	if s.slots[i].epoch != s.epoch {
		return 0
	}
	return commonPrefix(s.slots[i].ids, seq)
}

func commonPrefix(a, b []int32) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// shareGain is the number of shared tokens worth waiting one prefill call for.
const shareGain = 8

// fill brings every active slot's cache to all of its sequence but the last
// token, which Decode appends itself. It goes in waves: a sequence that shares
// more with one being computed in this wave than with any cache waits for the
// next, then copies. Returns the requests that failed.
func (s *scheduler) fill(ctx context.Context) (failed []outcome) {
	var todo []int
	for i := range s.slots {
		sl := &s.slots[i]
		if sl.req == nil {
			continue
		}
		want := len(sl.req.seq) - 1
		if sl.epoch != s.epoch || len(sl.ids) != want || commonPrefix(sl.ids, sl.req.seq) != want {
			todo = append(todo, i)
		}
	}
	for len(todo) > 0 {
		var wave, later []int
		for _, i := range todo {
			seq := s.slots[i].req.seq
			want := seq[:len(seq)-1]
			donor, have := i, s.shared(i, want)
			for j := range s.slots {
				if n := s.shared(j, want); n > have {
					donor, have = j, n
				}
			}
			wait := false
			for _, j := range wave {
				other := s.slots[j].req.seq
				if commonPrefix(other[:len(other)-1], want) >= have+shareGain {
					wait = true
					break
				}
			}
			if wait {
				later = append(later, i)
				continue
			}
			if err := s.reuse(i, donor, have); err != nil {
				failed = append(failed, s.evict(i, err))
				continue
			}
			wave = append(wave, i)
		}
		failed = append(failed, s.prefill(ctx, wave)...)
		todo = later
	}
	return failed
}

// reuse makes slot i hold exactly the first n cached tokens of slot donor.
func (s *scheduler) reuse(i, donor, n int) error {
	sl := &s.slots[i]
	refill := len(sl.req.out.IDs) > 0 && sl.epoch != s.epoch
	if donor != i {
		s.dec.Truncate(i, 0)
		if n > 0 {
			if err := s.dec.CopyPrefix(i, donor, n); err != nil {
				return fmt.Errorf("engine: copy %d cached tokens: %w", n, err)
			}
		}
	} else {
		s.dec.Truncate(i, n)
	}
	if got := s.dec.Len(i); got != n {
		return fmt.Errorf("engine: decoder caches %d tokens in slot %d; expected %d", got, i, n)
	}
	sl.ids = append(sl.ids[:0], sl.req.seq[:n]...)
	sl.epoch = s.epoch
	s.counts.Reused += uint64(n)
	if refill {
		s.counts.Refilled += uint64(len(sl.req.seq) - 1 - n)
	}
	return nil
}

// prefill computes the missing tokens of the slots together. When that fails
// for several, each is tried alone, so that one bad request harms no other.
func (s *scheduler) prefill(ctx context.Context, wave []int) (failed []outcome) {
	var rows []model.PrefillRow
	for _, i := range wave {
		sl := &s.slots[i]
		if missing := sl.req.seq[len(sl.ids) : len(sl.req.seq)-1]; len(missing) > 0 {
			rows = append(rows, model.PrefillRow{Slot: i, Tokens: missing})
		}
	}
	if len(rows) == 0 {
		return nil
	}
	err := s.dec.Prefill(ctx, rows)
	for _, row := range rows {
		sl := &s.slots[row.Slot]
		rowErr := err
		if err != nil && len(rows) > 1 && ctx.Err() == nil {
			s.dec.Truncate(row.Slot, len(sl.ids))
			rowErr = s.dec.Prefill(ctx, []model.PrefillRow{row})
		}
		if rowErr != nil {
			failed = append(failed, s.evict(row.Slot, fmt.Errorf("engine: prefill of %d tokens: %w", len(row.Tokens), rowErr)))
			continue
		}
		sl.ids = append(sl.ids, row.Tokens...)
		s.counts.Prefilled += uint64(len(row.Tokens))
	}
	return failed
}

// evict takes the request out of a slot whose cache can no longer be trusted.
func (s *scheduler) evict(i int, err error) outcome {
	sl := &s.slots[i]
	r := sl.req
	s.dec.Truncate(i, 0)
	*sl = slot{used: sl.used, epoch: s.epoch}
	return outcome{r, err}
}

// step decodes up to n tokens of every active slot and returns the requests
// that ended.
func (s *scheduler) step(ctx context.Context, n int, version uint64) (left []outcome) {
	var rows []model.DecodeRow
	for i := range s.slots {
		if r := s.slots[i].req; r != nil {
			rows = append(rows, model.DecodeRow{
				Slot: i, Last: r.seq[len(r.seq)-1], MaxNew: r.req.MaxNew - len(r.out.IDs),
				Stop: r.req.Stop, Sampling: r.req.Sampling,
			})
		}
	}
	if len(rows) == 0 {
		return nil
	}
	outs, err := s.dec.Decode(ctx, rows, n)
	if err == nil && len(outs) != len(rows) {
		err = fmt.Errorf("%d rows gave %d results", len(rows), len(outs))
	}
	s.tick++
	for k, row := range rows {
		if err != nil {
			left = append(left, s.evict(row.Slot, fmt.Errorf("engine: decode: %w", err)))
			continue
		}
		if o := s.accept(row, outs[k], version); o != nil {
			left = append(left, *o)
		}
	}
	return left
}

// accept appends one row's tokens to its request; non-nil when it left.
func (s *scheduler) accept(row model.DecodeRow, out model.DecodeOut, version uint64) *outcome {
	sl := &s.slots[row.Slot]
	r := sl.req
	if len(out.IDs) == 0 || len(out.IDs) != len(out.Logprobs) || len(out.IDs) > row.MaxNew {
		o := s.evict(row.Slot, fmt.Errorf("engine: decoder returned %d ids and %d logprobs for at most %d tokens",
			len(out.IDs), len(out.Logprobs), row.MaxNew))
		return &o
	}
	r.seq = append(r.seq, out.IDs...)
	r.out.IDs = append(r.out.IDs, out.IDs...)
	r.out.Logprobs = append(r.out.Logprobs, out.Logprobs...)
	if k := len(r.out.Versions); k > 0 && r.out.Versions[k-1].Version == version {
		r.out.Versions[k-1].End = len(r.out.IDs)
	} else {
		r.out.Versions = append(r.out.Versions, VersionRun{End: len(r.out.IDs), Version: version})
	}
	s.counts.Generated += uint64(len(out.IDs))
	// The newest token is not cached yet. A decoder that ran a stopped row on
	// with the others is cut back.
	want := len(r.seq) - 1
	if s.dec.Len(row.Slot) > want {
		s.dec.Truncate(row.Slot, want)
	}
	sl.ids = append(sl.ids[:0], r.seq[:s.dec.Len(row.Slot)]...)
	sl.used = s.tick
	switch {
	case out.Stopped:
		r.out.Finish = FinishStop
	case len(r.out.IDs) == r.req.MaxNew:
		r.out.Finish = FinishLength
	default:
		return nil
	}
	sl.req = nil
	return &outcome{r, nil}
}
