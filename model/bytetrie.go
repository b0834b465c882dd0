package model

import (
	"cmp"
	"slices"
)

// byteTrie maps strings to ids. Nodes are numbered breadth first from the root,
// 0; the children of a node are found by binary search among its edges.
type byteTrie struct {
	id    []int32 // by node, -1 = no key ends here
	first []int32 // by node: its edges are first[n] to first[n+1]
	label []byte  // by edge; edge e leads to node e+1
	root  [256]int32
}

type trieKey struct {
	key string
	id  int32
}

// newByteTrie builds a trie; of equal keys the last one counts.
func newByteTrie(keys []trieKey) byteTrie {
	slices.SortStableFunc(keys, func(a, b trieKey) int { return cmp.Compare(a.key, b.key) })
	type node struct{ lo, hi, depth int } // keys with the same first depth bytes
	var t byteTrie
	queue := []node{{0, len(keys), 0}}
	for n := 0; n < len(queue); n++ {
		q := queue[n]
		t.first = append(t.first, int32(len(t.label)))
		t.id = append(t.id, -1)
		for q.lo < q.hi && len(keys[q.lo].key) == q.depth {
			t.id[n] = keys[q.lo].id
			q.lo++
		}
		for q.lo < q.hi {
			c := keys[q.lo].key[q.depth]
			end := q.lo + 1
			for end < q.hi && keys[end].key[q.depth] == c {
				end++
			}
			if n == 0 {
				t.root[c] = int32(len(queue))
			}
			queue = append(queue, node{q.lo, end, q.depth + 1})
			t.label = append(t.label, c)
			q.lo = end
		}
	}
	t.first = append(t.first, int32(len(t.label)))
	return t
}

// prefixes calls f for each key that s begins with, shortest first.
func (t *byteTrie) prefixes(s string, f func(n int, id int32)) {
	node := int32(0)
	for i := range len(s) {
		c := s[i]
		if i == 0 {
			node = t.root[c]
		} else {
			lo, hi := t.first[node], t.first[node+1]
			node = 0
			for lo < hi {
				mid := (lo + hi) / 2
				switch l := t.label[mid]; {
				case l == c:
					node, lo = mid+1, hi
				case l < c:
					lo = mid + 1
				default:
					hi = mid
				}
			}
		}
		if node == 0 {
			return
		}
		if id := t.id[node]; id >= 0 {
			f(i+1, id)
		}
	}
}
