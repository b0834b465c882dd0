package model

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// bpe merges the symbols of one word into tokens (Sennrich et al. 2016,
// arXiv:1508.07909): always the pair of lowest rank, leftmost first. The first
// symbols are bytes or, as in SentencePiece, characters.
type bpe struct {
	// raw words are bytes that stand for runes of the byte-level alphabet;
	// otherwise words are text.
	raw    bool
	byteID [256]int32       // raw: token of a byte, -1 = none
	vocab  map[string]int32 // tokens of single characters
	merges map[uint64]bpeMerge
	// whole, when set, maps a whole word to its token before any merging
	// (ignore_merges).
	whole   map[string]int32
	unk     int32 // -1 = none
	fuseUnk bool
	// fallback holds the tokens <0x00> to <0xFF>; a character that is no token
	// becomes those of its bytes if all are tokens.
	fallback       *[256]int32
	prefix, suffix string // of symbols that begin no word, of the last
	// spaced: no token holds a ▁ behind another character, so that a word may be
	// cut before each ▁ that follows one: no merge reaches across.
	spaced bool
	cache  wordCache
}

type bpeMerge struct{ rank, id int32 }

func pairKey(a, b int32) uint64 { return uint64(uint32(a))<<32 | uint64(uint32(b)) }

// newBPE compiles a model. raw is allowed when words come from a ByteLevel step.
// Special tokens are not made from text.
func newBPE(m *bpeSpec, raw bool, special []bool) (*bpe, error) {
	if m.Dropout != nil && *m.Dropout != 0 {
		return nil, fmt.Errorf("dropout %v is not implemented", *m.Dropout)
	}
	p := &bpe{
		unk: -1, fuseUnk: m.FuseUnk, merges: make(map[uint64]bpeMerge, len(m.Merges)), vocab: map[string]int32{}, cache: newWordCache(),
		prefix: or(m.Prefix, ""), suffix: or(m.Suffix, ""),
	}
	p.raw = raw && p.prefix == "" && p.suffix == "" && !m.ByteFallback
	if u := or(m.Unk, ""); u != "" {
		id, ok := m.Vocab[u]
		if !ok {
			return nil, fmt.Errorf("unk_token %q is not in the vocabulary", u)
		}
		p.unk = id
	}
	for b := range 256 {
		p.byteID[b] = -1
		if id, ok := m.Vocab[string(byteToRune[b])]; ok && !special[id] {
			p.byteID[b] = id
		}
	}
	around := utf8.RuneCountInString(p.prefix) + utf8.RuneCountInString(p.suffix)
	for tok, id := range m.Vocab {
		if !p.raw && len(tok) <= (1+around)*utf8.UTFMax && utf8.RuneCountInString(tok) <= 1+around && !special[id] {
			p.vocab[tok] = id
		}
	}
	if m.ByteFallback {
		p.fallback = byteTokens(m.Vocab)
	}
	for rank, pair := range m.Merges {
		a, okA := m.Vocab[pair[0]]
		b, okB := m.Vocab[pair[1]]
		if !okA || !okB || len(pair[1]) < len(p.prefix) {
			return nil, fmt.Errorf("merge %d %q: a part is not in the vocabulary", rank, pair)
		}
		id, ok := m.Vocab[pair[0]+pair[1][len(p.prefix):]]
		if !ok {
			return nil, fmt.Errorf("merge %d %q: the result is not in the vocabulary", rank, pair)
		}
		// Of a repeated merge the last counts, as in the reference.
		p.merges[pairKey(a, b)] = bpeMerge{rank: int32(rank), id: id}
	}
	_, mark := p.vocab[spaceMark]
	p.spaced = !p.raw && around == 0 && !m.IgnoreMerges && mark
	for i := 0; p.spaced && i < len(m.Merges); i++ {
		p.spaced = inSpaced(m.Merges[i][0]+m.Merges[i][1]) < 0
	}
	if m.IgnoreMerges {
		p.whole = make(map[string]int32, len(m.Vocab))
		for tok, id := range m.Vocab {
			if p.raw {
				b, ok := rawBytes(tok)
				if !ok {
					continue
				}
				tok = string(b)
			}
			if !special[id] {
				p.whole[tok] = id
			}
		}
	}
	return p, nil
}

