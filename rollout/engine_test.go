package rollout

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/skein-rl/skein/model"
)

func startEngine(t testing.TB, d *fakeDecoder, cfg EngineConfig) *LocalEngine {
	t.Helper()
	cfg.Slots, cfg.MaxLen = len(d.slots), d.maxLen
	e, err := NewEngine(d, cfg)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, e.Close())
		require.True(t, d.closed)
	})
	return e
}

func prompt(ids ...int32) []int32 { return ids }

func long(first int32, n int) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = first + int32(i)
	}
	return ids
}

// checkCold recomputes every token of a generation without a cache: each under
// the one version recorded for it. Cases row "kv-cache": a cache reused across
// a weight update would give other logprobs.
func checkCold(prompt []int32, g Generation, seed uint64, stop int32) error {
	seq := append([]int32(nil), prompt...)
	run := 0
	for i, id := range g.IDs {
		for g.Versions[run].End <= i {
			run++
		}
		want, lp := coldNext(seq, g.Versions[run].Version, seed, stop)
		if id != want || g.Logprobs[i] != lp {
			return fmt.Errorf("token %d under version %d is %d (%v); a cold cache gives %d (%v)", i, g.Versions[run].Version, id, g.Logprobs[i], want, lp)
		}
		seq = append(seq, id)
	}
	if n := len(g.Versions); n == 0 || g.Versions[n-1].End != len(g.IDs) {
		return errors.New("version runs do not cover the tokens")
	}
	return nil
}

// Whatever arrives, leaves, swaps and shares: every token equals the cold one.
func TestEngineEqualsAColdCache(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		d := newFakeDecoder(rapid.IntRange(1, 4).Draw(rt, "slots"), 64)
		d.stop = 9
		d.overrun = rapid.Bool().Draw(rt, "overrun")
		e, err := NewEngine(d, EngineConfig{Slots: len(d.slots), MaxLen: 64, Quantum: rapid.IntRange(1, 5).Draw(rt, "quantum")})
		if err != nil {
			rt.Fatal(err)
		}
		defer e.Close()
		system := long(100, rapid.IntRange(0, 12).Draw(rt, "system"))
		var wg sync.WaitGroup
		var mu sync.Mutex
		var bad error
		for s := range rapid.IntRange(1, 6).Draw(rt, "sessions") {
			session := fmt.Sprint("s", s)
			p := append(append([]int32(nil), system...), int32(200+s/2), 7)
			turns := rapid.IntRange(1, 3).Draw(rt, "turns")
			rewrite := rapid.Bool().Draw(rt, "rewrite")
			extra := rapid.IntRange(0, 4).Draw(rt, "extra")
			wg.Go(func() {
				for turn := range turns {
					g, err := e.Generate(context.Background(), GenerateRequest{
						Session: session, Prompt: p, MaxNew: 1 + (s+turn)%9, Stop: []int32{9},
						Sampling: model.Sampling{Temperature: 1, Seed: uint64(s)},
					})
					if err == nil {
						err = checkCold(p, g, uint64(s), 9)
					}
					if err != nil {
						mu.Lock()
						bad = errors.Join(bad, fmt.Errorf("session %d turn %d: %w", s, turn, err))
						mu.Unlock()
						return
					}
					p = append(append(append([]int32(nil), p...), g.IDs...), long(300, extra)...)
					if rewrite { // a later turn that is no extension
						p[len(system)] = 250
					}
				}
				e.EndSession(session)
			})
		}
		for v := range rapid.IntRange(0, 4).Draw(rt, "swaps") {
			if err := e.SetPolicy(uint64(v+1), fakeAdapter(uint64(v+1))); err != nil {
				rt.Fatal(err)
			}
		}
		wg.Wait()
		if bad != nil {
			rt.Fatal(bad)
		}
		if d.rows > len(d.slots) {
			rt.Fatalf("%d rows in %d slots", d.rows, len(d.slots))
		}
	})
}

