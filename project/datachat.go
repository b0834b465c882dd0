package project

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/skein-rl/skein/agent/tool"
	"github.com/skein-rl/skein/learner/data"
	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/rollout"
)

// dataChat tokenises rows of files for the learner as rollouts do: it joins
// learner/data, which may not know rollouts, with rollout.EncodeDemo.
type dataChat struct {
	model  *model.Model
	chat   rollout.Chat // nil: plain text only
	why    error        // why there is none
	prefix []int32      // what begins plain text
	end    int32
}

var _ data.Chat = (*dataChat)(nil)

func newDataChat(m *model.Model) (*dataChat, error) {
	if m.Tokenizer == nil {
		return nil, fmt.Errorf("project: model %s has no tokenizer: rows cannot be read with it", m.Name)
	}
	c := &dataChat{model: m}
	if c.chat, c.why = rollout.NewModelChat(m); c.why != nil {
		c.chat = nil
	}
	marked := m.Tokenizer.WithSpecials([]int32{-1}) // -1 stands for the text
	c.prefix = marked[:slices.Index(marked, -1)]
	switch {
	case c.chat != nil:
		c.end = c.chat.Stop()[0]
	case len(m.StopIDs) > 0:
		c.end = m.StopIDs[0]
	case m.Config.EOSTokenID >= 0:
		c.end = m.Config.EOSTokenID
	default:
		return nil, fmt.Errorf("project: model %s names no end-of-sequence token: completions would have no end", m.Name)
	}
	return c, nil
}

func (c *dataChat) Text(text string, first bool) []int32 {
	ids := c.model.Tokenizer.Encode(text, true)
	if first {
		ids = slices.Concat(c.prefix, ids)
	}
	return ids
}

func (c *dataChat) End() int32 { return c.end }

func (c *dataChat) Opening(tools []data.Tool, messages []data.Message) ([]int32, error) {
	if c.chat == nil {
		return nil, c.why
	}
	ms, _, err := c.spoken(tools, messages)
	if err != nil {
		return nil, err
	}
	text, err := c.chat.Render(ms, specs(tools), true)
	return c.chat.Encode(text), err
}

func (c *dataChat) Conversation(tools []data.Tool, messages []data.Message) ([]int32, []data.Turn, error) {
	if c.chat == nil {
		return nil, nil, c.why
	}
	ms, calls, err := c.spoken(tools, messages)
	if err != nil {
		return nil, nil, err
	}
	ids, train, err := rollout.EncodeDemo(c.chat, specs(tools), ms)
	if err != nil {
		return nil, nil, err
	}
	var turns []data.Turn
	for at := 0; at < len(ids); {
		end := at + 1
		for end < len(ids) && train[end] == train[at] {
			end++
		}
		if train[at] {
			t := data.Turn{Start: at, End: end}
			if n := len(turns); n < len(calls) {
				t.Calls = calls[n]
			}
			turns = append(turns, t)
		}
		at = end
	}
	return ids, turns, nil
}

// spoken gives the messages with every assistant turn as the text that the model
// would write, calls and thoughts included, and which turns call tools.
func (c *dataChat) spoken(tools []data.Tool, messages []data.Message) ([]rollout.Message, []bool, error) {
	names := map[string]string{} // of tools by call id
	out := make([]rollout.Message, len(messages))
	var calls []bool
	for i, m := range messages {
		out[i] = rollout.Message{Role: m.Role, Content: m.Content, Name: m.Name, CallID: m.CallID}
		switch m.Role {
		case "tool":
			if out[i].Name == "" {
				out[i].Name = names[m.CallID]
			}
		case "assistant":
			if len(m.Calls) > 0 || m.Reasoning != "" {
				text, err := c.written(tools, messages[:i+1])
				if err != nil {
					return nil, nil, fmt.Errorf("message %d: %w", i, err)
				}
				out[i].Content = text
			}
			for _, call := range m.Calls {
				names[call.ID] = call.Name
			}
			calls = append(calls, len(m.Calls) > 0 || c.chat.Calls().Begins(out[i].Content) >= 0)
		}
	}
	return out, calls, nil
}

// written is what the template writes for the last message after its opening of
// an assistant turn, without the mark that ends the turn.
func (c *dataChat) written(tools []data.Tool, messages []data.Message) (string, error) {
	ms, defs := modelMessages(messages), modelTools(tools)
	last := len(ms) - 1
	before, _, err := c.model.Template.RenderWithTools(ms[:last], defs, true)
	if err != nil {
		return "", err
	}
	after, _, err := c.model.Template.RenderWithTools(ms, defs, false)
	if err != nil {
		return "", err
	}
	turn, ok := strings.CutPrefix(after, before)
	if !ok {
		return "", errors.New("the chat template does not write this turn after its own opening; write calls and thoughts into content as the model does")
	}
	if end := c.chat.Decode(c.chat.Stop()[:1]); end != "" {
		if i := strings.LastIndex(turn, end); i >= 0 {
			turn = turn[:i]
		}
	}
	for _, call := range messages[last].Calls {
		if !strings.Contains(turn, call.Name) {
			return "", fmt.Errorf("the chat template leaves out the call of %q; write calls into content as the model does", call.Name)
		}
	}
	return turn, nil
}

func specs(tools []data.Tool) []tool.Spec {
	out := make([]tool.Spec, len(tools))
	for i, t := range tools {
		out[i] = tool.Spec(t)
	}
	return out
}

func modelTools(tools []data.Tool) []model.ToolDef {
	out := make([]model.ToolDef, len(tools))
	for i, t := range tools {
		out[i] = model.ToolDef(t)
	}
	return out
}

func modelMessages(messages []data.Message) []model.Message {
	out := make([]model.Message, len(messages))
	for i, m := range messages {
		out[i] = model.Message{Role: m.Role, Content: m.Content, Reasoning: m.Reasoning, Name: m.Name, ToolCallID: m.CallID}
		for _, call := range m.Calls {
			out[i].ToolCalls = append(out[i].ToolCalls, model.ToolCall(call))
		}
	}
	return out
}
