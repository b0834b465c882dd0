package rollout_test

import (
	"context"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/model/sample"
	"github.com/skein-rl/skein/rollout"
)

// evenOnly is a grammar of even tokens; broken ones panic at their third.
type evenOnly struct {
	n      int
	broken bool
}

func (c *evenOnly) Allow(mask []uint64) {
	if c.n++; c.broken && c.n == 3 {
		panic("index out of range in the grammar")
	}
	for i := range mask {
		mask[i] &= 0x5555555555555555
	}
}
func (c *evenOnly) Accept(id int32) error {
	if id%2 != 0 {
		return fmt.Errorf("token %d is odd", id)
	}
	return nil
}

func randomRequest(t *rapid.T, r rig, name string) rollout.GenerateRequest {
	pick := func(of ...float64) float64 { return rapid.SampledFrom(of).Draw(t, name) }
	text := rapid.SampledFrom([]string{"buy two apples", "hello", "the store sells tea, rice and much else", "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"}).Draw(t, name)
	req := rollout.GenerateRequest{
		Session: rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, name), Adapter: rapid.SampledFrom([]string{"", "red", "blue"}).Draw(t, name),
		Prompt: r.chat.Encode(text), MaxNew: rapid.IntRange(1, 24).Draw(t, name),
		Sampling: model.Sampling{
			Temperature: pick(0, 0.7, 1, 1.5), TopP: pick(0, 0.8), TopK: rapid.SampledFrom([]int{0, 0, 30}).Draw(t, name), MinP: pick(0, 0, 0.02),
			RepetitionPenalty: pick(0, 0, 1.3), FrequencyPenalty: pick(0, 0, 0.4), PresencePenalty: pick(0, 0, -0.3), Seed: rapid.Uint64().Draw(t, name),
		},
		Raw: rapid.Bool().Draw(t, name), Top: rapid.SampledFrom([]int{0, 3}).Draw(t, name), Priority: rapid.IntRange(0, 1).Draw(t, name),
	}
	switch rapid.IntRange(0, 5).Draw(t, name) {
	case 0:
		req.Bias = []model.TokenBias{{ID: 11, Bias: 4}, {ID: 12, Bias: float32(math.Inf(-1))}}
	case 1:
		req.StopText = []string{"e", "??"}
	case 2:
		req.Stop = r.chat.Stop()
	}
	return req
}

// Same seed, same tokens, whatever else is in the batch: a request of any kind
// comes out alone as it does in random company, through any chunk and quantum.
// Case "padding": its logprobs do not depend on its batch either.
func TestCompanyChangesNothing(t *testing.T) {
	r := newRig(t, 4)
	red, blue := r.adapter(t, 5), r.adapter(t, 6)
	engine := func(slots, quantum, chunk int) *rollout.LocalEngine {
		d, err := r.backend.NewDecoder(model.DecoderConfig{Slots: slots, MaxLen: 256, Adapters: 3})
		require.NoError(t, err)
		e, err := rollout.NewEngine(d, rollout.EngineConfig{
			Slots: slots, MaxLen: 256, Adapters: 3, Quantum: quantum, Chunk: chunk,
			Text: func(prompt []int32) rollout.TextStream { return r.base.Tokenizer.NewStream(prompt...) },
		})
		require.NoError(t, err)
		_, err = e.LoadAdapter("red", red)
		require.NoError(t, err)
		_, err = e.LoadAdapter("blue", blue)
		require.NoError(t, err)
		return e
	}
	alone := engine(1, 8, 512)
	defer alone.Close()
	rapid.Check(t, func(rt *rapid.T) {
		e := engine(rapid.IntRange(1, 4).Draw(rt, "slots"), rapid.IntRange(1, 6).Draw(rt, "quantum"), rapid.SampledFrom([]int{2, 5, 512}).Draw(rt, "chunk"))
		defer e.Close()
		n := rapid.IntRange(2, 6).Draw(rt, "company")
		var wg sync.WaitGroup
		gens := make([]rollout.Generation, n)
		reqs := make([]rollout.GenerateRequest, n)
		kind := make([]int, n)
		errs := make([]error, n)
		for i := range reqs {
			reqs[i] = randomRequest(rt, r, fmt.Sprint("request ", i))
			kind[i] = rapid.IntRange(0, 5).Draw(rt, "kind")
			req := reqs[i]
			wg.Go(func() {
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				switch kind[i] {
				case 0: // streams, and leaves early
					s, err := e.Stream(ctx, req)
					if err == nil {
						_, err = s.Next(ctx)
						s.Close()
					}
					errs[i] = err
				case 1: // breaks
					req.Constraint = &evenOnly{broken: true}
					_, _ = e.Generate(ctx, req)
				case 2:
					req.Constraint = &evenOnly{}
					gens[i], errs[i] = e.Generate(ctx, req)
				default:
					gens[i], errs[i] = e.Generate(ctx, req)
				}
			})
		}
		wg.Wait()
		for i, req := range reqs {
			require.NoError(rt, errs[i])
			if kind[i] < 2 {
				continue
			}
			if kind[i] == 2 {
				req.Constraint = &evenOnly{}
			}
			want, err := alone.Generate(context.Background(), req)
			require.NoError(rt, err)
			want.Cached = gens[i].Cached
			require.Equal(rt, want, gens[i], "request %d: %+v", i, req)
		}
	})
}

