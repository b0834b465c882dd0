//go:build xla

package xla

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/gomlx/go-xla/pkg/pjrt"
	"github.com/skein-rl/skein/model"
)

// trainer implements model.Trainer for LoRA. Forward keeps each layer's input
// for every group it was given: for memory that doesn't grow with the number of
// groups, call Forward and Backward group by group (token weights of the whole
// step make that the same gradient).
type trainer struct {
	b      *backend
	cfg    model.TrainerConfig
	layout model.Layout
	lora   loraShape
	params parameters
	zeros  *pjrt.Buffer // a layer's vector of the base model
	grad   []float32

	passes []pass // of the last Forward
	inv    float32
	scored int // trained tokens of the last Forward
	valued int // and valued ones
	ready  bool
	closed bool
}

// parameters are a parameter vector on the device.
type parameters struct {
	layers []*pjrt.Buffer // one flat LoRA vector per layer
	value  *pjrt.Buffer   // [hidden], the value head's weights; nil without one
}

func (p parameters) free() {
	free(p.layers...)
	free(p.value)
}

// pass is one batch's forward: what Backward starts from.
type pass struct {
	groupBatch
	prompt *pjrt.Buffer
	ropes  []*pjrt.Buffer // cosines and sines of each of shape.ropes
	inputs []*pjrt.Buffer // of each layer; nil when not kept
	out    *pjrt.Buffer   // of the last layer
}

func (p *pass) free() {
	free(p.prompt, p.out)
	free(p.ropes...)
	free(p.inputs...)
}

