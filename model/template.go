package model

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/ardanlabs/jinja"
)

// ErrTemplate marks a chat template that doesn't compile, or refuses a
// conversation.
var ErrTemplate = errors.New("model: chat template")

// ChatTemplate renders a conversation into the text a model was trained on: the
// Jinja template that comes with the model, run as transformers runs it. Safe
// for concurrent use.
type ChatTemplate struct {
	source string
	tmpl   *jinja.Template
	vars   map[string]jinja.Value
	tools  bool
	now    func() time.Time
}

// NewChatTemplate compiles a template. special holds what it may ask for by
// name, such as bos_token and eos_token.
func NewChatTemplate(source string, special map[string]string) (*ChatTemplate, error) {
	prepared, asksTools, err := rewriteTemplate(source)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrTemplate, err)
	}
	tmpl, err := jinja.Compile(prepared)
	if err != nil {
		return nil, fmt.Errorf("%w: compile: %w", ErrTemplate, err)
	}
	c := &ChatTemplate{source: source, tmpl: tmpl, vars: map[string]jinja.Value{}, tools: asksTools, now: time.Now}
	for k, v := range special {
		c.vars[k] = jinja.NewString(v)
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
// value is nil, a bool, an int, a float64 or a string.
func (c *ChatTemplate) WithVar(name string, value any) *ChatTemplate {
	d := *c
	d.vars = maps.Clone(c.vars)
	d.vars[name] = jinja.FromGoValue(value)
	return &d
}

// Source is the template's text.
func (c *ChatTemplate) Source() string { return c.source }

// SupportsTools reports whether the template looks at the tools it is given.
func (c *ChatTemplate) SupportsTools() bool { return c.tools }

// Render writes the conversation. addGenerationPrompt appends the opening of an
// assistant turn. Tools given to a template that ignores them are an error:
// RenderWithTools has an answer for those.
func (c *ChatTemplate) Render(messages []Message, tools []ToolDef, addGenerationPrompt bool) (string, error) {
	if len(tools) > 0 && !c.tools {
		return "", fmt.Errorf("%w: it ignores tools, and %d were given; use RenderWithTools", ErrTemplate, len(tools))
	}
	return c.render(messages, tools, addGenerationPrompt)
}

func (c *ChatTemplate) render(messages []Message, tools []ToolDef, addGenerationPrompt bool) (out string, err error) {
	vars := maps.Clone(c.vars)
	list := make([]jinja.Value, len(messages))
	for i, m := range messages {
		if list[i], err = m.value(); err != nil {
			return "", fmt.Errorf("%w: message %d (%s): %w", ErrTemplate, i, m.Role, err)
		}
	}
	vars["messages"] = jinja.NewList(list)
	vars["tools"], vars["documents"] = jinja.None(), jinja.None()
	if len(tools) > 0 {
		defs := make([]jinja.Value, len(tools))
		for i, t := range tools {
			if defs[i], err = t.value(); err != nil {
				return "", fmt.Errorf("%w: %w", ErrTemplate, err)
			}
		}
		vars["tools"] = jinja.NewList(defs)
	}
	vars["add_generation_prompt"] = jinja.NewBool(addGenerationPrompt)
	addBuiltins(vars, c.now)
	// The engine panics on some kind mismatches; to the caller that is a
	// template error like any other.
	defer func() {
		if p := recover(); p != nil {
			out, err = "", fmt.Errorf("%w: render: %v", ErrTemplate, p)
		}
	}()
	out, err = c.tmpl.RenderValues(vars)
	if err != nil {
		return "", fmt.Errorf("%w: render: %w", ErrTemplate, err)
	}
	return out, nil
}

// RewriteError says where a template rewrites history: what the engine had seen
// when assistant message Index was generated is no prefix of a later rendering.
type RewriteError struct {
	Index  int // of the assistant message
	Before string
	After  string
}

// Error names the message and shows where the texts part.
func (e *RewriteError) Error() string {
	n := 0
	for n < len(e.Before) && n < len(e.After) && e.Before[n] == e.After[n] {
		n++
	}
	from := max(0, n-20)
	return fmt.Sprintf("model: chat template rewrites history after message %d: at byte %d %q became %q", e.Index, n, clip(e.Before[from:], 60), clip(e.After[from:], 60))
}

func clip(s string, n int) string {
	if len(s) > n {
		return s[:n] + "..."
	}
	return s
}

// CheckPrefixExtending reports whether the template only ever appends: for each
// assistant message, the text the engine generates after, and the text with
// the message in place, are prefixes of everything rendered later. A
// *RewriteError says that a trajectory must fork there; other errors come from
// rendering.
func (c *ChatTemplate) CheckPrefixExtending(messages []Message, tools []ToolDef) error {
	prev := ""
	for i, m := range messages {
		if m.Role != "assistant" {
			continue
		}
		prompt, err := c.Render(messages[:i], tools, true)
		if err != nil {
			return fmt.Errorf("before message %d: %w", i, err)
		}
		whole, err := c.Render(messages[:i+1], tools, false)
		if err != nil {
			return fmt.Errorf("after message %d: %w", i, err)
		}
		for _, step := range [][2]string{{prev, prompt}, {prompt, whole}} {
			if !strings.HasPrefix(step[1], step[0]) {
				return &RewriteError{Index: i, Before: step[0], After: step[1]}
			}
		}
		prev = whole
	}
	return nil
}
