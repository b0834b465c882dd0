package model

import (
	"encoding/json"
	"fmt"
)

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
