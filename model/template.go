package model

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/skein-rl/skein/model/internal/jinja"
)

// ErrTemplate marks a chat template that doesn't compile, or refuses a
// conversation.
var ErrTemplate = errors.New("model: chat template")

// ChatTemplate renders a conversation into the text a model was trained on: the
// Jinja template that comes with the model, run as transformers runs it. A
// rendering that takes more than a second or two of work, or 64 MiB, is an
// error: templates are not trusted. Safe for concurrent use.
type ChatTemplate struct {
	source string
	tmpl   *jinja.Template
	vars   []templateVar // special tokens first; a later one overrides
	now    func() time.Time
}

type templateVar struct {
	name  string
	value any
}

// NewChatTemplate compiles a template. special holds what it may ask for by
// name, such as bos_token and eos_token.
func NewChatTemplate(source string, special map[string]string) (*ChatTemplate, error) {
	tmpl, err := jinja.Compile(source)
	if err != nil {
		return nil, fmt.Errorf("%w: compile: %w", ErrTemplate, err)
	}
	c := &ChatTemplate{source: source, tmpl: tmpl, now: time.Now}
	for k, v := range special {
		c.vars = append(c.vars, templateVar{k, v})
	}
	return c, nil
}

// WithClock gives a copy whose strftime_now reads the given clock. Some
// templates write today's date into the prompt.
func (c *ChatTemplate) WithClock(now func() time.Time) *ChatTemplate {
	d := *c
	d.now = now
	return &d
}

// WithVar gives a copy with one more variable, such as enable_thinking. The
// value is JSON: a value of another kind than JSON has is an error, and so is the
// name of one that Render sets.
func (c *ChatTemplate) WithVar(name string, value any) (*ChatTemplate, error) {
	if slices.Contains([]string{"messages", "tools", "documents", "add_generation_prompt"}, name) {
		return nil, fmt.Errorf("%w: variable %s: it is set for each rendering", ErrTemplate, name)
	}
	raw, err := json.Marshal(value)
	if err == nil {
		value, err = jinja.DecodeJSON(raw)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: variable %s: %w", ErrTemplate, name, err)
	}
	d := *c
	d.vars = append(slices.Clip(d.vars), templateVar{name, value})
	return &d, nil
}

// Source is the template's text.
func (c *ChatTemplate) Source() string { return c.source }

// SupportsTools reports whether the template looks at the tools it is given.
func (c *ChatTemplate) SupportsTools() bool { return c.tmpl.Mentions("tools") }

// Uses reports whether the template reads a variable, such as enable_thinking.
func (c *ChatTemplate) Uses(variable string) bool { return c.tmpl.Mentions(variable) }

// Render writes the conversation. addGenerationPrompt appends the opening of an
// assistant turn. Tools given to a template that ignores them are an error:
// RenderWithTools has an answer for those.
func (c *ChatTemplate) Render(messages []Message, tools []ToolDef, addGenerationPrompt bool) (string, error) {
	if len(tools) > 0 && !c.SupportsTools() {
		return "", fmt.Errorf("%w: it ignores tools, and %d were given; use RenderWithTools", ErrTemplate, len(tools))
	}
	return c.render(messages, tools, addGenerationPrompt)
}

func (c *ChatTemplate) render(messages []Message, tools []ToolDef, addGenerationPrompt bool) (string, error) {
	vars := jinja.NewDict()
	list := jinja.NewList()
	for i, m := range messages {
		v, err := m.value()
		if err != nil {
			return "", fmt.Errorf("%w: message %d (%s): %w", ErrTemplate, i, m.Role, err)
		}
		list.Items = append(list.Items, v)
	}
	vars.Set("messages", list)
	vars.Set("tools", nil)
	vars.Set("documents", nil)
	if len(tools) > 0 {
		defs := jinja.NewList()
		for _, t := range tools {
			v, err := t.value()
			if err != nil {
				return "", fmt.Errorf("%w: %w", ErrTemplate, err)
			}
			defs.Items = append(defs.Items, v)
		}
		vars.Set("tools", defs)
	}
	vars.Set("add_generation_prompt", addGenerationPrompt)
	for _, v := range c.vars {
		vars.Set(v.name, v.value)
	}
	out, err := c.tmpl.Render(vars, c.now, jinja.DefaultLimits())
	if err != nil {
		return "", fmt.Errorf("%w: render: %w", ErrTemplate, err)
	}
	return out, nil
}
