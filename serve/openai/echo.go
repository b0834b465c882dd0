package openai

import (
	"context"

	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/rollout"
)

// addColumns appends generated tokens.
func (h *Handler) addColumns(cols *textColumns, j *job, ids []int32, logprobs []float32, top [][]model.TokenLogprob) {
	for i, id := range ids {
		v := float64(logprobs[i])
		var best []model.TokenLogprob
		if top != nil {
			best = top[i]
		}
		cols.add(id, &v, best)
	}
}

// echoed is a scored prompt: logprobs of its tokens but the first.
type echoed struct {
	scores rollout.Scores
}

// scorePrompts computes the logprobs of prompts to be echoed with theirs.
func (h *Handler) scorePrompts(ctx context.Context, jobs []*job) ([]echoed, error) {
	out := make([]echoed, len(jobs))
	for i, j := range jobs {
		if !j.logprobs || len(j.prompt) < 2 { // nothing precedes the first token
			continue
		}
		s, err := h.cfg.Engine.Score(ctx, rollout.ScoreRequest{Adapter: j.adapter, Tokens: j.prompt, Top: j.top})
		if err != nil {
			return nil, err
		}
		out[i].scores = s
	}
	return out, nil
}

// put puts the prompt before a choice's completion.
func (e echoed) put(h *Handler, req *CompletionRequest, j *job, g rollout.Generation, c *Choice) {
	text := j.text + *c.Text
	c.Text = &text
	if !j.logprobs {
		return
	}
	cols := textColumns{h: h, asIDs: j.p.asIDs}
	cols.add(j.prompt[0], nil, nil) // nothing precedes it
	for i, id := range j.prompt[1:] {
		v := float64(e.scores.Logprobs[i])
		var best []model.TokenLogprob
		if j.top > 0 {
			best = e.scores.Top[i]
		}
		cols.add(id, &v, best)
	}
	h.addColumns(&cols, j, g.IDs, j.shown(g.Logprobs, g.Raw), g.Top)
	c.Logprobs = &cols.TextLogprobs
}
