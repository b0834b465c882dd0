package remote

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/rollout"
)

// Errors that say what a server cannot do.
var (
	// ErrIncapable: its answers lack what a rollout needs.
	ErrIncapable = errors.New("engine: the server cannot serve rollouts")
	// ErrNoFollow: it cannot be given new adapters, so that it serves no training.
	ErrNoFollow = errors.New("engine: the server cannot follow a policy")
	// ErrRawLogprobs: it tells the logprobs of the model's own distribution, and
	// the one sampled from is another.
	ErrRawLogprobs = errors.New("engine: the server gives no logprobs of the distribution sampled from")
	// ErrAnswer: an answer contradicts the request or itself.
	ErrAnswer = errors.New("engine: the server's answer cannot be used")
)

// Server is a connection to one server, shared by the runs that a worker serves.
// Safe for concurrent use.
type Server struct {
	cfg     Config
	http    *http.Client
	proto   protocol
	facts   facts
	vocab   int
	slots   chan struct{}
	pause   time.Duration // before the first repetition
	retried atomic.Uint64
}

// facts are what Open learned.
type facts struct {
	model  string // the base's name there
	digest string // of the base, where told
	maxLen int    // context in tokens, 0 = not told
	// processed: logprobs are of the distribution sampled from.
	processed bool
}

// target names the weights of one request.
type target struct {
	name    string // of the adapter, "" = the base
	id      int    // llama.cpp's number of it
	adapter *model.Adapter
}

// answer is what came back, checked by Server.complete.
type answer struct {
	ids      []int32
	logprobs []float32
	length   bool // ended by MaxNew
}

// protocol is one kind of server.
type protocol interface {
	// look finds the base model and its context.
	look(ctx context.Context) (facts, error)
	complete(ctx context.Context, t target, req rollout.GenerateRequest) (answer, error)
	// follows says whether adapters can be loaded while the server runs.
	follows(ctx context.Context) error
	// load makes t's adapter available; it returns what else is needed to name it.
	load(ctx context.Context, t target, base *model.Model) (target, error)
	unload(ctx context.Context, t target) error
}

// Open connects to a server and finds out whether its answers carry what rollouts
// need. Base is the model that it must serve. Errors: ErrUnreachable (try again),
// ErrIncapable, another model's context or digest.
func Open(ctx context.Context, cfg Config, base *model.Model) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DialContext = (&net.Dialer{Timeout: cfg.ConnectTimeout}).DialContext
	transport.TLSHandshakeTimeout = cfg.ConnectTimeout
	transport.MaxIdleConnsPerHost = cfg.Capacity
	transport.MaxConnsPerHost = 0
	// A redirect would resend the key and the prompt somewhere else.
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	s := &Server{cfg: cfg, http: client, vocab: base.Config.VocabSize, slots: make(chan struct{}, cfg.Capacity), pause: firstPause}
	if cfg.Kind == LlamaCPP {
		s.proto = llamaCPP{s}
	} else {
		s.proto = completions{s}
	}
	if err := s.learn(ctx, base); err != nil {
		s.Close()
		return nil, fmt.Errorf("%s: %w", cfg, err)
	}
	return s, nil
}

func (s *Server) learn(ctx context.Context, base *model.Model) error {
	ctx, cancel := context.WithTimeoutCause(ctx, s.cfg.AdapterTimeout, fmt.Errorf("%w within %v", ErrUnreachable, s.cfg.AdapterTimeout))
	defer cancel()
	var err error
	if s.facts, err = s.proto.look(ctx); err != nil {
		return err
	}
	if d := s.facts.digest; d != "" && d != base.Digest {
		return fmt.Errorf("engine: the server has the base model %s, the run %s: serve the run's model", d, base.Digest)
	}
	// With the likeliest token alone to choose from, its probability is 1 in the
	// distribution sampled from, and hardly ever in the model's own.
	one := rollout.GenerateRequest{Prompt: []int32{max(base.Config.BOSTokenID, 0)}, MaxNew: 1, Sampling: model.Sampling{Temperature: 1, TopK: 1}}
	s.facts.processed = true // the check below is not about this one
	a, err := s.complete(ctx, target{}, one)
	if err != nil {
		return err
	}
	s.facts.processed = a.logprobs[0] > -1e-6
	return nil
}

