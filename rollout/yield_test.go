package rollout

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/replay"
)

// takers notes which worker got which group, and how it asked.
type takers struct {
	*fakeStore
	mu    sync.Mutex
	by    map[string]string
	waits map[string]time.Duration
}

func (s *takers) TakeTickets(ctx context.Context, run, worker string, version uint64, n int, wait time.Duration) ([]replay.Ticket, error) {
	got, err := s.fakeStore.TakeTickets(ctx, run, worker, version, n, wait)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waits[worker] = max(s.waits[worker], wait)
	for _, t := range got {
		s.by[t.Group] = worker
	}
	return got, err
}

// A dear worker gets what a cheaper one leaves: nothing while that has room, and
// what waits while it has none.
func TestDearWorkerTakesWhatIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := baseModel()
		s := &takers{fakeStore: newFakeStore(base, 2), by: map[string]string{}, waits: map[string]time.Duration{}}
		start := func(name string, yield func() time.Duration) (stop func()) {
			e := actingEngine("hi")
			answer := e.script
			e.script = func(turn int, req GenerateRequest) (Generation, error) {
				if req.Session != "probe" {
					time.Sleep(10 * time.Second)
				}
				return answer(turn, req)
			}
			cfg := DefaultWorkerConfig()
			cfg.Run, cfg.Name, cfg.Members, cfg.Yield = "r", name, 2, yield
			w, err := NewWorker(cfg, Parts{Store: s, Source: echoSource(), Engine: e, Chat: byteChat{}, Loop: DefaultLoopConfig(), Base: base}, Hooks{})
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan error, 1)
			go func() { done <- w.Run(ctx) }()
			return func() { cancel(); require.NoError(t, <-done) }
		}
		stopDear := start("dear", func() time.Duration { return 500 * time.Millisecond })
		stopCheap := start("cheap", nil)
		time.Sleep(3100 * time.Millisecond) // not the moment at which the dear one asks
		group := func(name string) {
			s.ticket(replay.Ticket{Table: "train", Group: name, Expires: time.Now().Add(time.Hour)})
			time.Sleep(time.Second)
		}
		group("first")
		group("second")
		time.Sleep(time.Minute)
		group("third")
		stopCheap()
		stopDear()
		require.Equal(t, map[string]string{"first": "cheap", "second": "dear", "third": "cheap"}, s.by)
		require.Zero(t, s.waits["dear"], "it queues for nothing")
		require.NotZero(t, s.waits["cheap"])
	})
}

// An engine whose logprobs are coarse says how small an adapter may be unseen.
func TestProbeFloor(t *testing.T) {
	base := baseModel()
	a := adapterOf(t, base, 1)
	require.True(t, (&prober{config: base.Config, floor: probeFloor}).acts(a))
	require.False(t, (&prober{config: base.Config, floor: 1}).acts(a))
}