// byteTokens is the tokens <0x00> to <0xFF>, -1 where one is missing.
func byteTokens(vocab map[string]int32) *[256]int32 {
	t := new([256]int32)
	for b := range t {
		t[b] = -1
		if id, ok := vocab[fmt.Sprintf("<0x%02X>", b)]; ok {
			t[b] = id
		}
	}
	return t
}

// append adds the tokens of a word to out.
func (m *bpe) append(out []int32, word string) []int32 {
	if id, ok := m.whole[word]; ok {
		return append(out, id)
	}
	for m.spaced {
		cut := inSpaced(word)
		if cut < 0 {
			break
		}
		out = m.word(out, word[:cut])
		word = word[cut:]
	}
	return m.word(out, word)
}

// spaceMark is SentencePiece's visible space.
const spaceMark = "▁"

// inSpaced is where the first ▁ stands that follows another character, -1 =
// nowhere.
func inSpaced(s string) int {
	at := 0
	for strings.HasPrefix(s[at:], spaceMark) {
		at += len(spaceMark)
	}
	if i := strings.Index(s[at:], spaceMark); i >= 0 {
		return at + i
	}
	return -1
}

// word adds the tokens of a word that is no token by itself.
func (m *bpe) word(out []int32, word string) []int32 {
	slot := m.cache.slot(word)
	if slot != nil {
		if e := slot.Load(); e != nil && e.word == word {
			return append(out, e.ids...)
		}
	}
	var short [shortWord]int32
	ids := short[:0]
	if m.raw {
		ids = m.bytes(ids, word)
	} else {
		ids = m.characters(ids, word)
	}
	if len(ids) > shortWord {
		return m.mergeLong(out, ids)
	}
	if len(ids) > 1 {
		ids = m.mergeShort(ids)
	}
	if slot != nil {
		slot.Store(&cachedWord{strings.Clone(word), slices.Clone(ids)})
	}
	return append(out, ids...)
}

// bytes gives the tokens of single bytes.
func (m *bpe) bytes(ids []int32, word string) []int32 {
	unk := false // the last symbol is unk
	for i := range len(word) {
		id := m.byteID[word[i]]
		if id >= 0 {
			ids, unk = append(ids, id), false
			continue
		}
		// Without an unknown token the reference drops the byte.
		if m.unk >= 0 && !(unk && m.fuseUnk) {
			ids, unk = append(ids, m.unk), true
		}
	}
	return ids
}

// characters gives the tokens of single characters. As in the reference, an
// unknown one comes after the bytes of those that follow it.
func (m *bpe) characters(ids []int32, word string) []int32 {
	unk := false // one is pending
	for i := 0; i < len(word); {
		_, n := utf8.DecodeRuneInString(word[i:])
		s := word[i : i+n]
		full := s
		if i > 0 && m.prefix != "" {
			full = m.prefix + full
		}
		if i+n == len(word) && m.suffix != "" {
			full += m.suffix
		}
		i += n
		if id, ok := m.vocab[full]; ok {
			if unk {
				ids, unk = append(ids, m.unk), false
			}
			ids = append(ids, id)
			continue
		}
		if m.fallback != nil && hasAll(m.fallback, full) {
			for j := range len(full) {
				ids = append(ids, m.fallback[full[j]])
			}
			continue
		}
		if m.unk < 0 {
			continue
		}
		if unk && !m.fuseUnk {
			ids = append(ids, m.unk)
		}
		unk = true
	}
	if unk {
		ids = append(ids, m.unk)
	}
	return ids
}

func hasAll(t *[256]int32, s string) bool {
	for i := range len(s) {
		if t[s[i]] < 0 {
			return false
		}
	}
	return true
}
