package table

import (
	"bytes"
	"encoding/binary"
	"slices"
)

// ordered keeps entries by a key and chooses the lowest:
//
//	o order -> group
//
// box.first spares a choice the long row of deleted keys that a queue leaves
// at its head in a log-structured store.
type ordered struct {
	order func(e Entry) []byte
}

func (s ordered) insert(b *box, e Entry) error {
	k := append(b.key('o'), s.order(e)...)
	if b.first == nil || bytes.Compare(k[len(b.prefix):], b.first) < 0 {
		b.first = k[len(b.prefix):]
	}
	b.count++
	return b.kv.Set(k, []byte(e.Group))
}

func (s ordered) remove(b *box, e Entry) error {
	b.count--
	return b.kv.Delete(append(b.key('o'), s.order(e)...))
}

func (s ordered) update(b *box, old Entry, priority float64) error {
	e := old
	e.Priority = priority
	if err := s.remove(b, old); err != nil {
		return err
	}
	return s.insert(b, e)
}

func (s ordered) take(b *box, n uint64, _ *Draw) (out []Taken, err error) {
	var gone [][]byte
	var from []byte
	if b.first != nil {
		from = append(b.prefix[:len(b.prefix):len(b.prefix)], b.first...)
	}
	err = b.kv.Iterate(b.key('o'), from, func(k, v []byte) bool {
		out = append(out, Taken{string(v), 1})
		gone = append(gone, append([]byte(nil), k...))
		return uint64(len(out)) < n
	})
	if err != nil {
		return nil, err
	}
	for _, k := range gone {
		if err := b.kv.Delete(k); err != nil {
			return nil, err
		}
	}
	if n := len(gone); n > 0 {
		b.first = gone[n-1][len(b.prefix):]
	}
	b.count -= uint64(len(out))
	return out, nil
}

// Walk lists up to n groups of a FIFO set in order, from seq from on.
func (s *Set) Walk(from uint64, n int) (groups []string, seqs []uint64, err error) {
	b, err := s.open(0, "")
	if err != nil || b.count == 0 {
		return nil, nil, err
	}
	sub := slices.Clip(b.key('o'))
	start := []byte(sub.U64(from))
	if head := append(b.prefix[:len(b.prefix):len(b.prefix)], b.first...); b.first != nil && bytes.Compare(head, start) > 0 {
		start = head
	}
	err = s.kv.Iterate(sub, start, func(k, v []byte) bool {
		groups = append(groups, string(v))
		seqs = append(seqs, binary.BigEndian.Uint64(k[len(k)-8:]))
		return len(groups) < n
	})
	return groups, seqs, err
}
