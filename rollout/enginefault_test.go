package rollout

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/model"
)

// together submits requests while the decoder is held, so that they arrive at
// once, and returns what became of them.
func together(t *testing.T, e *LocalEngine, g *gate, reqs ...GenerateRequest) ([]Generation, []error) {
	t.Helper()
	var wg sync.WaitGroup
	wg.Go(func() {
		_, err := e.Generate(context.Background(), GenerateRequest{Prompt: prompt(1), MaxNew: 1})
		require.NoError(t, err)
	})
	<-g.reached
	gens, errs := make([]Generation, len(reqs)), make([]error, len(reqs))
	for i, r := range reqs {
		wg.Go(func() { gens[i], errs[i] = e.Generate(context.Background(), r) })
	}
	require.Eventually(t, func() bool { return e.arrived() == len(reqs)+1 }, 30*time.Second, time.Millisecond)
	close(g.release)
	wg.Wait()
	return gens, errs
}

type anything struct{}

func (anything) Allow([]uint64)     {}
func (anything) Accept(int32) error { return nil }

// A call of several rows fails: each is tried alone, and only those fail that
// fail alone, or whose constraint nobody can rewind.
func TestFailedCallIsTakenApart(t *testing.T) {
	d := newFakeDecoder(4, 64)
	g := newGate(d, 1)
	e := startEngine(t, d, EngineConfig{Quantum: 3})
	held := d.decode
	d.decode = func(rows []model.DecodeRow) error {
		for _, r := range rows {
			if r.Sampling.Seed == 66 {
				// What a failing decoder leaves behind is anything.
				for _, r := range rows {
					d.slots[r.Slot] = append(d.slots[r.Slot], cell{99, 99})
				}
				return errors.New("row of seed 66 is bad")
			}
		}
		return held(rows)
	}
	at := func(seed uint64, c model.Constraint) GenerateRequest {
		return GenerateRequest{Prompt: long(int32(10*seed), 6), MaxNew: 8, Constraint: c, Sampling: model.Sampling{Temperature: 1, Seed: seed}}
	}
	gens, errs := together(t, e, g, at(1, nil), at(66, nil), at(2, anything{}), at(3, nil))
	require.NoError(t, errs[0])
	require.NoError(t, checkCold(long(10, 6), gens[0], 1, 0))
	require.ErrorContains(t, errs[1], "row of seed 66 is bad")
	require.ErrorContains(t, errs[2], "the constraint may have moved on")
	require.NoError(t, errs[3])
	require.NoError(t, checkCold(long(30, 6), gens[3], 3, 0))
	gen, err := e.Generate(context.Background(), at(2, anything{}))
	require.NoError(t, err, "the engine lives on")
	require.NoError(t, checkCold(long(20, 6), gen, 2, 0), "the doubtful cache is not used again")
}

// A row that fails alone takes nobody along.
func TestRowErrorFailsItsRequest(t *testing.T) {
	d := newFakeDecoder(3, 64)
	g := newGate(d, 1)
	d.rowErr = func(r model.DecodeRow) error {
		if r.Sampling.Seed == 66 {
			return errors.New("the grammar allows nothing")
		}
		return nil
	}
	e := startEngine(t, d, EngineConfig{})
	at := func(seed uint64) GenerateRequest {
		return GenerateRequest{Prompt: long(100, 6), MaxNew: 8, Sampling: model.Sampling{Temperature: 1, Seed: seed}}
	}
	gens, errs := together(t, e, g, at(1), at(66))
	require.NoError(t, errs[0])
	require.NoError(t, checkCold(long(100, 6), gens[0], 1, 0))
	require.ErrorContains(t, errs[1], "the grammar allows nothing")
	require.Equal(t, uint64(1), e.Stats().Failed)
}

