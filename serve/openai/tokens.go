package openai

import (
	"fmt"
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

// chatLogprobs describes tokens with their logprobs and alternatives.
func (h *Handler) chatLogprobs(ids []int32, logprobs []float32, top [][]model.TokenLogprob) *ChatLogprobs {
	out := &ChatLogprobs{Content: make([]TokenLogprob, len(ids))}
	for i, id := range ids {
		out.Content[i] = TokenLogprob{Token: h.tokenText(id), Logprob: float64(logprobs[i]), Bytes: h.tokenBytes(id), Top: []TokenLogprob{}}
		if top == nil {
			continue
		}
		for _, t := range top[i] {
			out.Content[i].Top = append(out.Content[i].Top, TokenLogprob{Token: h.tokenText(t.ID), Logprob: float64(t.Logprob), Bytes: h.tokenBytes(t.ID)})
		}
	}
	return out
}

// textColumns builds a completion's logprobs column by column.
type textColumns struct {
	TextLogprobs
	h     *Handler
	chars int
}

// add appends tokens; a nil logprob (the first of an echoed prompt) is null.
func (c *textColumns) add(id int32, logprob *float64, top []model.TokenLogprob) {
	text := c.h.tokenText(id)
	c.Tokens = append(c.Tokens, text)
	c.Logprob = append(c.Logprob, logprob)
	c.Offset = append(c.Offset, c.chars)
	c.chars += utf8.RuneCountInString(text)
	var best map[string]float64
	if logprob != nil {
		best = map[string]float64{}
		for _, t := range top {
			best[c.h.tokenText(t.ID)] = float64(t.Logprob)
		}
	}
	c.Top = append(c.Top, best)
}

// tokenize is vLLM's call: ids of a text or of a rendered conversation.
func (h *Handler) tokenize(w http.ResponseWriter, r *http.Request) error {
	var req struct {
		Model      string        `json:"model"`
		Prompt     *string       `json:"prompt"`
		Messages   []ChatMessage `json:"messages"`
		Tools      []Tool        `json:"tools"`
		Special    *bool         `json:"add_special_tokens"`
		Generation *bool         `json:"add_generation_prompt"`
	}
	if err := decode(r, &req); err != nil {
		return err
	}
	var ids []int32
	switch {
	case req.Prompt != nil && req.Messages == nil:
		ids = h.encodePrompt(*req.Prompt, value(req.Special, true))
	case req.Prompt == nil && req.Messages != nil:
		var err error
		chat := ChatRequest{Messages: req.Messages, Tools: req.Tools, AddGenerationPrompt: req.Generation}
		if ids, _, err = h.renderChat(&chat); err != nil {
			return err
		}
	default:
		return badRequest("prompt", "give either prompt or messages")
	}
	return writeJSON(w, map[string]any{"count": len(ids), "max_model_len": h.cfg.Engine.MaxLen(), "tokens": ids})
}

func (h *Handler) detokenize(w http.ResponseWriter, r *http.Request) error {
	var req struct {
		Model  string  `json:"model"`
		Tokens []int32 `json:"tokens"`
	}
	if err := decode(r, &req); err != nil {
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
