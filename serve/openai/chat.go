package openai

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/google/uuid"

	"github.com/skein-rl/skein/model"
)

func (h *Handler) chat(w http.ResponseWriter, r *http.Request) error {
	var req ChatRequest
	if err := decode(r, &req); err != nil {
		return err
	}
	j, view, err := h.chatJob(&req)
	if err != nil {
		return err
	}
	head := Completion{ID: "chatcmpl-" + uuid.NewString(), Object: "chat.completion", Created: time.Now().Unix(), Model: req.Model, Fingerprint: h.fingerprint()}
	if head.Model == "" {
		head.Model = h.cfg.Name
	}
	if req.Stream {
		head.Object = "chat.completion.chunk"
		return h.streamChat(w, r, &req, j, view, head)
	}
	gens, err := h.runAll(r.Context(), []*job{j})
	if err != nil {
		return err
	}
	usage := Usage{Prompt: len(j.prompt), Details: &PromptDetails{}}
	for k, g := range gens[0] {
		reason, stop := h.finish(j, g)
		m := view.message(h.text(&req.Common, g))
		if len(m.ToolCalls) > 0 && reason == "stop" {
			reason = "tool_calls"
		}
		c := Choice{Index: k, Message: &m, FinishReason: &reason, StopReason: stop}
		if j.logprobs {
			c.Logprobs = h.chatLogprobs(g.IDs, j.shown(g.Logprobs, g.Raw), g.Top)
		}
		if req.ReturnTokenIDs {
			c.TokenIDs, c.PolicyVersions = g.IDs, versions(g)
		}
		head.Choices = append(head.Choices, c)
		usage.Completion += len(g.IDs)
		usage.Details.Cached = max(usage.Details.Cached, g.Cached)
	}
	usage.Total = usage.Prompt + usage.Completion
	head.Usage = &usage
	if req.ReturnTokenIDs {
		head.PromptTokenIDs = j.prompt
	}
	return writeJSON(w, head)
}

// chatJob renders the conversation and reads all options.
func (h *Handler) chatJob(req *ChatRequest) (*job, *turnView, error) {
	adapter, err := h.adapterOf(req.Model)
	if err != nil {
		return nil, nil, err
	}
	limit := req.MaxTokens
	if req.MaxCompletionTokens != nil {
		limit = req.MaxCompletionTokens
	}
	p, err := req.check(limit, h.cfg.Model.Config.VocabSize)
	if err != nil {
		return nil, nil, err
	}
	if limit != nil && *limit == 0 {
		return nil, nil, badRequest("max_completion_tokens", "max_completion_tokens is 0, want 1 or more")
	}
	if err := req.checkTools(); err != nil {
		return nil, nil, err
	}
	mode, name, err := req.toolChoice()
	if err != nil {
		return nil, nil, err
	}
	want, top, err := req.topLogprobs()
	if err != nil {
		return nil, nil, err
	}
	if mode == "none" {
		req.Tools = nil
	}
	ids, text, err := h.renderChat(req)
	if err != nil {
		return nil, nil, err
	}
	view := h.viewOf(text, len(req.Tools) > 0, p.skip)
	guide, err := h.chatGuide(req, p, mode, name, view)
	if err != nil {
		return nil, nil, err
	}
	return &job{prompt: ids, adapter: adapter, p: p, guide: guide, logprobs: want, top: top,
		session: req.CacheSession, minimum: req.MinPolicyVersion, stopEOS: !req.IgnoreEOS}, view, nil
}

