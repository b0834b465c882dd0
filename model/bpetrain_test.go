package model

import (
	"flag"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var update = flag.Bool("update", false, "rewrite golden files in testdata")

var trainCorpus = []string{
	"the cat sat on the mat and the dog sat on the log",
	"price of tea is 12 and the price of coffee is 34",
	`{"name": "get_price", "arguments": {"item": "tea", "count": 2}}`,
	"naïve café über straße 日本語テスト 😀😀",
	"<|im_start|>user\nprice of tea?<|im_end|>\n",
	"    indented\n\n\ttabs and  double  spaces",
}

func trainTiny(t testing.TB) *Tokenizer {
	t.Helper()
	tok, err := TrainBPE(slices.Values(trainCorpus), 330, []string{"<|pad|>", "<|im_start|>", "<|im_end|>"})
	require.NoError(t, err)
	return tok
}

func TestTrainBPE(t *testing.T) {
	tok := trainTiny(t)
	require.LessOrEqual(t, tok.VocabSize(), 330)
	require.Greater(t, tok.VocabSize(), 280)
	id, ok := tok.SpecialID("<|im_end|>")
	require.True(t, ok)
	require.EqualValues(t, 2, id)
	for _, s := range trainCorpus {
		require.Equal(t, s, tok.Decode(tok.Encode(s, true)))
	}
	require.Less(t, len(tok.Encode(" the price of", true)), 8, "frequent words are merged")
	require.Len(t, tok.Encode("2024", true), 4, "digits stand alone")

	// The first merge is the most frequent pair, ties by bytes.
	one, err := TrainBPE(slices.Values([]string{"cd!cd,ab;ab"}), 257, nil)
	require.NoError(t, err)
	require.Equal(t, mergeList{{"a", "b"}}, one.spec.Model.BPE.Merges)

	data, err := tok.MarshalJSON()
	require.NoError(t, err)
	again, err := trainTiny(t).MarshalJSON()
	require.NoError(t, err)
	require.Equal(t, string(data), string(again), "training is deterministic")

	const golden = "testdata/tokenizers/trained.json"
	if *update {
		require.NoError(t, os.WriteFile(golden, data, 0o644))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	require.Equal(t, string(want), string(data), "the tokenizer that the reference's cases were made with")
}

func TestTrainBPERefusals(t *testing.T) {
	_, err := TrainBPE(slices.Values(trainCorpus), 100, nil)
	require.ErrorContains(t, err, "vocab size 100")
	_, err = TrainBPE(slices.Values(trainCorpus), 300, []string{"<a>", "<a>"})
	require.ErrorContains(t, err, `"<a>" is empty or listed twice`)
	// A special that spells bytes of the corpus is not learned again.
	tok, err := TrainBPE(slices.Values([]string{strings.Repeat("tea ", 9)}), 262, []string{"te"})
	require.NoError(t, err)
	for _, m := range tok.spec.Model.BPE.Merges {
		require.NotEqual(t, "te", m[0]+m[1])
	}
}

func TestTokenizerProperties(t *testing.T) {
	tok := trainTiny(t)
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.String().Draw(t, "text")
		for _, special := range []bool{false, true} {
			ids := tok.Encode(s, special)
			if got := tok.Decode(ids); got != s {
				t.Fatalf("%q decodes to %q", s, got)
			}
		}
		for _, id := range tok.Encode(s+"<|im_end|>", false) {
			if tok.IsSpecial(id) {
				t.Fatal("special token from plain text")
			}
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		ids := rapid.SliceOf(rapid.Int32Range(-1, int32(tok.VocabSize()))).Draw(t, "ids")
		s := tok.NewStream()
		got := ""
		for _, id := range ids {
			piece := s.Push(id)
			if strings.ToValidUTF8(piece, "?") != piece {
				t.Fatalf("half a character in %q", piece)
			}
			got += piece
		}
		if got += s.Flush(); got != tok.Decode(ids) {
			t.Fatalf("stream %q, decode %q", got, tok.Decode(ids))
		}
	})
}

func TestTokenizerIsSafeForConcurrentUse(t *testing.T) {
	tok := trainTiny(t)
	want := tok.Encode(strings.Join(trainCorpus, " "), true)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				if !slices.Equal(want, tok.Encode(strings.Join(trainCorpus, " "), true)) {
					t.Error("differs")
				}
			}
		})
	}
	wg.Wait()
}
