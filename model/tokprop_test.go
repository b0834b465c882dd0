package model

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// tokFamilies reads every tokenizer of testdata/tokenizers/families once.
var tokFamilies = sync.OnceValue(func() map[string]*Tokenizer {
	out := map[string]*Tokenizer{}
	var t panicking
	for _, file := range familyFiles(t) {
		data, _ := readFamily(t, file)
		tok, err := ParseTokenizer(data)
		if err != nil {
			panic(err)
		}
		out[strings.TrimSuffix(filepath.Base(file), ".json.gz")] = tok
	}
	for _, name := range []string{"spm_bpe", "spm_gemma", "spm_user", "spm_unigram"} {
		data, err := os.ReadFile("testdata/tokenizers/families/" + name + ".model")
		if err != nil {
			panic(err)
		}
		if out[name], err = parseTokenizerModel(data, nil); err != nil {
			panic(err)
		}
	}
	return out
})

// panicking fails without a test at hand.
type panicking struct{ testing.TB }

func (panicking) Helper()               {}
func (panicking) FailNow()              { panic("testdata is broken") }
func (panicking) Errorf(string, ...any) {}

// TestStreamIsDecode: the pieces of a stream are whole characters and add up to
// Decode, in every family, for any ids in any portions.
func TestStreamIsDecode(t *testing.T) {
	for name, tok := range tokFamilies() {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				ids := rapid.SliceOf(rapid.Int32Range(-1, int32(tok.VocabSize()))).Draw(t, "ids")
				if rapid.Bool().Draw(t, "of a text") {
					ids = tok.Encode(rapid.String().Draw(t, "text"), false)
				}
				s := tok.NewStream()
				got := ""
				for rest := ids; len(rest) > 0; {
					n := rapid.IntRange(1, len(rest)).Draw(t, "portion")
					p := s.Push(rest[:n]...)
					rest = rest[n:]
					if !utf8.ValidString(p) {
						t.Fatalf("half a character in %q", p)
					}
					got += p
				}
				if got += s.Flush(); got != tok.Decode(ids) {
					t.Fatalf("stream %q, decode %q", got, tok.Decode(ids))
				}
			})
		})
	}
}

// TestStreamAfterPrompt: a completion's text begins with the space that Decode
// of its ids alone drops.
func TestStreamAfterPrompt(t *testing.T) {
	tok := tokFamilies()["llama2"]
	prompt, all := tok.Encode("the cat", false), tok.Encode("the cat sat", false)
	require.Equal(t, prompt, all[:len(prompt)])
	rest := all[len(prompt):]
	require.Equal(t, "sat", tok.Decode(rest))
	s := tok.NewStream(prompt...)
	require.Equal(t, " sat", s.Push(rest...)+s.Flush())
	require.Equal(t, " sat", string(joinBytes(tok, rest)))
}

func joinBytes(tok *Tokenizer, ids []int32) (b []byte) {
	for _, id := range ids {
		b = append(b, tok.TokenBytes(id)...)
	}
	return b
}

// TestStreamHoldsCharacters: bytes of an emoji come out together.
func TestStreamHoldsCharacters(t *testing.T) {
	const text = "ok 👩‍👧🇩🇪 end"
	for _, name := range []string{"gpt2", "llama2", "gemma"} {
		tok := tokFamilies()[name]
		ids := tok.Encode(text, false)
		require.Greater(t, len(ids), 6, "the emoji take several tokens")
		s := tok.NewStream()
		var pieces []string
		for _, id := range ids {
			if p := s.Push(id); p != "" {
				pieces = append(pieces, p)
			}
		}
		require.Equal(t, text, strings.Join(pieces, "")+s.Flush(), name)
	}
	// A byte that completes nothing spoils its run, as in the reference.
	tok := tokFamilies()["llama2"]
	var ids []int32
	for _, b := range []string{"<0xE4>", "<0xBD>", "<0xA0>", "<0xFF>"} {
		id, ok := tok.TokenID(b)
		require.True(t, ok)
		ids = append(ids, id)
	}
	require.Equal(t, "你", tok.Decode(ids[:3]))
	require.Equal(t, "����", tok.Decode(ids))
	require.Equal(t, []byte{0xe4}, tok.TokenBytes(ids[0]))
}

// TestSpecialsAreNotForged: no model makes a special token from text.
func TestSpecialsAreNotForged(t *testing.T) {
	for name, tok := range tokFamilies() {
		unk := map[int32]bool{}
		for _, u := range []string{"<unk>", "[UNK]", "<|end|>"} { // what stands for unknown text
			if id, ok := tok.TokenID(u); ok {
				unk[id] = true
			}
		}
		for _, a := range tok.AddedTokens() {
			for _, text := range []string{a.Content, "x " + a.Content + " y", a.Content + a.Content} {
				for _, id := range tok.Encode(text, false) {
					require.False(t, tok.IsSpecial(id) && !unk[id], "%s: %q gives %q", name, text, tok.Token(id))
				}
			}
			if a.Special {
				require.Contains(t, tok.Encode(a.Content, true), a.ID, "%s %q", name, a.Content)
			}
		}
	}
}

