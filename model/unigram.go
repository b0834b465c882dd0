package model

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"unicode/utf8"
)

// unigram picks the tokens of a stretch of text with the highest sum of log
// probabilities (Kudo 2018, arXiv:1804.10959, section 3.2), by Viterbi over
// byte positions. A character that no token covers costs the lowest score less
// 10 and becomes the unknown token; neighbouring ones are one.
type unigram struct {
	scores   []float64
	trie     byteTrie
	vocab    map[string]int32
	unk      int32 // -1 = none
	unkScore float64
	fallback *[256]int32
}

const unkPenalty = 10

func newUnigram(m *unigramSpec, special []bool) (*unigram, error) {
	u := &unigram{unk: -1, vocab: make(map[string]int32, len(m.Vocab)), scores: make([]float64, len(m.Vocab))}
	if m.UnkID != nil {
		if *m.UnkID < 0 || int(*m.UnkID) >= len(m.Vocab) {
			return nil, fmt.Errorf("unk_id %d is no token of %d", *m.UnkID, len(m.Vocab))
		}
		u.unk = *m.UnkID
	}
	low := math.Inf(1)
	var keys []trieKey
	for i, p := range m.Vocab {
		if math.IsNaN(p.Score) || math.IsInf(p.Score, 0) {
			return nil, fmt.Errorf("vocab entry %d %q has score %v", i, p.Piece, p.Score)
		}
		u.scores[i], low = p.Score, min(low, p.Score)
		if p.Piece != "" && !special[i] { // special tokens are not made from text
			u.vocab[p.Piece] = int32(i)
			keys = append(keys, trieKey{p.Piece, int32(i)})
		}
	}
	if len(keys) == 0 {
		return nil, errors.New("no token can be made from text")
	}
	u.trie = newByteTrie(keys)
	u.unkScore = low - unkPenalty
	if m.ByteFallback {
		u.fallback = byteTokens(u.vocab)
	}
	return u, nil
}

// best is the best way to reach a byte position.
type best struct {
	score float64
	start int32 // where its last token starts, -1 = not reached
	id    int32
}

// append adds the tokens of a stretch to out. Without an unknown token, the
// characters that need one are left out.
func (u *unigram) append(out []int32, s string) []int32 {
	reach := make([]best, len(s)+1)
	for i := range reach {
		reach[i].start = -1
	}
	for at := 0; at < len(s); {
		_, width := utf8.DecodeRuneInString(s[at:])
		here := reach[at].score
		single := false
		u.trie.prefixes(s[at:], func(n int, id int32) {
			if score := u.scores[id] + here; reach[at+n].start < 0 || score > reach[at+n].score {
				reach[at+n] = best{score, int32(at), id}
			}
			single = single || n == width
		})
		if !single {
			if score := u.unkScore + here; reach[at+width].start < 0 || score > reach[at+width].score {
				reach[at+width] = best{score, int32(at), u.unk}
			}
		}
		at += width
	}
	// Walk back; runs of unknown are one piece.
	type piece struct{ from, to int }
	var pieces []piece
	fused := false
	for end := len(s); end > 0; {
		b := reach[end]
		if unk := b.id == u.unk; unk && fused {
			pieces[len(pieces)-1].from = int(b.start)
		} else {
			pieces = append(pieces, piece{int(b.start), end})
			fused = unk
		}
		end = int(b.start)
	}
	for _, p := range slices.Backward(pieces) {
		part := s[p.from:p.to]
		switch id, ok := u.vocab[part]; {
		case ok:
			out = append(out, id)
		case u.fallback != nil && hasAll(u.fallback, part):
			for i := range len(part) {
				out = append(out, u.fallback[part[i]])
			}
		case u.unk >= 0:
			out = append(out, u.unk)
		}
	}
	return out
}