func TestBusy(t *testing.T) {
	d := newFakeDecoder(1, 64)
	g := newGate(d, 1)
	e := startEngine(t, d, EngineConfig{MaxWaiting: 2})
	var wg sync.WaitGroup
	req := GenerateRequest{Prompt: prompt(1), MaxNew: 1}
	for i := range 3 {
		wg.Go(func() {
			_, err := e.Generate(context.Background(), req)
			require.NoError(t, err)
		})
		require.Eventually(t, func() bool { return e.arrived() == i+1 }, 30*time.Second, time.Millisecond)
	}
	<-g.reached
	_, err := e.Generate(context.Background(), req)
	require.ErrorIs(t, err, ErrBusy)
	require.ErrorContains(t, err, "1 requests run and 2 wait")
	_, err = e.Stream(context.Background(), req)
	require.ErrorIs(t, err, ErrBusy)
	require.Equal(t, uint64(2), e.Stats().Refused)
	close(g.release)
	wg.Wait()
	_, err = e.Generate(context.Background(), req)
	require.NoError(t, err)
	require.Zero(t, e.Stats().Waiting)
}

func TestPriorityGoesFirst(t *testing.T) {
	d := newFakeDecoder(1, 64)
	g := newGate(d, 1)
	var order []int32
	held := d.decode
	d.decode = func(rows []model.DecodeRow) error {
		order = append(order, rows[0].Last)
		return held(rows)
	}
	e := startEngine(t, d, EngineConfig{})
	var wg sync.WaitGroup
	for i, priority := range []int{0, 0, 5, -1, 5, 0} {
		wg.Go(func() {
			_, err := e.Generate(context.Background(), GenerateRequest{Prompt: prompt(int32(i + 1)), MaxNew: 1, Priority: priority})
			require.NoError(t, err)
		})
		require.Eventually(t, func() bool { return e.arrived() == i+1 }, 30*time.Second, time.Millisecond)
		if i == 0 {
			<-g.reached
		}
	}
	close(g.release)
	wg.Wait()
	require.Equal(t, []int32{1, 3, 5, 2, 6, 4}, order)
}

// A long prompt is computed in chunks, between which the running request gets
// its tokens and a cancellation is seen.
func TestChunkedPrefill(t *testing.T) {
	d := newFakeDecoder(3, 1024)
	g := newGate(d, 1)
	var trace []string
	held := d.decode
	d.decode = func(rows []model.DecodeRow) error {
		if rows[0].Sampling.Seed == 1 {
			trace = append(trace, "decode")
		}
		return held(rows)
	}
	var cancel context.CancelFunc
	d.prefill = func(rows []model.PrefillRow) error {
		for _, r := range rows {
			switch r.Tokens[0] {
			case 2000 + 32:
				cancel()
			case 2000 + 48:
				return errors.New("a cancelled prompt is computed on")
			}
		}
		if rows[0].Tokens[0] >= 100 && rows[0].Tokens[0] < 200 {
			trace = append(trace, "chunk")
		}
		return nil
	}
	e := startEngine(t, d, EngineConfig{Quantum: 2, Chunk: 16})
	running := GenerateRequest{Prompt: prompt(5), MaxNew: 40, Sampling: model.Sampling{Temperature: 1, Seed: 1}}
	late := GenerateRequest{Prompt: long(100, 65), MaxNew: 5, Sampling: model.Sampling{Temperature: 1, Seed: 2}}
	var wg sync.WaitGroup
	wg.Go(func() {
		out, err := e.Generate(context.Background(), running)
		require.NoError(t, err)
		require.NoError(t, checkCold(running.Prompt, out, 1, 0))
	})
	<-g.reached
	wg.Go(func() {
		out, err := e.Generate(context.Background(), late)
		require.NoError(t, err)
		require.NoError(t, checkCold(late.Prompt, out, 2, 0))
	})
	require.Eventually(t, func() bool { return e.arrived() == 2 }, 30*time.Second, time.Millisecond)
	close(g.release)
	wg.Wait()
	require.Equal(t, 16, d.chunk)
	require.Equal(t, []string{"decode", "chunk", "decode", "chunk", "decode", "chunk", "decode", "chunk", "decode"}, trace[:9])

	ctx, stop := context.WithCancel(context.Background())
	cancel = stop
	_, err := e.Generate(ctx, GenerateRequest{Prompt: long(2000, 100), MaxNew: 1})
	require.ErrorIs(t, err, context.Canceled)
	out, err := e.Generate(context.Background(), late)
	require.NoError(t, err)
	require.NoError(t, checkCold(late.Prompt, out, 2, 0))
	require.Equal(t, 64, out.Cached)
}