// TestLosslessRoundTrip: byte-level tokenizers without a normalizer keep any
// text, and any bytes up to what decoding must replace.
func TestLosslessRoundTrip(t *testing.T) {
	for _, name := range []string{"gpt2", "smollm2", "llama3", "phi4_cl100k", "o200k", "tekken", "deepseek_v3", "deepseek_coder"} {
		tok := tokFamilies()[name]
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				b := rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")
				if got := string(joinBytes(tok, tok.Encode(string(b), false))); got != string(b) {
					t.Fatalf("%q comes back as %q", b, got)
				}
				s := rapid.String().Draw(t, "text")
				if got := tok.Decode(tok.Encode(s, false)); got != s {
					t.Fatalf("%q comes back as %q", s, got)
				}
			})
		})
	}
	tok := tokFamilies()["gemma"]
	rapid.Check(t, func(t *rapid.T) {
		s := strings.ReplaceAll(rapid.String().Draw(t, "text"), "▁", "_")
		if got := tok.Decode(tok.Encode(s, false)); got != s {
			t.Fatalf("%q comes back as %q", s, got)
		}
	})
}

// TestInvalidUTF8: where bytes have no tokens, they are read as Python reads
// them with errors="replace".
func TestInvalidUTF8(t *testing.T) {
	for bad, want := range map[string]string{
		"a\xffb": "a�b", "\xf0\x9f\x98": "�", "\xf0\x9f\x98x\xc3": "�x�", "\xed\xa0\x80": "���", "\xc0\xaf": "��", "\xe2\x28\xa1": "�(�",
	} {
		for _, name := range []string{"llama2", "gemma", "mistral", "t5", "albert", "bert_uncased", "qwen2"} {
			tok := tokFamilies()[name]
			require.Equal(t, tok.Encode(want, false), tok.Encode(bad, false), "%s %q", name, bad)
		}
		require.Equal(t, want, tokFamilies()["gpt2"].Decode(tokFamilies()["gpt2"].Encode(bad, false)))
	}
}

// TestLongInput: text without a place to cut takes time in proportion; with
// SKEIN_SLOW=1 it has 1 MiB, with which a quadratic step would not end within
// the test's time.
func TestLongInput(t *testing.T) {
	n := 1 << 17
	if os.Getenv("SKEIN_SLOW") == "1" {
		n = 1 << 20
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	noise := make([]byte, n)
	for i := range noise {
		noise[i] = "abcdefgh<|é"[rnd.IntN(10)]
	}
	texts := map[string]string{"one letter": strings.Repeat("a", n), "noise": string(noise), "spaces": strings.Repeat(" ", n), "emoji": strings.Repeat("😀", n/4)}
	for _, name := range []string{"gpt2", "llama3", "llama2", "gemma", "t5", "bert_uncased", "deepseek_v3", "o200k", "falcon", "xlm_roberta"} {
		tok := tokFamilies()[name]
		for kind, text := range texts {
			ids := tok.Encode(text, false)
			if name == "gpt2" {
				require.Equal(t, text, tok.Decode(ids), kind)
			}
		}
	}
}

// TestHostileFilesAreRefused: files that would make the work grow without bound.
func TestHostileFilesAreRefused(t *testing.T) {
	data, err := os.ReadFile("testdata/tokenizers/trained.json")
	require.NoError(t, err)
	bomb := strings.TrimSuffix(strings.Repeat(`{"type":"Replace","pattern":{"String":"a"},"content":"aa"},`, 40), ",")
	deep := strings.Repeat(`{"type":"Sequence","normalizers":[`, 100) + `{"type":"NFC"}` + strings.Repeat(`]}`, 100)
	steps := strings.TrimSuffix(strings.Repeat(`{"type":"ByteLevel"},`, 40), ",")
	for _, tc := range [][3]string{
		{`"normalizer":null`, `"normalizer":{"type":"Sequence","normalizers":[` + bomb + `]}`, "more than 4096 times longer"},
		{`"normalizer":null`, `"normalizer":` + deep, "more than 8 deep"},
		{`"pre_tokenizer":{"type":"Sequence","pretokenizers":[`, `"pre_tokenizer":{"type":"Sequence","pretokenizers":[` + steps + `,`, "more than 12 steps"},
		{`"decoder":{"type":"ByteLevel"`, `"decoder":{"type":"Sequence","decoders":[` + bomb + `]},"padding":{"type":"ByteLevel"`, "more than 64 times longer"},
	} {
		require.Contains(t, string(data), tc[0])
		_, err := ParseTokenizer([]byte(strings.Replace(string(data), tc[0], tc[1], 1)))
		require.ErrorIs(t, err, ErrFormat)
		require.ErrorContains(t, err, tc[2])
	}
}

func FuzzTokenizerModel(f *testing.F) {
	for _, name := range []string{"spm_bpe", "spm_user"} {
		data, err := os.ReadFile("testdata/tokenizers/families/" + name + ".model")
		require.NoError(f, err)
		f.Add(data, "Hello  wörld <sep>")
	}
	f.Fuzz(func(t *testing.T, data []byte, text string) {
		if tok, err := parseTokenizerModel(data, nil); err == nil && len(text) < 200 {
			checkEncode(t, tok, text)
		}
	})
}

func FuzzEncode(f *testing.F) {
	f.Add("Hello, wörld! 123 <|im_end|>\n <s>[INST] 日本語 \xff e\u0301 👩‍👧")
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 2000 {
			return
		}
		for _, tok := range tokFamilies() {
			checkEncode(t, tok, text)
		}
	})
}

func checkEncode(t *testing.T, tok *Tokenizer, text string) {
	ids := tok.WithSpecials(tok.Encode(text, true))
	s := tok.NewStream()
	got := ""
	for _, id := range ids {
		if !tok.has(id) {
			t.Fatalf("id %d is no token", id)
		}
		got += s.Push(id)
	}
	if got += s.Flush(); got != tok.Decode(ids) {
		t.Fatalf("stream %q, decode %q", got, tok.Decode(ids))
	}
}
