package openai

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"

	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/rollout"
)

// job is one prompt with the choices asked for.
type job struct {
	param   string // that holds the prompt, for errors
	prompt  []int32
	text    string // the prompt's, as it was given
	adapter string
	p       params
	// guide makes a constraint for one choice; nil = free.
	guide    func() (model.Constraint, error)
	logprobs bool
	top      int
	session  string
	minimum  uint64
	stopEOS  bool
}

// request is the engine's request for one choice.
func (h *Handler) request(j *job, choice int) (rollout.GenerateRequest, error) {
	req := rollout.GenerateRequest{
		Session: j.session, Prompt: j.prompt, MaxNew: j.p.maxNew, Stop: j.p.stopIDs, StopText: j.p.stops, Sampling: j.p.sampling,
		Bias: j.p.bias, Raw: j.logprobs && !j.p.sampledLog, Top: j.top, Adapter: j.adapter, MinVersion: j.minimum, Priority: j.p.priority,
	}
	// Choices of one seed differ, and are the same next time. The odd constant
	// keeps them apart from those of the seeds beside it.
	req.Sampling.Seed += uint64(choice) * 0x9E3779B97F4A7C15
	if req.MaxNew == 0 {
		req.MaxNew = h.cfg.Engine.MaxLen() - len(j.prompt)
	}
	if j.stopEOS {
		req.Stop = append(append([]int32(nil), j.p.stopIDs...), h.stop...)
	}
	req.Constraint = j.p.restrict(req.Stop)
	if j.guide != nil {
		c, err := j.guide()
		if err != nil {
			return req, err
		}
		req.Constraint = c
	}
	return req, nil
}

// shown are the logprobs of the kind that was asked for.
func (j *job) shown(sampled, raw []float32) []float32 {
	if j.p.sampledLog {
		return sampled
	}
	return raw
}

// finish names why a generation ended, and what ended it.
func (h *Handler) finish(j *job, g rollout.Generation) (reason string, stop any) {
	if g.Finish == rollout.FinishLength {
		return "length", nil
	}
	if g.StopText != "" {
		return "stop", g.StopText
	}
	last := g.IDs[len(g.IDs)-1]
	for _, id := range j.p.stopIDs {
		if id == last {
			return "stop", id
		}
	}
	return "stop", nil
}

// answer names one choice of one job.
type answer struct{ job, choice int }

// plan lists the answers of all jobs, having checked that each can be made.
func (h *Handler) plan(jobs []*job) ([]answer, error) {
	limit := h.cfg.Engine.MaxLen()
	var todo []answer
	for i, j := range jobs {
		switch n := len(j.prompt); {
		case n >= limit:
			return nil, tooLong(j.param, "the prompt has %d tokens and the context limit is %d: shorten it", n, limit)
		case n+j.p.maxNew > limit:
			return nil, tooLong(j.param, "a prompt of %d tokens and %d new ones, limit %d: shorten the prompt or ask for fewer", n, j.p.maxNew, limit)
		}
		for k := range j.p.n {
			todo = append(todo, answer{i, k})
		}
	}
	if len(todo) > maxAnswers {
		return nil, badRequest("n", "%d prompts with n choices each make %d answers, at most %d are given to one request", len(jobs), len(todo), maxAnswers)
	}
	return todo, nil
}

func tooLong(param, format string, args ...any) *Error {
	e := badRequest(param, format, args...)
	e.Code = ptr("context_length_exceeded")
	return e
}

// share is how many answers of one request are with the engine at once: enough
// to fill it, while other clients' requests keep a place in its queue.
func (h *Handler) share() int { return 2 * h.cfg.Engine.Slots() }

// runAll generates the choices of every job side by side: result[i][k] is
// choice k of job i. The first failure cancels the rest.
func (h *Handler) runAll(ctx context.Context, jobs []*job) ([][]rollout.Generation, error) {
	todo, err := h.plan(jobs)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	out := make([][]rollout.Generation, len(jobs))
	for i, j := range jobs {
		out[i] = make([]rollout.Generation, j.p.n)
	}
	var next atomic.Int64
	one := func() bool {
		n := int(next.Add(1)) - 1
		if n >= len(todo) || ctx.Err() != nil {
			return false
		}
		a := todo[n]
		req, err := h.request(jobs[a.job], a.choice)
		if err == nil {
			out[a.job][a.choice], err = h.cfg.Engine.Generate(ctx, req)
		}
		if err != nil {
			cancel(err)
		}
		return err == nil
	}
	var wg sync.WaitGroup
	for range min(len(todo), h.share()) {
		wg.Go(func() {
			for one() {
			}
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	return out, nil
}

// runScored is runAll, but for requests that only score their prompt (max_tokens
// 0): those generate nothing.
func (h *Handler) runScored(ctx context.Context, jobs []*job) ([][]rollout.Generation, error) {
	if jobs[0].p.maxNew > 0 {
		return h.runAll(ctx, jobs)
	}
	out := make([][]rollout.Generation, len(jobs))
	for i, j := range jobs {
		out[i] = make([]rollout.Generation, j.p.n)
		for k := range out[i] {
			out[i][k].Finish = rollout.FinishLength
		}
	}
	return out, nil
}

// event is a piece of one choice of a stream: a delta, or its end.
type event struct {
	answer
	delta rollout.Delta
	end   *rollout.Generation
	err   error
}

// streamAll generates all choices and calls f with their pieces, one at a time.
// It returns when all have ended, f failed, or one choice did; nothing runs on
// after it. Errors before the first piece can still become an HTTP status.
func (h *Handler) streamAll(ctx context.Context, jobs []*job, f func(event) error) error {
	todo, err := h.plan(jobs)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	events := make(chan event)
	start := func() error {
		a := todo[0]
		todo = todo[1:]
		req, err := h.request(jobs[a.job], a.choice)
		if err != nil {
			return err
		}
		s, err := h.cfg.Engine.Stream(ctx, req)
		if err != nil {
			return err
		}
		wg.Go(func() { follow(ctx, a, s, events) })
		return nil
	}
	running := 0
	for {
		for len(todo) > 0 && running < h.share() {
			if err := start(); err != nil {
				return err
			}
			running++
		}
		if running == 0 {
			return nil
		}
		select {
		case e := <-events:
			if e.err != nil {
				return e.err
			}
			if e.end != nil {
				running--
			}
			if err := f(e); err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// follow passes on the pieces of one choice until it ends.
func follow(ctx context.Context, a answer, s *rollout.Stream, events chan<- event) {
	defer s.Close()
	for ended := false; !ended; {
		e := event{answer: a}
		var err error
		if e.delta, err = s.Next(ctx); errors.Is(err, io.EOF) {
			g := s.Generation()
			e.end, ended = &g, true
		} else if err != nil {
			e.err, ended = err, true
		}
		select {
		case events <- e:
		case <-ctx.Done():
			return
		}
	}
}

// versions are a generation's policy versions as the API shows them.
func versions(g rollout.Generation) []VersionRun {
	out := make([]VersionRun, len(g.Versions))
	for i, v := range g.Versions {
		out[i] = VersionRun{End: v.End, Version: v.Version, Stale: v.Stale}
	}
	return out
}
