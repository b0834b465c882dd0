package replay

import (
	"slices"
	"sort"
	"strings"
)

// keySet is a sorted set of keys in blocks of bounded size, so that adding and
// removing one costs a search and a short move however many there are.
type keySet struct {
	blocks [][]string // none empty
}

const keyBlock = 512

// find returns the block and place where k is or would be.
func (s *keySet) find(k string) (b, i int, ok bool) {
	b = sort.Search(len(s.blocks), func(b int) bool { bl := s.blocks[b]; return bl[len(bl)-1] >= k })
	if b == len(s.blocks) {
		return b, 0, false
	}
	i, ok = slices.BinarySearchFunc(s.blocks[b], k, strings.Compare)
	return b, i, ok
}

func (s *keySet) add(k string) {
	b, i, ok := s.find(k)
	if ok {
		return
	}
	if b == len(s.blocks) {
		if b == 0 {
			s.blocks = append(s.blocks, []string{k})
			return
		}
		b, i = b-1, len(s.blocks[b-1])
	}
	bl := slices.Insert(s.blocks[b], i, k)
	s.blocks[b] = bl
	if len(bl) > keyBlock {
		half := slices.Clone(bl[keyBlock/2:])
		s.blocks[b] = bl[:keyBlock/2]
		s.blocks = slices.Insert(s.blocks, b+1, half)
	}
}

func (s *keySet) remove(k string) {
	b, i, ok := s.find(k)
	if !ok {
		return
	}
	if s.blocks[b] = slices.Delete(s.blocks[b], i, i+1); len(s.blocks[b]) == 0 {
		s.blocks = slices.Delete(s.blocks, b, b+1)
	}
}

// keyCursor walks the keys from one on.
type keyCursor struct {
	s    *keySet
	b, i int
}

func (s *keySet) from(k string) keyCursor {
	b, i, _ := s.find(k)
	return keyCursor{s, b, i}
}

// key is the current one; ok == false at the end.
func (c *keyCursor) key() (string, bool) {
	if c.b >= len(c.s.blocks) {
		return "", false
	}
	return c.s.blocks[c.b][c.i], true
}

func (c *keyCursor) next() {
	if c.i++; c.i >= len(c.s.blocks[c.b]) {
		c.b, c.i = c.b+1, 0
	}
}
