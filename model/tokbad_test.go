package model

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseTokenizerRefusals(t *testing.T) {
	good, err := os.ReadFile("testdata/tokenizers/trained.json")
	require.NoError(t, err)
	for name, tc := range map[string]struct{ old, new, want string }{
		"not JSON":      {`{"version"`, `{version`, "tokenizer.json"},
		"model":         {`"type":"BPE"`, `"type":"WordLevel"`, `type "WordLevel"`},
		"other fields":  {`"type":"BPE"`, `"type":"WordPiece"`, `unknown field "dropout"`},
		"model field":   {`"fuse_unk":false`, `"fuse_unk":false,"alpha":0.1`, `unknown field "alpha"`},
		"file field":    {`"version"`, `"colour":1,"version"`, `unknown field "colour"`},
		"dropout":       {`"dropout":null`, `"dropout":0.1`, "dropout 0.1"},
		"normalizer":    {`"normalizer":null`, `"normalizer":{"type":"Transliterate"}`, `normalizer "Transliterate"`},
		"norm field":    {`"normalizer":null`, `"normalizer":{"type":"NFC","level":2}`, `unknown field "level"`},
		"charsmap":      {`"normalizer":null`, `"normalizer":{"type":"Precompiled","precompiled_charsmap":"/////w=="}`, `trie of 4294967295 bytes`},
		"pre":           {`"type":"Digits"`, `"type":"UnicodeScripts"`, `pre_tokenizer "UnicodeScripts"`},
		"pattern":       {`"normalizer":null`, `"normalizer":{"type":"Replace","pattern":{"Regex":"a++"},"content":""}`, "a possessive quantifier"},
		"pattern case":  {`"normalizer":null`, `"normalizer":{"type":"Replace","pattern":{"Regex":"(?i:ab)"},"content":""}`, "group (?i:"},
		"pattern class": {`"normalizer":null`, `"normalizer":{"type":"Replace","pattern":{"Regex":"[a-z&&[^b]]"},"content":""}`, "&& in a class"},
		"decoder":       {`"decoder":{"type":"ByteLevel"`, `"decoder":{"type":"CTC"`, `decoder "CTC"`},
		"decoder order": {`"decoder":{"type":"ByteLevel"`, `"decoder":{"type":"Sequence","decoders":[{"type":"Fuse"},{"type":"Replace","pattern":{"String":"a"},"content":""}]},"padding":{"type":"ByteLevel"`, `step "Replace" after`},
		"post":          {`"post_processor":null`, `"post_processor":{"type":"BertProcessing"}`, `post_processor BertProcessing: cls`},
		"post kind":     {`"post_processor":null`, `"post_processor":{"type":"Truncate"}`, `post_processor "Truncate"`},
		"post id":       {`"post_processor":null`, `"post_processor":{"type":"BertProcessing","cls":["<s>",99999],"sep":["<s>",0]}`, `id 99999 is no token`},
		"template":      {`"post_processor":null`, `"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>"}}]}`, `"<s>" has no ids`},
		"unknown token": {`"unk_token":null`, `"unk_token":"<unk>"`, `"<unk>" is not in the vocabulary`},
		"shared id":     {`"<|im_start|>":1`, `"<|im_start|>":0`, "share id 0"},
		"two ids":       {`"id":1,"content":"<|im_start|>"`, `"id":9,"content":"<|im_start|>"`, "<|im_start|>"},
		"negative id":   {`"<|im_start|>":1`, `"<|im_start|>":-1`, "id -1"},
		"huge id":       {`"<|im_start|>":1`, `"<|im_start|>":16000000`, "largest id"},
		"merge":         {`"merges":[[`, `"merges":[["q","qq"],[`, `merge 0 ["q" "qq"]`},
		"merge form":    {`"merges":[[`, `"merges":["a b c",[`, "not a pair"},
	} {
		t.Run(name, func(t *testing.T) {
			require.True(t, strings.Contains(string(good), tc.old), tc.old)
			_, err := ParseTokenizer([]byte(strings.Replace(string(good), tc.old, tc.new, 1)))
			require.ErrorIs(t, err, ErrFormat)
			require.ErrorContains(t, err, tc.want)
		})
	}
	for _, bad := range []string{"", "null", "{}", `{"model":{"vocab":{}}}`} {
		_, err := ParseTokenizer([]byte(bad))
		require.ErrorIs(t, err, ErrFormat, bad)
	}
}

func TestCheckVocab(t *testing.T) {
	tok := trainTiny(t)
	n := tok.VocabSize()
	require.NoError(t, tok.CheckVocab(n))
	require.NoError(t, tok.CheckVocab(n+63), "embeddings are often padded")
	require.ErrorContains(t, tok.CheckVocab(n-1), "belong to different models")
	require.ErrorContains(t, tok.CheckVocab(49152), "more than padding explains")
}

func FuzzTokenizer(f *testing.F) {
	for _, n := range []string{"trained", "split_nfc", "added"} {
		data, err := os.ReadFile("testdata/tokenizers/" + n + ".json")
		require.NoError(f, err)
		f.Add(data, "Hello, wörld! 123 <|im_end|>\n")
	}
	for _, file := range familyFiles(f) {
		if data, _ := readFamily(f, file); len(data) < 100_000 {
			f.Add([]byte(data), "Hello, wörld! 123 <|im_end|>\n")
		}
	}
	f.Add([]byte(`{"model":{"type":"BPE","vocab":{"a":0},"merges":[]},"pre_tokenizer":{"type":"ByteLevel"},"decoder":{"type":"ByteLevel"}}`), "a\xff")
	f.Fuzz(func(t *testing.T, data []byte, text string) {
		tok, err := ParseTokenizer(data)
		if err != nil || len(text) > 200 {
			return
		}
		checkEncode(t, tok, text)
	})
}

func BenchmarkEncode(b *testing.B) {
	tok := trainTiny(b)
	text := strings.Repeat(strings.Join(trainCorpus, "\n"), 50)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		tok.Encode(text, true)
	}
}
