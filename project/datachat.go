package project

import (
	"fmt"
	"slices"

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

func newDataChat(m *model.Model, cfg ChatConfig) (*dataChat, error) {
	if m.Tokenizer == nil {
		return nil, fmt.Errorf("project: model %s has no tokenizer: rows cannot be read with it", m.Name)
	}
	c := &dataChat{model: m}
	if c.chat, c.why = rollout.NewModelChat(m, cfg.options()...); c.why != nil {
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
	ms, _ := c.spoken(messages)
	text, err := c.chat.Render(ms, specs(tools), true)
	return c.chat.Encode(text), err
}

func (c *dataChat) Conversation(tools []data.Tool, messages []data.Message) ([]int32, []data.Turn, error) {
	if c.chat == nil {
		return nil, nil, c.why
	}
	ms, calls := c.spoken(messages)
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

// spoken gives the messages as rollouts have them, and which assistant turns
// call tools. A turn with calls or a thought in parts is written by the template,
// one in content alone is taken as it is.
func (c *dataChat) spoken(messages []data.Message) ([]rollout.Message, []bool) {
	names := map[string]string{} // of tools by call id
	out := make([]rollout.Message, len(messages))
	var calls []bool
	for i, m := range messages {
		out[i] = rollout.Message{Role: m.Role, Content: m.Content, Name: m.Name, CallID: m.CallID, Reasoning: m.Reasoning}
		switch m.Role {
		case "tool":
			if out[i].Name == "" {
				out[i].Name = names[m.CallID]
			}
		case "assistant":
			for _, call := range m.Calls {
				out[i].Calls = append(out[i].Calls, tool.Call(call))
				names[call.ID] = call.Name
			}
			calls = append(calls, len(m.Calls) > 0 || c.chat.Calls().Begins(m.Content) >= 0)
		}
	}
	return out, calls
}

func specs(tools []data.Tool) []tool.Spec {
	out := make([]tool.Spec, len(tools))
	for i, t := range tools {
		out[i] = tool.Spec(t)
	}
	return out
}