// Cases rows "version", "partial-rollout" and "kv-cache": a swap in flight
// splits the tokens into version runs, and what follows it is computed on a
// cache of the new version only.
func TestSwapInFlight(t *testing.T) {
	d := newFakeDecoder(2, 64)
	reached, release := make(chan struct{}), make(chan struct{})
	calls := 0
	d.decode = func([]model.DecodeRow) error {
		if calls++; calls == 2 {
			close(reached)
			<-release
		}
		return nil
	}
	e := startEngine(t, d, EngineConfig{Quantum: 2})
	require.NoError(t, e.SetPolicy(3, fakeAdapter(3)))
	done := make(chan Generation)
	p := long(100, 10)
	go func() {
		g, err := e.Generate(context.Background(), GenerateRequest{Session: "a", Prompt: p, MaxNew: 7, Sampling: model.Sampling{Temperature: 1}})
		if err != nil {
			panic(err)
		}
		done <- g
	}()
	<-reached
	swapped := make(chan error)
	go func() { swapped <- e.SetPolicy(4, fakeAdapter(4)) }()
	require.Eventually(t, func() bool { e.mu.Lock(); defer e.mu.Unlock(); return len(e.commands) == 1 }, 30*time.Second, time.Millisecond)
	close(release)
	require.NoError(t, <-swapped)
	g := <-done
	require.Equal(t, []VersionRun{{End: 4, Version: 3}, {End: 7, Version: 4}}, g.Versions)
	require.NoError(t, checkCold(p, g, 0, 0))
	require.Equal(t, uint64(13), e.Stats().Refilled, "the whole sequence but its last token is computed again")

	// The next turn does not find tokens of version 3 in the cache either.
	next := append(append([]int32(nil), p...), g.IDs...)
	g, err := e.Generate(context.Background(), GenerateRequest{Session: "a", Prompt: next, MaxNew: 3, Sampling: model.Sampling{Temperature: 1}})
	require.NoError(t, err)
	require.NoError(t, checkCold(next, g, 0, 0))
}

// The members of a group compute their prompt once, and a later turn computes
// only what is new.
func TestPrefixReuse(t *testing.T) {
	d := newFakeDecoder(8, 128)
	reached, hold := make(chan struct{}), make(chan struct{})
	first := true
	d.decode = func([]model.DecodeRow) error {
		if first {
			first = false
			close(reached)
			<-hold
		}
		return nil
	}
	e := startEngine(t, d, EngineConfig{})
	// A filler keeps the engine busy until all members have arrived.
	var wg sync.WaitGroup
	wg.Go(func() {
		_, err := e.Generate(context.Background(), GenerateRequest{Prompt: prompt(1), MaxNew: 1})
		require.NoError(t, err)
	})
	<-reached
	system := long(100, 40)
	outs := make([]Generation, 8)
	prompts := make([][]int32, 8)
	for m := range 8 {
		prompts[m] = append(append([]int32(nil), system...), long(int32(1000*(1+m/4)), 20)...)
		wg.Go(func() {
			g, err := e.Generate(context.Background(), GenerateRequest{
				Session: fmt.Sprint(m), Prompt: prompts[m], MaxNew: 4, Sampling: model.Sampling{Temperature: 1, Seed: uint64(m)},
			})
			require.NoError(t, err)
			outs[m] = g
		})
	}
	require.Eventually(t, func() bool { e.mu.Lock(); defer e.mu.Unlock(); return len(e.queue) == 8 }, 30*time.Second, time.Millisecond)
	close(hold)
	wg.Wait()
	// Two groups of four: system once, each group's own part once.
	require.Equal(t, uint64(40+20-1+20-1), e.Stats().Prefilled)
	for m := range 8 {
		require.NoError(t, checkCold(prompts[m], outs[m], uint64(m), 0))
	}
	before := e.Stats().Prefilled
	p := append(append(append([]int32(nil), prompts[0]...), outs[0].IDs...), long(500, 6)...)
	g, err := e.Generate(context.Background(), GenerateRequest{Session: "0", Prompt: p, MaxNew: 4, Sampling: model.Sampling{Temperature: 1}})
	require.NoError(t, err)
	require.NoError(t, checkCold(p, g, 0, 0))
	require.Equal(t, uint64(6), e.Stats().Prefilled-before, "the last sampled token and five of the six new ones")
}

