//go:build !xla

package xla

import "github.com/skein-rl/skein/model"

// Open fails with ErrNotBuilt: this binary was built without the xla tag.
func Open(*model.Model, Options) (model.Backend, error) { return nil, ErrNotBuilt }
