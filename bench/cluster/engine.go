package main

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/rollout"
)

// lengths are those of rollouts, in tokens: log-normal, as measured ones are,
// with a hundredth above ten times the median at sigma 1; cut at most.
type lengths struct {
	median, sigma float64
	most          int
}

// of is a fixed function of the seed of a request.
func (l lengths) of(seed uint64) int {
	rng := rand.New(rand.NewPCG(seed, 1))
	return max(1, min(l.most, int(l.median*math.Exp(l.sigma*rng.NormFloat64()))))
}

// mean is taken over many seeds.
func (l lengths) mean() float64 {
	sum := 0
	for i := range uint64(20_000) {
		sum += l.of(i)
	}
	return float64(sum) / 20_000
}

// engine is a rollout.Engine of known speed: each of its slots gives a token
// every so often, whatever the others do. It needs no processor meanwhile.
type engine struct {
	lengths lengths
	token   time.Duration
	word    int32
	slots   chan struct{}
	// idleSwap makes a new policy wait until nothing runs, as engines without
	// in-flight updates do; else it counts from the next token on.
	idleSwap bool
	gate     sync.RWMutex // held for reading by what runs, with idleSwap

	mu      sync.Mutex
	swaps   []swap
	adapted bool
	busy    time.Duration // of all slots
	tokens  int
}

type swap struct {
	at      time.Time
	version uint64
}

func newEngine(slots int, token time.Duration, l lengths, word int32, idleSwap bool) *engine {
	return &engine{lengths: l, token: token, word: word, slots: make(chan struct{}, slots), idleSwap: idleSwap, swaps: []swap{{}}}
}

// Generate implements rollout.Engine. Greedy requests are probes of a policy:
// they take no slot and no time.
func (e *engine) Generate(ctx context.Context, req rollout.GenerateRequest) (rollout.Generation, error) {
	if req.Sampling.Temperature == 0 {
		return e.answer(min(req.MaxNew, 4), time.Now(), req)
	}
	select {
	case e.slots <- struct{}{}:
	case <-ctx.Done():
		return rollout.Generation{}, context.Cause(ctx)
	}
	defer func() { <-e.slots }()
	if e.idleSwap {
		e.gate.RLock()
		defer e.gate.RUnlock()
	}
	start := time.Now()
	n := min(req.MaxNew, e.lengths.of(req.Sampling.Seed))
	t := time.NewTimer(time.Duration(n) * e.token)
	defer t.Stop()
	var err error
	select {
	case <-t.C:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	e.mu.Lock()
	e.busy += time.Since(start)
	e.mu.Unlock()
	if err != nil {
		return rollout.Generation{}, err
	}
	return e.answer(n, start, req)
}

// answer has the versions that were served when each token came.
func (e *engine) answer(n int, start time.Time, req rollout.GenerateRequest) (rollout.Generation, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	g := rollout.Generation{IDs: make([]int32, n), Logprobs: make([]float32, n), Finish: rollout.FinishStop}
	e.tokens += n
	for i := range n {
		g.IDs[i], g.Logprobs[i] = e.word, -1
		if e.adapted {
			g.Logprobs[i] = -1.125
		}
		version := e.swaps[0].version
		for _, s := range e.swaps {
			if s.at.After(start.Add(time.Duration(i) * e.token)) {
				break
			}
			version = s.version
		}
		if k := len(g.Versions); k > 0 && g.Versions[k-1].Version == version {
			g.Versions[k-1].End = i + 1
		} else {
			g.Versions = append(g.Versions, rollout.VersionRun{End: i + 1, Version: version})
		}
	}
	if len(req.Stop) > 0 {
		g.IDs[n-1] = req.Stop[0]
	}
	if g.Versions[0].Version < req.MinVersion {
		return rollout.Generation{}, fmt.Errorf("%w: need at least %d, serving %d", rollout.ErrVersion, req.MinVersion, g.Versions[0].Version)
	}
	return g, nil
}

// SetPolicy implements rollout.Engine.
func (e *engine) SetPolicy(version uint64, a *model.Adapter) error {
	if e.idleSwap {
		e.gate.Lock()
		defer e.gate.Unlock()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.swaps, e.adapted = append(e.swaps, swap{time.Now(), version}), a != nil
	return nil
}

// Version implements rollout.Engine.
func (e *engine) Version() uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.swaps[len(e.swaps)-1].version
}

// EndSession implements rollout.Engine.
func (e *engine) EndSession(string) {}

// MaxLen implements rollout.Engine.
func (e *engine) MaxLen() int { return 1 << 16 }

// Close implements rollout.Engine.
func (e *engine) Close() error { return nil }

// used is how long its slots were busy, together, and the tokens sampled.
func (e *engine) used() (time.Duration, int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.busy, e.tokens
}
