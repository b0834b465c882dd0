package table

import (
	"encoding/binary"
	"fmt"
)

// A sum tree over positions: every node holds 64 numbers, those of the lowest
// level the weights, those above the sums of their children.
//
//	n level index -> up to 64 x u64, trailing zeros left out
//
// Four levels reach 2^24 positions. The numbers are integers, so a sum is
// exactly that of its children however it came about.
const (
	fanBits = 6
	fan     = 1 << fanBits
	levels  = 4
)

type node []byte

func (n node) get(i uint64) uint64 {
	if uint64(len(n)) < 8*(i+1) {
		return 0
	}
	return binary.BigEndian.Uint64(n[8*i:])
}

// set returns a changed copy.
func (n node) set(i, w uint64) node {
	out := make(node, max(uint64(len(n)), 8*(i+1)))
	copy(out, n)
	binary.BigEndian.PutUint64(out[8*i:], w)
	for len(out) >= 8 && binary.BigEndian.Uint64(out[len(out)-8:]) == 0 {
		out = out[:len(out)-8]
	}
	return out
}

func (n node) sum() (s uint64) {
	for i := 0; i+8 <= len(n); i += 8 {
		s += binary.BigEndian.Uint64(n[i:])
	}
	return s
}

func (b *box) node(level, index uint64) (node, error) {
	v, _, err := b.kv.Get(b.key('n').U64(level).U64(index))
	return v, err
}

// setWeight sets the weight of a position.
func (b *box) setWeight(pos, w uint64) error {
	for level := uint64(0); level < levels; level++ {
		index, i := pos>>fanBits, pos%fan
		n, err := b.node(level, index)
		if err != nil {
			return err
		}
		old := n.get(i)
		if old == w {
			return nil // so are the sums above
		}
		n = n.set(i, w)
		k := b.key('n').U64(level).U64(index)
		if len(n) == 0 {
			err = b.kv.Delete(k)
		} else {
			err = b.kv.Set(k, n)
		}
		if err != nil {
			return err
		}
		pos, w = index, n.sum()
	}
	return nil
}

func (b *box) weightAt(pos uint64) (uint64, error) {
	n, err := b.node(0, pos>>fanBits)
	return n.get(pos % fan), err
}

func (b *box) total() (uint64, error) {
	n, err := b.node(levels-1, 0)
	return n.sum(), err
}

// find returns the position in whose share of the total the target lies.
func (b *box) find(target uint64) (pos, w uint64, err error) {
	for level := levels - 1; level >= 0; level-- {
		n, err := b.node(uint64(level), pos)
		if err != nil {
			return 0, 0, err
		}
		i := uint64(0)
		for w = n.get(0); target >= w; w = n.get(i) {
			target -= w
			if i++; i == fan {
				return 0, 0, fmt.Errorf("sum tree: level %d, node %d holds less than its sum", level, pos)
			}
		}
		pos = pos<<fanBits | i
	}
	return pos, w, nil
}