// renderChat gives the prompt's ids and text.
func (h *Handler) renderChat(req *ChatRequest) ([]int32, string, error) {
	tmpl := h.cfg.Model.Template
	if tmpl == nil {
		return nil, "", badRequest("messages", "model %s has no chat template: use /v1/completions", h.cfg.Name)
	}
	if len(req.Messages) == 0 {
		return nil, "", badRequest("messages", "messages is empty")
	}
	for name, v := range req.TemplateKwargs {
		var err error
		if tmpl, err = tmpl.WithVar(name, v); err != nil {
			return nil, "", badRequest("chat_template_kwargs", "chat_template_kwargs %q: %v", name, err)
		}
	}
	var messages []model.Message
	for i, m := range req.Messages {
		role := m.Role
		switch role {
		case "system", "user", "assistant", "tool":
		case "developer":
			role = "system"
		default:
			return nil, "", badRequest("messages", "messages[%d].role %q is unknown (have system, developer, user, assistant, tool)", i, m.Role)
		}
		msg := model.Message{Role: role, Content: string(m.Content), Name: m.Name, ToolCallID: m.ToolCallID, Reasoning: m.ReasoningContent + m.Reasoning}
		for k, c := range m.ToolCalls {
			args := json.RawMessage(c.Function.Arguments)
			if c.Function.Arguments == "" {
				args = json.RawMessage("{}")
			}
			if !json.Valid(args) {
				return nil, "", badRequest("messages", "messages[%d].tool_calls[%d].function.arguments is no JSON", i, k)
			}
			msg.ToolCalls = append(msg.ToolCalls, model.ToolCall{ID: c.ID, Name: c.Function.Name, Arguments: args})
		}
		messages = append(messages, msg)
	}
	var tools []model.ToolDef
	for _, t := range req.Tools {
		params := t.Function.Parameters
		if len(params) == 0 {
			params = json.RawMessage(`{"type": "object", "properties": {}}`)
		}
		tools = append(tools, model.ToolDef{Name: t.Function.Name, Description: t.Function.Description, Parameters: params})
	}
	text, _, err := tmpl.RenderWithTools(messages, tools, value(req.AddGenerationPrompt, true))
	if err != nil {
		return nil, "", badRequest("messages", "%v", err)
	}
	ids := h.encodePrompt(text, false)
	if len(ids) == 0 {
		return nil, "", badRequest("messages", "the rendered prompt is empty")
	}
	return ids, text, nil
}

func (h *Handler) streamChat(w http.ResponseWriter, r *http.Request, req *ChatRequest, j *job, view *turnView, head Completion) error {
	out := newSSE(w)
	usage := Usage{Prompt: len(j.prompt), Details: &PromptDetails{}}
	feeds := make([]*turnFeed, j.p.n)
	send := func(c Choice) error {
		chunk := head
		chunk.Choices = []Choice{c}
		return out.send(chunk)
	}
	err := h.streamAll(r.Context(), []*job{j}, func(e event) error {
		k := e.choice
		if feeds[k] == nil {
			feeds[k] = view.feed()
			c := Choice{Index: k, Delta: &Message{Role: "assistant", Content: ptr("")}}
			if req.ReturnTokenIDs {
				c.PromptTokenIDs = j.prompt
			}
			if err := send(c); err != nil {
				return err
			}
		}
		text := e.delta.Text
		if e.end != nil && req.IncludeStop {
			text += e.end.StopText
		}
		c := Choice{Index: k, Delta: &Message{}}
		*c.Delta = feeds[k].push(text, e.end != nil)
		if j.logprobs && len(e.delta.IDs) > 0 {
			c.Logprobs = h.chatLogprobs(e.delta.IDs, j.shown(e.delta.Logprobs, e.delta.Raw), e.delta.Top)
		}
		if req.ReturnTokenIDs {
			c.TokenIDs = e.delta.IDs
		}
		if g := e.end; g != nil {
			reason, stop := h.finish(j, *g)
			if feeds[k].calls > 0 && reason == "stop" {
				reason = "tool_calls"
			}
			c.FinishReason, c.StopReason = &reason, stop
			if req.ReturnTokenIDs {
				c.PolicyVersions = versions(*g)
			}
			usage.Completion += len(g.IDs)
			usage.Details.Cached = max(usage.Details.Cached, g.Cached)
		}
		if c.Delta.empty() && c.Logprobs == nil && len(c.TokenIDs) == 0 && c.FinishReason == nil {
			return nil
		}
		return send(c)
	})
	if err == nil && req.StreamOptions != nil && req.StreamOptions.IncludeUsage {
		usage.Total = usage.Prompt + usage.Completion
		head.Choices, head.Usage = []Choice{}, &usage
		err = out.send(head)
	}
	return out.finish(err)
}

func (m Message) empty() bool {
	return m.Content == nil && m.Reasoning == "" && len(m.ToolCalls) == 0 && m.Role == ""
}

func callID() string { return fmt.Sprintf("call_%s", uuid.NewString()) }
