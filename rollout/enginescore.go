package rollout

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/skein-rl/skein/model"
)

// ErrNoScores: the engine's decoder is no model.Scorer.
var ErrNoScores = errors.New("engine: the decoder cannot score tokens")

// ScoreRequest asks for the model's logprobs of given tokens.
type ScoreRequest struct {
	Tokens  []int32 // at least 2; the first is only a prompt
	Top     int     // the likeliest tokens at each position too; 0 = none
	Adapter string  // "" = the policy
}

// Scores are of every token but the first: the logprob of Tokens[i+1] after
// Tokens[:i+1], under the model's own distribution, all of one version.
type Scores struct {
	Logprobs []float32
	Top      [][]model.TokenLogprob // when asked
	Version  uint64
}

// Score computes logprobs of tokens that somebody else chose, a chunk between
// two decode quanta. A swap meanwhile starts it anew. Errors: ErrContextFull,
// ErrNoScores, and those of Generate.
func (e *LocalEngine) Score(ctx context.Context, req ScoreRequest) (Scores, error) {
	switch _, ok := e.dec.(model.Scorer); {
	case !ok:
		return Scores{}, ErrNoScores
	case len(req.Tokens) < 2:
		return Scores{}, fmt.Errorf("engine: score of %d tokens; give at least 2", len(req.Tokens))
	case len(req.Tokens) > e.cfg.MaxLen:
		return Scores{}, fmt.Errorf("%w: %d tokens to score, limit %d", ErrContextFull, len(req.Tokens), e.cfg.MaxLen)
	case req.Top < 0:
		return Scores{}, fmt.Errorf("engine: Top is %d; give 0 (none) or more", req.Top)
	}
	r := &request{ctx: ctx, since: time.Now(), result: make(chan error, 1), seq: slices.Clone(req.Tokens), scores: &Scores{}}
	r.req = GenerateRequest{Prompt: r.seq, Top: req.Top, Adapter: req.Adapter}
	if err := e.admit(r); err != nil {
		return Scores{}, err
	}
	if err := e.wait(r); err != nil {
		return Scores{}, err
	}
	return *r.scores, nil
}

// score computes a chunk of what is to be scored, first placed first, and
// returns the requests that ended.
func (s *scheduler) score(ctx context.Context, budget int) (left []outcome) {
	var todo []int
	for i := range s.slots {
		if r := s.slots[i].req; r != nil && r.scores != nil {
			todo = append(todo, i)
		}
	}
	slices.SortFunc(todo, func(a, b int) int { return cmp.Compare(s.slots[a].placed, s.slots[b].placed) })
	for _, i := range todo {
		if budget < 2 {
			break
		}
		n, err := s.scoreChunk(ctx, i, budget)
		budget -= n
		switch sl := &s.slots[i]; {
		case err != nil:
			left = append(left, s.evict(i, fmt.Errorf("engine: score: %w", err)))
		case len(sl.ids) == len(sl.req.seq):
			left = append(left, outcome{s.release(i), nil})
		}
	}
	return left
}

// scoreChunk scores up to limit tokens of slot i and returns how many it
// computed. The first token of a chunk gets no logprob, so that each chunk
// begins with the last token of the one before.
func (s *scheduler) scoreChunk(ctx context.Context, i, limit int) (int, error) {
	sl := &s.slots[i]
	r := sl.req
	if !sl.valid() || sl.mixed {
		*r.scores = Scores{Version: r.bind.version}
		sl.ids, sl.epoch, sl.mixed, sl.fresh = sl.ids[:0], r.bind.epoch, false, false
	}
	from := max(len(sl.ids)-1, 0)
	s.dec.Truncate(i, from)
	tokens := r.seq[from:min(len(r.seq), from+limit)]
	out, err := s.dec.(model.Scorer).Score(ctx, []model.ScoreRow{{Slot: i, Adapter: r.bind.place, Tokens: tokens, Top: r.req.Top}})
	switch {
	case err != nil:
		return 0, err
	case len(out) != 1 || len(out[0].Logprobs) != len(tokens)-1 || r.req.Top > 0 && len(out[0].Top) != len(tokens)-1:
		return 0, fmt.Errorf("the decoder's answer does not fit %d tokens", len(tokens))
	}
	r.scores.Logprobs = append(r.scores.Logprobs, out[0].Logprobs...)
	r.scores.Top = append(r.scores.Top, out[0].Top...)
	sl.ids = append(sl.ids[:from], tokens...)
	s.counts.Scored += uint64(len(tokens))
	return len(tokens), nil
}
