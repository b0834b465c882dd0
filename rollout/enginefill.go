package rollout

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/skein-rl/skein/model"
)

// shareGain is the number of shared tokens worth waiting one prefill call for.
const shareGain = 8

// valid says whether slot i caches a prefix of its request's own sequence.
func (sl *slot) valid() bool { return !sl.fresh && sl.epoch == sl.req.bind.epoch }

// missing is what the cache lacks of the sequence but its last token, which
// Decode appends itself. The slot is valid.
func (sl *slot) missing() []int32 { return sl.req.seq[len(sl.ids) : len(sl.req.seq)-1] }

// ready says whether a slot can be decoded.
func (sl *slot) ready() bool {
	return sl.req != nil && sl.req.scores == nil && sl.valid() && len(sl.missing()) == 0
}

// fill brings active slots' caches up to their sequences, first placed first,
// computing at most budget tokens. It goes in waves: a sequence that shares more
// with an earlier one still being computed than with any cache waits, then
// copies. Returns the requests that failed.
func (s *scheduler) fill(ctx context.Context, budget int) (failed []outcome) {
	for budget > 0 {
		rows, moved, bad := s.wave(budget)
		failed = append(failed, bad...)
		if len(rows) == 0 && !moved {
			break
		}
		for _, r := range rows {
			budget -= len(r.Tokens)
		}
		failed = append(failed, s.prefill(ctx, rows)...)
	}
	return failed
}

// wave decides what to compute next; moved when caches alone completed a slot.
func (s *scheduler) wave(budget int) (rows []model.PrefillRow, moved bool, failed []outcome) {
	var todo []int
	for i := range s.slots {
		if sl := &s.slots[i]; sl.req != nil && sl.req.scores == nil && !sl.ready() {
			todo = append(todo, i)
		}
	}
	slices.SortFunc(todo, func(a, b int) int { return cmp.Compare(s.slots[a].placed, s.slots[b].placed) })
	var ahead []int // of todo, those under way
	for _, i := range todo {
		sl := &s.slots[i]
		if !sl.valid() {
			if s.worthWaiting(i, ahead) {
				continue
			}
			donor, have := s.donor(i, nil)
			if err := s.reuse(i, donor, have); err != nil {
				failed = append(failed, s.evict(i, err))
				continue
			}
		}
		ahead = append(ahead, i)
		missing := sl.missing()
		take := min(len(missing), budget)
		switch {
		case len(missing) == 0:
			moved = true
		case take > 0:
			rows = append(rows, model.PrefillRow{Slot: i, Adapter: sl.req.bind.place, Tokens: missing[:take]})
			budget -= take
		}
	}
	return rows, moved, failed
}

// donor is the slot that caches most of what slot i needs, its own if equal,
// some slots left aside.
func (s *scheduler) donor(i int, aside []int) (donor, have int) {
	r := s.slots[i].req
	want := r.seq[:len(r.seq)-1]
	donor, have = i, s.shared(i, r.bind.epoch, want)
	for j := range s.slots {
		if slices.Contains(aside, j) {
			continue
		}
		if n := s.shared(j, r.bind.epoch, want); n > have {
			donor, have = j, n
		}
	}
	return donor, have
}

// worthWaiting says whether one of the slots under way has yet to compute what
// slot i can copy then, and that is markedly more than all others cache.
func (s *scheduler) worthWaiting(i int, ahead []int) bool {
	if len(ahead) == 0 {
		return false
	}
	r := s.slots[i].req
	want := r.seq[:len(r.seq)-1]
	_, have := s.donor(i, ahead)
	return slices.ContainsFunc(ahead, func(j int) bool {
		o := s.slots[j].req
		if o.bind != r.bind || s.slots[j].mixed {
			return false
		}
		common := commonPrefix(o.seq[:len(o.seq)-1], want)
		return common > len(s.slots[j].ids) && common >= have+shareGain
	})
}

// reuse makes slot i hold exactly the first n cached tokens of slot donor.
func (s *scheduler) reuse(i, donor, n int) error {
	sl := &s.slots[i]
	r := sl.req
	if donor != i {
		s.dec.Truncate(i, 0)
		if err := s.dec.CopyPrefix(i, donor, n); err != nil {
			return fmt.Errorf("engine: copy %d cached tokens: %w", n, err)
		}
	} else {
		s.dec.Truncate(i, n)
	}
	if got := s.dec.Len(i); got != n {
		return fmt.Errorf("engine: decoder caches %d tokens in slot %d; expected %d", got, i, n)
	}
	if !sl.fresh {
		s.counts.Refilled += uint64(len(r.seq) - 1 - n)
	} else {
		r.out.Cached = n
	}
	sl.ids = append(sl.ids[:0], r.seq[:n]...)
	sl.epoch, sl.mixed, sl.fresh = r.bind.epoch, false, false
	s.counts.Reused += uint64(n)
	return nil
}

// prefill computes the rows together. When that fails for several, each is
// tried alone, so that one bad request harms no other.
func (s *scheduler) prefill(ctx context.Context, rows []model.PrefillRow) (failed []outcome) {
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
