package supervised

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/model/tiny"
	"github.com/skein-rl/skein/rollout"
	"github.com/skein-rl/skein/rollout/task"
)

func TestRowWeighsToolCallsTwiceAndTheEnvironmentNothing(t *testing.T) {
	m, err := tiny.Open()
	require.NoError(t, err)
	chat, err := rollout.NewModelChat(m)
	require.NoError(t, err)
	tk, err := task.NewStore(1).Train(0)
	require.NoError(t, err)
	messages, err := task.Converse(t.Context(), tk, tk.Demo, rollout.FormatCalls)
	require.NoError(t, err)
	row, err := Row(chat, tk, messages)
	require.NoError(t, err)
	require.Len(t, row.Weights, len(row.Tokens))

	// Put together again by weight, the row is the conversation's two sides.
	var calls, answer, environment []int32
	for i, id := range row.Tokens {
		switch row.Weights[i] {
		case toolCallWeight:
			calls = append(calls, id)
		case 1:
			answer = append(answer, id)
		case 0:
			environment = append(environment, id)
		default:
			t.Fatalf("token %d has weight %v", i, row.Weights[i])
		}
	}
	require.Contains(t, chat.Decode(calls), "<tool_call>")
	require.Contains(t, chat.Decode(answer), messages[len(messages)-1].Content)
	require.NotContains(t, chat.Decode(answer), "<tool_call>")
	require.Contains(t, chat.Decode(environment), "<|im_start|>tool")
	require.NotContains(t, chat.Decode(environment), "<tool_call>")
	require.Contains(t, chat.Decode(row.Prompt), tk.User)
}

// A recipe is the whole truth about the model: twice the same bytes, and files
// that open as a model.
func TestTinyRecipeIsReproducible(t *testing.T) {
	recipe := filepath.Join(t.TempDir(), "recipe.yaml")
	require.NoError(t, os.WriteFile(recipe, []byte(`
seed: 3
vocab_size: 300
hidden_size: 16
intermediate_size: 32
num_hidden_layers: 1
num_attention_heads: 2
num_key_value_heads: 1
max_position_embeddings: 512
examples: 24
noise_rate: 0.5
training: {learning_rate: 1.0e-3, num_train_epochs: 1, batch_tokens: 1024, warmup_steps: 0}
`), 0o600))
	r, err := LoadTinyRecipe(recipe)
	require.NoError(t, err)
	template, err := os.ReadFile("../../model/tiny/data/chat_template.jinja")
	require.NoError(t, err)
	train := func() string {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, "chat_template.jinja"), template, 0o600))
		require.NoError(t, TrainTiny(t.Context(), r, dir, io.Discard))
		return dir
	}
	a, b := train(), train()
	for _, name := range []string{"model.safetensors", "tokenizer.json", "config.json"} {
		x, err := os.ReadFile(filepath.Join(a, name))
		require.NoError(t, err)
		y, err := os.ReadFile(filepath.Join(b, name))
		require.NoError(t, err)
		require.True(t, bytes.Equal(x, y), name)
	}
	m, err := model.Open(a)
	require.NoError(t, err)
	require.Equal(t, 16, m.Config.HiddenSize)
	require.NotNil(t, m.Tokenizer)
}

func TestTinyRecipeRefusesUnknownKeys(t *testing.T) {
	recipe := filepath.Join(t.TempDir(), "recipe.yaml")
	require.NoError(t, os.WriteFile(recipe, []byte("seed: 1\nhiden_size: 16\n"), 0o600))
	_, err := LoadTinyRecipe(recipe)
	require.ErrorContains(t, err, "hiden_size")
}
