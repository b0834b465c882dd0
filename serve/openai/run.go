package openai

import (
	"context"
	"errors"
	"io"
	"sync"

	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/rollout"
)

// job is one prompt with the choices asked for.
type job struct {
	prompt  []int32
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
	limit := h.cfg.Engine.MaxLen()
	if len(j.prompt) >= limit {
		return rollout.GenerateRequest{}, badRequest("messages", "the prompt has %d tokens and the context limit is %d: shorten it", len(j.prompt), limit)
	}
	req := rollout.GenerateRequest{
		Session: j.session, Prompt: j.prompt, MaxNew: j.p.maxNew, Stop: j.p.stopIDs, StopText: j.p.stops, Sampling: j.p.sampling,
		Bias: j.p.bias, Raw: j.logprobs && !j.p.sampledLog, Top: j.top, Adapter: j.adapter, MinVersion: j.minimum,
	}
	req.Sampling.Seed += uint64(choice) // choices of one seed differ, and are the same next time
	if req.MaxNew == 0 {
		req.MaxNew = limit - len(j.prompt)
	}
	if j.stopEOS {
		req.Stop = append(append([]int32(nil), j.p.stopIDs...), h.stop...)
	}
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

// runAll generates the choices of every job side by side: result[i][k] is
// choice k of job i. The first failure cancels the rest.
func (h *Handler) runAll(ctx context.Context, jobs []*job) ([][]rollout.Generation, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	out := make([][]rollout.Generation, len(jobs))
	var wg sync.WaitGroup
	for i, j := range jobs {
		out[i] = make([]rollout.Generation, j.p.n)
		for k := range j.p.n {
			req, err := h.request(j, k)
			if err != nil {
				cancel(err)
				break
			}
			wg.Go(func() {
				g, err := h.cfg.Engine.Generate(ctx, req)
				if err != nil {
					cancel(err)
				}
				out[i][k] = g
			})
		}
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
	job, choice int
	delta       rollout.Delta
	end         *rollout.Generation
	err         error
}

// streamAll starts all choices and calls f with their pieces, one at a time.
// It returns when all have ended, f failed, or one choice did; nothing runs on
// after it. Errors before the first piece can still become an HTTP status.
func (h *Handler) streamAll(ctx context.Context, jobs []*job, f func(event) error) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	events := make(chan event)
	send := func(e event) bool {
		select {
		case events <- e:
			return true
		case <-ctx.Done():
			return false
		}
	}
	running := 0
	for i, j := range jobs {
		for k := range j.p.n {
			req, err := h.request(j, k)
			if err != nil {
				return err
			}
			s, err := h.cfg.Engine.Stream(ctx, req)
			if err != nil {
				return err
			}
			running++
			wg.Go(func() {
				defer s.Close()
				for {
					d, err := s.Next(ctx)
					switch {
					case errors.Is(err, io.EOF):
						g := s.Generation()
						send(event{job: i, choice: k, end: &g})
						return
					case err != nil:
						send(event{job: i, choice: k, err: err})
						return
					case !send(event{job: i, choice: k, delta: d}):
						return
					}
				}
			})
		}
	}
	for running > 0 {
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
	return nil
}

// versions are a generation's policy versions as the API shows them.
func versions(g rollout.Generation) []VersionRun {
	out := make([]VersionRun, len(g.Versions))
	for i, v := range g.Versions {
		out[i] = VersionRun{End: v.End, Version: v.Version, Stale: v.Stale}
	}
	return out
}
