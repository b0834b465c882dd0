package rollout

import (
	"context"
	"fmt"
	"slices"

	"github.com/skein-rl/skein/model"
)

// scheduler is the part of a LocalEngine that decides: which request gets which
// slot, what of its prompt is already cached, what is computed and decoded next.
// It has no goroutine and no lock; the engine's goroutine calls it.
type scheduler struct {
	dec     model.Decoder
	slots   []slot
	waiting []*request // by priority, then arrival
	// epochs counts the weights ever set. A binding's epoch names its own: a
	// cache of another epoch is of another adapter or an older version, even
	// where the version number is the same.
	epochs uint64
	tick   uint64
	counts EngineStats
}

// slot mirrors one of the decoder's caches.
type slot struct {
	ids     []int32 // tokens cached; len(ids) == decoder's Len
	epoch   uint64  // whose weights computed them; 0 = nobody's
	mixed   bool    // some by older weights (SwapKeep): only for the request in the slot
	session string  // whose turns it waits for; "" = anybody's
	req     *request
	fresh   bool   // req was placed, ids are still an earlier request's
	used    uint64 // tick of the last use
	placed  uint64 // tick at which req got the slot
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

// enqueue puts a request behind those of its priority.
func (s *scheduler) enqueue(r *request) {
	at := len(s.waiting)
	for at > 0 && s.waiting[at-1].req.Priority < r.req.Priority {
		at--
	}
	s.waiting = slices.Insert(s.waiting, at, r)
}

func (s *scheduler) endSession(session string) {
	for i := range s.slots {
		if session != "" && s.slots[i].session == session {
			s.slots[i].session = ""
		}
	}
}

// renew gives a binding a new epoch. Caches of the old one serve nobody any
// more, but under SwapKeep the requests that are using them.
func (s *scheduler) renew(b *binding, mode SwapMode) {
	old := b.epoch
	s.epochs++
	b.epoch = s.epochs
	for i := range s.slots {
		sl := &s.slots[i]
		if mode == SwapKeep && sl.req != nil && sl.req.bind == b && sl.epoch == old && len(sl.ids) > 0 {
			sl.epoch, sl.mixed = b.epoch, true
		}
	}
}

// drain empties the scheduler and returns every request it held.
func (s *scheduler) drain() []*request {
	out := s.waiting
	s.waiting = nil
	for i := range s.slots {
		if s.slots[i].req != nil {
			out = append(out, s.release(i))
		}
	}
	return out
}

// release takes the request out of a slot; the cache stays for others, unless
// it is mixed.
func (s *scheduler) release(i int) *request {
	sl := &s.slots[i]
	r := sl.req
	sl.req, sl.fresh, sl.used = nil, false, s.tick
	return r
}

// evict takes the request out of a slot whose cache can no longer be trusted.
func (s *scheduler) evict(i int, err error) outcome {
	r := s.slots[i].req
	s.dec.Truncate(i, 0)
	s.slots[i] = slot{used: s.slots[i].used}
	return outcome{r, err}
}

// refusal says why a request cannot go on, if so.
func refusal(r *request) error {
	b := r.bind
	if r.ctx.Err() != nil {
		return fmt.Errorf("engine: %w", context.Cause(r.ctx))
	}
	if b.gone {
		return fmt.Errorf("%w: %q was unloaded while the request ran", ErrNoAdapter, b.name)
	}
	if v := r.req.Version; v != nil && *v != b.version {
		return fmt.Errorf("%w: need exactly %d, serving %d", ErrVersion, *v, b.version)
	}
	if b.version < r.req.MinVersion {
		return fmt.Errorf("%w: need at least %d, serving %d", ErrVersion, r.req.MinVersion, b.version)
	}
	return nil
}

// place drops the requests that were cancelled or cannot go on, and gives free
// slots to the first of the others.
func (s *scheduler) place() (left []outcome) {
	for i := range s.slots {
		if r := s.slots[i].req; r != nil {
			if err := refusal(r); err != nil {
				left = append(left, outcome{s.release(i), err})
			}
		}
	}
	s.waiting = slices.DeleteFunc(s.waiting, func(r *request) bool {
		err := refusal(r)
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
		s.waiting = slices.Delete(s.waiting, 0, 1)
		s.tick++
		sl := &s.slots[i]
		sl.req, sl.session, sl.fresh, sl.used, sl.placed = r, r.req.Session, true, s.tick, s.tick
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
		rank, shared := 0, s.shared(i, r.bind.epoch, r.req.Prompt)
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

// shared is how many leading tokens of seq slot i has cached under the weights
// of an epoch, for anybody to use.
func (s *scheduler) shared(i int, epoch uint64, seq []int32) int {
	if s.slots[i].epoch != epoch || s.slots[i].mixed {
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
