package tiny

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/model"
)

func TestEmbeddedModelOpens(t *testing.T) {
	m, err := Open()
	require.NoError(t, err)
	require.Equal(t, Name, m.Name)
	require.NoError(t, m.Config.Validate())
	require.Less(t, m.Config.NumParams(), int64(2e6), "it is embedded in every binary")
	require.Equal(t, m.Config.VocabSize, m.Tokenizer.VocabSize())
	require.True(t, m.Template.SupportsTools())
	require.NotEmpty(t, m.StopIDs)
	require.Equal(t, "<|im_end|>", m.Tokenizer.Token(m.StopIDs[0]))
}

// The loop appends tokens turn by turn, so the template must never rewrite
// what came before.
func TestTemplateOnlyEverAppends(t *testing.T) {
	m, err := Open()
	require.NoError(t, err)
	conversation := []model.Message{
		{Role: "system", Content: "You run a shop."},
		{Role: "user", Content: "Cost of 3 pens?"},
		{Role: "assistant", Content: `<tool_call>{"name":"price","arguments":{"item":"pens"}}</tool_call>`},
		{Role: "tool", Name: "price", Content: "17"},
		{Role: "assistant", Content: "51"},
	}
	tools := []model.ToolDef{{Name: "price", Description: "price of one", Parameters: []byte(`{"type":"object"}`)}}
	breaks, err := m.Template.CheckPrefix(conversation, tools, "<|im_end|>")
	require.NoError(t, err)
	require.Empty(t, breaks)
	text, err := m.Template.Render(conversation, tools, true)
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(text, "<|im_start|>system\ntools: price<|im_end|>"), text)
	ids := m.Tokenizer.Encode(text, true)
	require.Equal(t, text, m.Tokenizer.Decode(ids))
}
