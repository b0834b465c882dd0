package rollout

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/skein-rl/skein/agent/tool"
	"github.com/skein-rl/skein/model"
)

// modelChat is the Chat of a loaded model.
type modelChat struct {
	tokenizer *model.Tokenizer
	template  *model.ChatTemplate
	special   []string
	stop      []int32
	calls     *CallFormat
}

// ChatOption changes how a model's chat template is used.
type ChatOption func(*modelChat) error

// WithCallFormat reads tool calls in another format than the template's. "" and
// AutoCallFormat leave the choice to the template; an unknown name is an error.
func WithCallFormat(name string) ChatOption {
	return func(c *modelChat) (err error) {
		if name != "" && name != AutoCallFormat {
			c.calls, err = CallFormatNamed(name)
		}
		return err
	}
}

// WithTemplateVars sets variables of the template, such as enable_thinking, to
// JSON values. One that the template does not read is an error.
func WithTemplateVars(vars map[string]any) ChatOption {
	return func(c *modelChat) (err error) {
		for _, name := range slices.Sorted(maps.Keys(vars)) {
			if !c.template.Uses(name) {
				return fmt.Errorf("template variable %s: the chat template does not read it", name)
			}
			if c.template, err = c.template.WithVar(name, vars[name]); err != nil {
				return err
			}
		}
		return nil
	}
}

// NewModelChat returns the text side of a model. The first stop token is the
// one the template ends an assistant turn with; the model's other
// end-of-sequence ids follow. Errors: no tokenizer or template, an option that
// does not fit, or a template whose turns end with no special token, so that no
// completion would stop.
func NewModelChat(m *model.Model, options ...ChatOption) (Chat, error) {
	if m.Tokenizer == nil || m.Template == nil {
		return nil, fmt.Errorf("rollout: model %s has no tokenizer or no chat template; use an instruction-tuned model", m.Name)
	}
	c := &modelChat{tokenizer: m.Tokenizer, template: m.Template, calls: CallFormatFor(m.Template)}
	for _, option := range options {
		if err := option(c); err != nil {
			return nil, fmt.Errorf("rollout: model %s: %w", m.Name, err)
		}
	}
	for _, a := range m.Tokenizer.AddedTokens() {
		if a.Special {
			c.special = append(c.special, a.Content)
		}
	}
	c.stop = slices.Clone(m.StopIDs)
	if m.Config.EOSTokenID >= 0 && len(c.stop) == 0 {
		c.stop = append(c.stop, m.Config.EOSTokenID)
	}
	_, end, err := model.TurnEnd(c.template, c.tokenizer, c.stop)
	switch {
	case err == nil:
		c.stop = append([]int32{end}, slices.DeleteFunc(c.stop, func(id int32) bool { return id == end })...)
	case !errors.Is(err, model.ErrNoTurnEnd):
		return nil, fmt.Errorf("rollout: model %s: %w", m.Name, err)
	case len(c.stop) == 0:
		return nil, fmt.Errorf("rollout: model %s names no end-of-sequence token, and %w", m.Name, err)
	}
	return c, nil
}

func (c *modelChat) Render(messages []Message, tools []tool.Spec, generate bool) (string, error) {
	in := make([]model.Message, len(messages))
	for i, m := range messages {
		in[i] = model.Message{Role: m.Role, Content: m.Content, Reasoning: m.Reasoning, Name: m.Name, ToolCallID: m.CallID}
		for _, call := range m.Calls {
			in[i].ToolCalls = append(in[i].ToolCalls, model.ToolCall{ID: call.ID, Name: call.Name, Arguments: call.Arguments})
		}
	}
	defs := make([]model.ToolDef, len(tools))
	for i, t := range tools {
		defs[i] = model.ToolDef(t)
	}
	text, _, err := c.template.RenderWithTools(in, defs, generate)
	return text, err
}

func (c *modelChat) Encode(text string) []int32 { return c.tokenizer.Encode(text, true) }
func (c *modelChat) Decode(ids []int32) string  { return c.tokenizer.Decode(ids) }
func (c *modelChat) Special() []string          { return c.special }
func (c *modelChat) Stop() []int32              { return c.stop }
func (c *modelChat) Calls() *CallFormat         { return c.calls }
