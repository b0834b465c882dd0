package model

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"iter"
	"slices"
)

// TrainBPE learns a byte-level BPE tokenizer from a corpus (Sennrich et al.
// 2016, arXiv:1508.07909, algorithm 1, over bytes): numbers split digit by
// digit, words by GPT-2's pattern. Ids are: specials in the given order, the
// 256 bytes in the order of their printable runes, then merges as learned. Of
// pairs equally frequent the one with the smaller bytes is merged first, so the
// result depends on the corpus only. Pairs seen once are not merged, so the
// vocabulary may come out smaller than vocabSize.
func TrainBPE(corpus iter.Seq[string], vocabSize int, specials []string) (*Tokenizer, error) {
	if low := len(specials) + 256; vocabSize < low || vocabSize > maxVocab {
		return nil, fmt.Errorf("model: train bpe: vocab size %d, want %d (specials and bytes) to %d", vocabSize, low, maxVocab)
	}
	spec := tokenizerSpec{
		PreTokenizer: json.RawMessage(ggufPre["smollm"].pre),
		Decoder:      json.RawMessage(`{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true}`),
		Model:        modelSpec{BPE: &bpeSpec{Type: "BPE", Vocab: vocabMap{}}},
	}
	m := spec.Model.BPE
	for i, s := range specials {
		if _, dup := m.Vocab[s]; dup || s == "" {
			return nil, fmt.Errorf("model: train bpe: special %d %q is empty or listed twice", i, s)
		}
		m.Vocab[s] = int32(i)
		spec.AddedTokens = append(spec.AddedTokens, AddedToken{ID: int32(i), Content: s, Special: true})
	}
	tr := newBPETrainer()
	for id, tok := range tr.tokens {
		m.Vocab[byteLevel(tok)] = int32(len(specials) + id)
	}
	// A tokenizer of bytes only cuts the corpus into words.
	cutter, err := newTokenizer(spec)
	if err != nil {
		return nil, fmt.Errorf("model: train bpe: %w", err)
	}
	counts := map[string]int{}
	for text := range corpus {
		cutter.words(text, func(w string) { counts[w]++ })
	}
	tr.addWords(counts)
	for len(specials)+len(tr.tokens) < vocabSize {
		left, right, ok := tr.best()
		if !ok {
			break
		}
		a, b := byteLevel(tr.tokens[left]), byteLevel(tr.tokens[right])
		if _, taken := m.Vocab[a+b]; taken {
			// The same bytes are a token already, by another path or as a
			// special; a second id for them would never decode back.
			tr.forbid(left, right)
			continue
		}
		m.Vocab[a+b] = int32(len(specials) + len(tr.tokens))
		m.Merges = append(m.Merges, [2]string{a, b})
		tr.merge(left, right)
	}
	t, err := newTokenizer(spec)
	if err != nil {
		return nil, fmt.Errorf("model: train bpe: %w", err)
	}
	return t, nil
}

// words gives the pieces that BPE works on; special tokens are left out.
func (t *Tokenizer) words(text string, emit func(string)) {
	var cut func(piece string, first bool, step int)
	cut = func(piece string, first bool, step int) {
		if step == len(t.pre) {
			emit(piece)
			return
		}
		t.pre[step](piece, first, func(s string, first bool) { cut(s, first, step+1) })
	}
	t.first.split(text, true, func(s string, first bool) { cut(s, first, 0) }, func(int32) {})
}

type bpePair struct{ left, right int32 }

type bpeWord struct {
	syms  []int32
	count int
}

// bpeTrainer counts adjacent pairs over the distinct words and keeps the counts
// up to date merge by merge.
type bpeTrainer struct {
	tokens [][]byte // ids here start at the bytes, without specials
	byteID [256]int32
	words  []bpeWord
	count  map[bpePair]int
	where  map[bpePair]map[int32]struct{} // words that hold the pair
	banned map[bpePair]bool
}

func newBPETrainer() *bpeTrainer {
	tr := &bpeTrainer{count: map[bpePair]int{}, where: map[bpePair]map[int32]struct{}{}, banned: map[bpePair]bool{}}
	order := make([]int, 256)
	for b := range order {
		order[b] = b
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(byteToRune[a], byteToRune[b]) })
	for id, b := range order {
		tr.tokens = append(tr.tokens, []byte{byte(b)})
		tr.byteID[b] = int32(id)
	}
	return tr
}

func (tr *bpeTrainer) addWords(counts map[string]int) {
	keys := make([]string, 0, len(counts))
	for w := range counts {
		keys = append(keys, w)
	}
	slices.Sort(keys)
	for _, w := range keys {
		syms := make([]int32, len(w))
		for i := range len(w) {
			syms[i] = tr.byteID[w[i]]
		}
		n := int32(len(tr.words))
		tr.words = append(tr.words, bpeWord{syms, counts[w]})
		tr.tally(n, 1)
	}
}

// tally adds sign times a word's pairs to the counts.
func (tr *bpeTrainer) tally(n int32, sign int) {
	w := tr.words[n]
	for i := 0; i+1 < len(w.syms); i++ {
		p := bpePair{w.syms[i], w.syms[i+1]}
		if tr.count[p] += sign * w.count; tr.count[p] == 0 {
			delete(tr.count, p)
		}
		if sign > 0 {
			if tr.where[p] == nil {
				tr.where[p] = map[int32]struct{}{}
			}
			tr.where[p][n] = struct{}{}
		} else {
			delete(tr.where[p], n)
		}
	}
}

// best is the most frequent pair seen at least twice.
func (tr *bpeTrainer) best() (left, right int32, ok bool) {
	var best bpePair
	top := 1
	for p, n := range tr.count {
		if n < top || n < 2 || tr.banned[p] {
			continue
		}
		if n > top || tr.less(p, best) {
			best, top, ok = p, n, true
		}
	}
	return best.left, best.right, ok
}

func (tr *bpeTrainer) less(a, b bpePair) bool {
	return cmp.Or(bytes.Compare(tr.tokens[a.left], tr.tokens[b.left]), bytes.Compare(tr.tokens[a.right], tr.tokens[b.right])) < 0
}

func (tr *bpeTrainer) forbid(left, right int32) { tr.banned[bpePair{left, right}] = true }

// merge makes a token of the pair and rewrites the words that hold it.
func (tr *bpeTrainer) merge(left, right int32) {
	id := int32(len(tr.tokens))
	tr.tokens = append(tr.tokens, slices.Concat(tr.tokens[left], tr.tokens[right]))
	p := bpePair{left, right}
	touched := make([]int32, 0, len(tr.where[p]))
	for n := range tr.where[p] {
		touched = append(touched, n)
	}
	for _, n := range touched {
		tr.tally(n, -1)
		w := &tr.words[n]
		out := w.syms[:0]
		for i := 0; i < len(w.syms); i++ {
			if i+1 < len(w.syms) && w.syms[i] == left && w.syms[i+1] == right {
				out = append(out, id)
				i++
			} else {
				out = append(out, w.syms[i])
			}
		}
		w.syms = out
		tr.tally(n, 1)
	}
}
