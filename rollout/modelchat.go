package rollout

import (
	"errors"
	"fmt"
	"slices"
	"strings"

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

// NewModelChat returns the text side of a model. The first stop token is the
// one the template ends an assistant turn with; the model's other
// end-of-sequence ids follow. Errors: no tokenizer or template, or a template
// whose turns end with no special token, so that no completion would stop.
func NewModelChat(m *model.Model) (Chat, error) {
	if m.Tokenizer == nil || m.Template == nil {
		return nil, fmt.Errorf("rollout: model %s has no tokenizer or no chat template; use an instruction-tuned model", m.Name)
	}
	c := &modelChat{tokenizer: m.Tokenizer, template: m.Template, calls: hermesCalls}
	if m.Template.SupportsTools() {
		c.calls = CallFormatOf(m.Template.Source())
	}
	for _, a := range m.Tokenizer.AddedTokens() {
		if a.Special {
			c.special = append(c.special, a.Content)
		}
	}
	const answer = "Yes."
	text, err := c.Render([]Message{{Role: "user", Content: "Are you there?"}, {Role: "assistant", Content: answer}}, nil, false)
	if err != nil {
		return nil, fmt.Errorf("rollout: model %s: %w", m.Name, err)
	}
	i := strings.LastIndex(text, answer)
	if i < 0 {
		return nil, fmt.Errorf("rollout: model %s: the chat template does not show what the assistant said", m.Name)
	}
	ids := c.Encode(strings.TrimLeft(text[i+len(answer):], " \n"))
	stops := slices.Clone(m.StopIDs)
	if m.Config.EOSTokenID >= 0 && len(stops) == 0 {
		stops = append(stops, m.Config.EOSTokenID)
	}
	switch {
	case len(ids) > 0 && (c.tokenizer.IsSpecial(ids[0]) || slices.Contains(stops, ids[0])):
		c.stop = append([]int32{ids[0]}, slices.DeleteFunc(stops, func(id int32) bool { return id == ids[0] })...)
	case len(stops) > 0:
		c.stop = stops
	default:
		return nil, errors.New("rollout: the model names no end-of-sequence token and its chat template ends turns with none")
	}
	return c, nil
}

func (c *modelChat) Render(messages []Message, tools []tool.Spec, generate bool) (string, error) {
	in := make([]model.Message, len(messages))
	for i, m := range messages {
		in[i] = model.Message{Role: m.Role, Content: m.Content, Name: m.Name, ToolCallID: m.CallID}
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
