package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/model/tiny"
)

func TestFamilyFacts(t *testing.T) {
	for family, want := range map[string]string{
		"llama2":       "context: sequences of up to 64 tokens",
		"gemma2":       "context: sequences of up to 64 tokens, a window of 8 in 1 of 2 layers\nattention: scores scaled by 0.2041, scores capped at 3\nMLP: activation gelu_pytorch_tanh\nnorms and scales: outputs of attention and MLP normed, norm weights stored minus one, embeddings times 5.65685, logits capped at 2",
		"llama-yarn":   "context: sequences of up to 128 tokens, rope scaling yarn by 4 from 32",
		"llama-bias":   "biases of q, k and v, bias of the output",
		"smollm3":      "no positions in 1 layers",
		"qwen3moe":     "experts of width",
		"phi3":         "q, k and v in one matrix, gate and up in another",
		"qwen3":        "q and k normed by head",
		"llama-linear": "rope scaling linear",
	} {
		info, err := model.Inspect("../../model/testdata/families/" + family)
		require.NoError(t, err)
		r := modelReport{Info: info}
		require.NoError(t, r.describe(1, 1, 16), family)
		require.Contains(t, strings.Join(familyFacts(info.Config), "\n"), want, family)
		require.Equal(t, info.Config.ContextLimit(), r.ContextLimit)
		require.NotEmpty(t, r.Storage, family)
	}
}

func TestInspectDescribesTheChat(t *testing.T) {
	m, err := tiny.Open()
	require.NoError(t, err)
	dir := t.TempDir() + "/m"
	require.NoError(t, m.Save(dir, model.F32))
	info, err := model.Inspect(dir)
	require.NoError(t, err)
	require.Equal(t, m.StopIDs, info.StopIDs)
	r := modelReport{Info: info}
	require.NoError(t, r.describe(1, 1, 16))
	require.Equal(t, "hermes", r.CallFormat)
	require.Empty(t, r.CallProblem)
	require.False(t, r.TemplateForks)
	require.Equal(t, "<|im_end|>", info.Chat.TurnEnd)
	require.Equal(t, 15, info.Chat.Prefix.Checked)
}
