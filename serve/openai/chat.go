package openai

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"

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
	head := h.head("chatcmpl-", "chat.completion", j)
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
		m := view.message(h.text(&req.Common, g), value(req.ParallelToolCalls, true))
		if len(m.ToolCalls) > 0 && reason == "stop" {
			reason = "tool_calls"
		}
		c := Choice{Index: k, Message: &m, FinishReason: &reason, StopReason: stop}
		if j.logprobs {
			c.Logprobs = h.chatLogprobs(j, g.IDs, j.shown(g.Logprobs, g.Raw), g.Top)
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
	if rf := req.ResponseFormat; rf != nil && rf.Type == "" {
		return nil, nil, badRequest("response_format", "response_format.type is missing (have text, json_object, json_schema)")
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
	if guide != nil {
		if err := req.besideForm(); err != nil {
			return nil, nil, err
		}
	}
	return &job{param: "messages", prompt: ids, text: text, adapter: adapter, p: p, guide: guide, logprobs: want, top: top,
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
	tmpl, err := h.withKwargs(tmpl, req)
	if err != nil {
		return nil, "", err
	}
	called := map[string]string{} // tool by call id
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
		msg := model.Message{Role: role, Content: string(m.Content), Name: m.Name, ToolCallID: m.ToolCallID, Reasoning: m.ReasoningContent}
		if msg.Reasoning == "" { // the newer of two names for the same
			msg.Reasoning = m.Reasoning
		}
		if role == "tool" && msg.Name == "" { // OpenAI's tool messages have none; some templates write it
			msg.Name = called[m.ToolCallID]
		}
		for k, c := range m.ToolCalls {
			args := json.RawMessage(c.Function.Arguments)
			if c.Function.Arguments == "" {
				args = json.RawMessage("{}")
			}
			if !json.Valid(args) {
				return nil, "", badRequest("messages", "messages[%d].tool_calls[%d].function.arguments is no JSON", i, k)
			}
			called[c.ID] = c.Function.Name
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
	ids := h.encodePrompt(text, req.AddSpecialTokens)
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
			feeds[k] = view.feed(value(req.ParallelToolCalls, true))
			c := Choice{Index: k, Delta: &Delta{Role: "assistant", Content: ptr("")}}
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
		d := Delta(feeds[k].push(text, e.end != nil))
		c := Choice{Index: k, Delta: &d}
		if j.logprobs && len(e.delta.IDs) > 0 {
			c.Logprobs = h.chatLogprobs(j, e.delta.IDs, j.shown(e.delta.Logprobs, e.delta.Raw), e.delta.Top)
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

// withKwargs sets a template's variables. One that the template does not read
// is refused: the prompt would not change as the client thinks.
func (h *Handler) withKwargs(tmpl *model.ChatTemplate, req *ChatRequest) (*model.ChatTemplate, error) {
	kwargs := maps.Clone(req.TemplateKwargs)
	if req.ReasoningEffort != "" {
		if kwargs == nil {
			kwargs = map[string]any{}
		}
		kwargs["reasoning_effort"] = req.ReasoningEffort
	}
	for name, v := range kwargs {
		switch name {
		case "messages", "tools", "add_generation_prompt":
			return nil, badRequest("chat_template_kwargs", "chat_template_kwargs %q has a field of its own in the request", name)
		}
		if !tmpl.Uses(name) {
			return nil, badRequest("chat_template_kwargs", "the chat template of %s does not read %q", h.cfg.Name, name)
		}
		var err error
		if tmpl, err = tmpl.WithVar(name, v); err != nil {
			return nil, badRequest("chat_template_kwargs", "chat_template_kwargs %q: %v", name, err)
		}
	}
	return tmpl, nil
}

func callID() string { return fmt.Sprintf("call_%s", uuid.NewString()) }
