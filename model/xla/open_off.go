//go:build !xla

package xla

import "github.com/skein-rl/skein/model"

// Open fails with ErrNotBuilt: this binary was built without the xla tag. Bad
// options are reported first.
func Open(_ *model.Model, o Options) (model.Backend, error) {
	if _, err := o.withDefaults(); err != nil {
		return nil, err
	}
	return nil, ErrNotBuilt
}
