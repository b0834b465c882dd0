package project

import (
	"encoding/json"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/learner/data"
	"github.com/skein-rl/skein/model/tiny"
)

func TestChatOptionsReachTheModel(t *testing.T) {
	c := DefaultConfig()
	c.Threads = 1
	p, err := openParts(c, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	defer p.Close()
	spec, err := p.spec()
	require.NoError(t, err)
	recorded, err := Parse(spec.Config)
	require.NoError(t, err)
	require.Equal(t, "hermes", recorded.Chat.CallFormat, "the record has the format that was chosen")

	c.Chat.CallFormat = "glm"
	other, err := openParts(c, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	defer other.Close()
	require.Equal(t, "glm", other.chat.Calls().Name)
	diffs, err := differences(recorded, other.cfg)
	require.NoError(t, err)
	require.Equal(t, []string{"chat.call_format hermes, now glm"}, diffs)
	diffs, err = differences(recorded, DefaultConfig())
	require.NoError(t, err)
	require.Empty(t, diffs, "auto is compared once the model is open")

	c.Chat.TemplateVars = map[string]any{"enable_thinking": false}
	_, err = openParts(c, slog.New(slog.DiscardHandler))
	require.ErrorContains(t, err, "template variable enable_thinking: the chat template does not read it")
	c.Chat.TemplateVars = map[string]any{"messages": 1}
	_, err = openParts(c, slog.New(slog.DiscardHandler))
	require.ErrorContains(t, err, "variable messages: it is set for each rendering")
}

// Rows of files become the tokens that a rollout of them would have.
func TestDataChatWritesCallsAsTheTemplateDoes(t *testing.T) {
	m, err := tiny.Open()
	require.NoError(t, err)
	c, err := newDataChat(m, DefaultConfig().Chat)
	require.NoError(t, err)
	messages := []data.Message{
		{Role: "user", Content: "q"},
		{Role: "assistant", Calls: []data.Call{{ID: "1", Name: "price", Arguments: json.RawMessage(`{"item":"tea"}`)}}},
		{Role: "tool", CallID: "1", Content: "3"},
		{Role: "assistant", Content: "It is 3."},
	}
	ids, turns, err := c.Conversation(nil, messages)
	require.NoError(t, err)
	require.Len(t, turns, 2)
	require.True(t, turns[0].Calls)
	require.False(t, turns[1].Calls)
	require.Equal(t, `<tool_call>{"name":"price","arguments":{"item": "tea"}}</tool_call><|im_end|>`, c.chat.Decode(ids[turns[0].Start:turns[0].End]))
	require.Equal(t, "It is 3.<|im_end|>", c.chat.Decode(ids[turns[1].Start:turns[1].End]))
	opening, err := c.Opening(nil, messages[:3])
	require.NoError(t, err)
	require.Equal(t, ids[:turns[1].Start], opening)

	c, err = newDataChat(m, ChatConfig{CallFormat: "glm"})
	require.NoError(t, err)
	_, _, err = c.Conversation(nil, messages)
	require.NoError(t, err, "Hermes marks are read beside any other")
	messages[1].Reasoning = "hm"
	_, _, err = c.Conversation(nil, messages)
	require.ErrorContains(t, err, `without its "hm"`)
}
