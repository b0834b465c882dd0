package rollout

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/skein-rl/skein/model"
)

// checkColdAs is checkCold where a version's adapter has another tag.
func checkColdAs(prompt []int32, g Generation, seed uint64, tag func(version uint64) uint64) error {
	as := g
	as.Versions = nil
	for _, r := range g.Versions {
		as.Versions = append(as.Versions, VersionRun{End: r.End, Version: tag(r.Version)})
	}
	return checkCold(prompt, as, seed, 0)
}

// Adapters loaded, replaced, unloaded and loaded again under the same names and
// in the same places, while sessions and prompts are shared by all of them: no
// token is ever sampled on a cache of another adapter or version.
func TestNoAdapterIsServedAnothersCache(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		d := newFakeDecoder(rapid.IntRange(1, 4).Draw(rt, "slots"), 64)
		e, err := NewEngine(d, EngineConfig{Slots: len(d.slots), MaxLen: 64, Adapters: 3,
			Quantum: rapid.IntRange(1, 4).Draw(rt, "quantum"), Chunk: rapid.SampledFrom([]int{2, 3, 100}).Draw(rt, "chunk")})
		require.NoError(rt, err)
		defer e.Close()
		var mu sync.Mutex
		tags := map[uint64]uint64{} // of named adapters by version
		next := uint64(1000)
		load := func(name string) {
			mu.Lock()
			defer mu.Unlock()
			next++
			v, err := e.LoadAdapter(name, fakeAdapter(next))
			require.NoError(rt, err)
			require.Zero(rt, tags[v], "a version means one adapter for ever")
			tags[v] = next
		}
		load("red")
		load("blue")
		system := long(100, rapid.IntRange(0, 20).Draw(rt, "system"))
		var wg sync.WaitGroup
		var bad error
		for i := range rapid.IntRange(2, 10).Draw(rt, "requests") {
			name := []string{"", "red", "blue"}[i%3]
			wg.Go(func() {
				p := append(append([]int32(nil), system...), int32(i/3))
				g, err := e.Generate(context.Background(), GenerateRequest{
					Session: fmt.Sprint(i % 2), Prompt: p, MaxNew: 1 + i*3%11, Adapter: name, Sampling: model.Sampling{Temperature: 1, Seed: uint64(i)},
				})
				if errors.Is(err, ErrNoAdapter) {
					return // unloaded meanwhile
				}
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					err = checkColdAs(p, g, uint64(i), func(v uint64) uint64 {
						if name == "" {
							return v
						}
						return tags[v]
					})
				}
				if err != nil {
					bad = errors.Join(bad, fmt.Errorf("request %d for %q: %w", i, name, err))
				}
			})
		}
		for i, op := range rapid.SliceOfN(rapid.IntRange(0, 3), 0, 8).Draw(rt, "ops") {
			switch op {
			case 0:
				load("red")
			case 1:
				load("blue")
			case 2:
				require.NoError(rt, e.UnloadAdapter("red"))
				load("red")
			case 3:
				require.NoError(rt, e.SetPolicy(uint64(i+1), fakeAdapter(uint64(i+1))))
			}
		}
		wg.Wait()
		if bad != nil {
			rt.Fatal(bad)
		}
	})
}

// gate stops a fake decoder at one of its Decode calls.
type gate struct {
	at               int
	reached, release chan struct{}
}

func newGate(d *fakeDecoder, at int) *gate {
	g := &gate{at: at, reached: make(chan struct{}), release: make(chan struct{})}
	calls := 0
	d.decode = func([]model.DecodeRow) error {
		if calls++; calls == g.at {
			close(g.reached)
			<-g.release
		}
		return nil
	}
	return g
}

func (e *LocalEngine) commanded(n int) func() bool {
	return func() bool { e.mu.Lock(); defer e.mu.Unlock(); return len(e.commands) == n }
}

func TestUnloadWhileInUse(t *testing.T) {
	d := newFakeDecoder(2, 64)
	g := newGate(d, 2)
	e := startEngine(t, d, EngineConfig{Quantum: 2, Adapters: 2})
	red, err := e.LoadAdapter("red", fakeAdapter(7))
	require.NoError(t, err)
	require.Equal(t, []string{"red"}, e.Adapters())
	_, err = e.LoadAdapter("blue", fakeAdapter(8))
	require.ErrorIs(t, err, ErrAdapterPlaces)
	require.ErrorContains(t, err, "2 of 2 are taken")

	p := long(100, 10)
	errs := make(chan error, 2)
	other := make(chan Generation, 1)
	go func() {
		_, err := e.Generate(context.Background(), GenerateRequest{Prompt: p, MaxNew: 20, Adapter: "red"})
		errs <- err
	}()
	go func() {
		g, err := e.Generate(context.Background(), GenerateRequest{Prompt: p, MaxNew: 20})
		errs <- err
		other <- g
	}()
	<-g.reached
	unloaded := make(chan error)
	go func() { unloaded <- e.UnloadAdapter("red") }()
	require.Eventually(t, e.commanded(1), 30*time.Second, time.Millisecond)
	close(g.release)
	require.NoError(t, <-unloaded)
	err = errors.Join(<-errs, <-errs)
	require.ErrorIs(t, err, ErrNoAdapter)
	require.ErrorContains(t, err, `"red" was unloaded`)
	require.NoError(t, checkCold(p, <-other, 0, 0), "the other request goes on")
	require.Empty(t, e.Adapters())
	require.ErrorIs(t, e.UnloadAdapter("red"), ErrNoAdapter)

	// The same name and place again: other weights, another version.
	again, err := e.LoadAdapter("red", fakeAdapter(9))
	require.NoError(t, err)
	require.Greater(t, again, red)
	out, err := e.Generate(context.Background(), GenerateRequest{Prompt: p, MaxNew: 5, Adapter: "red"})
	require.NoError(t, err)
	require.NoError(t, checkColdAs(p, out, 0, func(uint64) uint64 { return 9 }))
	require.Equal(t, []VersionRun{{End: 5, Version: again}}, out.Versions)

	// A replacement that does not fit changes nothing.
	_, err = e.LoadAdapter("red", &model.Adapter{Params: []float32{-1}})
	require.ErrorContains(t, err, "another base")
	out, err = e.Generate(context.Background(), GenerateRequest{Prompt: p, MaxNew: 5, Adapter: "red", Version: &again})
	require.NoError(t, err)
	require.NoError(t, checkColdAs(p, out, 0, func(uint64) uint64 { return 9 }))
	_, err = e.LoadAdapter("", fakeAdapter(1))
	require.ErrorContains(t, err, "give a name")
	require.ErrorContains(t, e.UnloadAdapter(""), "give a name")

	st := e.Stats()
	require.Equal(t, []AdapterStats{{Requests: 1, Generated: 20}, {Name: "red", Version: again, Requests: 2, Generated: 10}}, st.Adapters)
}

