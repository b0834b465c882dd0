package model

// bpe merges the bytes of one word into tokens (Sennrich et al. 2016,
// arXiv:1508.07909): always the pair of lowest rank, leftmost first.
type bpe struct {
	byteID [256]int32 // token of a single byte, -1 = none
	merges map[uint64]bpeMerge
	// whole, when set, maps a whole word to its token before any merging
	// (ignore_merges).
	whole   map[string]int32
	unk     int32 // -1 = none
	fuseUnk bool
}

type bpeMerge struct{ rank, id int32 }

func pairKey(a, b int32) uint64 { return uint64(uint32(a))<<32 | uint64(uint32(b)) }

// symbol is a token of the word in a doubly linked list.
type symbol struct {
	id         int32
	prev, next int32 // -1 = none
	dead       bool
}

// candidate is a possible merge of the symbol at pos with its right neighbour.
type candidate struct{ rank, pos, id int32 }

func (a candidate) less(b candidate) bool {
	return a.rank < b.rank || a.rank == b.rank && a.pos < b.pos
}

// append adds the tokens of a word to out.
func (m *bpe) append(out []int32, word string) []int32 {
	if id, ok := m.whole[word]; ok {
		return append(out, id)
	}
	syms := make([]symbol, 0, len(word))
	unk := false // the last symbol is unk
	for i := range len(word) {
		id := m.byteID[word[i]]
		if id < 0 {
			// Without an unknown token the reference drops the byte.
			if m.unk < 0 || unk && m.fuseUnk {
				continue
			}
			id, unk = m.unk, true
		} else {
			unk = false
		}
		n := int32(len(syms))
		syms = append(syms, symbol{id: id, prev: n - 1, next: n + 1})
	}
	if len(syms) == 0 {
		return out
	}
	syms[len(syms)-1].next = -1

	var heap candidates
	try := func(pos int32) {
		if pos < 0 || syms[pos].next < 0 {
			return
		}
		if mg, ok := m.merges[pairKey(syms[pos].id, syms[syms[pos].next].id)]; ok {
			heap.push(candidate{mg.rank, pos, mg.id})
		}
	}
	for i := range syms {
		try(int32(i))
	}
	for len(heap) > 0 {
		c := heap.pop()
		s := &syms[c.pos]
		if s.dead || s.next < 0 {
			continue
		}
		right := &syms[s.next]
		if mg, ok := m.merges[pairKey(s.id, right.id)]; !ok || mg.id != c.id {
			continue // one side has changed since
		}
		s.id = c.id
		right.dead = true
		s.next = right.next
		if s.next >= 0 {
			syms[s.next].prev = c.pos
		}
		try(s.prev)
		try(c.pos)
	}
	for i := int32(0); i >= 0; i = syms[i].next {
		out = append(out, syms[i].id)
	}
	return out
}

// candidates is a binary min-heap.
type candidates []candidate

func (h *candidates) push(c candidate) {
	a := append(*h, c)
	i := len(a) - 1
	for i > 0 {
		p := (i - 1) / 2
		if !a[i].less(a[p]) {
			break
		}
		a[i], a[p] = a[p], a[i]
		i = p
	}
	*h = a
}

func (h *candidates) pop() candidate {
	a := *h
	top := a[0]
	n := len(a) - 1
	a[0] = a[n]
	a = a[:n]
	for i := 0; ; {
		k := 2*i + 1
		if k >= n {
			break
		}
		if k+1 < n && a[k+1].less(a[k]) {
			k++
		}
		if !a[k].less(a[i]) {
			break
		}
		a[i], a[k] = a[k], a[i]
		i = k
	}
	*h = a
	return top
}
