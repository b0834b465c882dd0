package model

import (
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func readGzip(t testing.TB, file string) []byte {
	t.Helper()
	f, err := os.Open(file)
	require.NoError(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	require.NoError(t, err)
	data, err := io.ReadAll(z)
	require.NoError(t, err)
	return data
}

// readFamily reads a tokenizer that scripts/golden_tokenizers.py made, and its
// cases.
func readFamily(t testing.TB, file string) (tokenizer json.RawMessage, cases referenceCases) {
	t.Helper()
	var family struct {
		Tokenizer json.RawMessage
		referenceCases
	}
	require.NoError(t, json.Unmarshal(readGzip(t, file), &family))
	return family.Tokenizer, family.referenceCases
}

func familyFiles(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/tokenizers/families/*.json.gz")
	require.NoError(t, err)
	files = slices.DeleteFunc(files, func(f string) bool { return strings.HasSuffix(f, ".cases.json.gz") })
	require.NotEmpty(t, files)
	return files
}

// TestTokenizerFamilies compares with the Hugging Face library on tokenizers
// built as the model families build theirs, and again after writing and reading
// them.
func TestTokenizerFamilies(t *testing.T) {
	for _, file := range familyFiles(t) {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".json.gz"), func(t *testing.T) {
			t.Parallel()
			data, cases := readFamily(t, file)
			tok, err := ParseTokenizer(data)
			require.NoError(t, err)
			compareCases(t, tok, cases)
			written, err := tok.MarshalJSON()
			require.NoError(t, err)
			again, err := ParseTokenizer(written)
			require.NoError(t, err)
			compareCases(t, again, cases)
			rewritten, err := again.MarshalJSON()
			require.NoError(t, err)
			require.Equal(t, string(written), string(rewritten))
		})
	}
}

// TestTokenizerModels compares with sentencepiece on its own files.
func TestTokenizerModels(t *testing.T) {
	for _, name := range []string{"spm_bpe", "spm_gemma", "spm_user", "spm_unigram"} {
		t.Run(name, func(t *testing.T) {
			data, err := os.ReadFile("testdata/tokenizers/families/" + name + ".model")
			require.NoError(t, err)
			tok, err := parseTokenizerModel(data, nil)
			require.NoError(t, err)
			var cases []tokenizerCase
			require.NoError(t, json.Unmarshal(readGzip(t, "testdata/tokenizers/families/"+name+".cases.json.gz"), &cases))
			require.NotEmpty(t, cases)
			bad := 0
			for _, c := range cases {
				if got := tok.Encode(c.Text, false); !slices.Equal(got, c.IDs) {
					if bad++; bad <= 5 {
						t.Errorf("%q:\n got %v %q\nwant %v %q", c.Text, got, tok.Decode(got), c.IDs, tok.Decode(c.IDs))
					}
				}
			}
			if bad > 0 {
				t.Errorf("%d of %d cases differ", bad, len(cases))
			}
		})
	}
}