// SwapKeep goes on over the old keys and values, says so, and leaves nothing of
// them to anybody else.
func TestSwapKeep(t *testing.T) {
	d := newFakeDecoder(2, 64)
	g := newGate(d, 2)
	e := startEngine(t, d, EngineConfig{Quantum: 2, OnSwap: SwapKeep})
	require.NoError(t, e.SetPolicy(3, fakeAdapter(3)))
	p := long(100, 10)
	done := make(chan Generation)
	go func() {
		g, err := e.Generate(context.Background(), GenerateRequest{Session: "a", Prompt: p, MaxNew: 7, Sampling: model.Sampling{Temperature: 1}})
		if err != nil {
			panic(err)
		}
		done <- g
	}()
	<-g.reached
	swapped := make(chan error)
	go func() { swapped <- e.SetPolicy(4, fakeAdapter(4)) }()
	require.Eventually(t, e.commanded(1), 30*time.Second, time.Millisecond)
	close(g.release)
	require.NoError(t, <-swapped)
	out := <-done
	require.Equal(t, []VersionRun{{End: 4, Version: 3}, {End: 7, Version: 4, Stale: true}}, out.Versions)
	require.Zero(t, e.Stats().Refilled)
	require.Equal(t, uint64(9), e.Stats().Prefilled)
	// Token for token what that mixed cache gives: the prompt and three of the
	// first four tokens by version 3, the fourth and what follows by version 4.
	seq := append(append([]int32(nil), p...), out.IDs...)
	for i := range out.IDs {
		cells := make([]cell, len(p)+i)
		tag := uint64(3)
		if i >= 4 {
			tag = 4
		}
		for k := range cells {
			cells[k] = cell{seq[k], 3}
			if k >= len(p)+3 {
				cells[k].adapter = 4
			}
		}
		id, lp := fakeNext(cells, tag, 0, 0)
		require.Equal(t, id, out.IDs[i])
		require.Equal(t, lp, out.Logprobs[i])
	}
	// The session's next turn and a stranger start cold.
	for _, session := range []string{"a", "b"} {
		g, err := e.Generate(context.Background(), GenerateRequest{Session: session, Prompt: seq, MaxNew: 3, Sampling: model.Sampling{Temperature: 1}})
		require.NoError(t, err)
		require.NoError(t, checkCold(seq, g, 0, 0))
		require.False(t, g.Versions[0].Stale)
	}
}

// Under SwapKeep, in any company, every token that is not marked Stale is the
// cold one of its version.
func TestSwapKeepMarksWhatIsStale(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		d := newFakeDecoder(rapid.IntRange(2, 4).Draw(rt, "slots"), 64)
		e, err := NewEngine(d, EngineConfig{Slots: len(d.slots), MaxLen: 64, Quantum: rapid.IntRange(1, 3).Draw(rt, "quantum"),
			Chunk: rapid.SampledFrom([]int{2, 100}).Draw(rt, "chunk"), OnSwap: SwapKeep})
		require.NoError(rt, err)
		defer e.Close()
		every := rapid.IntRange(1, 3).Draw(rt, "every")
		calls, version := 0, uint64(0)
		d.decode = func([]model.DecodeRow) error { // swaps come while requests run
			if calls++; calls%every == 0 {
				version++
				go func(v uint64) { _ = e.SetPolicy(v, fakeAdapter(v)) }(version)
			}
			return nil
		}
		p := long(100, rapid.IntRange(1, 20).Draw(rt, "prompt"))
		var wg sync.WaitGroup
		n := rapid.IntRange(1, 8).Draw(rt, "requests")
		errs := make([]error, n)
		for i := range n {
			wg.Go(func() {
				g, err := e.Generate(context.Background(), GenerateRequest{Session: fmt.Sprint(i % 3), Prompt: p, MaxNew: 3 + i, Sampling: model.Sampling{Temperature: 1, Seed: uint64(i)}})
				seq, at := append([]int32(nil), p...), 0
				for _, run := range g.Versions {
					for ; at < run.End; at++ {
						id, lp := coldNext(seq, run.Version, uint64(i), 0)
						if !run.Stale && (id != g.IDs[at] || lp != g.Logprobs[at]) {
							err = fmt.Errorf("request %d, token %d: not what version %d gives", i, at, run.Version)
						}
						seq = append(seq, g.IDs[at])
					}
				}
				errs[i] = err
			})
		}
		wg.Wait()
		require.NoError(rt, errors.Join(errs...))
	})
}
