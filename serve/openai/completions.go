package openai

import (
	"net/http"
	"time"

	"github.com/google/uuid"

	"github.com/skein-rl/skein/rollout"
)

const defaultCompletionTokens = 16 // OpenAI's

func (h *Handler) completions(w http.ResponseWriter, r *http.Request) error {
	var req CompletionRequest
	if err := decode(r, &req); err != nil {
		return err
	}
	jobs, err := h.completionJobs(&req)
	if err != nil {
		return err
	}
	head := Completion{ID: "cmpl-" + uuid.NewString(), Object: "text_completion", Created: time.Now().Unix(), Model: value(&req.Model, h.cfg.Name), Fingerprint: h.fingerprint()}
	if req.Stream {
		return h.streamCompletion(w, r, &req, jobs, head)
	}
	var scores []echoed
	if req.Echo {
		if scores, err = h.scorePrompts(r.Context(), jobs); err != nil {
			return err
		}
	}
	gens, err := h.runScored(r.Context(), jobs)
	if err != nil {
		return err
	}
	usage := Usage{Details: &PromptDetails{}}
	for i, j := range jobs {
		usage.Prompt += len(j.prompt)
		for k, g := range gens[i] {
			c := h.completionChoice(&req, j, g)
			c.Index = i*j.p.n + k
			if req.Echo {
				scores[i].put(h, &req, j, g, &c)
			}
			if req.ReturnTokenIDs {
				c.PromptTokenIDs = j.prompt
			}
			head.Choices = append(head.Choices, c)
			usage.Completion += len(g.IDs)
			usage.Details.Cached += g.Cached
		}
	}
	usage.Total = usage.Prompt + usage.Completion
	head.Usage = &usage
	return writeJSON(w, head)
}

func (h *Handler) completionJobs(req *CompletionRequest) ([]*job, error) {
	switch {
	case req.Suffix != nil && *req.Suffix != "":
		return nil, badRequest("suffix", "suffix is not supported: this server completes to the right only")
	case req.BestOf != nil && *req.BestOf != value(req.N, 1):
		return nil, badRequest("best_of", "best_of is %d and n %d: choosing among more is not supported, ask for n and choose", *req.BestOf, value(req.N, 1))
	case req.Echo && req.Stream:
		return nil, badRequest("echo", "echo cannot be streamed")
	case req.Logprobs != nil && (*req.Logprobs < 0 || *req.Logprobs > maxTop):
		return nil, badRequest("logprobs", "logprobs is %d, want 0 to %d", *req.Logprobs, maxTop)
	case req.Prompt.Len() == 0:
		return nil, badRequest("prompt", "prompt is missing or an empty list")
	}
	adapter, err := h.adapterOf(req.Model)
	if err != nil {
		return nil, err
	}
	p, err := req.check(req.MaxTokens, h.cfg.Model.Config.VocabSize)
	if err != nil {
		return nil, err
	}
	if req.MaxTokens == nil {
		p.maxNew = defaultCompletionTokens
	}
	if p.maxNew == 0 && !req.Echo {
		return nil, badRequest("max_tokens", "max_tokens is 0: nothing would come back; use echo to score a prompt")
	}
	guide, err := h.guideOf(p.guide)
	if err != nil {
		return nil, err
	}
	prompts := req.Prompt.IDs
	for _, text := range req.Prompt.Texts {
		prompts = append(prompts, h.encodePrompt(text, value(req.AddSpecialTokens, true)))
	}
	var jobs []*job
	for i, ids := range prompts {
		if len(ids) == 0 {
			return nil, badRequest("prompt", "prompt %d has no tokens", i)
		}
		if err := h.checkIDs("prompt", ids); err != nil {
			return nil, err
		}
		jobs = append(jobs, &job{prompt: ids, adapter: adapter, p: p, guide: guide, logprobs: req.Logprobs != nil, top: value(req.Logprobs, 0),
			session: req.CacheSession, minimum: req.MinPolicyVersion, stopEOS: !req.IgnoreEOS})
	}
	return jobs, nil
}

// text is what a generation reads as, special tokens included.
func (h *Handler) text(c *Common, g rollout.Generation) string {
	if c.IncludeStop {
		return g.Text + g.StopText
	}
	return g.Text
}

func (h *Handler) completionChoice(req *CompletionRequest, j *job, g rollout.Generation) Choice {
	text := h.text(&req.Common, g)
	if j.p.skip {
		text = h.hide.all.Replace(text)
	}
	reason, stop := h.finish(j, g)
	c := Choice{Text: &text, FinishReason: &reason, StopReason: stop}
	if j.logprobs {
		cols := textColumns{h: h}
		h.addColumns(&cols, j, g.IDs, j.shown(g.Logprobs, g.Raw), g.Top)
		c.Logprobs = &cols.TextLogprobs
	}
	if req.ReturnTokenIDs {
		c.TokenIDs, c.PolicyVersions = g.IDs, versions(g)
	}
	return c
}

func (h *Handler) streamCompletion(w http.ResponseWriter, r *http.Request, req *CompletionRequest, jobs []*job, head Completion) error {
	out := newSSE(w)
	cols := make([]textColumns, len(jobs)*jobs[0].p.n)
	hides := make([]*hideStream, len(cols))
	usage := Usage{Details: &PromptDetails{}}
	for _, j := range jobs {
		usage.Prompt += len(j.prompt)
	}
	err := h.streamAll(r.Context(), jobs, func(e event) error {
		j := jobs[e.job]
		i := e.job*j.p.n + e.choice
		text := e.delta.Text
		c := Choice{Index: i, Text: &text}
		if hides[i] == nil {
			hides[i] = &hideStream{h: &h.hide}
			if req.ReturnTokenIDs {
				c.PromptTokenIDs = j.prompt
			}
		}
		if g := e.end; g != nil {
			reason, stop := h.finish(j, *g)
			c.FinishReason, c.StopReason = &reason, stop
			if req.IncludeStop {
				text = g.StopText
			}
			if req.ReturnTokenIDs {
				c.PolicyVersions = versions(*g)
			}
			usage.Completion += len(g.IDs)
			usage.Details.Cached += g.Cached
		}
		if j.p.skip {
			text = hides[i].push(text, e.end != nil)
		}
		if j.logprobs && len(e.delta.IDs) > 0 {
			cols[i].h, cols[i].TextLogprobs = h, TextLogprobs{}
			h.addColumns(&cols[i], j, e.delta.IDs, j.shown(e.delta.Logprobs, e.delta.Raw), e.delta.Top)
			part := cols[i].TextLogprobs
			c.Logprobs = &part
		}
		if req.ReturnTokenIDs {
			c.TokenIDs = e.delta.IDs
		}
		chunk := head
		chunk.Choices = []Choice{c}
		return out.send(chunk)
	})
	if err == nil && req.StreamOptions != nil && req.StreamOptions.IncludeUsage {
		usage.Total = usage.Prompt + usage.Completion
		head.Choices, head.Usage = []Choice{}, &usage
		err = out.send(head)
	}
	return out.finish(err)
}

// fingerprint names the weights that answered.
func (h *Handler) fingerprint() string {
	if d := h.cfg.Model.Digest; len(d) > 19 {
		return "fp_" + d[7:19]
	}
	return ""
}
