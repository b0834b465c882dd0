package openai

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"

	"github.com/skein-rl/skein/model"
)

// Limits of one request.
const (
	maxChoices  = 128
	maxTop      = 20
	maxStops    = 16
	maxStopSize = 256  // bytes of a stop string
	maxAnswers  = 2048 // choices of all prompts of one request
)

// params is a request's Common part, checked, with defaults filled in.
type params struct {
	n          int
	maxNew     int // 0 = up to the context limit
	sampling   model.Sampling
	bias       []model.TokenBias
	stops      []string
	stopIDs    []int32
	guide      *Structured
	sampledLog bool    // logprobs of the distribution sampled from
	asIDs      bool    // tokens of logprobs by id
	skip       bool    // leave special tokens out of the text
	least      int     // tokens before a stop token may come
	allowed    []int32 // nil = all
	priority   int     // the engine's: higher ones go first
}

// check validates c for a vocabulary of that size. maxTokens is the field that
// holds the limit (chat has a newer name for it).
func (c *Common) check(maxTokens *int, vocab int) (params, error) {
	p := params{n: value(c.N, 1), skip: value(c.SkipSpecial, true), stops: c.Stop, stopIDs: c.StopTokenIDs,
		least: value(c.MinTokens, 0), allowed: c.AllowedTokenIDs, asIDs: c.TokensAsIDs, priority: -value(c.Priority, 0)}
	s := model.Sampling{
		Temperature: value(c.Temperature, 1), TopP: value(c.TopP, 1), MinP: value(c.MinP, 0), TopK: max(value(c.TopK, 0), 0),
		RepetitionPenalty: value(c.Repetition, 1), FrequencyPenalty: value(c.Frequency, 0), PresencePenalty: value(c.Presence, 0),
	}
	for _, f := range []struct {
		name     string
		v        float64
		low, top float64
	}{
		{"temperature", s.Temperature, 0, 100}, {"top_p", s.TopP, 0, 1}, {"min_p", s.MinP, 0, 1},
		{"repetition_penalty", s.RepetitionPenalty, 0.01, 100}, {"frequency_penalty", s.FrequencyPenalty, -2, 2}, {"presence_penalty", s.PresencePenalty, -2, 2},
		{"n", float64(p.n), 1, maxChoices}, {"max_tokens", float64(value(maxTokens, 1)), 0, math.MaxInt32}, {"top_k", float64(value(c.TopK, 0)), -1, math.MaxInt32},
		{"min_tokens", float64(p.least), 0, float64(value(maxTokens, math.MaxInt32))}, {"priority", float64(value(c.Priority, 0)), math.MinInt32, math.MaxInt32},
	} {
		if !(f.v >= f.low && f.v <= f.top) {
			return p, badRequest(f.name, "%s is %v, want %v to %v", f.name, f.v, f.low, f.top)
		}
	}
	if c.TopP != nil && *c.TopP == 0 {
		return p, badRequest("top_p", "top_p is 0, which keeps no token; use temperature 0 for greedy decoding")
	}
	s.Seed = rand.Uint64()
	if c.Seed != nil {
		s.Seed = uint64(*c.Seed)
	}
	p.sampling = s
	if maxTokens != nil {
		p.maxNew = *maxTokens
	}
	if len(p.stops) > maxStops {
		return p, badRequest("stop", "stop has %d strings, want at most %d", len(p.stops), maxStops)
	}
	for _, stop := range p.stops {
		if stop == "" || len(stop) > maxStopSize {
			return p, badRequest("stop", "a stop string has %d bytes, want 1 to %d", len(stop), maxStopSize)
		}
	}
	for name, ids := range map[string][]int32{"stop_token_ids": p.stopIDs, "allowed_token_ids": p.allowed} {
		for _, id := range ids {
			if id < 0 || int(id) >= vocab {
				return p, badRequest(name, "%s holds %d, the vocabulary has %d tokens", name, id, vocab)
			}
		}
	}
	if c.AllowedTokenIDs != nil && len(c.AllowedTokenIDs) == 0 {
		return p, badRequest("allowed_token_ids", "allowed_token_ids is empty, which leaves no token; give some or leave it out")
	}
	if p.least > 0 && len(p.stops) > 0 {
		return p, badRequest("min_tokens", "min_tokens cannot be given with stop: a stop string ends an answer whenever it appears; use stop_token_ids")
	}
	if err := p.readBias(c.LogitBias, vocab); err != nil {
		return p, err
	}
	switch c.LogprobsMode {
	case "", "raw":
	case "sampled":
		p.sampledLog = true
	default:
		return p, badRequest("logprobs_mode", "logprobs_mode %q is unknown (have raw, sampled)", c.LogprobsMode)
	}
	if c.StreamOptions != nil && !c.Stream {
		return p, badRequest("stream_options", "stream_options needs stream: true")
	}
	var err error
	p.guide, err = c.structured()
	return p, err
}

