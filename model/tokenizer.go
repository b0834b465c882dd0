package model

import (
	"fmt"
	"slices"
)

// Tokenizer turns text into token ids and back with byte-level BPE, exactly as
// the Hugging Face tokenizers library does for the same tokenizer.json. Safe
// for concurrent use. Truncation and padding stored in a file are not applied.
type Tokenizer struct {
	tokens  []string // by id, in the byte-level alphabet; "" where no token is
	bytes   [][]byte // by id: what the token stands for
	ids     map[string]int32
	added   []AddedToken // by id
	special []bool       // by id
	first   *addedMatcher
	second  *addedMatcher // after normalising
	nfc     bool
	pre     []preStep
	bpe     bpe
	prefix  []int32 // what WithSpecials puts around ids
	suffix  []int32

	spec tokenizerSpec // for writing
}

// Encode gives the ids of a text, without a beginning-of-sequence token. With
// special, special tokens that are written out in the text ("<|im_end|>")
// become their ids, as rendered chat templates need; without, they are text
// like any other, so that untrusted text cannot forge structure.
func (t *Tokenizer) Encode(text string, special bool) []int32 {
	ids := make([]int32, 0, len(text)/3+1)
	token := func(id int32) { ids = append(ids, id) }
	t.first.split(text, special, func(s string) {
		if t.nfc {
			s = nfcString(s)
		}
		t.second.split(s, special, func(s string) { ids = t.encodePiece(ids, s, t.pre) }, token)
	}, token)
	return ids
}

func (t *Tokenizer) encodePiece(ids []int32, piece string, steps []preStep) []int32 {
	if len(steps) == 0 {
		return t.bpe.append(ids, piece)
	}
	steps[0](piece, func(s string) { ids = t.encodePiece(ids, s, steps[1:]) })
	return ids
}

// WithSpecials puts the tokens around ids that the tokenizer's post-processor
// adds to a lone text (beginning and end of sequence; often none). Rendered
// chat templates bring their own and must not get them twice.
func (t *Tokenizer) WithSpecials(ids []int32) []int32 {
	out := make([]int32, 0, len(t.prefix)+len(ids)+len(t.suffix))
	return append(append(append(out, t.prefix...), ids...), t.suffix...)
}

// Decode gives the text of ids, special tokens included. Bytes that form no
// character become U+FFFD; ids without a token give nothing.
func (t *Tokenizer) Decode(ids []int32) string {
	var b []byte
	for _, id := range ids {
		b = append(b, t.TokenBytes(id)...)
	}
	out, _ := appendUTF8(make([]byte, 0, len(b)), b, true)
	return string(out)
}

// DecodeStream decodes ids as they arrive. The texts it returns, together with
// Flush's, are exactly Decode of all ids, and none of them ends inside a
// character. Not safe for concurrent use.
type DecodeStream struct {
	t    *Tokenizer
	held []byte
}

// NewStream starts a stream.
func (t *Tokenizer) NewStream() *DecodeStream { return &DecodeStream{t: t} }

// Push gives the text that ids complete, possibly none.
func (s *DecodeStream) Push(ids ...int32) string {
	for _, id := range ids {
		s.held = append(s.held, s.t.TokenBytes(id)...)
	}
	out, rest := appendUTF8(nil, s.held, false)
	s.held = append(s.held[:0], rest...)
	return string(out)
}

// Flush gives what an incomplete character at the end decodes to.
func (s *DecodeStream) Flush() string {
	out, _ := appendUTF8(nil, s.held, true)
	s.held = nil
	return string(out)
}

// TokenID is the id of a token given as it stands in the vocabulary: specials
// as written, others in the byte-level alphabet ("Ġthe").
func (t *Tokenizer) TokenID(token string) (int32, bool) {
	id, ok := t.ids[token]
	return id, ok
}

// SpecialID is the id of a special token such as "<|im_end|>".
func (t *Tokenizer) SpecialID(token string) (int32, bool) {
	id, ok := t.ids[token]
	return id, ok && t.special[id]
}

// IsSpecial reports whether the id is a special token.
func (t *Tokenizer) IsSpecial(id int32) bool {
	return id >= 0 && int(id) < len(t.special) && t.special[id]
}

// AddedTokens lists the added tokens by id.
func (t *Tokenizer) AddedTokens() []AddedToken { return slices.Clone(t.added) }

// Token is the vocabulary entry of an id, "" when there is none.
func (t *Tokenizer) Token(id int32) string {
	if id < 0 || int(id) >= len(t.tokens) {
		return ""
	}
	return t.tokens[id]
}

// TokenBytes is what a token contributes to decoded text; nil for an id without
// a token. The caller must not change it.
func (t *Tokenizer) TokenBytes(id int32) []byte {
	if id < 0 || int(id) >= len(t.bytes) {
		return nil
	}
	return t.bytes[id]
}

// VocabSize is one more than the largest id.
func (t *Tokenizer) VocabSize() int { return len(t.tokens) }

// maxVocabPadding is how many rows of an embedding may lie beyond the
// tokenizer's ids: exporters pad to a multiple of 64 to 1024.
const maxVocabPadding = 1024

// CheckVocab reports whether the tokenizer can belong to weights with that
// many embedding rows.
func (t *Tokenizer) CheckVocab(rows int) error {
	n := t.VocabSize()
	if n > rows {
		return fmt.Errorf("%w: tokenizer has %d tokens, the embedding %d rows: they belong to different models", ErrFormat, n, rows)
	}
	if rows-n >= maxVocabPadding {
		return fmt.Errorf("%w: tokenizer has %d tokens, the embedding %d rows, %d more than padding explains: they belong to different models", ErrFormat, n, rows, rows-n)
	}
	return nil
}
