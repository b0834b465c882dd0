package rollout

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/replay"
)

// fakeStore is the part of a replay.Store that a worker uses, in memory. Other
// methods panic.
type fakeStore struct {
	replay.Store
	mu       sync.Mutex
	changed  chan struct{}
	spec     replay.RunSpec
	policies []replay.Policy
	blobs    map[string][]byte
	tickets  []replay.Ticket
	returned []string
	items    []replay.Item
	bytes    map[string][]byte
	finished bool
	append   func([]replay.Record) ([]replay.AppendResult, error) // nil = accept
}

func newFakeStore(base *model.Model, groupSize uint32) *fakeStore {
	s := &fakeStore{
		changed: make(chan struct{}), blobs: map[string][]byte{}, bytes: map[string][]byte{},
		spec: replay.RunSpec{Run: "r", GroupSize: groupSize, BaseDigest: base.Digest, TicketTTL: time.Minute},
	}
	s.policies = []replay.Policy{{Run: "r"}}
	return s
}

// edit changes the store and wakes who waits.
func (s *fakeStore) edit(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	close(s.changed)
	s.changed = make(chan struct{})
}

// publish adds the next policy version with an adapter.
func (s *fakeStore) publish(a *model.Adapter) string {
	blob := a.Encode()
	digest := model.BlobDigest(blob)
	s.edit(func() {
		s.blobs[digest] = blob
		s.policies = append(s.policies, replay.Policy{Run: "r", Version: uint64(len(s.policies)), Adapter: digest})
	})
	return digest
}

func (s *fakeStore) ticket(t replay.Ticket) {
	t.Run = "r"
	if t.Expires.IsZero() {
		t.Expires = time.Now().Add(time.Minute)
	}
	if t.GroupSize == 0 {
		t.GroupSize = s.spec.GroupSize
	}
	s.edit(func() { s.tickets = append(s.tickets, t) })
}

func (s *fakeStore) await(ctx context.Context, wait time.Duration, ready func() bool) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		s.mu.Lock()
		ok, changed := ready(), s.changed
		s.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

func (s *fakeStore) Status(context.Context, string) (replay.RunStatus, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return replay.RunStatus{Spec: s.spec, Finished: s.finished}, nil
}

func (s *fakeStore) ReturnTicket(_ context.Context, _, group, _ string) error {
	s.edit(func() { s.returned = append(s.returned, group) })
	return nil
}

func (s *fakeStore) TakeTickets(ctx context.Context, _, _ string, _ uint64, n int, wait time.Duration) ([]replay.Ticket, error) {
	s.await(ctx, wait, func() bool { return len(s.tickets) > 0 })
	s.mu.Lock()
	defer s.mu.Unlock()
	n = min(n, len(s.tickets))
	out := slices.Clone(s.tickets[:n])
	s.tickets = s.tickets[n:]
	return out, ctx.Err()
}

func (s *fakeStore) Append(_ context.Context, recs []replay.Record) ([]replay.AppendResult, error) {
	if s.append != nil {
		if res, err := s.append(recs); res != nil || err != nil {
			return res, err
		}
	}
	s.edit(func() {
		for _, r := range recs {
			s.items = append(s.items, r.Item)
			s.bytes[r.Item.LogID] = r.Bytes
		}
	})
	return make([]replay.AppendResult, len(recs)), nil
}

func (s *fakeStore) Latest(context.Context, string) (replay.Policy, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.policies[len(s.policies)-1], nil
}

func (s *fakeStore) WaitPolicy(ctx context.Context, _ string, after uint64, wait time.Duration) (replay.Policy, error) {
	s.await(ctx, wait, func() bool { return uint64(len(s.policies)-1) > after })
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.policies {
		if p.Version > after {
			return p, ctx.Err()
		}
	}
	return s.policies[len(s.policies)-1], ctx.Err()
}

func (s *fakeStore) GetBlob(_ context.Context, digest string) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, ok := s.blobs[digest]
	if !ok {
		return nil, fmt.Errorf("%w: blob %s", replay.ErrNotFound, digest)
	}
	return b, nil
}

// logs waits for n appended items and returns them in order of member.
func (s *fakeStore) logs(n int) []replay.Item {
	s.await(context.Background(), 20*time.Second, func() bool { return len(s.items) >= n })
	s.mu.Lock()
	defer s.mu.Unlock()
	out := slices.Clone(s.items)
	slices.SortFunc(out, func(a, b replay.Item) int {
		if a.Group != b.Group {
			return len(a.Group) - len(b.Group)
		}
		return int(a.Member) - int(b.Member)
	})
	return out
}