func TestRequestsThatCanNeverBe(t *testing.T) {
	e := startEngine(t, newFakeDecoder(1, 16), EngineConfig{})
	good := GenerateRequest{Prompt: prompt(1), MaxNew: 1}
	for _, c := range []struct {
		why    string
		change func(*GenerateRequest)
		want   string
	}{
		{"empty prompt", func(r *GenerateRequest) { r.Prompt = nil }, "Prompt is empty"},
		{"full context", func(r *GenerateRequest) { r.Prompt = long(1, 16) }, "a prompt of 16 tokens and 1 new ones, limit 16"},
		{"over the context", func(r *GenerateRequest) { r.Prompt, r.MaxNew = long(1, 10), 7 }, "a prompt of 10 tokens and 7 new ones, limit 16"},
		{"huge", func(r *GenerateRequest) { r.MaxNew = math.MaxInt }, "limit 16"},
		{"nothing asked", func(r *GenerateRequest) { r.MaxNew = 0 }, "MaxNew is 0"},
		{"temperature", func(r *GenerateRequest) { r.Sampling.Temperature = -1 }, "temperature is -1"},
		{"top p", func(r *GenerateRequest) { r.Sampling.TopP = 1.5 }, "top_p is 1.5"},
		{"top k", func(r *GenerateRequest) { r.Sampling.TopK = -1 }, "top_k is -1"},
		{"min p", func(r *GenerateRequest) { r.Sampling.MinP = 2 }, "min_p is 2"},
		{"penalty", func(r *GenerateRequest) { r.Sampling.RepetitionPenalty = -2 }, "repetition_penalty is -2"},
		{"bias", func(r *GenerateRequest) { r.Bias = []model.TokenBias{{ID: -4}} }, "bias 0 is for token -4"},
		{"top", func(r *GenerateRequest) { r.Top = -1 }, "top is -1"},
		{"stop text", func(r *GenerateRequest) { r.StopText = []string{"x"} }, "no text side"},
		{"unknown adapter", func(r *GenerateRequest) { r.Adapter = "blue" }, `no such adapter: "blue"`},
		{"other version", func(r *GenerateRequest) { v := uint64(5); r.Version = &v }, "need exactly 5, serving 0"},
		{"older version", func(r *GenerateRequest) { r.MinVersion = 2 }, "need at least 2, serving 0"},
	} {
		r := good
		c.change(&r)
		_, err := e.Generate(context.Background(), r)
		require.ErrorContains(t, err, c.want, c.why)
	}
	g, err := e.Generate(context.Background(), GenerateRequest{Prompt: long(1, 10), MaxNew: 6})
	require.NoError(t, err)
	require.Len(t, g.IDs, 6, "up to the context limit")
	require.Equal(t, FinishLength, g.Finish)

	err = EngineConfig{Quantum: -1, Chunk: -2, Adapters: -3, MaxWaiting: -4, OnSwap: 7}.Validate()
	for _, says := range []string{"Slots is 0", "MaxLen is 0", "Quantum is -1", "Chunk is -2", "Adapters is -3", "MaxWaiting is -4", "OnSwap is 7"} {
		require.ErrorContains(t, err, says)
	}
	require.ErrorContains(t, e.SetPolicy(9, &model.Adapter{Params: []float32{-1}}), "another base")
	require.Zero(t, e.Version(), "the old policy stays")
}

func TestCancellationFreesTheSlot(t *testing.T) {
	d := newFakeDecoder(1, 1<<16)
	started := make(chan struct{}, 1)
	d.decode = func([]model.DecodeRow) error {
		select {
		case started <- struct{}{}:
		default:
		}
		return nil
	}
	e := startEngine(t, d, EngineConfig{})
	ctx, cancel := context.WithCancelCause(context.Background())
	why := errors.New("rollout over")
	done := make(chan error)
	go func() {
		_, err := e.Generate(ctx, GenerateRequest{Prompt: prompt(1), MaxNew: 1 << 15})
		done <- err
	}()
	<-started
	cancel(why)
	require.ErrorIs(t, <-done, why)
	_, err := e.Generate(context.Background(), GenerateRequest{Prompt: prompt(2), MaxNew: 3})
	require.NoError(t, err)
	_, err = e.Generate(ctx, GenerateRequest{Prompt: prompt(2), MaxNew: 3})
	require.ErrorIs(t, err, why, "cancelled before it began")
}

