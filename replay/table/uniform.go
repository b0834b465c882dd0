package table

// uniform chooses each entry with the same probability: a random position of a
// dense array.
type uniform struct{}

func (uniform) insert(b *box, e Entry) error {
	_, err := b.push(e)
	return err
}

func (uniform) remove(b *box, e Entry) error {
	pos, err := b.position(e)
	if err != nil {
		return err
	}
	_, err = b.pull(pos)
	return err
}

func (uniform) update(*box, Entry, float64) error { return nil }

func (uniform) take(b *box, n uint64, draw *Draw) (out []Taken, err error) {
	for b.count > 0 && uint64(len(out)) < n {
		pos := draw.Below(b.count)
		p := 1 / float64(b.count)
		v, err := b.at(pos)
		if err != nil {
			return nil, err
		}
		out = append(out, Taken{string(v[8:]), p})
		if _, err := b.pull(pos); err != nil {
			return nil, err
		}
	}
	return out, nil
}
