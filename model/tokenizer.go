package model

import (
	"fmt"
	"slices"
	"unicode/utf8"
)

// Tokenizer turns text into token ids and back, exactly as the Hugging Face
// tokenizers library does for the same tokenizer.json. Safe for concurrent use.
// Truncation and padding stored in a file are not applied.
type Tokenizer struct {
	tokens      []string // by id, as the vocabulary spells them
	used        []bool   // by id: there is a token
	pieces      []piece  // by id: what the token contributes to text
	firstPieces map[int32]piece
	ids         map[string]int32
	added       []AddedToken // by id
	special     []bool       // by id
	first       *addedMatcher
	second      *addedMatcher // after normalising
	norm        []normStep
	pre         []preStep
	model       wordModel
	raw         bool // bytes that are no UTF-8 have tokens
	dec         *decoder
	prefix      []int32 // what WithSpecials puts around ids
	suffix      []int32

	spec tokenizerSpec // for writing
}

// Encode gives the ids of a text, without a beginning-of-sequence token. With
// special, special tokens that are written out in the text ("<|im_end|>")
// become their ids, as rendered chat templates need; without, they are text
// like any other, so that untrusted text cannot forge structure.
//
// Bytes that are no UTF-8 are kept by byte-level tokenizers that have no
// normalizer, so that Decode gives U+FFFD for them; for others they become
// U+FFFD first, one for each maximal invalid part.
func (t *Tokenizer) Encode(text string, special bool) []int32 {
	if !t.raw && !utf8.ValidString(text) {
		b, _ := appendUTF8(nil, []byte(text), true)
		text = string(b)
	}
	e := encoder{t: t, ids: make([]int32, 0, len(text)/3+1), special: special}
	t.first.split(text, special, e.normalized, e.token)
	return e.ids
}

// encoder collects the ids of one text.
type encoder struct {
	t       *Tokenizer
	ids     []int32
	special bool
}

func (e *encoder) token(id int32) { e.ids = append(e.ids, id) }

func (e *encoder) normalized(s string, first bool) {
	e.t.second.split(e.t.normalize(s), e.special, func(s string, head bool) { e.piece(s, first && head, 0) }, e.token)
}

// piece runs the pre-tokenizer from a step on.
func (e *encoder) piece(s string, first bool, step int) {
	if step == len(e.t.pre) {
		e.ids = e.t.model.append(e.ids, s)
		return
	}
	e.t.pre[step](s, first, func(s string, first bool) { e.piece(s, first, step+1) })
}

func (t *Tokenizer) normalize(s string) string {
	for _, f := range t.norm {
		s = f.apply(s)
	}
	return s
}

// WithSpecials puts the tokens around ids that the tokenizer's post-processor
// adds to a lone text (beginning and end of sequence; often none). Rendered
// chat templates bring their own and must not get them twice.
func (t *Tokenizer) WithSpecials(ids []int32) []int32 {
	out := make([]int32, 0, len(t.prefix)+len(ids)+len(t.suffix))
	return append(append(append(out, t.prefix...), ids...), t.suffix...)
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

// TokenBytes is what a token stands for anywhere but at the start of a text:
// the bytes it adds to decoded text (" the" for "Ġthe" or "▁the", one byte for
// "<0x0A>"), possibly part of a character. Special tokens give their content
// (see IsSpecial); ids without a token give nil. The caller owns the slice.
func (t *Tokenizer) TokenBytes(id int32) []byte {
	if !t.has(id) {
		return nil
	}
	return []byte(t.pieces[id].text)
}

// has reports whether an id is a token.
func (t *Tokenizer) has(id int32) bool { return id >= 0 && int(id) < len(t.used) && t.used[id] }

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
