package remote

import (
	"context"
	"fmt"
	"math"
	"path"
	"strings"

	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/rollout"
)

// llamaCPP speaks POST /completion of llama.cpp's server. It loads adapters only
// when it starts, so that it serves what does not change: evaluations of the base,
// or of versions that it was started with.
type llamaCPP struct{ s *Server }

func (p llamaCPP) look(ctx context.Context) (facts, error) {
	var props struct {
		Settings struct {
			Context int `json:"n_ctx"`
		} `json:"default_generation_settings"`
	}
	err := p.s.call(ctx, "/props", nil, &props)
	return facts{maxLen: props.Settings.Context}, err
}

// llamaBody turns off every sampler that is not asked for; they are on by default.
type llamaBody struct {
	Prompt      []int32       `json:"prompt"`
	Predict     int           `json:"n_predict"`
	Temperature float64       `json:"temperature"`
	TopK        int           `json:"top_k"` // 0 = off
	TopP        float64       `json:"top_p"`
	MinP        float64       `json:"min_p"`
	TypicalP    float64       `json:"typical_p"`
	Repeat      float64       `json:"repeat_penalty"`
	DRY         float64       `json:"dry_multiplier"`
	XTC         float64       `json:"xtc_probability"`
	Mirostat    int           `json:"mirostat"`
	Samplers    []string      `json:"samplers"`
	Seed        uint32        `json:"seed"`
	Probs       int           `json:"n_probs"`
	PostProbs   bool          `json:"post_sampling_probs"`
	Tokens      bool          `json:"return_tokens"`
	Cache       bool          `json:"cache_prompt"`
	Stream      bool          `json:"stream"`
	LoRA        []llamaScaled `json:"lora"` // those not listed have scale 0
}

type llamaScaled struct {
	ID    int     `json:"id"`
	Scale float64 `json:"scale"`
}

type llamaAnswer struct {
	Tokens []int32 `json:"tokens"`
	Probs  []struct {
		ID      int32    `json:"id"`
		Logprob *float32 `json:"logprob"`
		Prob    *float64 `json:"prob"`
	} `json:"completion_probabilities"`
	StopType  string `json:"stop_type"`
	Truncated bool   `json:"truncated"`
	Prompt    *int   `json:"tokens_evaluated"`
}

func (p llamaCPP) complete(ctx context.Context, t target, req rollout.GenerateRequest) (answer, error) {
	s := req.Sampling
	if penalised(s) {
		return answer{}, fmt.Errorf("engine: penalties are not sent to llama.cpp, which counts the prompt's tokens too: leave them out")
	}
	b := llamaBody{
		Prompt: req.Prompt, Predict: req.MaxNew, Temperature: s.Temperature, TopK: s.TopK, TopP: orOne(s.TopP), MinP: s.MinP, TypicalP: 1, Repeat: 1,
		Samplers: []string{"temperature", "top_k", "top_p", "min_p"}, // the order of model/sample
		Seed:     uint32(turnSeed(s.Seed, len(req.Prompt)) >> 33),    // the largest would mean a random one
		Probs:    1, Tokens: true, Cache: true, LoRA: []llamaScaled{},
		// Greedy logprobs are of the softmax without temperature, here as in model/sample.
		PostProbs: s.Temperature != 0 && !plain(s),
	}
	if t.name != "" {
		b.LoRA = append(b.LoRA, llamaScaled{t.id, 1})
	}
	var out llamaAnswer
	if err := p.s.call(ctx, "/completion", b, &out); err != nil {
		return answer{}, err
	}
	return out.read(req, b.PostProbs)
}

func (c *llamaAnswer) read(req rollout.GenerateRequest, post bool) (answer, error) {
	bad := func(format string, v ...any) (answer, error) {
		return answer{}, fmt.Errorf("%w: %s", ErrAnswer, fmt.Sprintf(format, v...))
	}
	switch {
	case len(c.Tokens) == 0:
		return answer{}, fmt.Errorf("%w: its answers have no tokens: use a llama.cpp server that knows return_tokens (December 2024 or later)", ErrIncapable)
	case len(c.Probs) == 0:
		return answer{}, fmt.Errorf("%w: its answers have no completion_probabilities, though n_probs is 1", ErrIncapable)
	case c.Prompt == nil || *c.Prompt != len(req.Prompt):
		return bad("tokens_evaluated does not say that all %d tokens of the prompt were read", len(req.Prompt))
	case c.Truncated:
		return answer{}, fmt.Errorf("%w: the server's context ended the answer after %d tokens: give it more by --ctx-size, or lower rollout.max_len", rollout.ErrContextFull, len(c.Tokens))
	case len(c.Probs) != len(c.Tokens):
		return bad("%d of %d tokens have a logprob: llama.cpp gives none for a token that ends inside a character", len(c.Probs), len(c.Tokens))
	}
	a := answer{ids: c.Tokens, length: c.StopType == "limit"}
	for i, p := range c.Probs {
		switch {
		case p.ID != c.Tokens[i]:
			return bad("token %d is %d, its logprob is of %d", i, c.Tokens[i], p.ID)
		case post && p.Prob != nil && *p.Prob > 0:
			a.logprobs = append(a.logprobs, float32(math.Log(*p.Prob)))
		case !post && p.Logprob != nil:
			a.logprobs = append(a.logprobs, *p.Logprob)
		default:
			return bad("token %d has no logprob", i)
		}
		if stops(req.Stop, p.ID) { // it knows no stop ids beside the model's own
			a.ids, a.length = a.ids[:i+1], false
			break
		}
	}
	if !a.length && c.StopType != "eos" && !stops(req.Stop, a.ids[len(a.ids)-1]) {
		return bad("stop_type is %q, neither eos nor limit", c.StopType)
	}
	return a, nil
}

func (p llamaCPP) follows(context.Context) error {
	return fmt.Errorf("%w: llama.cpp loads adapters only when it starts; it serves evaluations of the base: train from vllm or skein", ErrNoFollow)
}

// load finds an adapter that the server was started with, by its file's name.
func (p llamaCPP) load(ctx context.Context, t target, _ *model.Model) (target, error) {
	var loaded []struct {
		ID   int    `json:"id"`
		Path string `json:"path"`
	}
	if err := p.s.call(ctx, "/lora-adapters", nil, &loaded); err != nil {
		return t, err
	}
	for _, l := range loaded {
		if strings.TrimSuffix(path.Base(l.Path), ".gguf") == t.name {
			t.id = l.ID
			return t, nil
		}
	}
	return t, fmt.Errorf("%w: it has %d adapters and none is %s.gguf: start it with --lora and that file, or use vllm or skein", ErrNoFollow, len(loaded), t.name)
}

func (p llamaCPP) unload(context.Context, target) error { return nil }