// NewTrainer makes a trainer of LoRA parameters, all zero until SetParams. Full
// fine-tuning is the pure-Go backend's.
func (b *backend) NewTrainer(cfg model.TrainerConfig) (model.Trainer, error) {
	if cfg.Full {
		return nil, errors.New("xla: full fine-tuning is not available on this backend: set a LoRA adapter, or use the go backend")
	}
	lora, err := b.shape.loraShapeOf(b.model.Config, cfg.LoRA)
	if err != nil {
		return nil, err
	}
	l, err := cfg.Layout(b.model.Config)
	if err != nil {
		return nil, fmt.Errorf("xla: %w", err)
	}
	if err := b.acquire(); err != nil {
		return nil, err
	}
	t := &trainer{b: b, cfg: cfg, layout: l, lora: lora, grad: make([]float32, l.Size())}
	if t.zeros, err = b.dev.putF32(make([]float32, lora.size), lora.size); err == nil {
		err = t.SetParams(make([]float32, l.Size()))
	}
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

// Layout names the parameters.
func (t *trainer) Layout() model.Layout { return t.layout }

// SetParams replaces the parameters and drops the last Forward.
func (t *trainer) SetParams(p []float32) error {
	if t.closed {
		return errors.New("xla: the trainer is closed")
	}
	up, err := t.upload(p)
	if err != nil {
		return err
	}
	t.drop()
	t.params.free()
	t.params = up
	return nil
}

func (t *trainer) upload(p []float32) (out parameters, err error) {
	if want := t.layout.Size(); len(p) != want {
		return out, fmt.Errorf("xla: %d parameters given, the layout has %d", len(p), want)
	}
	n := t.lora.size * t.b.shape.layers
	if out.layers, err = putLayers(t.b.dev, p[:n], t.lora.size); err == nil && t.cfg.Value {
		out.value, err = t.b.dev.putF32(p[n:], t.b.shape.hidden)
	}
	if err != nil {
		out.free()
		return parameters{}, err
	}
	return out, nil
}

// putLayers uploads a flat LoRA vector, one buffer of size numbers per layer.
func putLayers(dev *device, params []float32, size int) ([]*pjrt.Buffer, error) {
	var out []*pjrt.Buffer
	for at := 0; at < len(params); at += size {
		b, err := dev.putF32(params[at:at+size], size)
		if err != nil {
			free(out...)
			return nil, err
		}
		out = append(out, b)
	}
	return out, nil
}

// Score runs forward only.
func (t *trainer) Score(ctx context.Context, groups []model.PrefixGroup, temperature float64, params []float32) (model.Scores, error) {
	batches, err := t.prepare(ctx, groups, temperature)
	if err != nil {
		return model.Scores{}, err
	}
	var with parameters
	if params == nil {
		for range t.b.shape.layers {
			with.layers = append(with.layers, t.zeros)
		}
	} else {
		if with, err = t.upload(params); err != nil {
			return model.Scores{}, err
		}
		defer with.free()
	}
	var out model.Scores
	for _, g := range batches {
		p, err := t.forward(ctx, g, with.layers, false)
		if err == nil {
			err = errors.Join(t.score(ctx, p, float32(1/temperature), &out), t.values(ctx, p, with.value, &out))
			p.free()
		}
		if err != nil {
			return model.Scores{}, err
		}
	}
	return out, nil
}

// Forward runs forward and keeps each layer's input.
func (t *trainer) Forward(ctx context.Context, groups []model.PrefixGroup, temperature float64) (model.Scores, error) {
	batches, err := t.prepare(ctx, groups, temperature)
	if err != nil {
		return model.Scores{}, err
	}
	t.drop()
	var out model.Scores
	t.inv = float32(1 / temperature)
	for _, g := range batches {
		p, err := t.forward(ctx, g, t.params.layers, true)
		if err == nil {
			t.passes = append(t.passes, *p)
			err = errors.Join(t.score(ctx, p, t.inv, &out), t.values(ctx, p, t.params.value, &out))
		}
		if err != nil {
			t.drop()
			return model.Scores{}, err
		}
	}
	t.scored, t.valued, t.ready = len(out.LogProbs), len(out.Values), true
	return out, nil
}

// drop forgets the last Forward.
func (t *trainer) drop() {
	for i := range t.passes {
		t.passes[i].free()
	}
	t.passes, t.ready = nil, false
}

func (t *trainer) prepare(ctx context.Context, groups []model.PrefixGroup, temperature float64) ([]groupBatch, error) {
	if t.closed {
		return nil, errors.New("xla: the trainer is closed")
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if !(temperature > 1e-6) || math.IsInf(temperature, 0) {
		return nil, fmt.Errorf("xla: temperature %v: want more than 0 and finite (1 scores the model's own distribution)", temperature)
	}
	return makeBatches(t.cfg, groups, t.b.shape.vocab)
}

// forward runs the layers of one batch. With keep the layers' inputs stay.
func (t *trainer) forward(ctx context.Context, g groupBatch, params []*pjrt.Buffer, keep bool) (_ *pass, err error) {
	embed, err := t.embed(g.layout)
	if err != nil {
		return nil, err
	}
	p := &pass{groupBatch: g}
	defer func() {
		if err != nil {
			p.free()
		}
	}()
	dev, w := t.b.dev, t.b.weights
	if p.prompt, err = dev.putI32([]int32{g.prompt}, 1); err != nil {
		return nil, err
	}
	ids, err := dev.putI32(g.ids, g.rows())
	if err != nil {
		return nil, err
	}
	defer free(ids)
	pos, err := dev.putI32(g.pos, g.rows())
	if err != nil {
		return nil, err
	}
	defer free(pos)
	first, err := embed.run([]*pjrt.Buffer{w.embed, ids, pos})
	if err != nil {
		return nil, err
	}
	p.out, p.ropes = first[0], first[1:]
	for l := range t.b.shape.layers {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		layer, err := t.layerForward(g.layout, t.b.shape.kinds[l])
		if err != nil {
			return nil, err
		}
		y, err := layer.run(append([]*pjrt.Buffer{p.out}, t.layerArgs(p, l, params)...))
		if err != nil {
			return nil, err
		}
		if keep {
			p.inputs = append(p.inputs, p.out)
		} else {
			free(p.out)
		}
		p.out = y[0]
	}
	return p, nil
}

// layerArgs are a layer's inputs in the order of layerInputs.
func (t *trainer) layerArgs(p *pass, l int, params []*pjrt.Buffer) []*pjrt.Buffer {
	args := []*pjrt.Buffer{p.prompt, params[l]}
	if r := t.b.shape.kinds[l].rope; r >= 0 {
		args = append(args, p.ropes[2*r], p.ropes[2*r+1])
	}
	return append(args, t.b.weights.layers[l]...)
}

// Grad is the accumulated gradient.
func (t *trainer) Grad() []float32 { return t.grad }

// ZeroGrad clears it.
func (t *trainer) ZeroGrad() { clear(t.grad) }

// Close frees parameters, activations and programs.
func (t *trainer) Close() error {
	if t.closed {
		return nil
	}
	t.closed = true
	t.drop()
	t.params.free()
	free(t.zeros)
	t.b.release()
	return nil
}
