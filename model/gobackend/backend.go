package gobackend

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/model/internal/f32"
)

// Options tune a backend; the zero value is the default.
type Options struct {
	// Threads is the most goroutines one call uses; 0 is GOMAXPROCS. Results do
	// not depend on it.
	Threads int
	// ActivationBytes is how much a trainer may keep of a batch's activations
	// instead of recomputing layers in Backward: those of as many of the last
	// layers as fit. 0 is 384 MiB, negative keeps nothing. Gradients do not depend on it.
	ActivationBytes int64
}

// DefaultActivationBytes is Options.ActivationBytes unless it is set.
const DefaultActivationBytes = 384 << 20

// backend is a packed copy of one model's weights.
type backend struct {
	m    *model.Model
	net  *net
	pool *f32.Pool
	opts Options
}

// New packs the weights of m for this machine and returns a backend over them.
// Nothing of m is needed or changed afterwards: m can be closed. It fails when a tensor has
// the wrong size or holds a NaN or an infinity, naming the tensor.
//
// The backend is safe for concurrent use; its decoders and trainers each
// belong to one goroutine.
func New(m *model.Model, opts Options) (model.Backend, error) {
	if m == nil || m.Weights == nil {
		return nil, errors.New("gobackend: the model has no weights; open it with model.Open")
	}
	if err := m.Config.Validate(); err != nil {
		return nil, fmt.Errorf("gobackend: configuration: %w", err)
	}
	if opts.Threads < 0 {
		return nil, fmt.Errorf("gobackend: threads is %d, want 0 (GOMAXPROCS) or more", opts.Threads)
	}
	if opts.Threads == 0 {
		opts.Threads = runtime.GOMAXPROCS(0)
	}
	if opts.ActivationBytes == 0 {
		opts.ActivationBytes = DefaultActivationBytes
	}
	b := &backend{m: m, pool: f32.NewPool(opts.Threads), opts: opts}
	var err error
	if b.net, err = newNet(m.Config, m.Weights, b.pool, f32.NewMemory()); err != nil {
		return nil, fmt.Errorf("gobackend: %w", err)
	}
	return b, nil
}

// Name implements model.Backend.
func (b *backend) Name() string { return "go" }

// Close implements model.Backend; memory is freed by the garbage collector.
func (b *backend) Close() error { return nil }
