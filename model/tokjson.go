package model

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// tokenizerSpec is tokenizer.json.
type tokenizerSpec struct {
	Version       string          `json:"version"`
	Truncation    json.RawMessage `json:"truncation"` // not applied
	Padding       json.RawMessage `json:"padding"`    // not applied
	AddedTokens   []AddedToken    `json:"added_tokens"`
	Normalizer    json.RawMessage `json:"normalizer"`
	PreTokenizer  json.RawMessage `json:"pre_tokenizer"`
	PostProcessor json.RawMessage `json:"post_processor"`
	Decoder       json.RawMessage `json:"decoder"`
	Model         modelSpec       `json:"model"`
}

// modelSpec is one of the models.
type modelSpec struct {
	BPE       *bpeSpec
	Unigram   *unigramSpec
	WordPiece *wordPieceSpec
}

type bpeSpec struct {
	Type         string    `json:"type"`
	Dropout      *float64  `json:"dropout"`
	Unk          *string   `json:"unk_token"`
	Prefix       *string   `json:"continuing_subword_prefix"`
	Suffix       *string   `json:"end_of_word_suffix"`
	FuseUnk      bool      `json:"fuse_unk"`
	ByteFallback bool      `json:"byte_fallback"`
	IgnoreMerges bool      `json:"ignore_merges"`
	Vocab        vocabMap  `json:"vocab"`
	Merges       mergeList `json:"merges"`
}

type unigramSpec struct {
	Type         string         `json:"type"`
	UnkID        *int32         `json:"unk_id"`
	Vocab        []unigramPiece `json:"vocab"` // by id
	ByteFallback bool           `json:"byte_fallback"`
}

// unigramPiece is written as [piece, score].
type unigramPiece struct {
	Piece string
	Score float64 // natural logarithm of a probability
}

func (p *unigramPiece) UnmarshalJSON(data []byte) error {
	var raw []json.RawMessage
	if err := json.Unmarshal(data, &raw); err != nil || len(raw) != 2 {
		return fmt.Errorf("vocab entry %.80s is not a token and its score", data)
	}
	if err := json.Unmarshal(raw[0], &p.Piece); err != nil {
		return err
	}
	return json.Unmarshal(raw[1], &p.Score)
}

func (p unigramPiece) MarshalJSON() ([]byte, error) { return marshalPlain([]any{p.Piece, p.Score}) }

type wordPieceSpec struct {
	Type     string   `json:"type"`
	Unk      *string  `json:"unk_token"`
	Prefix   *string  `json:"continuing_subword_prefix"`
	MaxChars *int     `json:"max_input_chars_per_word"` // longer words are unknown
	Vocab    vocabMap `json:"vocab"`
}

// strictJSON refuses fields that v lacks, by name.
func strictJSON(data []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("something follows the value")
	}
	return nil
}

