package model

// shortWord is up to how many symbols a scan for the lowest rank beats a heap.
const shortWord = 48

const noRank = 1<<31 - 1

// mergeShort merges in place.
func (m *bpe) mergeShort(ids []int32) []int32 {
	var table [shortWord]bpeMerge // of the symbol with its right neighbour
	n := len(ids)
	look := func(i int) bpeMerge {
		if mg, ok := m.merges[pairKey(ids[i], ids[i+1])]; ok {
			return mg
		}
		return bpeMerge{rank: noRank}
	}
	for i := 0; i+1 < n; i++ {
		table[i] = look(i)
	}
	for n > 1 {
		best, at := int32(noRank), -1
		for i, mg := range table[:n-1] {
			if mg.rank < best {
				best, at = mg.rank, i
			}
		}
		if at < 0 {
			break
		}
		ids[at] = table[at].id
		copy(ids[at+1:n-1], ids[at+2:n])
		copy(table[at+1:n-1], table[at+2:n])
		n--
		if at+1 < n {
			table[at] = look(at)
		}
		if at > 0 {
			table[at-1] = look(at - 1)
		}
	}
	return ids[:n]
}

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

// mergeLong merges in O(n log n).
func (m *bpe) mergeLong(out, ids []int32) []int32 {
	syms := make([]symbol, len(ids))
	for i, id := range ids {
		syms[i] = symbol{id: id, prev: int32(i - 1), next: int32(i + 1)}
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
