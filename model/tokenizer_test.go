package model

import (
	"encoding/json"
	"os"
	"slices"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
)

// TestTokenizerGolden runs on small tokenizers of our own that exercise each
// step: trained is what TrainBPE writes; split_nfc has NFC, Llama 3's pattern,
// ignore_merges and a post-processor; added has added tokens of every kind and
// every behaviour of Split.
func TestTokenizerGolden(t *testing.T) {
	for _, name := range []string{"trained", "split_nfc", "added"} {
		t.Run(name, func(t *testing.T) {
			compareWithReference(t, "testdata/tokenizers/"+name+".json", "testdata/tokenizers/"+name+".cases.json")
		})
	}
}

// The tables in unitable.go are differences to one version of Go's.
func TestUnicodeTablesFitThisGo(t *testing.T) {
	require.Equal(t, goUnicode, unicode.Version, "run genunicode.go again (see there)")
}

// TestTokenizerAgainstReference compares with cases that
// testdata/probe_tokenizer.py made with the Hugging Face library: set
// SKEIN_TOKENIZER_JSON to a tokenizer.json and SKEIN_TOKENIZER_CASES to the
// script's output.
func TestTokenizerAgainstReference(t *testing.T) {
	file, cases := os.Getenv("SKEIN_TOKENIZER_JSON"), os.Getenv("SKEIN_TOKENIZER_CASES")
	if file == "" || cases == "" {
		t.Skip("set SKEIN_TOKENIZER_JSON and SKEIN_TOKENIZER_CASES (see testdata/probe_tokenizer.py) to run this")
	}
	compareWithReference(t, file, cases)
}

func compareWithReference(t *testing.T, file, cases string) {
	t.Helper()
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	tok, err := ParseTokenizer(data)
	require.NoError(t, err)
	var want referenceCases
	data, err = os.ReadFile(cases)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &want))
	compareCases(t, tok, want)
}

// referenceCases is what testdata/probe_tokenizer.py writes.
type referenceCases struct {
	Encode []tokenizerCase
	Decode []struct {
		IDs     []int32
		Decoded string
	}
}

func compareCases(t *testing.T, tok *Tokenizer, want referenceCases) {
	t.Helper()
	require.NotEmpty(t, want.Encode)
	bad := 0
	for _, c := range want.Encode {
		got := tok.Encode(c.Text, true)
		ok := slices.Equal(c.IDs, got) && slices.Equal(c.IDsDefault, tok.WithSpecials(got)) && c.Decoded == tok.Decode(got)
		if !ok {
			if bad++; bad <= 5 {
				t.Errorf("%q:\n got %v %q\nwant %v %q (default %v)", c.Text, got, tok.Decode(got), c.IDs, c.Decoded, c.IDsDefault)
			}
		}
	}
	for _, c := range want.Decode {
		if got := tok.Decode(c.IDs); got != c.Decoded {
			if bad++; bad <= 5 {
				t.Errorf("%v decodes to %q, want %q", c.IDs, got, c.Decoded)
			}
		}
		s := tok.NewStream()
		streamed := ""
		for _, id := range c.IDs {
			streamed += s.Push(id)
		}
		require.Equal(t, c.Decoded, streamed+s.Flush())
	}
	if bad > 0 {
		t.Errorf("%d of %d cases differ", bad, len(want.Encode)+len(want.Decode))
	}
}
