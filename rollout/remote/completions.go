package remote

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/skein-rl/skein/rollout"
)

// completions speaks POST /v1/completions as vLLM extends it: vLLM itself, skein
// serve, and others that took the fields over.
type completions struct{ s *Server }

// modelCard is an entry of GET /v1/models.
type modelCard struct {
	ID     string `json:"id"`
	Root   string `json:"root"`
	Parent string `json:"parent"`
	MaxLen int    `json:"max_model_len"`
	Digest string `json:"digest"` // skein serve's
}

func (p completions) cards(ctx context.Context) ([]modelCard, error) {
	var list struct {
		Data []modelCard `json:"data"`
	}
	return list.Data, p.s.call(ctx, "/v1/models", nil, &list)
}

func (p completions) look(ctx context.Context) (facts, error) {
	cards, err := p.cards(ctx)
	if err != nil {
		return facts{}, err
	}
	var bases []string
	for _, c := range cards {
		switch {
		case c.Parent != "":
		case c.ID == p.s.cfg.Model, p.s.cfg.Model == "" && len(bases) == 0:
			f := facts{model: c.ID, maxLen: c.MaxLen}
			if p.s.cfg.Kind == Skein {
				f.digest = c.Digest
			}
			return f, nil
		default:
			bases = append(bases, c.ID)
		}
	}
	return facts{}, fmt.Errorf("engine: model %q is not served; %q are: set model=", p.s.cfg.Model, bases)
}

// completionBody has every sampling field set: servers take what is missing from
// the model's generation_config.json.
type completionBody struct {
	Model        string  `json:"model"`
	Prompt       []int32 `json:"prompt"`
	MaxTokens    int     `json:"max_tokens"`
	Temperature  float64 `json:"temperature"`
	TopP         float64 `json:"top_p"`
	TopK         int     `json:"top_k"`
	MinP         float64 `json:"min_p"`
	Repetition   float64 `json:"repetition_penalty"`
	Frequency    float64 `json:"frequency_penalty"`
	Presence     float64 `json:"presence_penalty"`
	Seed         int64   `json:"seed"`
	StopTokenIDs []int32 `json:"stop_token_ids"`
	// IgnoreEOS leaves the request's stop tokens as the only ones.
	IgnoreEOS   bool `json:"ignore_eos"`
	Logprobs    int  `json:"logprobs"`
	TokenIDs    bool `json:"return_token_ids"`
	AsIDs       bool `json:"return_tokens_as_token_ids"`
	SkipSpecial bool `json:"skip_special_tokens"`
	// skein serve's:
	LogprobsMode string `json:"logprobs_mode,omitempty"`
	Session      string `json:"session,omitempty"`
}

type completionAnswer struct {
	Choices []struct {
		FinishReason   string  `json:"finish_reason"`
		TokenIDs       []int32 `json:"token_ids"`
		PromptTokenIDs []int32 `json:"prompt_token_ids"`
		Logprobs       *struct {
			Tokens   []string   `json:"tokens"`
			Logprobs []*float32 `json:"token_logprobs"`
		} `json:"logprobs"`
	} `json:"choices"`
	// PromptTokenIDs was here in vLLM 0.10.2.
	PromptTokenIDs []int32 `json:"prompt_token_ids"`
	Usage          *struct {
		Prompt int `json:"prompt_tokens"`
	} `json:"usage"`
}

func (p completions) complete(ctx context.Context, t target, req rollout.GenerateRequest) (answer, error) {
	b := p.body(t, req)
	var out completionAnswer
	if err := p.s.call(ctx, "/v1/completions", b, &out); err != nil {
		return answer{}, err
	}
	return out.read(req.Prompt)
}