// Config is what the server was opened with.
func (s *Server) Config() Config { return s.cfg }

// Retried is how many requests were repeated so far.
func (s *Server) Retried() uint64 { return s.retried.Load() }

// Close drops idle connections.
func (s *Server) Close() { s.http.CloseIdleConnections() }

// CheckSampling says whether training with this sampling can be recorded:
// ErrRawLogprobs, with the remedy, if not.
func (s *Server) CheckSampling(p model.Sampling) error {
	if s.facts.processed || p.Temperature == 0 || plain(p) {
		return nil
	}
	return fmt.Errorf("%w (temperature %v, top_p %v, top_k %d): start vLLM with --logprobs-mode processed_logprobs, or sample at temperature 1 without top_p and top_k",
		ErrRawLogprobs, p.Temperature, p.TopP, p.TopK)
}

// plain: the distribution sampled from is the model's own.
func plain(p model.Sampling) bool { return p.Temperature == 1 && unfiltered(p) }

func unfiltered(p model.Sampling) bool {
	return (p.TopP == 0 || p.TopP == 1) && p.TopK == 0 && p.MinP == 0 && !penalised(p)
}

func penalised(p model.Sampling) bool {
	return p.RepetitionPenalty != 0 && p.RepetitionPenalty != 1 || p.FrequencyPenalty != 0 || p.PresencePenalty != 0
}

// complete sends one request within capacity and checks the answer.
func (s *Server) complete(ctx context.Context, t target, req rollout.GenerateRequest) (answer, error) {
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		return answer{}, fmt.Errorf("engine: waiting for one of %d requests to %s: %w", s.cfg.Capacity, s.cfg, context.Cause(ctx))
	}
	if err := s.CheckSampling(req.Sampling); err != nil {
		return answer{}, err
	}
	a, err := s.proto.complete(ctx, t, req)
	if err != nil {
		return answer{}, overflow(err)
	}
	return a, s.check(a, req)
}

// overflow marks a refusal that is about the context's length.
func overflow(err error) error {
	var r *Refusal
	if errors.As(err, &r) && r.Status >= 400 && r.Status < 500 {
		if m := strings.ToLower(r.Message); strings.Contains(m, "context length") || strings.Contains(m, "context size") || strings.Contains(m, "exceeds the context") {
			return fmt.Errorf("%w: %w", rollout.ErrContextFull, err)
		}
	}
	return err
}

// check holds an answer against its request.
func (s *Server) check(a answer, req rollout.GenerateRequest) error {
	bad := func(format string, v ...any) error {
		return fmt.Errorf("%w: %s", ErrAnswer, fmt.Sprintf(format, v...))
	}
	n := len(a.ids)
	switch {
	case n == 0:
		return bad("it has no tokens")
	case n > req.MaxNew:
		return bad("it has %d tokens, %d were asked for", n, req.MaxNew)
	case len(a.logprobs) != n:
		return bad("it has %d tokens and %d logprobs", n, len(a.logprobs))
	case a.length && n < req.MaxNew:
		return bad("it ends for its length after %d of %d tokens: the server's own limit is lower; raise it, or lower rollout.max_len", n, req.MaxNew)
	}
	for i, id := range a.ids {
		if id < 0 || int(id) >= s.vocab {
			return bad("token %d is id %d, the vocabulary has %d: does the server have this run's model?", i, id, s.vocab)
		}
		if stops(req.Stop, id) && i < n-1 {
			return bad("it goes on for %d tokens after the stop token %d", n-1-i, id)
		}
		// 0 may come out of the softmax's rounding as a little more.
		if v := a.logprobs[i]; v != v || v > 1e-3 || v < -1e5 {
			return bad("the logprob of token %d is %v", i, v)
		}
		a.logprobs[i] = min(a.logprobs[i], 0)
	}
	if last := a.ids[n-1]; !a.length && !stops(req.Stop, last) {
		return bad("it ends at token %d, which is none of the stop tokens %v", last, req.Stop)
	}
	return nil
}

func stops(stop []int32, id int32) bool {
	for _, s := range stop {
		if s == id {
			return true
		}
	}
	return false
}
