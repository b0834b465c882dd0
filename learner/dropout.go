package learner

import (
	"slices"

	"github.com/skein-rl/skein/model"
)

// dropout is that of an optimizer step: made is how many there were before it,
// use one of model's uses.
func (c Config) dropout(use, made uint64) model.Dropout {
	return model.Dropout{Rate: c.LoRADropout, Key: model.DropoutKey(c.Seed, use, made)}
}

// under gives a micro-batch's groups dropout.
func (m micro) under(d model.Dropout) []model.PrefixGroup {
	if d.Rate == 0 {
		return m.groups
	}
	groups := slices.Clone(m.groups)
	for i := range groups {
		groups[i].Dropout = d
	}
	return groups
}