func (p completions) body(t target, req rollout.GenerateRequest) completionBody {
	s := req.Sampling
	b := completionBody{
		Model: t.name, Prompt: req.Prompt, MaxTokens: req.MaxNew,
		Temperature: s.Temperature, TopP: orOne(s.TopP), TopK: s.TopK, MinP: s.MinP,
		Repetition: orOne(s.RepetitionPenalty), Frequency: s.FrequencyPenalty, Presence: s.PresencePenalty,
		StopTokenIDs: req.Stop, IgnoreEOS: true, Logprobs: 1, TokenIDs: true, AsIDs: true,
	}
	if b.Model == "" {
		b.Model = p.s.facts.model
	}
	if b.TopK == 0 {
		b.TopK = -1
	}
	if b.StopTokenIDs == nil {
		b.StopTokenIDs = []int32{}
	}
	if p.s.cfg.Kind == Skein {
		b.Seed, b.Logprobs, b.LogprobsMode, b.Session = int64(s.Seed), 0, "sampled", req.Session
	} else {
		b.Seed = int64(turnSeed(s.Seed, len(req.Prompt)) >> 1) // -1 means none to vLLM
	}
	return b
}

func orOne(v float64) float64 {
	if v == 0 {
		return 1
	}
	return v
}

// turnSeed gives each turn of an episode its own draws: elsewhere than here, a
// seed alone determines the uniform numbers of a request from its first token on.
func turnSeed(seed uint64, prompt int) uint64 {
	x := seed + uint64(prompt)*0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// read takes ids and logprobs out of an answer and compares what it says twice.
func (c *completionAnswer) read(prompt []int32) (answer, error) {
	lacks := func(what, remedy string) (answer, error) {
		return answer{}, fmt.Errorf("%w: its answers have no %s: %s", ErrIncapable, what, remedy)
	}
	if len(c.Choices) != 1 {
		return answer{}, fmt.Errorf("%w: it has %d choices, 1 was asked for", ErrAnswer, len(c.Choices))
	}
	ch := c.Choices[0]
	if ch.Logprobs == nil {
		return lacks("logprobs", "a server that is asked for logprobs on /v1/completions and gives none cannot be trained from")
	}
	spelt, err := spelledIDs(ch.Logprobs.Tokens)
	ids := ch.TokenIDs
	switch {
	case ids == nil && err != nil:
		return lacks("token ids", "use vLLM 0.10.2 or later (return_token_ids), or a server with return_tokens_as_token_ids: text cannot be tokenised again into what was sampled")
	case ids == nil:
		ids = spelt
	case err == nil && !slices.Equal(ids, spelt):
		return answer{}, fmt.Errorf("%w: its token ids %s are not those of its logprobs, %s", ErrAnswer, few(ids), few(spelt))
	}
	echo := ch.PromptTokenIDs
	if echo == nil {
		echo = c.PromptTokenIDs
	}
	switch {
	case echo != nil && !slices.Equal(echo, prompt):
		return answer{}, fmt.Errorf("%w: it was generated from another prompt: %s instead of %s", ErrAnswer, few(echo), few(prompt))
	case echo == nil && c.Usage == nil:
		return lacks("prompt_token_ids and no usage", "nothing shows that the prompt was read as it was sent")
	case c.Usage != nil && c.Usage.Prompt != len(prompt):
		return answer{}, fmt.Errorf("%w: it was generated from a prompt of %d tokens, sent were %d", ErrAnswer, c.Usage.Prompt, len(prompt))
	}
	a := answer{ids: ids, logprobs: make([]float32, len(ch.Logprobs.Logprobs))}
	for i, v := range ch.Logprobs.Logprobs {
		if v == nil {
			return answer{}, fmt.Errorf("%w: token %d has no logprob", ErrAnswer, i)
		}
		a.logprobs[i] = *v
	}
	switch ch.FinishReason {
	case "stop":
	case "length":
		a.length = true
	default:
		return answer{}, fmt.Errorf("%w: finish_reason is %q, neither stop nor length", ErrAnswer, ch.FinishReason)
	}
	return a, nil
}

// spelledIDs reads tokens written as token_id:N.
func spelledIDs(tokens []string) ([]int32, error) {
	out := make([]int32, len(tokens))
	for i, t := range tokens {
		digits, ok := strings.CutPrefix(t, "token_id:")
		n, err := strconv.ParseInt(digits, 10, 32)
		if !ok || err != nil {
			return nil, fmt.Errorf("token %q is not written as token_id:N", t)
		}
		out[i] = int32(n)
	}
	return out, nil
}

// few shows the beginning of a list of ids.
func few(ids []int32) string {
	if len(ids) <= 8 {
		return fmt.Sprint(ids)
	}
	return fmt.Sprintf("%v and %d more", ids[:8], len(ids)-8)
}
