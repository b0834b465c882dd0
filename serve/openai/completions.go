package openai

import (
	"net/http"
	"strings"
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
	head := h.head("cmpl-", "text_completion", jobs[0])
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
		cached := 0
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
			cached = max(cached, g.Cached)
		}
		usage.Details.Cached += cached
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
	if err := req.checkTop(value(req.Logprobs, 0)); err != nil {
		return nil, err
	}
	adapter, err := h.adapterOf(req.Model)
	if err != nil {
		return nil, err
	}
	p, err := req.check(req.MaxTokens, h.cfg.Model.Config.VocabSize)
	if err != nil {
		return nil, err
	}
	if req.MaxTokens != nil && p.maxNew == 0 && !req.Echo {
		return nil, badRequest("max_tokens", "max_tokens is 0: nothing would come back; use echo to score a prompt")
	}
	guide, err := h.guideOf(p.guide)
	if err == nil && guide != nil {
		err = req.besideForm()
	}
	if err != nil {
		return nil, err
	}
	jobs := make([]*job, req.Prompt.Len())
	for i := range jobs {
		j := &job{param: "prompt", adapter: adapter, p: p, guide: guide, logprobs: req.Logprobs != nil, top: value(req.Logprobs, 0),
			session: req.CacheSession, minimum: req.MinPolicyVersion, stopEOS: !req.IgnoreEOS}
		if req.Prompt.Texts != nil {
			j.text = req.Prompt.Texts[i]
			j.prompt = h.encodePrompt(j.text, value(req.AddSpecialTokens, true))
		} else {
			j.prompt = req.Prompt.IDs[i]
		}
		if len(j.prompt) == 0 {
			return nil, badRequest("prompt", "prompt %d has no tokens", i)
		}
		if err := h.checkIDs("prompt", j.prompt); err != nil {
			return nil, err
		}
		if req.Echo && j.text == "" {
			j.text = h.cfg.Model.Tokenizer.Decode(j.prompt)
		}
		if req.MaxTokens == nil { // a default, unlike a wish, may be cut to what fits
			j.p.maxNew = max(1, min(defaultCompletionTokens, h.cfg.Engine.MaxLen()-len(j.prompt)))
		}
		jobs[i] = j
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
		cols := textColumns{h: h, asIDs: j.p.asIDs}
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
	cached := make([]int, len(jobs))
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
			cached[e.job] = max(cached[e.job], g.Cached)
		}
		if j.p.skip {
			text = hides[i].push(text, e.end != nil)
		}
		if j.logprobs && len(e.delta.IDs) > 0 {
			cols[i].h, cols[i].asIDs, cols[i].TextLogprobs = h, j.p.asIDs, TextLogprobs{}
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
		for _, n := range cached {
			usage.Details.Cached += n
		}
		usage.Total = usage.Prompt + usage.Completion
		head.Choices, head.Usage = []Choice{}, &usage
		err = out.send(head)
	}
	return out.finish(err)
}

// head begins an answer to a job.
func (h *Handler) head(id, object string, j *job) Completion {
	c := Completion{ID: id + uuid.NewString(), Object: object, Created: time.Now().Unix(), Model: j.adapter, Fingerprint: "fp_" + short(h.cfg.Model.Digest)}
	if j.adapter == "" {
		c.Model = h.cfg.Name
		return c
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	c.Fingerprint += "_" + short(h.adapters[j.adapter].digest)
	return c
}

// short is the beginning of a digest's hexadecimal part.
func short(digest string) string {
	_, hex, ok := strings.Cut(digest, ":")
	if !ok {
		hex = digest
	}
	return hex[:min(len(hex), 12)]
}
