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

// fakeScorer's logprobs are hashes of all tokens before and the token itself.
type fakeScorer struct {
	*fakeDecoder
	hook func(model.ScoreRow) error
}

func fakeScore(cells []cell, tag uint64, id int32) float32 {
	_, lp := fakeNext(cells, tag, uint64(id), 0)
	return lp
}

func (d *fakeScorer) Score(_ context.Context, rows []model.ScoreRow) ([]model.ScoreOut, error) {
	outs := make([]model.ScoreOut, len(rows))
	for i, r := range rows {
		if d.hook != nil {
			if err := d.hook(r); err != nil {
				return nil, err
			}
		}
		tag, err := d.tag(r.Adapter)
		if err != nil {
			return nil, err
		}
		d.chunk = max(d.chunk, len(r.Tokens))
		for k, id := range r.Tokens {
			if k > 0 {
				lp := fakeScore(d.slots[r.Slot], tag, id)
				outs[i].Logprobs = append(outs[i].Logprobs, lp)
				if r.Top > 0 {
					outs[i].Top = append(outs[i].Top, []model.TokenLogprob{{ID: id, Logprob: lp}})
				}
			}
			if err := d.append(r.Slot, tag, id); err != nil {
				return nil, err
			}
		}
	}
	return outs, nil
}

func checkScores(seq []int32, s Scores, tag uint64) error {
	if len(s.Logprobs) != len(seq)-1 {
		return fmt.Errorf("%d logprobs of %d tokens", len(s.Logprobs), len(seq))
	}
	cells := []cell{{seq[0], tag}}
	for i, id := range seq[1:] {
		if want := fakeScore(cells, tag, id); s.Logprobs[i] != want {
			return fmt.Errorf("token %d: %v under version %d; a cold cache gives %v", i+1, s.Logprobs[i], tag, want)
		}
		cells = append(cells, cell{id, tag})
	}
	return nil
}

// Scores come in chunks, beside generations, across swaps of either mode: all of
// one version, and as a cold cache gives them.
func TestScoresInCompany(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		d := &fakeScorer{fakeDecoder: newFakeDecoder(rapid.IntRange(1, 3).Draw(rt, "slots"), 64)}
		chunk := rapid.IntRange(2, 9).Draw(rt, "chunk")
		e, err := NewEngine(d, EngineConfig{Slots: len(d.slots), MaxLen: 64, Chunk: chunk, Quantum: 2, OnSwap: SwapMode(rapid.IntRange(0, 1).Draw(rt, "mode"))})
		require.NoError(rt, err)
		defer e.Close()
		every, calls, version := rapid.IntRange(2, 9).Draw(rt, "every"), 0, uint64(0)
		d.hook = func(model.ScoreRow) error {
			if calls++; calls%every == 0 && version < 5 {
				version++
				go func(v uint64) { _ = e.SetPolicy(v, fakeAdapter(v)) }(version)
			}
			return nil
		}
		var wg sync.WaitGroup
		n := rapid.IntRange(1, 6).Draw(rt, "requests")
		errs := make([]error, n)
		for i := range n {
			seq := long(100, 2+i*11)
			wg.Go(func() {
				if i%3 == 2 {
					_, errs[i] = e.Generate(context.Background(), GenerateRequest{Prompt: seq[:20], MaxNew: 9})
					return
				}
				s, err := e.Score(context.Background(), ScoreRequest{Tokens: seq, Top: i % 2})
				if err == nil {
					err = checkScores(seq, s, s.Version)
				}
				if want := (len(seq) - 1) * (i % 2); len(s.Top) != want {
					err = errors.Join(err, fmt.Errorf("%d top lists, want %d", len(s.Top), want))
				}
				errs[i] = err
			})
		}
		wg.Wait()
		require.NoError(rt, errors.Join(errs...))
		require.LessOrEqual(rt, d.chunk, chunk)
	})
}

func TestScoreRefusesAndFailsAlone(t *testing.T) {
	d := &fakeScorer{fakeDecoder: newFakeDecoder(2, 16)}
	d.hook = func(r model.ScoreRow) error {
		if r.Tokens[0] == 66 {
			return errors.New("logits are not finite")
		}
		return nil
	}
	e, err := NewEngine(d, EngineConfig{Slots: 2, MaxLen: 16, Adapters: 2})
	require.NoError(t, err)
	_, err = e.LoadAdapter("red", fakeAdapter(7))
	require.NoError(t, err)
	ctx := context.Background()
	for says, req := range map[string]ScoreRequest{
		"score of 1 tokens":         {Tokens: long(1, 1)},
		"17 tokens to score, limit": {Tokens: long(1, 17)},
		"Top is -1":                 {Tokens: long(1, 2), Top: -1},
		`no such adapter: "blue"`:   {Tokens: long(1, 2), Adapter: "blue"},
		"logits are not finite":     {Tokens: long(66, 2)},
	} {
		_, err := e.Score(ctx, req)
		require.ErrorContains(t, err, says)
	}
	s, err := e.Score(ctx, ScoreRequest{Tokens: long(1, 16), Adapter: "red"})
	require.NoError(t, err, "a full context can be scored")
	require.NoError(t, checkScores(long(1, 16), s, 7))
	// What was scored serves as a prefix of the same adapter, and of no other.
	for name, tag := range map[string]uint64{"": 0, "red": 7} {
		g, err := e.Generate(ctx, GenerateRequest{Prompt: long(1, 12), MaxNew: 3, Adapter: name})
		require.NoError(t, err)
		require.NoError(t, checkColdAs(long(1, 12), g, 0, func(uint64) uint64 { return tag }))
		require.Equal(t, name == "red", g.Cached == 11)
	}
	late, cancel := context.WithTimeout(ctx, -time.Second)
	defer cancel()
	_, err = e.Score(late, ScoreRequest{Tokens: long(1, 4)})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NoError(t, e.Close())
	_, err = e.Score(ctx, ScoreRequest{Tokens: long(1, 4)})
	require.ErrorIs(t, err, ErrEngineClosed)

	plain := startEngine(t, newFakeDecoder(1, 16), EngineConfig{})
	_, err = plain.Score(ctx, ScoreRequest{Tokens: long(1, 4)})
	require.ErrorIs(t, err, ErrNoScores)
}