func TestFirstComeFirstServed(t *testing.T) {
	d := newFakeDecoder(1, 64)
	hold := make(chan struct{})
	var order []int32
	d.decode = func(rows []model.DecodeRow) error {
		<-hold
		order = append(order, rows[0].Last)
		return nil
	}
	e := startEngine(t, d, EngineConfig{})
	var wg sync.WaitGroup
	for i := range 5 {
		wg.Go(func() {
			_, err := e.Generate(context.Background(), GenerateRequest{Prompt: prompt(int32(i + 1)), MaxNew: 1})
			require.NoError(t, err)
		})
		require.Eventually(t, func() bool { return e.arrived() == i+1 }, 30*time.Second, time.Millisecond)
	}
	close(hold)
	wg.Wait()
	require.Equal(t, []int32{1, 2, 3, 4, 5}, order)
}

// arrived counts the requests inside, seen by the engine or not.
func (e *LocalEngine) arrived() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.held
}

func TestCloseFailsWhatIsInFlight(t *testing.T) {
	d := newFakeDecoder(1, 1<<16)
	started := make(chan struct{}, 1)
	d.decode = func([]model.DecodeRow) error {
		select {
		case started <- struct{}{}:
		default:
		}
		return nil
	}
	e := startEngine(t, d, EngineConfig{})
	errs := make(chan error, 3)
	for range 3 {
		go func() {
			_, err := e.Generate(context.Background(), GenerateRequest{Prompt: prompt(1), MaxNew: 1 << 15})
			errs <- err
		}()
	}
	<-started
	require.NoError(t, e.Close())
	for range 3 {
		require.ErrorIs(t, <-errs, ErrEngineClosed)
	}
	_, err := e.Generate(context.Background(), GenerateRequest{Prompt: prompt(1), MaxNew: 1})
	require.ErrorIs(t, err, ErrEngineClosed)
	require.ErrorIs(t, e.SetPolicy(1, nil), ErrEngineClosed)
}

// P7: a request that breaks the decoder fails alone, and the engine lives on.
func TestDecoderFailures(t *testing.T) {
	d := newFakeDecoder(4, 64)
	reached, hold := make(chan struct{}), make(chan struct{})
	first := true
	d.decode = func([]model.DecodeRow) error {
		if first {
			first = false
			close(reached)
			<-hold
		}
		return nil
	}
	d.prefill = func(rows []model.PrefillRow) error {
		for _, r := range rows {
			if r.Tokens[0] == 66 {
				return errors.New("token 66 is not in the vocabulary")
			}
		}
		return nil
	}
	e := startEngine(t, d, EngineConfig{})
	var wg sync.WaitGroup
	wg.Go(func() {
		_, err := e.Generate(context.Background(), GenerateRequest{Prompt: prompt(1), MaxNew: 1})
		require.NoError(t, err)
	})
	<-reached
	errs := make([]error, 3)
	for i, p := range [][]int32{{65, 1, 2}, {66, 1, 2}, {67, 1, 2}} {
		wg.Go(func() {
			_, errs[i] = e.Generate(context.Background(), GenerateRequest{Prompt: p, MaxNew: 2})
		})
	}
	require.Eventually(t, func() bool { e.mu.Lock(); defer e.mu.Unlock(); return len(e.queue) == 3 }, 30*time.Second, time.Millisecond)
	close(hold)
	wg.Wait()
	require.NoError(t, errs[0])
	require.ErrorContains(t, errs[1], "token 66")
	require.NoError(t, errs[2])
}

func TestDecodeErrorIsReported(t *testing.T) {
	d := newFakeDecoder(1, 64)
	fail := true
	d.decode = func([]model.DecodeRow) error {
		if fail {
			fail = false
			return errors.New("device lost")
		}
		return nil
	}
	e := startEngine(t, d, EngineConfig{})
	p := long(100, 5)
	_, err := e.Generate(context.Background(), GenerateRequest{Prompt: p, MaxNew: 2})
	require.ErrorContains(t, err, "engine: decode: device lost")
	g, err := e.Generate(context.Background(), GenerateRequest{Prompt: p, MaxNew: 2})
	require.NoError(t, err)
	require.NoError(t, checkCold(p, g, 0, 0), "the doubtful cache is not used again")
}
