package openai

import (
	"fmt"
	"math"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/rollout"
)

// TextOf is the text side of an engine that this package serves.
func TextOf(tok *model.Tokenizer) func(prompt []int32) rollout.TextStream {
	return func(prompt []int32) rollout.TextStream { return tok.NewStream(prompt...) }
}

// tokenText is how a lone token is shown: its text, or its bytes as OpenAI
// spells tokens that are part of a character.
func (h *Handler) tokenText(id int32) string {
	b := h.cfg.Model.Tokenizer.TokenBytes(id)
	if utf8.Valid(b) {
		return string(b)
	}
	var out strings.Builder
	out.WriteString("bytes:")
	for _, c := range b {
		fmt.Fprintf(&out, `\x%02x`, c)
	}
	return out.String()
}

func (h *Handler) tokenBytes(id int32) []int {
	out := []int{}
	for _, c := range h.cfg.Model.Tokenizer.TokenBytes(id) {
		out = append(out, int(c))
	}
	return out
}

// tokenName is a token's text in logprobs, or its id as vLLM spells it, which
// tells tokens of equal text apart.
func (h *Handler) tokenName(id int32, asIDs bool) string {
	if asIDs {
		return fmt.Sprintf("token_id:%d", id)
	}
	return h.tokenText(id)
}

// lowest stands for minus infinity, which JSON cannot say (vLLM's number).
const lowest = -9999

func finite(v float32) float64 { return math.Max(float64(v), lowest) }

// chatLogprobs describes tokens with their logprobs and alternatives.
func (h *Handler) chatLogprobs(j *job, ids []int32, logprobs []float32, top [][]model.TokenLogprob) *ChatLogprobs {
	one := func(id int32, v float32) TokenLogprob {
		return TokenLogprob{Token: h.tokenName(id, j.p.asIDs), Logprob: finite(v), Bytes: h.tokenBytes(id)}
	}
	out := &ChatLogprobs{Content: make([]TokenLogprob, len(ids))}
	for i, id := range ids {
		t := one(id, logprobs[i])
		best := []TokenLogprob{} // [] in JSON, not null
		if top != nil {
			for _, alt := range top[i] {
				best = append(best, one(alt.ID, alt.Logprob))
			}
		}
		t.Top = &best
		out.Content[i] = t
	}
	return out
}

// textColumns builds a completion's logprobs column by column.
type textColumns struct {
	TextLogprobs
	h     *Handler
	asIDs bool
	chars int    // complete ones so far
	part  []byte // of the character after them
}

// add appends tokens; a nil logprob (the first of an echoed prompt) is null.
func (c *textColumns) add(id int32, logprob *float64, top []model.TokenLogprob) {
	name := c.h.tokenName(id, c.asIDs)
	c.Tokens = append(c.Tokens, name)
	c.Offset = append(c.Offset, c.chars)
	c.count(c.h.cfg.Model.Tokenizer.TokenBytes(id))
	if logprob == nil {
		c.Logprob, c.Top = append(c.Logprob, nil), append(c.Top, nil)
		return
	}
	v := math.Max(*logprob, lowest)
	// The token itself is always among them. Of tokens with equal text the
	// likeliest counts: whoever asks whether the choice was greedy compares with
	// the largest.
	best := map[string]float64{name: v}
	for _, t := range top {
		alt, p := c.h.tokenName(t.ID, c.asIDs), finite(t.Logprob)
		if have, ok := best[alt]; !ok || p > have {
			best[alt] = p
		}
	}
	c.Logprob, c.Top = append(c.Logprob, &v), append(c.Top, best)
}

// count moves on by a token's bytes.
func (c *textColumns) count(b []byte) {
	c.part = append(c.part, b...)
	for len(c.part) > 0 && utf8.FullRune(c.part) {
		_, n := utf8.DecodeRune(c.part)
		c.part = c.part[n:]
		c.chars++
	}
}

// tokenize is vLLM's call: ids of a text or of a rendered conversation.
func (h *Handler) tokenize(w http.ResponseWriter, r *http.Request) error {
	var req struct {
		Model      string         `json:"model"`
		Prompt     *string        `json:"prompt"`
		Messages   []ChatMessage  `json:"messages"`
		Tools      []Tool         `json:"tools"`
		Special    *bool          `json:"add_special_tokens"`
		Generation *bool          `json:"add_generation_prompt"`
		Kwargs     map[string]any `json:"chat_template_kwargs"`
		Strings    bool           `json:"return_token_strs"`
	}
	if err := decode(r, &req); err != nil {
		return err
	}
	if _, err := h.adapterOf(req.Model); err != nil {
		return err
	}
	var ids []int32
	switch {
	case req.Prompt != nil && req.Messages == nil:
		ids = h.encodePrompt(*req.Prompt, value(req.Special, true))
	case req.Prompt == nil && req.Messages != nil:
		var err error
		chat := ChatRequest{Messages: req.Messages, Tools: req.Tools, AddGenerationPrompt: req.Generation, AddSpecialTokens: value(req.Special, false), TemplateKwargs: req.Kwargs}
		if err := chat.checkTools(); err != nil {
			return err
		}
		if ids, _, err = h.renderChat(&chat); err != nil {
			return err
		}
	default:
		return badRequest("prompt", "give either prompt or messages")
	}
	out := map[string]any{"count": len(ids), "max_model_len": h.cfg.Engine.MaxLen(), "tokens": append([]int32{}, ids...)}
	if req.Strings {
		strs := make([]string, len(ids))
		for i, id := range ids {
			strs[i] = h.cfg.Model.Tokenizer.Token(id)
		}
		out["token_strs"] = strs
	}
	return writeJSON(w, out)
}

// tokenizerInfo is vLLM's call; lm-eval asks it which tokens end a text.
func (h *Handler) tokenizerInfo(w http.ResponseWriter, _ *http.Request) error {
	m := h.cfg.Model
	out := map[string]any{"vocab_size": m.Tokenizer.VocabSize(), "model_max_length": h.cfg.Engine.MaxLen()}
	for name, id := range map[string]int32{"bos_token": m.Config.BOSTokenID, "eos_token": m.Config.EOSTokenID} {
		if out[name] = nil; id >= 0 {
			out[name] = m.Tokenizer.Token(id)
		}
	}
	if m.Template != nil {
		out["chat_template"] = m.Template.Source()
	}
	return writeJSON(w, out)
}

func (h *Handler) detokenize(w http.ResponseWriter, r *http.Request) error {
	var req struct {
		Model  string  `json:"model"`
		Tokens []int32 `json:"tokens"`
	}
	if err := decode(r, &req); err != nil {
		return err
	}
	if _, err := h.adapterOf(req.Model); err != nil {
		return err
	}
	if err := h.checkIDs("tokens", req.Tokens); err != nil {
		return err
	}
	return writeJSON(w, map[string]any{"prompt": h.cfg.Model.Tokenizer.Decode(req.Tokens)})
}

// encodePrompt gives a text prompt's ids: special tokens that are written out
// become their ids, and add puts the tokenizer's own around them.
func (h *Handler) encodePrompt(text string, add bool) []int32 {
	ids := h.cfg.Model.Tokenizer.Encode(text, true)
	if add {
		ids = h.cfg.Model.Tokenizer.WithSpecials(ids)
	}
	return ids
}

func (h *Handler) checkIDs(param string, ids []int32) error {
	for i, id := range ids {
		if id < 0 || int(id) >= h.cfg.Model.Config.VocabSize {
			return badRequest(param, "token id %d at %d is outside the vocabulary of %d", id, i, h.cfg.Model.Config.VocabSize)
		}
	}
	return nil
}
