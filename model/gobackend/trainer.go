package gobackend

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/model/internal/f32"
)

// ErrNonFinite marks a NaN or an infinity in a forward or backward pass; the
// message says where it first appeared.
var ErrNonFinite = errors.New("gobackend: not a finite number")

// trainer implements model.Trainer.
type trainer struct {
	b      *backend
	cfg    model.TrainerConfig
	grads  gradients
	params []float32
	net    *net  // what params make of the base: the base itself for LoRA
	ad     *lora // nil in full training
	closed bool

	// the last Forward
	batch   *batch // nil: none
	kept    []acts // by layer; only x when recomputing
	keepAll bool
	angles  []float32
	head    headState

	spare acts // activations that are not kept
	bs    backwardScratch
}

// NewTrainer implements model.Backend. Parameters must be set before Forward.
func (b *backend) NewTrainer(cfg model.TrainerConfig) (model.Trainer, error) {
	t := &trainer{b: b, cfg: cfg}
	t.bs.pool = b.pool
	if cfg.Full {
		t.grads.layout = model.FullLayout(b.m.Config)
	} else {
		layout, err := model.LoRALayout(b.m.Config, cfg.LoRA)
		if err != nil {
			return nil, fmt.Errorf("gobackend: trainer: %w", err)
		}
		t.grads.layout = layout
	}
	t.grads.flat = make([]float32, t.grads.layout.Size())
	if cfg.Full {
		full, err := newFullGradients(b.m.Config, t.grads.flat)
		if err != nil {
			return nil, fmt.Errorf("gobackend: trainer: %w", err)
		}
		t.grads.full = full
	}
	return t, nil
}

// Layout implements model.Trainer.
func (t *trainer) Layout() model.Layout { return t.grads.layout }

// SetParams implements model.Trainer. It drops the last Forward, whose
// activations belong to the old parameters.
func (t *trainer) SetParams(params []float32) error {
	if t.closed {
		return fmt.Errorf("gobackend: set params: %w", ErrClosed)
	}
	own := append(t.params[:0:0], params...)
	n, ad, err := t.build(own)
	if err != nil {
		return fmt.Errorf("gobackend: set params: %w", err)
	}
	t.params, t.net, t.ad, t.batch = own, n, ad, nil
	return nil
}

// build makes the network of a parameter vector; nil is the base.
func (t *trainer) build(params []float32) (*net, *lora, error) {
	if params == nil {
		return t.b.net, nil, nil
	}
	if len(params) != t.grads.layout.Size() {
		return nil, nil, fmt.Errorf("%d parameters, the layout has %d", len(params), t.grads.layout.Size())
	}
	if err := t.checkFinite("parameter", params); err != nil {
		return nil, nil, err
	}
	if !t.cfg.Full {
		ad, err := newLoRA(t.b.m.Config, t.cfg.LoRA, params, t.b.pool)
		return t.b.net, ad, err
	}
	w, err := model.UnflattenWeights(t.b.m.Config, params)
	if err != nil {
		return nil, nil, err
	}
	n, err := newNet(t.b.m.Config, w, t.b.pool, false)
	return n, nil, err
}

// checkFinite names the tensor of the first NaN or infinity of a flat vector.
func (t *trainer) checkFinite(what string, flat []float32) error {
	i := firstBad(flat)
	if i < 0 {
		return nil
	}
	for _, p := range t.grads.layout {
		if i < p.Offset+p.Len() {
			return fmt.Errorf("%w: %s of tensor %q, element %d, is %v", ErrNonFinite, what, p.Name, i-p.Offset, flat[i])
		}
	}
	return fmt.Errorf("%w: %s %d is %v", ErrNonFinite, what, i, flat[i])
}

// Score implements model.Trainer. It leaves the last Forward in place.
func (t *trainer) Score(ctx context.Context, groups []model.PrefixGroup, temperature float64, params []float32) (model.Scores, error) {
	fail := func(err error) (model.Scores, error) {
		return model.Scores{}, fmt.Errorf("gobackend: score: %w", err)
	}
	b, err := t.prepare(groups, temperature)
	if err != nil {
		return fail(err)
	}
	n, ad, err := t.build(params)
	if err != nil {
		return fail(err)
	}
	var head headState
	var angles []float32
	t.spare.x = nil // it may be a kept layer's input
	run := forwardRun{net: n, ad: ad, ex: &t.bs.exec, batch: b, angles: &angles, layer: func(int) *acts { return &t.spare }}
	x, err := run.layers(ctx)
	if err != nil {
		return fail(err)
	}
	n.forwardHead(&t.bs.exec, b, x, temperature, &head)
	if err := checkScores(b, &head, nil); err != nil {
		return fail(err)
	}
	return model.Scores{LogProbs: head.logp, Entropy: head.ent}, nil
}

