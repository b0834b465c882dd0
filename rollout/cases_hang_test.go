package rollout

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/replay"
)

// hungBlobs is a store that gives out no blob while stuck: the caller waits
// until its own deadline.
type hungBlobs struct {
	*fakeStore
	stuck atomic.Bool
}

func (s *hungBlobs) GetBlob(ctx context.Context, digest string) ([]byte, error) {
	if s.stuck.Load() {
		<-ctx.Done()
		return nil, fmt.Errorf("node replay-1: %w", context.Cause(ctx))
	}
	return s.fakeStore.GetBlob(ctx, digest)
}

// Cases row "hang": a weight transfer whose sender never answers ends at a
// deadline, its error names peer and version, the worker serves the old version
// meanwhile, and follows as soon as the transfer works.
func TestCaseHangWeightTransferHasADeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := baseModel()
		s := &hungBlobs{fakeStore: newFakeStore(base, 2)}
		s.stuck.Store(true)
		cfg := DefaultWorkerConfig()
		cfg.Run, cfg.Name, cfg.Members = "r", "w1", 8
		loop := DefaultLoopConfig()
		loop.MaxCompletionLength = 4096
		var mu sync.Mutex
		var errs []string
		w, err := NewWorker(cfg, Parts{Store: s, Source: echoSource(), Engine: actingEngine("hi"), Chat: byteChat{}, Loop: loop, Base: base},
			Hooks{Error: func(op string, err error) {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, op+": "+err.Error())
			}})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- w.Run(ctx) }()
		synctest.Wait()

		digest := s.publish(adapterOf(t, base, 1))
		s.ticket(replay.Ticket{Table: "train", Group: "old", Version: 0})
		for _, it := range s.logs(2) {
			require.Zero(t, it.MaxVersion, "rolled out under the old version while the transfer hangs")
		}
		time.Sleep(cfg.PolicyWait + cfg.CallTimeout)
		synctest.Wait()
		mu.Lock()
		told := strings.Join(errs, "\n")
		mu.Unlock()
		for _, want := range []string{"policy: ", "policy version 1", digest, "node replay-1", context.DeadlineExceeded.Error()} {
			require.Contains(t, told, want)
		}
		require.Zero(t, w.Snapshot().Version)

		s.stuck.Store(false)
		time.Sleep(cfg.PolicyWait + cfg.CallTimeout + maxBackoff)
		synctest.Wait()
		require.Equal(t, uint64(1), w.Snapshot().Version)
		require.Equal(t, digest, w.Snapshot().Adapter)
		cancel()
		require.NoError(t, <-done)
	})
}
