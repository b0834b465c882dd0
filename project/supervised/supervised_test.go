package supervised

import (
	"bytes"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/eventlog"
	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/model/tiny"
	"github.com/skein-rl/skein/rollout"
	"github.com/skein-rl/skein/rollout/task"
)

// The row of a demonstration log is the conversation token by token, weighed by
// who wrote what: here told apart by the segments of EncodeDemo instead.
func TestRowWeighsToolCallsTwiceAndTheEnvironmentNothing(t *testing.T) {
	m, err := tiny.Open()
	require.NoError(t, err)
	chat, err := rollout.NewModelChat(m)
	require.NoError(t, err)
	src := task.NewStore(1)
	for i := range uint64(40) {
		tk, err := src.Train(i)
		require.NoError(t, err)
		messages, err := src.DemoConversation(i, 1, rand.New(rand.NewPCG(1, i)))
		require.NoError(t, err)
		log, err := rollout.DemoLog(chat, tk, messages, eventlog.Meta{Run: "r", Group: "g"})
		require.NoError(t, err)
		require.Equal(t, eventlog.Full, log.Tier)
		row, err := Row(log)
		require.NoError(t, err)

		ids, train, err := rollout.EncodeDemo(chat, tk.Tools, messages)
		require.NoError(t, err)
		require.Equal(t, ids, append(slices.Clone(row.Prompt), row.Chosen.Tokens...))
		first := len(row.Prompt)
		require.Contains(t, chat.Decode(row.Prompt), tk.User)
		for at := first; at < len(ids); {
			end := at
			for end < len(ids) && train[end] == train[at] {
				end++
			}
			want := float32(0)
			if train[at] {
				want = eventlog.TextWeight
				if strings.Contains(chat.Decode(ids[at:end]), "<tool_call>") {
					want = eventlog.CallWeight
				}
			}
			for ; at < end; at++ {
				require.Equal(t, want, row.Chosen.Weights[at-first], "task %d, token %d", i, at)
			}
		}
	}
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