// besideForm refuses what an answer in a given form has no room for.
func (c *Common) besideForm() error {
	switch {
	case value(c.MinTokens, 0) > 0:
		return badRequest("min_tokens", "min_tokens cannot be given for an answer in a given form, which ends when it is complete")
	case c.AllowedTokenIDs != nil:
		return badRequest("allowed_token_ids", "allowed_token_ids cannot be given for an answer in a given form")
	case c.IgnoreEOS:
		return badRequest("ignore_eos", "ignore_eos cannot be given for an answer in a given form: when it is complete only an end of sequence may follow")
	}
	return nil
}

func (p *params) readBias(bias map[string]float64, vocab int) error {
	for key, v := range bias {
		id, err := strconv.ParseInt(key, 10, 32)
		if err != nil || id < 0 || int(id) >= vocab {
			return badRequest("logit_bias", "logit_bias key %q is no token id below %d", key, vocab)
		}
		if !(v >= -100 && v <= 100) {
			return badRequest("logit_bias", "logit_bias of token %d is %v, want -100 to 100", id, v)
		}
		p.bias = append(p.bias, model.TokenBias{ID: int32(id), Bias: float32(v)})
	}
	slices.SortFunc(p.bias, func(a, b model.TokenBias) int { return int(a.ID - b.ID) })
	return nil
}

// structured gathers the guided-decoding fields of both spellings.
func (c *Common) structured() (*Structured, error) {
	g := Structured{JSON: c.GuidedJSON, Regex: c.GuidedRegex, Choice: c.GuidedChoice, Grammar: c.GuidedGrammar}
	if c.StructuredOutput != nil {
		if g.count() > 0 {
			return nil, badRequest("structured_outputs", "give either structured_outputs or the guided_* fields")
		}
		g = *c.StructuredOutput
	}
	switch n := g.count(); {
	case n == 0 && c.StructuredOutput == nil:
		return nil, nil
	case n == 1:
		return &g, nil
	}
	return nil, badRequest("structured_outputs", "give exactly one of json, json_object, regex, choice and grammar")
}

func (g *Structured) count() int {
	n := 0
	for _, set := range []bool{len(g.JSON) > 0 && string(g.JSON) != "null", g.JSONObject, g.Regex != "", len(g.Choice) > 0, g.Grammar != ""} {
		if set {
			n++
		}
	}
	return n
}

// toolChoice reads tool_choice: "none", "auto", "required", or a function's
// name as name.
func (r *ChatRequest) toolChoice() (mode, name string, err error) {
	mode = "auto"
	if len(r.Tools) == 0 {
		mode = "none"
	}
	if len(r.ToolChoice) > 0 && string(r.ToolChoice) != "null" {
		var named struct {
			Type     string `json:"type"`
			Function struct {
				Name string `json:"name"`
			} `json:"function"`
		}
		if json.Unmarshal(r.ToolChoice, &mode) != nil {
			if err := json.Unmarshal(r.ToolChoice, &named); err != nil || named.Type != "function" {
				return "", "", badRequest("tool_choice", "tool_choice must be none, auto, required or {\"type\": \"function\", \"function\": {\"name\": …}}")
			}
			mode, name = "required", named.Function.Name
		}
	}
	switch {
	case mode != "none" && mode != "auto" && mode != "required":
		return "", "", badRequest("tool_choice", "tool_choice %q is unknown (have none, auto, required, or a function)", mode)
	case mode != "none" && len(r.Tools) == 0:
		return "", "", badRequest("tool_choice", "tool_choice %s needs tools", r.ToolChoice)
	case name != "" && !slices.ContainsFunc(r.Tools, func(t Tool) bool { return t.Function.Name == name }):
		return "", "", badRequest("tool_choice", "tool_choice names %q, which is not among the tools", name)
	}
	return mode, name, nil
}

// checkTools validates the tools.
func (r *ChatRequest) checkTools() error {
	for i, t := range r.Tools {
		at := fmt.Sprintf("tools[%d]", i)
		if t.Type != "function" {
			return badRequest(at, "%s.type is %q, want function", at, t.Type)
		}
		if t.Function.Name == "" {
			return badRequest(at, "%s.function.name is empty", at)
		}
		if slices.ContainsFunc(r.Tools[:i], func(u Tool) bool { return u.Function.Name == t.Function.Name }) {
			return badRequest(at, "tool %q is given twice", t.Function.Name)
		}
	}
	return nil
}

// topLogprobs says whether logprobs are wanted and how many alternatives.
func (r *ChatRequest) topLogprobs() (want bool, top int, err error) {
	top = value(r.TopLogprobs, 0)
	if top < 0 || top > maxTop {
		return false, 0, badRequest("top_logprobs", "top_logprobs is %d, want 0 to %d", top, maxTop)
	}
	if top > 0 && !r.Logprobs {
		return false, 0, badRequest("top_logprobs", "top_logprobs needs logprobs: true")
	}
	return r.Logprobs, top, r.checkTop(top)
}

// checkTop refuses to mix two distributions: alternatives are the model's own.
func (c *Common) checkTop(top int) error {
	if top > 0 && c.LogprobsMode == "sampled" {
		return badRequest("logprobs_mode", "logprobs_mode sampled gives no alternatives, which are of the model's own distribution: ask for none, or for mode raw")
	}
	return nil
}

func value[T any](p *T, fallback T) T {
	if p == nil {
		return fallback
	}
	return *p
}