// Forward implements model.Trainer.
func (t *trainer) Forward(ctx context.Context, groups []model.PrefixGroup, temperature float64) (model.Scores, error) {
	fail := func(err error) (model.Scores, error) {
		return model.Scores{}, fmt.Errorf("gobackend: forward: %w", err)
	}
	t.batch = nil
	b, err := t.prepare(groups, temperature)
	if err != nil {
		return fail(err)
	}
	if t.net == nil {
		return fail(errors.New("no parameters: call SetParams first"))
	}
	rows := int64(len(b.tokens))
	t.keepAll = rows*t.net.bytesPerRow()*int64(t.net.dims.layers) <= t.b.opts.ActivationBytes
	t.kept = slices.Grow(t.kept[:0], t.net.dims.layers)[:t.net.dims.layers]
	run := forwardRun{net: t.net, ad: t.ad, ex: &t.bs.exec, batch: b, angles: &t.angles, layer: func(l int) *acts {
		if t.keepAll {
			return &t.kept[l]
		}
		// Only the input stays with the layer; the rest is overwritten.
		t.kept[l] = acts{x: resize(t.kept[l].x, len(b.tokens)*t.net.hidden)}
		t.spare.x = t.kept[l].x
		return &t.spare
	}}
	x, err := run.layers(ctx)
	if err != nil {
		return fail(err)
	}
	t.net.forwardHead(&t.bs.exec, b, x, temperature, &t.head)
	if err := checkScores(b, &t.head, t.kept); err != nil {
		return fail(err)
	}
	t.batch = b
	return model.Scores{LogProbs: slices.Clone(t.head.logp), Entropy: slices.Clone(t.head.ent)}, nil
}

func (t *trainer) prepare(groups []model.PrefixGroup, temperature float64) (*batch, error) {
	if t.closed {
		return nil, ErrClosed
	}
	if !(temperature > 0) || math.IsInf(temperature, 0) {
		return nil, fmt.Errorf("temperature is %v, want a finite number above 0", temperature)
	}
	return pack(t.b.m.Config, groups)
}

// Backward implements model.Trainer. The gradient is unchanged when it fails
// before computing (wrong lengths, no Forward); otherwise call ZeroGrad.
func (t *trainer) Backward(ctx context.Context, d model.Scores) error {
	if err := t.backward(ctx, d.LogProbs, d.Entropy); err != nil {
		return fmt.Errorf("gobackend: backward: %w", err)
	}
	return nil
}

func (t *trainer) backward(ctx context.Context, dLogProbs, dEntropy []float32) error {
	b := t.batch
	switch {
	case t.closed:
		return ErrClosed
	case b == nil:
		return errors.New("no forward pass to differentiate: call Forward first (SetParams drops it)")
	case len(dLogProbs) != len(b.rows):
		return fmt.Errorf("%d logprob gradients for %d scored tokens", len(dLogProbs), len(b.rows))
	case dEntropy != nil && len(dEntropy) != len(b.rows):
		return fmt.Errorf("%d entropy gradients for %d scored tokens", len(dEntropy), len(b.rows))
	}
	if i := firstBad(dLogProbs); i >= 0 {
		return fmt.Errorf("%w: dLoss/dLogProb of scored token %d is %v", ErrNonFinite, i, dLogProbs[i])
	}
	if i := firstBad(dEntropy); i >= 0 {
		return fmt.Errorf("%w: dLoss/dEntropy of scored token %d is %v", ErrNonFinite, i, dEntropy[i])
	}
	if len(b.rows) == 0 {
		return nil
	}
	n, bs, rows := t.net, &t.bs, len(b.tokens)
	var dHead, dNorm []float32
	if t.grads.full != nil {
		dHead, dNorm = t.grads.full.head, t.grads.full.norm
	}
	n.backwardHead(&bs.exec, b, &t.head, dLogProbs, dEntropy, dHead)
	// Through the final norm, on scored rows, then back to their places: the
	// last prompt row may predict the first token of several members.
	dx := make([]float32, len(b.rows)*n.hidden)
	bs.rmsNormBackward(dx, t.head.dhn, t.head.x, t.head.inv, n.norm, len(b.rows), dNorm)
	bs.dx = zeroed(bs.dx, rows*n.hidden)
	for i, r := range b.rows {
		f32.Add(bs.dx[r*n.hidden:(r+1)*n.hidden], dx[i*n.hidden:(i+1)*n.hidden])
	}
	for l := len(n.layers) - 1; l >= 0; l-- {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("layer %d: %w", l, err)
		}
		a := &t.kept[l]
		if !t.keepAll {
			t.spare.x = a.x
			a = &t.spare
			a.resize(n.dims, rows)
			n.fill(&bs.exec, b, l, t.ad, a, t.angles)
		}
		n.backwardLayer(bs, b, l, t.ad, a, t.angles, &t.grads)
	}
	if t.grads.full != nil {
		for i, id := range b.tokens {
			dx := bs.dx[i*n.hidden : (i+1)*n.hidden]
			f32.Scale(dx, n.embedScale)
			f32.Add(t.grads.full.embed[int(id)*n.hidden:(int(id)+1)*n.hidden], dx)
		}
	}
	return t.checkFinite("gradient", t.grads.flat)
}

// Grad implements model.Trainer.
func (t *trainer) Grad() []float32 { return t.grads.flat }

// ZeroGrad implements model.Trainer.
func (t *trainer) ZeroGrad() { clear(t.grads.flat) }

// Close implements model.Trainer.
func (t *trainer) Close() error {
	*t = trainer{b: t.b, cfg: t.cfg, closed: true, grads: gradients{layout: t.grads.layout}}
	return nil
}
