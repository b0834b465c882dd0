package model

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// tokenizerSpec is tokenizer.json, as far as byte-level BPE uses it.
type tokenizerSpec struct {
	Version       string          `json:"version"`
	Truncation    any             `json:"truncation"`
	Padding       any             `json:"padding"`
	AddedTokens   []AddedToken    `json:"added_tokens"`
	Normalizer    json.RawMessage `json:"normalizer"`
	PreTokenizer  *preSpec        `json:"pre_tokenizer"`
	PostProcessor json.RawMessage `json:"post_processor"`
	Decoder       json.RawMessage `json:"decoder"`
	Model         bpeSpec         `json:"model"`
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

// ParseTokenizer reads a tokenizer.json with a byte-level BPE model. Parts that
// are not implemented (other models, normalizers, pre-tokenizers) are refused
// by name. Errors wrap ErrFormat.
func ParseTokenizer(data []byte) (*Tokenizer, error) {
	var spec tokenizerSpec
	if err := json.Unmarshal(data, &spec); err != nil {
		return nil, fmt.Errorf("%w: tokenizer.json: %v", ErrFormat, err)
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
	if s.Model.Merges == nil {
		s.Model.Merges = mergeList{}
	}
	return marshalPlain(s)
}

// newTokenizer compiles a spec.
func newTokenizer(spec tokenizerSpec) (*Tokenizer, error) {
	t := &Tokenizer{spec: spec, ids: make(map[string]int32, len(spec.Model.Vocab))}
	if err := t.setVocab(spec); err != nil {
		return nil, err
	}
	if err := t.setModel(spec.Model); err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	var err error
	if t.nfc, err = parseNormalizer(spec.Normalizer); err != nil {
		return nil, err
	}
	if spec.PreTokenizer == nil {
		return nil, errors.New("pre_tokenizer is missing: only byte-level tokenizers are implemented")
	}
	byteLevel := false
	if t.pre, byteLevel, err = buildPre(*spec.PreTokenizer); err != nil {
		return nil, err
	}
	if !byteLevel {
		return nil, fmt.Errorf("pre_tokenizer %s has no ByteLevel step: only byte-level tokenizers are implemented", spec.PreTokenizer.Type)
	}
	if err := parseDecoder(spec.Decoder); err != nil {
		return nil, err
	}
	return t, t.parsePost(spec.PostProcessor)
}

const maxVocab = 1 << 24

func (t *Tokenizer) setVocab(spec tokenizerSpec) error {
	if len(spec.Model.Vocab) == 0 {
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
	for tok, id := range spec.Model.Vocab {
		if err := check(tok, id); err != nil {
			return err
		}
	}
	for _, a := range spec.AddedTokens {
		if err := check(a.Content, a.ID); err != nil {
			return err
		}
	}
	// Ids far beyond the number of tokens would make the tables huge.
	if int(size) > 16*(len(spec.Model.Vocab)+len(spec.AddedTokens))+1024 {
		return fmt.Errorf("largest id is %d for %d tokens", size-1, len(spec.Model.Vocab)+len(spec.AddedTokens))
	}
	t.tokens, t.bytes, t.special = make([]string, size), make([][]byte, size), make([]bool, size)
	set := func(tok string, id int32) error {
		if old := t.tokens[id]; old != "" && old != tok {
			return fmt.Errorf("tokens %q and %q share id %d", min(old, tok), max(old, tok), id)
		}
		if old, ok := t.ids[tok]; ok && old != id {
			return fmt.Errorf("token %q has ids %d and %d", tok, old, id)
		}
		t.tokens[id], t.ids[tok] = tok, id
		if raw, ok := rawBytes(tok); ok {
			t.bytes[id] = raw
		} else {
			t.bytes[id] = []byte(tok)
		}
		return nil
	}
	for tok, id := range spec.Model.Vocab {
		if err := set(tok, id); err != nil {
			return err
		}
	}
	var raw, normalized []AddedToken
	for _, a := range spec.AddedTokens {
		if err := set(a.Content, a.ID); err != nil {
			return err
		}
		t.special[a.ID] = a.Special
		t.added = append(t.added, a)
		if a.Normalized {
			normalized = append(normalized, a)
		} else {
			raw = append(raw, a)
		}
	}
	slices.SortStableFunc(t.added, func(a, b AddedToken) int { return cmp.Compare(a.ID, b.ID) })
	t.first, t.second = newAddedMatcher(raw), newAddedMatcher(normalized)
	return nil
}

func (t *Tokenizer) setModel(m bpeSpec) error {
	if m.Type != "" && m.Type != "BPE" {
		return fmt.Errorf("type %q is not implemented (have BPE)", m.Type)
	}
	if m.Dropout != nil && *m.Dropout != 0 {
		return fmt.Errorf("dropout %v is not implemented", *m.Dropout)
	}
	if or(m.Prefix, "") != "" || or(m.Suffix, "") != "" {
		return fmt.Errorf("continuing_subword_prefix %q and end_of_word_suffix %q are not implemented", or(m.Prefix, ""), or(m.Suffix, ""))
	}
	if m.ByteFallback {
		return errors.New("byte_fallback (SentencePiece) is not implemented: only byte-level tokenizers are")
	}
	t.bpe = bpe{unk: -1, fuseUnk: m.FuseUnk, merges: make(map[uint64]bpeMerge, len(m.Merges))}
	if u := or(m.Unk, ""); u != "" {
		id, ok := t.ids[u]
		if !ok {
			return fmt.Errorf("unk_token %q is not in the vocabulary", u)
		}
		t.bpe.unk = id
	}
	for b := range 256 {
		t.bpe.byteID[b] = -1
		if id, ok := m.Vocab[string(byteToRune[b])]; ok {
			t.bpe.byteID[b] = id
		}
	}
	for rank, pair := range m.Merges {
		a, okA := m.Vocab[pair[0]]
		b, okB := m.Vocab[pair[1]]
		id, ok := m.Vocab[pair[0]+pair[1]]
		if !ok || !okA || !okB {
			return fmt.Errorf("merge %d %q: a part or the result is not in the vocabulary", rank, pair)
		}
		// Of a repeated merge the last counts, as in the reference.
		t.bpe.merges[pairKey(a, b)] = bpeMerge{rank: int32(rank), id: id}
	}
	if m.IgnoreMerges {
		t.bpe.whole = make(map[string]int32, len(m.Vocab))
		for tok, id := range m.Vocab {
			if raw, ok := rawBytes(tok); ok {
				t.bpe.whole[string(raw)] = id
			}
		}
	}
	return nil
}

// parseNormalizer accepts none, NFC, and sequences of these.
func parseNormalizer(raw json.RawMessage) (nfc bool, err error) {
	if isNull(raw) {
		return false, nil
	}
	var n struct {
		Type        string            `json:"type"`
		Normalizers []json.RawMessage `json:"normalizers"`
	}
	if err := json.Unmarshal(raw, &n); err != nil {
		return false, fmt.Errorf("normalizer: %w", err)
	}
	switch n.Type {
	case "NFC":
		return true, nil
	case "Sequence":
		for _, r := range n.Normalizers {
			one, err := parseNormalizer(r)
			if err != nil {
				return false, err
			}
			nfc = nfc || one
		}
		return nfc, nil
	}
	return false, fmt.Errorf("normalizer %q is not implemented (have none, NFC)", n.Type)
}

func parseDecoder(raw json.RawMessage) error {
	if isNull(raw) {
		return errors.New("decoder is missing: only ByteLevel is implemented")
	}
	var d struct {
		Type string `json:"type"`
	}
	if err := json.Unmarshal(raw, &d); err != nil {
		return fmt.Errorf("decoder: %w", err)
	}
	if d.Type != "ByteLevel" {
		return fmt.Errorf("decoder %q is not implemented (have ByteLevel)", d.Type)
	}
	return nil
}

// parsePost reads which tokens stand around a lone text.
func (t *Tokenizer) parsePost(raw json.RawMessage) error {
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
	}
	if err := json.Unmarshal(raw, &p); err != nil {
		return fmt.Errorf("post_processor: %w", err)
	}
	switch p.Type {
	case "ByteLevel": // trims offsets only
		return nil
	case "Sequence":
		for _, r := range p.Processors {
			if err := t.parsePost(r); err != nil {
				return err
			}
		}
		return nil
	case "TemplateProcessing":
		seen := false
		for _, s := range p.Single {
			switch {
			case s.Sequence != nil:
				seen = true
			case s.Special == nil:
				return errors.New("post_processor TemplateProcessing: a part of single is neither SpecialToken nor Sequence")
			default:
				ids, ok := p.Tokens[s.Special.ID]
				if !ok {
					return fmt.Errorf("post_processor TemplateProcessing: special token %q has no ids", s.Special.ID)
				}
				if seen {
					t.suffix = append(t.suffix, ids.IDs...)
				} else {
					t.prefix = append(t.prefix, ids.IDs...)
				}
			}
		}
		return nil
	}
	return fmt.Errorf("post_processor %q is not implemented (have ByteLevel, TemplateProcessing, Sequence)", p.Type)
}
