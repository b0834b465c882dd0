//go:build xla

package xla

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/gomlx/go-xla/pkg/pjrt"
	"github.com/skein-rl/skein/model"
)

// trainer implements model.Trainer for LoRA. Forward keeps each layer's input
// for every group it was given: for memory that doesn't grow with the number of
// groups, call Forward and Backward group by group (token weights of the whole
// step make that the same gradient). Everything is per batch of groups, summed in
// the order of batches on the host, so the number of devices changes no bit.
type trainer struct {
	b      *backend
	cfg    model.TrainerConfig
	layout model.Layout
	lora   loraShapes
	lanes  []*lane
	grad   []float32

	passes []*pass // of the last Forward, one per batch
	inv    float32
	scored int // trained tokens of the last Forward
	valued int // and valued ones
	ready  bool
	closed bool
}

// pass is one batch's forward: what Backward starts from.
type pass struct {
	groupBatch
	prompt *pjrt.Buffer
	places *pjrt.Buffer
	drop   []*pjrt.Buffer // halves of the rows' keys; nil without dropout
	ropes  []*pjrt.Buffer // cosines and sines of each of shape.ropes
	inputs []*pjrt.Buffer // of each layer; nil when not kept
	out    *pjrt.Buffer   // of the last layer
}

func (p *pass) free() {
	free(p.prompt, p.places, p.out)
	free(p.drop...)
	free(p.ropes...)
	free(p.inputs...)
}

