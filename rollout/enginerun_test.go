package rollout

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/replay"
)

// Runs that share an engine, with equal prompts, equal session names and equal
// version numbers, while their policies are swapped: every token is the one its
// own run's policy of the recorded version gives on a cold cache.
func TestRunsShareAnEngine(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		d := newFakeDecoder(rapid.IntRange(1, 4).Draw(rt, "slots"), 64)
		runs := rapid.IntRange(2, 3).Draw(rt, "runs")
		e, err := NewEngine(d, EngineConfig{Slots: len(d.slots), MaxLen: 64, Adapters: 1 + runs, Quantum: rapid.IntRange(1, 4).Draw(rt, "quantum")})
		require.NoError(rt, err)
		defer e.Close()
		tag := func(run int, version uint64) uint64 {
			if version == 0 {
				return 0
			}
			return uint64(1000*(run+1)) + version
		}
		var wg sync.WaitGroup
		errs := make(chan error, 100)
		for run := range runs {
			view, err := e.ForRun(fmt.Sprint("run", run), 64)
			require.NoError(rt, err)
			swaps := rapid.IntRange(0, 4).Draw(rt, "swaps")
			wg.Go(func() {
				for v := range swaps {
					errs <- view.SetPolicy(uint64(v+1), fakeAdapter(tag(run, uint64(v+1))))
				}
			})
			for i := range rapid.IntRange(1, 4).Draw(rt, "requests") {
				n := rapid.IntRange(1, 12).Draw(rt, "new")
				wg.Go(func() {
					p := prompt(1, 2, 3, int32(i))
					g, err := view.Generate(context.Background(), GenerateRequest{Session: fmt.Sprint(i % 2), Prompt: p, MaxNew: n, Sampling: model.Sampling{Temperature: 1, Seed: uint64(i)}})
					if err == nil {
						err = checkColdAs(p, g, uint64(i), func(v uint64) uint64 { return tag(run, v) })
					}
					errs <- err
				})
			}
		}
		wg.Wait()
		close(errs)
		for err := range errs {
			require.NoError(rt, err)
		}
	})
}

func TestForRunRefusals(t *testing.T) {
	e := startEngine(t, newFakeDecoder(1, 32), EngineConfig{Slots: 1, MaxLen: 32, Adapters: 2})
	a, err := e.ForRun("a", 16)
	require.NoError(t, err)
	require.Equal(t, 16, a.MaxLen())
	_, err = e.ForRun("b", 16)
	require.ErrorIs(t, err, ErrAdapterPlaces)
	_, err = e.ForRun("a", 16)
	require.ErrorContains(t, err, "is loaded")
	_, err = e.ForRun("c", 33)
	require.ErrorContains(t, err, "2 to 32")
	_, err = a.Generate(t.Context(), GenerateRequest{Prompt: long(1, 10), MaxNew: 7})
	require.ErrorIs(t, err, ErrContextFull, "the run's limit, not the engine's")
	_, err = a.Generate(t.Context(), GenerateRequest{Prompt: long(1, 3), MaxNew: 1, Adapter: "other"})
	require.ErrorContains(t, err, "for its policy")
	require.NoError(t, a.SetPolicy(7, fakeAdapter(7)))
	require.Equal(t, uint64(7), a.Version())
	require.Zero(t, e.Version(), "the engine's own policy")
	require.Error(t, a.SetPolicy(8, &model.Adapter{Params: []float32{-1}}), "does not fit")
	require.NoError(t, a.Close())
	require.NoError(t, a.Close())
	require.ErrorIs(t, a.SetPolicy(8, nil), ErrNoAdapter)
	b, err := e.ForRun("b", 32)
	require.NoError(t, err, "the place is free again")
	_, err = b.Generate(t.Context(), GenerateRequest{Prompt: long(1, 3), MaxNew: 2})
	require.NoError(t, err)
	require.Equal(t, uint64(2), b.Stats().Generated)
}

// One process serves three runs: one without tasks, one whose rollouts hang, and
// one that works. The last gets what the first leaves, and the second holds its
// part and no more.
func TestARunHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shares := NewShares(9)
		start := func(run string, s *fakeStore, e Engine, weight float64) (*Worker, func()) {
			cfg := DefaultWorkerConfig()
			cfg.Run, cfg.Name, cfg.Members = run, "w", 9
			loop := DefaultLoopConfig()
			loop.MaxCompletionLength = 4096
			w, err := NewWorker(cfg, Parts{Store: s, Source: echoSource(), Engine: e, Chat: byteChat{}, Loop: loop, Base: baseModel(), Seat: shares.Join(weight)}, Hooks{})
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- w.Run(ctx) }()
			return w, func() { cancel(); require.NoError(t, <-done) }
		}
		fill := func(s *fakeStore) {
			for i := range 40 {
				s.ticket(replay.Ticket{Table: "train", Group: fmt.Sprint(i)})
			}
		}
		empty, stuck, good := newFakeStore(baseModel(), 1), newFakeStore(baseModel(), 1), newFakeStore(baseModel(), 1)
		fill(stuck)
		fill(good)
		hang := &stallEngine{scriptEngine: actingEngine("hi"), from: 1, block: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }}
		_, stopEmpty := start("empty", empty, actingEngine("hi"), 1)
		w, stopStuck := start("stuck", stuck, hang, 1)
		_, stopGood := start("good", good, actingEngine("hi"), 2)
		time.Sleep(20 * time.Second)
		require.Len(t, good.logs(40), 40)
		require.LessOrEqual(t, w.Snapshot().Members, 9)
		require.GreaterOrEqual(t, w.Snapshot().Members, 2)
		stopEmpty()
		stopStuck()
		stopGood()
	})
}
