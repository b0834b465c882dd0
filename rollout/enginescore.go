package rollout

import (
	"context"
	"errors"
	"fmt"

	"github.com/skein-rl/skein/model"
)

// ScoreRequest asks for the model's logprobs of given tokens.
type ScoreRequest struct {
	Tokens  []int32 // at least 2; the first is only a prompt
	Top     int     // the likeliest tokens at each position too
	Adapter string  // "" = the policy
}

// Scores are of every token but the first: the logprob of Tokens[i+1] after
// Tokens[:i+1], under the model's own distribution.
type Scores struct {
	Logprobs []float32
	Top      [][]model.TokenLogprob // when asked
	Versions []VersionRun           // over Logprobs
}

// Score computes logprobs of tokens that somebody else chose, in the batch with
// everything else. It decodes them one after another, so it takes as long as
// sampling them would. Errors as of Generate.
func (e *LocalEngine) Score(ctx context.Context, req ScoreRequest) (Scores, error) {
	if len(req.Tokens) < 2 {
		return Scores{}, fmt.Errorf("engine: score of %d tokens; give at least 2", len(req.Tokens))
	}
	g, err := e.Generate(ctx, GenerateRequest{
		Prompt: req.Tokens[:1], MaxNew: len(req.Tokens) - 1, Adapter: req.Adapter,
		Constraint: &forced{ids: req.Tokens[1:]}, Raw: true, Top: req.Top,
	})
	if err != nil {
		return Scores{}, err
	}
	return Scores{Logprobs: g.Raw, Top: g.Top, Versions: g.Versions}, nil
}

// forced is a constraint that leaves one token at a time.
type forced struct{ ids []int32 }

func (f *forced) Allow(mask []uint64) {
	clear(mask)
	if id := f.ids[0]; id >= 0 && int(id/64) < len(mask) {
		mask[id/64] = 1 << (id % 64)
	}
}

func (f *forced) Accept(id int32) error {
	if id != f.ids[0] {
		return errors.New("engine: another token than the one to be scored")
	}
	f.ids = f.ids[1:]
	return nil
}
