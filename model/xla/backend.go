//go:build xla

package xla

import (
	"errors"
	"fmt"
	"sync"

	"github.com/skein-rl/skein/model"
)

// backend is the base weights on one or more devices.
type backend struct {
	dev     *device   // the first: compiles, decodes
	devs    []*device // all: train
	model   identity
	shape   shape
	weights *weightBuffers

	programs programCache

	mu     sync.Mutex
	open   int // decoders and trainers
	closed bool
}

// identity is what is kept of the model: not its host weights.
type identity struct {
	Config model.Config
	Digest string
}

// Open loads the model's weights on a device. The error wraps ErrNoPlugin when
// there is no plugin for it. The model's host weights are copied
// and not needed afterwards: to give their memory back, drop m.Weights.
func Open(m *model.Model, o Options) (model.Backend, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := m.Config.Validate(); err != nil {
		return nil, fmt.Errorf("xla: model %q: %w", m.Name, err)
	}
	devs, err := openDevices(o)
	if err != nil {
		return nil, err
	}
	d := devs[0]
	s := shapeOf(m.Config)
	if m.Config.Experts > m.Config.ExpertsPerToken {
		d.log.Warn("xla: a mixture of experts runs densely here: every expert for every token",
			"experts", m.Config.Experts, "experts_per_token", m.Config.ExpertsPerToken)
	}
	w, err := loadWeights(devs, s, m.Weights, o.Shard)
	if err != nil {
		return nil, errors.Join(err, d.client.Destroy())
	}
	return &backend{dev: d, devs: devs, model: identity{m.Config, m.Digest}, shape: s, weights: w}, nil
}

// Name is "xla:cpu", "xla:cuda", ...
func (b *backend) Name() string { return "xla:" + b.dev.name }

// acquire counts a user of the weights; release gives it back.
func (b *backend) acquire() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return errors.New("xla: the backend is closed")
	}
	b.open++
	return nil
}

func (b *backend) release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open--
}

// Close frees the weights and the client. Decoders and trainers go first: with
// some still open it is an error and nothing is freed. Closing twice is fine.
func (b *backend) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil
	}
	if b.open > 0 {
		return fmt.Errorf("xla: %d decoders and trainers are still open; close them before the backend", b.open)
	}
	b.closed = true
	err := b.programs.close()
	b.weights.free()
	return errors.Join(err, b.dev.client.Destroy())
}
