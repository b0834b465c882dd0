package table

import (
	"encoding/binary"
	"fmt"

	"github.com/skein-rl/skein/replay/internal/keys"
)

// Entry is what a structure knows of a group.
type Entry struct {
	Group    string
	Seq      uint64 // order of insertion, unique
	Priority float64
	Epoch    uint64 // see Selector.Epochs
	Stratum  string // see Selector.Stratify
}

// Taken is a choice.
type Taken struct {
	Group string
	// Probability with which it was chosen among those of its stratum and
	// epoch that were there at that moment; 1 for ordered kinds.
	Probability float64
}

// box is one structure's place: the entries of one epoch and stratum.
type box struct {
	kv       KV
	prefix   keys.Key // clipped: appending copies
	exponent float64
	count    uint64
	first    []byte // ordered kinds: no key below it is in use (nil = unknown)
}

// structure is a way to keep the entries of a box and choose among them. take
// removes what it returns.
type structure interface {
	insert(b *box, e Entry) error
	remove(b *box, e Entry) error
	update(b *box, old Entry, priority float64) error
	take(b *box, n uint64, draw *Draw) ([]Taken, error)
}

func (b *box) key(sub byte) keys.Key { return b.prefix.Byte(sub) }

// getU64 reads a number that must be there.
func (b *box) getU64(k keys.Key) (uint64, error) {
	v, ok, err := b.kv.Get(k)
	if err == nil && (!ok || len(v) != 8) {
		err = fmt.Errorf("selection structure: %d bytes under key %q, want 8", len(v), []byte(k))
	}
	if err != nil {
		return 0, err
	}
	return binary.BigEndian.Uint64(v), nil
}

func (b *box) setU64(k keys.Key, n uint64) error {
	return b.kv.Set(k, binary.BigEndian.AppendUint64(nil, n))
}
