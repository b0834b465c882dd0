package table

// prioritized chooses entry i with probability p_i^a / sum_k p_k^a: proportional
// prioritisation of Schaul et al. 2016, eq. 1, as in Reverb. When every weight
// is 0 the choice is uniform, as in Reverb.
//
// Departure: the choices of one call are distinct, each made among those that
// remain. Taken.Probability is that of the moment of choice.
type prioritized struct{}

func (prioritized) insert(b *box, e Entry) error {
	pos, err := b.push(e)
	if err != nil {
		return err
	}
	return b.setWeight(pos, weight(e.Priority, b.exponent))
}

func (s prioritized) remove(b *box, e Entry) error {
	pos, err := b.position(e)
	if err != nil {
		return err
	}
	return s.pull(b, pos)
}

func (prioritized) pull(b *box, pos uint64) error {
	last := b.count - 1
	w, err := b.weightAt(last)
	if err != nil {
		return err
	}
	moved, err := b.pull(pos)
	if err != nil {
		return err
	}
	if moved {
		if err := b.setWeight(pos, w); err != nil {
			return err
		}
	}
	return b.setWeight(last, 0)
}

func (prioritized) update(b *box, old Entry, priority float64) error {
	pos, err := b.position(old)
	if err != nil {
		return err
	}
	return b.setWeight(pos, weight(priority, b.exponent))
}

func (s prioritized) take(b *box, n uint64, draw *Draw) (out []Taken, err error) {
	for b.count > 0 && uint64(len(out)) < n {
		total, err := b.total()
		if err != nil {
			return nil, err
		}
		var pos uint64
		p := 1 / float64(b.count)
		if total == 0 {
			pos = draw.Below(b.count)
		} else {
			var w uint64
			if pos, w, err = b.find(draw.Below(total)); err != nil {
				return nil, err
			}
			p = float64(w) / float64(total)
		}
		v, err := b.at(pos)
		if err != nil {
			return nil, err
		}
		out = append(out, Taken{string(v[8:]), p})
		if err := s.pull(b, pos); err != nil {
			return nil, err
		}
	}
	return out, nil
}
