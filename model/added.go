package model

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// AddedToken is a token that is found in the text as a whole, before any
// splitting, as in tokenizer.json.
type AddedToken struct {
	ID         int32  `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"` // only between non-word characters
	LStrip     bool   `json:"lstrip"`      // takes white space on its left
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"` // looked for after normalising
	// Special tokens structure the text (turn markers, end of sequence); others
	// are ordinary text that happens to be one token.
	Special bool `json:"special"`
}

// addedMatcher finds added tokens, leftmost and longest.
type addedMatcher struct {
	tokens []AddedToken
	trie   byteTrie // to an index in tokens
}

func newAddedMatcher(tokens []AddedToken) *addedMatcher {
	m := &addedMatcher{}
	var keys []trieKey
	for _, t := range tokens {
		if t.Content != "" {
			keys = append(keys, trieKey{t.Content, int32(len(m.tokens))})
			m.tokens = append(m.tokens, t)
		}
	}
	m.trie = newByteTrie(keys)
	return m
}

// split calls text for the stretches between added tokens and token for the
// tokens, in order; first tells that a stretch begins where s does. With special
// false, special tokens are left in the text.
func (m *addedMatcher) split(s string, special bool, text func(s string, first bool), token func(int32)) {
	at := 0 // start of the text not yet given out
	for i := 0; len(m.tokens) > 0 && i < len(s); {
		t, ok := m.longest(s[i:])
		if !ok {
			i++
			continue
		}
		start, end := i, i+len(t.Content)
		i = end
		if t.Special && !special || t.SingleWord && !alone(s, start, end) {
			continue
		}
		if t.LStrip {
			start = at + len(strings.TrimRightFunc(s[at:start], unicode.IsSpace))
		}
		if t.RStrip {
			end = len(s) - len(strings.TrimLeftFunc(s[end:], unicode.IsSpace))
		}
		if start > at {
			text(s[at:start], at == 0)
		}
		token(t.ID)
		at = end
		i = max(i, end)
	}
	if at < len(s) {
		text(s[at:], at == 0)
	}
}

func (m *addedMatcher) longest(s string) (t AddedToken, ok bool) {
	if m.trie.root[s[0]] == 0 {
		return t, false
	}
	found := int32(-1)
	m.trie.prefixes(s, func(_ int, i int32) { found = i })
	if found < 0 {
		return t, false
	}
	return m.tokens[found], true
}

// alone reports whether s[start:end] has no word character next to it.
func alone(s string, start, end int) bool {
	before, _ := utf8.DecodeLastRuneInString(s[:start])
	after, _ := utf8.DecodeRuneInString(s[end:])
	return (start == 0 || !isWord(before)) && (end == len(s) || !isWord(after))
}

// isWord is \w of the reference's regular expressions: letters, marks, decimal
// digits and letter numbers, connectors, joiners.
func isWord(r rune) bool {
	r = shadow(r)
	return unicode.In(r, unicode.L, unicode.M, unicode.Nd, unicode.Nl, unicode.Pc) || r == '\u200c' || r == '\u200d' ||
		unicode.Is(unicode.Other_Alphabetic, r)
}
