package openai

import "github.com/skein-rl/skein/model"

// restriction is a model.Constraint on single tokens: only some are allowed,
// and some must not come among the first ones.
type restriction struct {
	allowed []int32 // nil = all
	late    []int32
	least   int // tokens until late ones may come
}

var _ model.Constraint = (*restriction)(nil)

// Allow implements model.Constraint.
func (r *restriction) Allow(mask []uint64) {
	if r.allowed != nil {
		only := make([]uint64, len(mask))
		for _, id := range r.allowed {
			only[id/64] |= 1 << (id % 64)
		}
		for i := range mask {
			mask[i] &= only[i]
		}
	}
	if r.least > 0 {
		for _, id := range r.late {
			mask[id/64] &^= 1 << (id % 64)
		}
	}
}

// Accept implements model.Constraint.
func (r *restriction) Accept(int32) error {
	r.least--
	return nil
}

// restrict makes the constraint that a job's options ask for; nil = none. Stop
// ids are what would end the answer.
func (p *params) restrict(stop []int32) model.Constraint {
	if p.allowed == nil && p.least == 0 {
		return nil
	}
	return &restriction{allowed: p.allowed, late: stop, least: p.least}
}