func (m *modelSpec) UnmarshalJSON(data []byte) error {
	var head struct {
		Type   string          `json:"type"`
		Merges json.RawMessage `json:"merges"`
		Chars  json.RawMessage `json:"max_input_chars_per_word"`
		UnkID  json.RawMessage `json:"unk_id"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return fmt.Errorf("model: %w", err)
	}
	if head.Type == "" { // old files name no type
		switch {
		case head.Merges != nil:
			head.Type = "BPE"
		case head.UnkID != nil:
			head.Type = "Unigram"
		case head.Chars != nil:
			head.Type = "WordPiece"
		}
	}
	var err error
	switch head.Type {
	case "BPE":
		m.BPE = new(bpeSpec)
		err = strictJSON(data, m.BPE)
		m.BPE.Type = head.Type
	case "Unigram":
		m.Unigram = new(unigramSpec)
		err = strictJSON(data, m.Unigram)
		m.Unigram.Type = head.Type
	case "WordPiece":
		m.WordPiece = new(wordPieceSpec)
		err = strictJSON(data, m.WordPiece)
		m.WordPiece.Type = head.Type
	default:
		err = fmt.Errorf("type %q is not implemented (have BPE, Unigram, WordPiece)", head.Type)
	}
	if err != nil {
		return fmt.Errorf("model: %w", err)
	}
	return nil
}

func (m modelSpec) MarshalJSON() ([]byte, error) {
	switch {
	case m.Unigram != nil:
		return marshalPlain(m.Unigram)
	case m.WordPiece != nil:
		return marshalPlain(m.WordPiece)
	}
	b := *m.BPE
	if b.Merges == nil {
		b.Merges = mergeList{}
	}
	return marshalPlain(b)
}

// size is the number of entries.
func (m modelSpec) size() int {
	switch {
	case m.BPE != nil:
		return len(m.BPE.Vocab)
	case m.Unigram != nil:
		return len(m.Unigram.Vocab)
	case m.WordPiece != nil:
		return len(m.WordPiece.Vocab)
	}
	return 0
}

// each calls f for every entry; of a token listed twice the last counts.
func (m modelSpec) each(f func(tok string, id int32) error) error {
	vocab := vocabMap(nil)
	switch {
	case m.BPE != nil:
		vocab = m.BPE.Vocab
	case m.WordPiece != nil:
		vocab = m.WordPiece.Vocab
	case m.Unigram != nil:
		for i, p := range m.Unigram.Vocab {
			if err := f(p.Piece, int32(i)); err != nil {
				return err
			}
		}
	}
	for tok, id := range vocab {
		if err := f(tok, id); err != nil {
			return err
		}
	}
	return nil
}

// vocabMap is written in the order of ids.
type vocabMap map[string]int32

func (v vocabMap) MarshalJSON() ([]byte, error) {
	keys := make([]string, 0, len(v))
	for k := range v {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b string) int { return cmp.Or(cmp.Compare(v[a], v[b]), cmp.Compare(a, b)) })
	var b bytes.Buffer
	b.WriteByte('{')
	for i, k := range keys {
		if i > 0 {
			b.WriteByte(',')
		}
		q, err := marshalPlain(k)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, "%s:%d", q, v[k])
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// mergeList reads both forms of a merge, "a b" and ["a","b"], and writes the
// second.
type mergeList [][2]string

func (m *mergeList) UnmarshalJSON(data []byte) error {
	var raw []json.RawMessage
	if err := json.Unmarshal(data, &raw); err != nil {
		return err
	}
	*m = make(mergeList, len(raw))
	for i, r := range raw {
		var pair []string
		if len(r) > 0 && r[0] == '"' {
			var s string
			if err := json.Unmarshal(r, &s); err != nil {
				return err
			}
			pair = strings.Split(s, " ")
		} else if err := json.Unmarshal(r, &pair); err != nil {
			return err
		}
		if len(pair) != 2 {
			return fmt.Errorf("merge %d: %s is not a pair", i, r)
		}
		(*m)[i] = [2]string{pair[0], pair[1]}
	}
	return nil
}

// marshalPlain is json.Marshal without HTML escapes.
func marshalPlain(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimRight(b.Bytes(), "\n"), nil
}

// ParseTokenizer reads a tokenizer.json with a BPE, Unigram or WordPiece model.
// Parts and fields that are not implemented are refused by name. Errors wrap
// ErrFormat.
func ParseTokenizer(data []byte) (*Tokenizer, error) {
	var spec tokenizerSpec
	if err := strictJSON(data, &spec); err != nil {
		return nil, fmt.Errorf("%w: tokenizer.json: %w", ErrFormat, err)
	}
	t, err := newTokenizer(spec)
	if err != nil {
		return nil, fmt.Errorf("%w: tokenizer.json: %w", ErrFormat, err)
	}
	return t, nil
}

// MarshalJSON writes the tokenizer as a tokenizer.json that the Hugging Face
// library reads. Equal tokenizers give equal bytes.
func (t *Tokenizer) MarshalJSON() ([]byte, error) {
	s := t.spec
	s.Version = "1.0"
	s.Truncation, s.Padding = nil, nil
	if s.AddedTokens == nil {
		s.AddedTokens = []AddedToken{}
	}
	return marshalPlain(s)
}

// wordModel turns a piece of text that the pre-tokenizer cut into tokens.
type wordModel interface {
	append(out []int32, piece string) []int32
}

// newTokenizer compiles a spec.
func newTokenizer(spec tokenizerSpec) (*Tokenizer, error) {
	t := &Tokenizer{spec: spec}
	var err error
	if t.norm, err = compileNorm(spec.Normalizer); err != nil {
		return nil, err
	}
	if t.pre, err = buildPre(spec.PreTokenizer, 0); err != nil {
		return nil, err
	}
	if t.dec, err = parseDecoder(spec.Decoder); err != nil {
		return nil, err
	}
	if err := t.setVocab(); err != nil {
		return nil, err
	}
	if err := t.setModel(); err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	return t, t.parsePost(spec.PostProcessor, 0)
}

func (t *Tokenizer) setModel() (err error) {
	switch m := t.spec.Model; {
	case m.BPE != nil:
		last := len(t.pre) - 1
		bytesLast := last >= 0 && isByteLevelStep(t.spec.PreTokenizer)
		var b *bpe
		if b, err = newBPE(m.BPE, bytesLast, t.special); err == nil && b.raw {
			t.pre = t.pre[:last] // the model reads bytes itself
		}
		t.raw = b != nil && b.raw && len(t.norm) == 0
		t.model = b
	case m.Unigram != nil:
		t.model, err = newUnigram(m.Unigram, t.special)
	case m.WordPiece != nil:
		t.model, err = newWordPiece(m.WordPiece, t.special)
	}
	return err
}

// isByteLevelStep reports whether the last step of a pre_tokenizer is ByteLevel
// and no other one is.
func isByteLevelStep(raw json.RawMessage) bool {
	var s preSpec
	if json.Unmarshal(raw, &s) != nil {
		return false
	}
	if s.Type == "Sequence" && len(s.Pretokenizers) > 0 {
		last := len(s.Pretokenizers) - 1
		for _, r := range s.Pretokenizers[:last] {
			if bytes.Contains(r, []byte(`"ByteLevel"`)) {
				return false
			}
		}
		return isByteLevelStep(s.Pretokenizers[last])
	}
	return s.Type == "ByteLevel"
}

const maxVocab = 1 << 24

func (t *Tokenizer) setVocab() error {
	spec := t.spec
	entries := spec.Model.size()
	if entries == 0 {
		return errors.New("model.vocab is empty")
	}
	size := int32(0)
	check := func(tok string, id int32) error {
		if id < 0 || id >= maxVocab {
			return fmt.Errorf("token %q has id %d, want 0 to %d", tok, id, maxVocab-1)
		}
		size = max(size, id+1)
		return nil
	}
	if err := spec.Model.each(check); err != nil {
		return err
	}
	for _, a := range spec.AddedTokens {
		if err := check(a.Content, a.ID); err != nil {
			return err
		}
	}
	// Ids far beyond the number of tokens would make the tables huge.
	if int(size) > 16*(entries+len(spec.AddedTokens))+1024 {
		return fmt.Errorf("largest id is %d for %d tokens", size-1, entries+len(spec.AddedTokens))
	}
	t.tokens, t.pieces = make([]string, size), make([]piece, size)
	t.special, t.used = make([]bool, size), make([]bool, size)
	t.ids = make(map[string]int32, entries)
	set := func(tok string, id int32) error {
		if old := t.tokens[id]; t.used[id] && old != tok {
			return fmt.Errorf("tokens %q and %q share id %d", min(old, tok), max(old, tok), id)
		}
		if old, ok := t.ids[tok]; ok && old != id && spec.Model.Unigram == nil {
			return fmt.Errorf("token %q has ids %d and %d", tok, old, id)
		}
		if !utf8.ValidString(tok) {
			return fmt.Errorf("token %d %q is not UTF-8", id, tok)
		}
		t.tokens[id], t.ids[tok], t.used[id] = tok, id, true
		return nil
	}
	if err := spec.Model.each(set); err != nil {
		return err
	}
	var raw, normalized []AddedToken
	decodeAs := make(map[int32]string)
	for _, a := range spec.AddedTokens {
		if err := set(a.Content, a.ID); err != nil {
			return err
		}
		t.special[a.ID] = a.Special
		t.added = append(t.added, a)
		if !a.Normalized {
			raw = append(raw, a)
			continue
		}
		if n := t.normalize(a.Content); n != a.Content {
			// Looked for, and decoded, as the text is after normalising.
			decodeAs[a.ID], a.Content = n, n
		}
		normalized = append(normalized, a)
	}
	slices.SortStableFunc(t.added, func(a, b AddedToken) int { return cmp.Compare(a.ID, b.ID) })
	t.first, t.second = newAddedMatcher(raw), newAddedMatcher(normalized)
	t.firstPieces = make(map[int32]piece)
	for id, tok := range t.tokens {
		if !t.used[id] {
			continue
		}
		if n, ok := decodeAs[int32(id)]; ok {
			tok = n
		}
		t.pieces[id] = t.dec.token(tok, false)
		if first := t.dec.token(tok, true); first != t.pieces[id] {
			t.firstPieces[int32(id)] = first
		}
	}
	return nil
}

// parsePost reads which tokens stand around a lone text.
func (t *Tokenizer) parsePost(raw json.RawMessage, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("post_processor: sequences more than %d deep", maxDepth)
	}
	if isNull(raw) {
		return nil
	}
	var p struct {
		Type       string            `json:"type"`
		Processors []json.RawMessage `json:"processors"`
		Single     []struct {
			Special  *struct{ ID string } `json:"SpecialToken"`
			Sequence *struct{ ID string } `json:"Sequence"`
		} `json:"single"`
		Tokens map[string]struct{ IDs []int32 } `json:"special_tokens"`
		Sep    json.RawMessage                  `json:"sep"`
		Cls    json.RawMessage                  `json:"cls"`
	}
	if err := json.Unmarshal(raw, &p); err != nil {
		return fmt.Errorf("post_processor: %w", err)
	}
	known := func(id int32) error {
		if !t.has(id) {
			return fmt.Errorf("post_processor %s: id %d is no token", p.Type, id)
		}
		return nil
	}
	var before, after []int32
	switch p.Type {
	case "ByteLevel": // trims offsets only
		return nil
	case "Sequence":
		for _, r := range p.Processors {
			if err := t.parsePost(r, depth+1); err != nil {
				return err
			}
		}
		return nil
	case "BertProcessing", "RobertaProcessing":
		for _, e := range []struct {
			name string
			raw  json.RawMessage
			ids  *[]int32
		}{{"cls", p.Cls, &before}, {"sep", p.Sep, &after}} {
			var pair []json.RawMessage
			var id int32
			if err := json.Unmarshal(e.raw, &pair); err != nil || len(pair) != 2 || json.Unmarshal(pair[1], &id) != nil {
				return fmt.Errorf("post_processor %s: %s %s is not a token and its id", p.Type, e.name, e.raw)
			}
			*e.ids = []int32{id}
		}
	case "TemplateProcessing":
		sequences := 0
		for _, s := range p.Single {
			switch {
			case s.Sequence != nil:
				sequences++
			case s.Special == nil:
				return errors.New("post_processor TemplateProcessing: a part of single is neither SpecialToken nor Sequence")
			default:
				ids, ok := p.Tokens[s.Special.ID]
				if !ok {
					return fmt.Errorf("post_processor TemplateProcessing: special token %q has no ids", s.Special.ID)
				}
				if sequences > 0 {
					after = append(after, ids.IDs...)
				} else {
					before = append(before, ids.IDs...)
				}
			}
		}
		if sequences != 1 {
			return fmt.Errorf("post_processor TemplateProcessing: single holds the text %d times, want once", sequences)
		}
	default:
		return fmt.Errorf("post_processor %q is not implemented (have ByteLevel, TemplateProcessing, BertProcessing, RobertaProcessing, Sequence)", p.Type)
	}
	for _, id := range slices.Concat(before, after) {
		if err := known(id); err != nil {
			return err
		}
	}
	t.prefix = append(before, t.prefix...)
	t.suffix = append(t.suffix, after...)
	return nil
}