// NewTrainer makes a trainer of LoRA parameters, all zero until SetParams. Full
// fine-tuning is the pure-Go backend's.
func (b *backend) NewTrainer(cfg model.TrainerConfig) (model.Trainer, error) {
	if cfg.Full {
		return nil, errors.New("xla: full fine-tuning is not available on this backend: set a LoRA adapter, or use the go backend")
	}
	lora, err := b.shape.loraShapes(b.model.Config, cfg.LoRA)
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
	for _, d := range b.devs {
		lane := &lane{t: t, dev: d, zeros: map[int]*pjrt.Buffer{}}
		t.lanes = append(t.lanes, lane)
		for _, s := range lora {
			if lane.zeros[s.size] != nil {
				continue
			}
			if lane.zeros[s.size], err = d.putF32(make([]float32, s.size), s.size); err != nil {
				return nil, errors.Join(err, t.Close())
			}
		}
	}
	if err := t.SetParams(make([]float32, l.Size())); err != nil {
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
	if err := t.checkSize(p); err != nil {
		return err
	}
	ups := make([]parameters, len(t.lanes))
	for i, l := range t.lanes {
		var err error
		if ups[i], _, err = l.upload(p); err != nil {
			for _, up := range ups[:i] {
				up.free()
			}
			return err
		}
	}
	t.drop()
	for i, l := range t.lanes {
		l.params.free()
		l.params = ups[i]
	}
	return nil
}

func (t *trainer) checkSize(p []float32) error {
	if want := t.layout.Size(); len(p) != want {
		return fmt.Errorf("xla: %d parameters given, the layout has %d", len(p), want)
	}
	return nil
}

// Score runs forward only.
func (t *trainer) Score(ctx context.Context, groups []model.PrefixGroup, temperature float64, params []float32) (model.Scores, error) {
	batches, err := t.prepare(ctx, groups, temperature)
	if err == nil && params != nil {
		err = t.checkSize(params)
	}
	if err != nil {
		return model.Scores{}, err
	}
	with := make([]parameters, len(t.lanes))
	for i, l := range t.lanes[:min(len(t.lanes), len(batches))] {
		var done func()
		if with[i], done, err = l.upload(params); err != nil {
			return model.Scores{}, err
		}
		defer done()
	}
	outs := make([]model.Scores, len(batches))
	err = t.deal(ctx, len(batches), func(ctx context.Context, l *lane, i int) error {
		own := with[l.dev.index]
		p, err := l.forward(ctx, batches[i], own.layers, false)
		if err != nil {
			return err
		}
		defer p.free()
		return errors.Join(l.score(ctx, p, float32(1/temperature), &outs[i]), l.values(ctx, p, own.value, &outs[i]))
	})
	if err != nil {
		return model.Scores{}, err
	}
	return joined(batches, outs), nil
}

// joined puts batches' scores into their places.
func joined(batches []groupBatch, parts []model.Scores) (out model.Scores) {
	scored, valued := 0, 0
	for _, b := range batches {
		scored, valued = scored+len(b.at), valued+len(b.valuedAt)
	}
	put := func(to *[]float32, n int, at []int32, x []float32) {
		if len(x) == 0 {
			return
		}
		if *to == nil {
			*to = make([]float32, n)
		}
		for i, k := range at {
			(*to)[k] = x[i]
		}
	}
	for i, s := range parts {
		at := batches[i].at
		for _, x := range []struct {
			to *[]float32
			x  []float32
		}{{&out.LogProbs, s.LogProbs}, {&out.Entropy, s.Entropy}, {&out.MeanLogProb, s.MeanLogProb}, {&out.LogSumSq, s.LogSumSq}} {
			put(x.to, scored, at, x.x)
		}
		put(&out.Values, valued, batches[i].valuedAt, s.Values)
	}
	return out
}

// Forward runs forward and keeps each layer's input.
func (t *trainer) Forward(ctx context.Context, groups []model.PrefixGroup, temperature float64) (model.Scores, error) {
	batches, err := t.prepare(ctx, groups, temperature)
	if err != nil {
		return model.Scores{}, err
	}
	t.drop()
	t.inv = float32(1 / temperature)
	t.passes = make([]*pass, len(batches))
	outs := make([]model.Scores, len(batches))
	err = t.deal(ctx, len(batches), func(ctx context.Context, l *lane, i int) error {
		p, err := l.forward(ctx, batches[i], l.params.layers, true)
		if err != nil {
			return err
		}
		t.passes[i] = p
		return errors.Join(l.score(ctx, p, t.inv, &outs[i]), l.values(ctx, p, l.params.value, &outs[i]))
	})
	if err != nil {
		t.drop()
		return model.Scores{}, err
	}
	out := joined(batches, outs)
	t.scored, t.valued, t.ready = len(out.LogProbs), len(out.Values), true
	return out, nil
}

// drop forgets the last Forward.
func (t *trainer) drop() {
	for _, p := range t.passes {
		if p != nil {
			p.free()
		}
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
	return makeBatches(t.cfg, groups, t.b.shape)
}

// forward runs the layers of one batch. With keep the layers' inputs stay.
func (l *lane) forward(ctx context.Context, g groupBatch, params []*pjrt.Buffer, keep bool) (_ *pass, err error) {
	t, dev, w := l.t, l.dev, l.t.b.weights
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
	if p.prompt, err = dev.putI32([]int32{g.prompt}, 1); err != nil {
		return nil, err
	}
	if p.places, err = dev.putI32(g.places(), 2, g.G*g.C); err != nil {
		return nil, err
	}
	if g.keys != nil {
		if p.drop, err = dev.putKeys(g.keys); err != nil {
			return nil, err
		}
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
	table, done, err := w.take(dev, w.embed)
	if err != nil {
		return nil, err
	}
	first, err := dev.run(embed, []*pjrt.Buffer{table[0], ids, pos})
	done()
	if err != nil {
		return nil, err
	}
	p.out, p.ropes = first[0], first[1:]
	for i := range t.b.shape.layers {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		layer, err := t.layerForward(g.layout, i, g.dropout)
		if err != nil {
			return nil, err
		}
		y, err := l.layer(layer, p, i, params, p.out)
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

// layer runs a program of layer i: its first arguments, then what layerInputs
// declares.
func (l *lane) layer(run *program, p *pass, i int, params []*pjrt.Buffer, first ...*pjrt.Buffer) ([]*pjrt.Buffer, error) {
	b := l.t.b
	weights, done, err := b.weights.take(l.dev, b.weights.layers[i])
	if err != nil {
		return nil, err
	}
	defer done()
	args := append(first, p.prompt, p.places, params[i])
	if p.drop != nil {
		site, err := l.dev.putI32([]int32{int32(model.DropoutSite(i, "q_proj"))})
		if err != nil {
			return nil, err
		}
		defer free(site)
		args = append(args, p.drop[0], p.drop[1], site)
	}
	if r := b.shape.kinds[i].rope; r >= 0 {
		args = append(args, p.ropes[2*r], p.ropes[2*r+1])
	}
	return l.dev.run(run, append(args, weights...))
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
	for _, l := range t.lanes {
		l.params.free()
		free(slices.Collect(maps.Values(l.zeros))...)
	}
	t.b.release()
	return nil
}