// A grammar that panics fails its request with the panic's words, and nothing
// else.
func TestPanickingConstraintFailsAlone(t *testing.T) {
	r := newRig(t, 2)
	p := r.chat.Encode("hello")
	want, err := r.engine.Generate(context.Background(), rollout.GenerateRequest{Prompt: p, MaxNew: 30, Sampling: model.Sampling{Temperature: 1}})
	require.NoError(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		got, err := r.engine.Generate(context.Background(), rollout.GenerateRequest{Prompt: p, MaxNew: 30, Sampling: model.Sampling{Temperature: 1}})
		require.NoError(t, err)
		require.Equal(t, want.IDs, got.IDs)
	})
	_, err = r.engine.Generate(context.Background(), rollout.GenerateRequest{Prompt: p, MaxNew: 30, Constraint: &evenOnly{broken: true}})
	require.ErrorIs(t, err, sample.ErrConstraint)
	require.ErrorContains(t, err, "index out of range in the grammar")
	wg.Wait()
	got, err := r.engine.Generate(context.Background(), rollout.GenerateRequest{Prompt: p, MaxNew: 30, Constraint: &evenOnly{}})
	require.NoError(t, err)
	for _, id := range got.IDs {
		require.Zero(t, id%2)
	}
}

// Scores of given tokens, raw logprobs of sampled ones and the learner's are
// the same numbers, also for a named adapter, also where the sampled
// distribution is another one.
func TestScoresAgreeWithTheLearner(t *testing.T) {
	r := newRig(t, 2)
	a := r.adapter(t, 8)
	require.NoError(t, r.engine.SetPolicy(1, a))
	p := r.chat.Encode("the store sells tea")
	g, err := r.engine.Generate(context.Background(), rollout.GenerateRequest{
		Prompt: p, MaxNew: 40, Raw: true, Top: 2, Sampling: model.Sampling{Temperature: 1.4, TopP: 0.9, RepetitionPenalty: 1.2},
	})
	require.NoError(t, err)
	want := r.scores(t, p, g.IDs, a)
	require.LessOrEqual(t, gap(g.Raw, want), 1e-4)
	require.Greater(t, gap(g.Logprobs, want), 1e-2)
	for i, top := range g.Top {
		require.Len(t, top, 2)
		require.GreaterOrEqual(t, top[0].Logprob, g.Raw[i])
	}
	seq := append(append([]int32(nil), p...), g.IDs...)
	start := time.Now()
	s, err := r.engine.Score(context.Background(), rollout.ScoreRequest{Tokens: seq, Top: 1})
	require.NoError(t, err)
	require.Len(t, s.Logprobs, len(seq)-1)
	require.LessOrEqual(t, gap(s.Logprobs[len(p)-1:], want), 1e-4)
	require.Equal(t, uint64(1), s.Version)
	t.Logf("%d tokens scored in %v", len(seq)-1, time.Since(start))
	_, err = r.engine.Score(context.Background(), rollout.ScoreRequest{Tokens: seq[:1]})
	require.ErrorContains(t, err, "give at least 2")
	_, err = r.engine.Score(context.Background(), rollout.ScoreRequest{Tokens: []int32{1, 1 << 20}})
	require.ErrorContains(t, err, "token 1048576")
}
