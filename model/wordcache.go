package model

import (
	"hash/maphash"
	"sync/atomic"
)

// wordCache remembers the tokens of words, the last one of each slot. Its size
// is bounded and it is safe for concurrent use.
type wordCache struct {
	seed  maphash.Seed
	slots []atomic.Pointer[cachedWord]
}

type cachedWord struct {
	word string
	ids  []int32
}

const (
	cacheSlots = 1 << 14
	cacheWord  = 48 // bytes of a word worth remembering
)

func newWordCache() wordCache {
	return wordCache{maphash.MakeSeed(), make([]atomic.Pointer[cachedWord], cacheSlots)}
}

// slot is where a word is kept; nil when it is too long.
func (c *wordCache) slot(word string) *atomic.Pointer[cachedWord] {
	if len(word) > cacheWord || c.slots == nil {
		return nil
	}
	return &c.slots[maphash.String(c.seed, word)%cacheSlots]
}
