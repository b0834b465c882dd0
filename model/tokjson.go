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
