package table

import (
	"encoding/binary"
	"fmt"
)

// A dense array keeps the entries at positions 0 to count-1, so that a random
// position is a random entry:
//
//	a position -> seq u64, group
//	b seq      -> position
//
// Removing moves the last entry into the gap.

func (b *box) push(e Entry) (pos uint64, err error) {
	if b.count >= maxEntries {
		return 0, fmt.Errorf("selection structure holds %d entries, its most", b.count)
	}
	pos = b.count
	b.count++
	return pos, b.place(pos, append(binary.BigEndian.AppendUint64(nil, e.Seq), e.Group...))
}

func (b *box) place(pos uint64, v []byte) error {
	if err := b.kv.Set(b.key('a').U64(pos), v); err != nil {
		return err
	}
	return b.setU64(b.key('b').U64(binary.BigEndian.Uint64(v)), pos)
}

func (b *box) at(pos uint64) ([]byte, error) {
	v, ok, err := b.kv.Get(b.key('a').U64(pos))
	if err == nil && (!ok || len(v) < 8) {
		err = fmt.Errorf("selection structure lacks position %d of %d", pos, b.count)
	}
	return v, err
}

func (b *box) position(e Entry) (uint64, error) { return b.getU64(b.key('b').U64(e.Seq)) }

// pull removes position pos; moved says whether the last entry is there now.
func (b *box) pull(pos uint64) (moved bool, err error) {
	v, err := b.at(pos)
	if err != nil {
		return false, err
	}
	last := b.count - 1
	b.count--
	if err := b.kv.Delete(b.key('b').U64(binary.BigEndian.Uint64(v))); err != nil {
		return false, err
	}
	if pos != last {
		w, err := b.at(last)
		if err != nil {
			return false, err
		}
		if err := b.place(pos, w); err != nil {
			return false, err
		}
	}
	return pos != last, b.kv.Delete(b.key('a').U64(last))
}
