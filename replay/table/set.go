package table

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/skein-rl/skein/replay/internal/keys"
)

// Set keeps the entries a selector chooses from, in one box per epoch and
// stratum:
//
//	d epoch stratum        -> count u64, first key in use
//	e epoch stratum ...    the box's structure
//
// An entry may be in a set once; removing one that is not there breaks it.
type Set struct {
	kv     KV
	prefix keys.Key
	sel    Selector
	how    structure
}

// NewSet returns the set of sel kept under prefix, which nothing else uses.
func NewSet(kv KV, prefix []byte, sel Selector) (*Set, error) {
	how, ok := structures[sel.Kind]
	if !ok {
		return nil, sel.Kind.check("selector")
	}
	return &Set{kv, slices.Clip(slices.Clone(keys.Key(prefix))), sel, how}, nil
}

func (s *Set) open(epoch uint64, stratum string) (*box, error) {
	b := &box{kv: s.kv, prefix: slices.Clip(s.prefix.Byte('e').U64(epoch).Str(stratum)), exponent: s.sel.Exponent}
	v, ok, err := s.kv.Get(s.prefix.Byte('d').U64(epoch).Str(stratum))
	if err != nil || !ok {
		return b, err
	}
	if len(v) < 8 {
		return nil, fmt.Errorf("selection structure: box of %d bytes, want 8 or more", len(v))
	}
	b.count = binary.BigEndian.Uint64(v)
	if len(v) > 8 {
		b.first = slices.Clone(v[8:])
	}
	return b, nil
}

func (s *Set) close(b *box, epoch uint64, stratum string) error {
	k := s.prefix.Byte('d').U64(epoch).Str(stratum)
	if b.count == 0 {
		return s.kv.Delete(k)
	}
	return s.kv.Set(k, append(binary.BigEndian.AppendUint64(nil, b.count), b.first...))
}

// place is the box of an entry.
func (s *Set) place(e Entry) (epoch uint64, stratum string) {
	if s.sel.Epochs {
		epoch = e.Epoch
	}
	if s.sel.Stratify != "" {
		stratum = e.Stratum
	}
	return epoch, stratum
}

func (s *Set) in(e Entry, do func(b *box) error) error {
	epoch, stratum := s.place(e)
	b, err := s.open(epoch, stratum)
	if err != nil {
		return err
	}
	if err := do(b); err != nil {
		return err
	}
	return s.close(b, epoch, stratum)
}

// Insert adds an entry.
func (s *Set) Insert(e Entry) error {
	return s.in(e, func(b *box) error { return s.how.insert(b, e) })
}

// Remove takes out an entry that is in the set, as it was inserted.
func (s *Set) Remove(e Entry) error {
	return s.in(e, func(b *box) error {
		if b.count == 0 {
			return fmt.Errorf("selection structure lacks group %q", e.Group)
		}
		return s.how.remove(b, e)
	})
}

// Update gives an entry of the set another priority.
func (s *Set) Update(e Entry, priority float64) error {
	if !s.sel.Kind.byPriority() || e.Priority == priority {
		return nil
	}
	return s.in(e, func(b *box) error { return s.how.update(b, e, priority) })
}

// Take chooses up to n entries and removes them from the set. stratum is the
// last one taken from; it moves on.
func (s *Set) Take(n int, stratum *string, draw *Draw) ([]Taken, error) {
	var out []Taken
	for len(out) < n {
		epoch, at, ok, err := s.next(*stratum)
		if err != nil {
			return nil, err
		}
		if !ok {
			break
		}
		b, err := s.open(epoch, at)
		if err != nil {
			return nil, err
		}
		want := uint64(n - len(out))
		if s.sel.Stratify != "" {
			want, *stratum = 1, at
		}
		got, err := s.how.take(b, want, draw)
		if err != nil {
			return nil, err
		}
		if len(got) == 0 {
			return nil, fmt.Errorf("selection structure: box of epoch %d, stratum %q counts %d entries and has none", epoch, at, b.count)
		}
		if err := s.close(b, epoch, at); err != nil {
			return nil, err
		}
		out = append(out, got...)
	}
	return out, nil
}

// next finds the box to choose from: of the lowest epoch that has one, the
// stratum after the last, going round.
func (s *Set) next(last string) (epoch uint64, stratum string, ok bool, err error) {
	dir := slices.Clip(s.prefix.Byte('d'))
	first := func(prefix, from []byte) error {
		return s.kv.Iterate(prefix, from, func(k, _ []byte) bool {
			if len(k) < len(dir)+8 {
				err = errors.New("selection structure: short key")
				return false
			}
			epoch, stratum, ok = binary.BigEndian.Uint64(k[len(dir):]), keys.Unescape(k[len(dir)+8:]), true
			return false
		})
	}
	if !s.sel.Epochs && s.sel.Stratify == "" { // the only box
		_, ok, err = s.kv.Get(dir.U64(0).Str(""))
		return 0, "", ok, err
	}
	if e := first(dir, nil); e != nil || err != nil || !ok || s.sel.Stratify == "" || last == "" {
		return epoch, stratum, ok, errors.Join(e, err)
	}
	lowest, wrap := epoch, stratum
	ok = false
	// The key after last's own.
	here := slices.Clip(dir.U64(lowest))
	if e := first(here, here.Str(last).Byte(0)); e != nil || err != nil {
		return 0, "", false, errors.Join(e, err)
	}
	if !ok {
		stratum = wrap
	}
	return lowest, stratum, true, nil
}
