package model

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/text/unicode/norm"
)

// ggufOf writes a tokenizer's vocabulary as GGUF's metadata does.
func ggufOf(t *testing.T, data json.RawMessage, kind, pre string, more map[string]any) *GGUF {
	t.Helper()
	tok, err := ParseTokenizer(data)
	require.NoError(t, err)
	tokens, types, scores := make([]string, tok.VocabSize()), make([]int64, tok.VocabSize()), make([]float64, tok.VocabSize())
	added := map[int32]AddedToken{}
	for _, a := range tok.added {
		added[a.ID] = a
	}
	for i := range tokens {
		tokens[i], types[i] = tok.tokens[i], pieceNormal
		a, ok := added[int32(i)]
		switch {
		case ok && a.Special:
			types[i] = pieceControl
		case ok:
			types[i] = pieceUser
		case isByteToken(tokens[i]):
			types[i] = pieceByte
		case kind == "bert" && strings.HasPrefix(tokens[i], "##"):
			tokens[i] = tokens[i][2:]
		case kind == "bert":
			tokens[i] = "▁" + tokens[i]
		}
	}
	meta := map[string]any{"tokenizer.ggml.model": kind, "tokenizer.ggml.pre": pre, "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
	if m := tok.spec.Model.BPE; m != nil {
		var merges []string
		for _, p := range m.Merges {
			merges = append(merges, p[0]+" "+p[1])
		}
		meta["tokenizer.ggml.merges"] = merges
	}
	if m := tok.spec.Model.Unigram; m != nil {
		for i, p := range m.Vocab {
			scores[i] = p.Score
		}
		meta["tokenizer.ggml.scores"] = scores
	}
	for k, v := range more {
		meta["tokenizer.ggml."+k] = v
	}
	return &GGUF{Meta: meta}
}

// TestGGUFTokenizers reads the families' vocabularies from GGUF's metadata.
func TestGGUFTokenizers(t *testing.T) {
	bos := map[string]any{"bos_token_id": uint64(0)}
	for _, tc := range []struct {
		family, kind, pre string
		more              map[string]any
	}{
		{"gpt2", "gpt2", "gpt-2", nil},
		{"smollm2", "gpt2", "smollm", nil},
		{"llama3", "gpt2", "llama-bpe", bos},
		{"qwen2", "gpt2", "qwen2", nil},
		{"qwen35", "gpt2", "qwen35", nil},
		{"o200k", "gpt2", "gpt-4o", nil},
		{"tekken", "gpt2", "tekken", bos},
		{"deepseek_v3", "gpt2", "deepseek-v3", nil},
		{"deepseek_coder", "gpt2", "deepseek-coder", nil},
		{"falcon", "gpt2", "falcon", nil},
		{"bert_uncased", "bert", "", map[string]any{"unknown_token_id": uint64(1), "cls_token_id": uint64(2), "seperator_token_id": uint64(3)}},
		{"bert_accents", "bert", "", map[string]any{"unknown_token_id": uint64(1), "cls_token_id": uint64(2), "seperator_token_id": uint64(3), "normalizer.strip_accents": false}},
	} {
		t.Run(tc.family, func(t *testing.T) {
			data, cases := readFamily(t, "testdata/tokenizers/families/"+tc.family+".json.gz")
			tok, err := ggufTokenizer(ggufOf(t, data, tc.kind, tc.pre, tc.more))
			require.NoError(t, err)
			// GGUF has no flag for tokens that are looked for after normalising.
			kept := cases.Encode[:0]
			for _, c := range cases.Encode {
				if !strings.Contains(c.Text, "  \n") {
					kept = append(kept, c)
				}
			}
			cases.Encode = kept
			compareCases(t, tok, cases)
		})
	}
}

// TestGGUFSentencePiece reads a SentencePiece model's pieces from GGUF's
// metadata.
func TestGGUFSentencePiece(t *testing.T) {
	for _, name := range []string{"spm_bpe", "spm_unigram"} {
		p := spmProto{m: sentencePiece{collapse: true}}
		data, err := os.ReadFile("testdata/tokenizers/families/" + name + ".model")
		require.NoError(t, err)
		require.NoError(t, p.decode(data))
		meta := map[string]any{"tokenizer.ggml.model": "llama"}
		if p.m.unigram {
			meta = map[string]any{"tokenizer.ggml.model": "t5", "tokenizer.ggml.unknown_token_id": uint64(0), "tokenizer.ggml.eos_token_id": uint64(2), "tokenizer.ggml.add_space_prefix": true, "tokenizer.ggml.remove_extra_whitespaces": true}
		}
		var tokens []string
		var types []int64
		var scores []float64
		for _, piece := range p.m.pieces {
			tokens, types, scores = append(tokens, piece.text), append(types, int64(piece.kind)), append(scores, piece.score)
		}
		meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.token_type"], meta["tokenizer.ggml.scores"] = tokens, types, scores
		tok, err := ggufTokenizer(&GGUF{Meta: meta})
		require.NoError(t, err)
		var cases []tokenizerCase
		require.NoError(t, json.Unmarshal(readGzip(t, "testdata/tokenizers/families/"+name+".cases.json.gz"), &cases))
		for _, c := range cases {
			require.Equal(t, c.IDs, tok.Encode(c.Text, false), "%s %q", name, c.Text)
		}
		if p.m.unigram {
			require.Equal(t, []int32{2}, tok.WithSpecials(nil))
		} else {
			require.Equal(t, []int32{1}, tok.WithSpecials(nil))
		}
	}
}

func TestGGUFTokenizerRefusals(t *testing.T) {
	good := func() map[string]any {
		return map[string]any{
			"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": []string{"a", "b", "ab"},
			"tokenizer.ggml.merges": []string{"a b"},
		}
	}
	tok, err := ggufTokenizer(&GGUF{Meta: good()})
	require.NoError(t, err)
	require.Equal(t, []int32{2}, tok.Encode("ab", false))
	for name, tc := range map[string]struct {
		key  string
		val  any
		want string
	}{
		"model":  {"model", "rwkv", `model "rwkv" is not implemented`},
		"pre":    {"pre", "kimi-k2", `pre "kimi-k2" is not implemented`},
		"tokens": {"tokens", nil, "tokens is missing"},
		"types":  {"token_type", []int64{1}, "token_type has 1 entries, tokens 3"},
		"twice":  {"tokens", []string{"a", "b", "a"}, `"a" has ids 0 and 2`},
		"merge":  {"merges", []string{"a b c"}, "is not a pair"},
		"bos":    {"add_bos_token", true, "bos_token_id is missing"},
		"scores": {"model", "llama", "scores has 0 entries, tokens 3"},
		"map":    {"model", "bert", "unknown_token_id is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			meta := good()
			meta["tokenizer.ggml."+tc.key] = tc.val
			_, err := ggufTokenizer(&GGUF{Meta: meta})
			require.ErrorIs(t, err, ErrFormat)
			require.ErrorContains(t, err, tc.want)
		})
	}
}

