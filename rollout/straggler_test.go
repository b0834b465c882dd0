package rollout

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/replay"
)

// slowEngine answers its first requests and never the others, until they are
// given up.
type slowEngine struct {
	Engine
	quick   int64
	started atomic.Int64
}

func (e *slowEngine) Generate(ctx context.Context, req GenerateRequest) (Generation, error) {
	if req.Session != "probe" && e.started.Add(1) > e.quick {
		<-ctx.Done()
		return Generation{}, context.Cause(ctx)
	}
	return e.Engine.Generate(ctx, req)
}

// Oversampled members, and those another worker brought meanwhile, are given up
// as soon as the store says that their group is complete: no log, no ticket
// returned, no error.
func TestWorkerAbandonsWhatNobodyWants(t *testing.T) {
	s := newFakeStore(baseModel(), 4)
	taken := 0
	s.append = func(recs []replay.Record) ([]replay.AppendResult, error) {
		out := make([]replay.AppendResult, len(recs))
		for i := range recs {
			taken++
			out[i].Closed = taken == 2
		}
		return out, nil
	}
	s.ticket(replay.Ticket{Table: "train", Group: "g", Index: 5, Seed: 1})
	b := startWorker(t, s, &slowEngine{Engine: actingEngine("hi"), quick: 2}, echoSource(), nil)
	require.Eventually(t, func() bool {
		h := b.worker.Snapshot()
		return h.Abandoned == 2 && h.Groups == 0
	}, 20*time.Second, 5*time.Millisecond)
	b.stop(t)
	require.Equal(t, []string{""}, s.returned, "only what an earlier life held")
	require.Empty(t, b.errors())
	h := b.worker.Snapshot()
	require.Equal(t, [3]uint64{2, 0, 2}, [3]uint64{h.Rollouts, h.Failed, h.Appended})
}