// The members of a group that arrive while the prompt of the first is being
// computed wait for it, chunk by chunk, and copy.
func TestGroupSharesAChunkedPrompt(t *testing.T) {
	d := newFakeDecoder(8, 1024)
	g := newGate(d, 1)
	e := startEngine(t, d, EngineConfig{Chunk: 16})
	p := long(100, 200)
	var reqs []GenerateRequest
	for i := range 8 {
		reqs = append(reqs, GenerateRequest{Prompt: p, MaxNew: 6, Sampling: model.Sampling{Temperature: 1, Seed: uint64(i)}})
	}
	gens, errs := together(t, e, g, reqs...)
	require.NoError(t, errors.Join(errs...))
	for i := range gens {
		require.NoError(t, checkCold(p, gens[i], uint64(i), 0))
	}
	st := e.Stats()
	require.Equal(t, uint64(199), st.Prefilled)
	require.Equal(t, uint64(7*199), st.Reused)
	require.LessOrEqual(t, d.chunk, 16)
}

func TestHistogram(t *testing.T) {
	var h Histogram
	require.Zero(t, h.Quantile(0.5))
	h.observe(0, 1)
	h.observe(64*time.Microsecond, 1)
	h.observe(65*time.Microsecond, 1)
	h.observe(4*time.Second, 2) // two seconds each
	h.observe(-time.Second, 1)
	h.observe(1000*time.Hour, 1)
	require.Equal(t, uint64(7), h.Count)
	require.Equal(t, uint64(3), h.Buckets[0])
	require.Equal(t, uint64(1), h.Buckets[1])
	require.Equal(t, uint64(2), h.Buckets[15])
	require.Equal(t, uint64(1), h.Buckets[23])
	require.Equal(t, 64*time.Microsecond, h.Quantile(0.4))
	require.Equal(t, 128*time.Microsecond, h.Quantile(0.5))
	require.Equal(t, HistogramBound(15), h.Quantile(0.8))
}

// A row carries its whole sequence when penalties need it, and only then.
func TestRowsCarryTheirHistory(t *testing.T) {
	d := newFakeDecoder(1, 64)
	var rows []model.DecodeRow
	d.decode = func(r []model.DecodeRow) error {
		rows = append(rows, r[0])
		rows[len(rows)-1].History = append([]int32(nil), r[0].History...)
		return nil
	}
	e := startEngine(t, d, EngineConfig{Quantum: 2})
	p := long(100, 5)
	req := GenerateRequest{Prompt: p, MaxNew: 4, Sampling: model.Sampling{PresencePenalty: 1}, Bias: []model.TokenBias{{ID: 3, Bias: 1}}, Raw: true, Top: 2, Constraint: anything{}}
	g, err := e.Generate(context.Background(), req)
	require.NoError(t, err)
	require.Len(t, rows, 2)
	require.Equal(t, p, rows[0].History)
	require.Equal(t, append(append([]int32(nil), p...), g.IDs[:2]...), rows[1].History)
	for _, r := range rows {
		require.Equal(t, 5, r.Prompt)
		require.Equal(t, req.Bias, r.Bias)
		require.True(t, r.Raw && r.Top == 2 && r.Constraint == req.Constraint && r.Sampling == req.Sampling)
	}
	req.Sampling = model.Sampling{}
	_, err = e.Generate(context.Background(), req)
	require.NoError(t, err)
	require.Empty(t, rows[2].History)
}