// TestGGUFVocabularies runs on llama.cpp's ggml-vocab-*.gguf with their .inp and
// .out files, which are made with the models' own tokenizers: set
// SKEIN_GGUF_VOCABS to their folder.
func TestGGUFVocabularies(t *testing.T) {
	dir := os.Getenv("SKEIN_GGUF_VOCABS")
	if dir == "" {
		t.Skip("set SKEIN_GGUF_VOCABS to llama.cpp's models folder to run this")
	}
	files, err := filepath.Glob(filepath.Join(dir, "ggml-vocab-*.gguf.inp"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, inp := range files {
		file := strings.TrimSuffix(inp, ".inp")
		t.Run(filepath.Base(file), func(t *testing.T) {
			tok, _, err := OpenText(file)
			require.NoError(t, err)
			texts, err := os.ReadFile(inp)
			require.NoError(t, err)
			out, err := os.ReadFile(file + ".out")
			require.NoError(t, err)
			lines := strings.Split(string(out), "\n")
			for i, text := range strings.Split(string(texts), "\n__ggml_vocab_test__\n") {
				if strings.Contains(file, "qwen35") && !norm.NFC.IsNormalString(text) {
					continue // llama.cpp leaves out the model's NFC
				}
				var want []int32
				require.NoError(t, json.Unmarshal([]byte("["+strings.Join(strings.Fields(lines[i]), ",")+"]"), &want))
				if got := tok.Encode(text, false); !slices.Equal(got, want) {
					t.Errorf("%q:\n got %v\nwant %v", text, got, want)
				}
			}
		})
	}
}
