package grammar

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/skein-rl/skein/model"
)

// Vocabulary is a tokenizer's tokens as a trie of their bytes. Immutable.
type Vocabulary struct {
	size  int      // ids
	bytes [][]byte // of each id; nil = may not be written
	stop  []int32
	nodes []trieNode // in order of depth first
	ids   []int32    // tokens by node
	max   int        // bytes of the longest token
}

type trieNode struct {
	b           byte
	depth       int32
	end         int32 // the node after this subtree
	first, last int32 // of ids: tokens that end here
}

// NewVocabulary reads the tokens of a tokenizer. stop are the ids that end the
// output. Special tokens can't be written inside a grammar, except marks, which
// count as the bytes they read as ("[TOOL_CALLS]").
func NewVocabulary(tok *model.Tokenizer, stop []int32, marks ...string) (*Vocabulary, error) {
	size := tok.VocabSize()
	tokens := make([][]byte, size)
	for id := range int32(size) {
		switch {
		case slices.Contains(stop, id):
		case !tok.IsSpecial(id):
			tokens[id] = tok.TokenBytes(id)
		case slices.Contains(marks, tok.Token(id)):
			tokens[id] = []byte(tok.Token(id))
		}
	}
	for _, id := range stop {
		if id < 0 || int(id) >= size {
			return nil, fmt.Errorf("%w: stop token %d is not in the vocabulary of %d", ErrGrammar, id, size)
		}
	}
	return newVocabulary(tokens, stop)
}

func newVocabulary(tokens [][]byte, stop []int32) (*Vocabulary, error) {
	if len(stop) == 0 {
		return nil, fmt.Errorf("%w: no stop token is given; a complete text could not end", ErrGrammar)
	}
	v := &Vocabulary{size: len(tokens), bytes: tokens, stop: stop}
	var order []int32
	for id, b := range tokens {
		if len(b) > 0 {
			order = append(order, int32(id))
			v.max = max(v.max, len(b))
		}
	}
	slices.SortStableFunc(order, func(a, b int32) int { return bytes.Compare(tokens[a], tokens[b]) })
	var path []int // nodes of the current token's bytes
	var last []byte
	for _, id := range order {
		b := tokens[id]
		n := 0
		for n < len(last) && n < len(b) && last[n] == b[n] {
			n++
		}
		for len(path) > n {
			v.nodes[path[len(path)-1]].end = int32(len(v.nodes))
			path = path[:len(path)-1]
		}
		for ; n < len(b); n++ {
			path = append(path, len(v.nodes))
			v.nodes = append(v.nodes, trieNode{b: b[n], depth: int32(n), first: int32(len(v.ids)), last: int32(len(v.ids))})
		}
		v.ids = append(v.ids, id)
		v.nodes[path[len(path)-1]].last = int32(len(v.ids))
		last = b
	}
	for _, n := range path {
		v.nodes[n].end = int32(len(v.nodes))
	}
	return v, nil
}

// Words is the length of a mask.
func (v *Vocabulary) Words() int { return (v.size + 63) / 64 }
