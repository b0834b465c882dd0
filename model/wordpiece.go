package model

import (
	"fmt"
	"unicode/utf8"
)

// wordPiece cuts a word greedily into the longest tokens (Schuster and Nakajima
// 2012; Devlin et al. 2019): parts that begin no word are looked up with the
// prefix. A word that is too long or cannot be cut is one unknown token.
type wordPiece struct {
	vocab   map[string]int32
	prefix  string
	unk     int32
	maxLen  int // code points
	longest int // bytes of the longest token
}

func newWordPiece(m *wordPieceSpec, special []bool) (*wordPiece, error) {
	w := &wordPiece{vocab: make(map[string]int32, len(m.Vocab)), prefix: or(m.Prefix, "##"), maxLen: or(m.MaxChars, 100)}
	name := or(m.Unk, "[UNK]")
	id, ok := m.Vocab[name]
	if !ok {
		return nil, fmt.Errorf("unk_token %q is not in the vocabulary", name)
	}
	w.unk = id
	if w.maxLen < 1 || w.maxLen > 10_000 {
		return nil, fmt.Errorf("max_input_chars_per_word %d, want 1 to 10000", w.maxLen)
	}
	for tok, id := range m.Vocab {
		if special[id] { // not made from text
			continue
		}
		w.vocab[tok] = id
		w.longest = max(w.longest, len(tok))
	}
	return w, nil
}

func (w *wordPiece) append(out []int32, word string) []int32 {
	if utf8.RuneCountInString(word) > w.maxLen {
		return append(out, w.unk)
	}
	kept := len(out)
	buf := make([]byte, 0, 64)
	for start := 0; start < len(word); {
		end := min(len(word), start+w.longest)
		for end < len(word) && !utf8.RuneStart(word[end]) {
			end--
		}
		found := int32(-1)
		for ; end > start; end -= lastRuneLen(word[start:end]) {
			var id int32
			var ok bool
			if start > 0 {
				buf = append(append(buf[:0], w.prefix...), word[start:end]...)
				id, ok = w.vocab[string(buf)]
			} else {
				id, ok = w.vocab[word[:end]]
			}
			if ok {
				found = id
				break
			}
		}
		if found < 0 {
			return append(out[:kept], w.unk)
		}
		out = append(out, found)
		start = end
	}
	return out
}

func lastRuneLen(s string) int {
	_, n := utf8.DecodeLastRuneInString(s)
	return n
}
