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
	net    *net      // what params make of the base: the base itself for LoRA
	ad     *lora     // nil in full training
	value  []float32 // the value head's weights [H], nil: none; aliases params
	closed bool

	// the last Forward
	batch      *batch // nil: none
	kept       []acts // by layer
	attendFrom int    // layers before keep only their input
	keepFrom   int    // layers before keep only that and attention's result
	memory     *f32.Memory
	room       []float32
	angles     []float32
	head       headState
	values     valueState
	mixed      bool // the last Backward wanted more of the head than logprobs

	spare   acts // activations that are not kept
	current acts // of the layer in hand, where not all are kept
	bs      backwardScratch
}

// NewTrainer implements model.Backend. Parameters must be set before Forward.
func (b *backend) NewTrainer(cfg model.TrainerConfig) (model.Trainer, error) {
	t := &trainer{b: b, cfg: cfg}
	t.bs.pool = b.pool
	layout, err := cfg.Layout(b.m.Config)
	if err != nil {
		return nil, fmt.Errorf("gobackend: trainer: %w", err)
	}
	t.grads.layout = layout
	t.grads.flat = make([]float32, t.grads.layout.Size())
	if cfg.Full {
		body, _ := t.split(t.grads.flat)
		full, err := newFullGradients(b.m.Config, body)
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
	n, ad, value, err := t.build(own)
	if err != nil {
		return fmt.Errorf("gobackend: set params: %w", err)
	}
	t.params, t.net, t.ad, t.value, t.batch = own, n, ad, value, nil
	return nil
}

// build makes the network and value head of a parameter vector; nil is the base.
func (t *trainer) build(params []float32) (n *net, ad *lora, value []float32, err error) {
	if params == nil {
		return t.b.net, nil, nil, nil
	}
	if len(params) != t.grads.layout.Size() {
		return nil, nil, nil, fmt.Errorf("%d parameters, the layout has %d", len(params), t.grads.layout.Size())
	}
	if err := t.checkFinite("parameter", params); err != nil {
		return nil, nil, nil, err
	}
	body, value := t.split(params)
	if !t.cfg.Full {
		ad, err = newLoRA(t.b.m.Config, t.cfg.LoRA, body, t.b.pool)
		return t.b.net, ad, value, err
	}
	w, err := model.UnflattenWeights(t.b.m.Config, body)
	if err != nil {
		return nil, nil, nil, err
	}
	n, err = newNet(t.b.m.Config, w, t.b.pool, nil)
	return n, nil, value, err
}

// split parts a flat vector into adapter or base weights and value head (nil
// when there is none).
func (t *trainer) split(flat []float32) (body, value []float32) {
	if !t.cfg.Value {
		return flat, nil
	}
	at := len(flat) - t.b.m.Config.HiddenSize
	return flat[:at:at], flat[at:]
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
	n, ad, value, err := t.build(params)
	if err != nil {
		return fail(err)
	}
	head := headState{logits: t.head.logits} // their content is nobody's between calls
	var values valueState
	var angles []float32
	defer t.crew()()
	t.spare.x = nil // it may be a kept layer's input
	run := forwardRun{net: n, ad: ad, ex: &t.bs.exec, batch: b, angles: &angles, layer: func(int) *acts { return &t.spare }}
	x, err := run.layers(ctx)
	if err != nil {
		return fail(err)
	}
	n.forwardHead(&t.bs.exec, b, x, temperature, t.cfg, false, &head)
	if err := checkScores(b, &head, nil); err != nil {
		return fail(err)
	}
	if err := n.forwardValues(&t.bs.exec, b, x, value, &values); err != nil {
		return fail(err)
	}
	return model.Scores{LogProbs: head.logp, Entropy: head.ent, MeanLogProb: head.mean, LogSumSq: head.sumSq, Values: values.values}, nil
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
	defer t.crew()()
	t.keep(len(b.tokens), len(b.rows))
	run := forwardRun{net: t.net, ad: t.ad, ex: &t.bs.exec, batch: b, angles: &t.angles, layer: func(l int) *acts {
		if l >= t.keepFrom {
			return &t.kept[l]
		}
		return t.lean(l)
	}}
	x, err := run.layers(ctx)
	if err != nil {
		return fail(err)
	}
	t.net.forwardHead(&t.bs.exec, b, x, temperature, t.cfg, !t.cfg.Full && !t.mixed, &t.head)
	if err := checkScores(b, &t.head, t.kept); err != nil {
		return fail(err)
	}
	if err := t.net.forwardValues(&t.bs.exec, b, x, t.value, &t.values); err != nil {
		return fail(err)
	}
	t.batch = b
	return model.Scores{LogProbs: slices.Clone(t.head.logp), Entropy: slices.Clone(t.head.ent),
		MeanLogProb: slices.Clone(t.head.mean), LogSumSq: slices.Clone(t.head.sumSq), Values: slices.Clone(t.values.values)}, nil
}

// crew keeps helpers ready for a pass: products follow each other faster than
// goroutines start. Passes that go on together have none of their own.
func (t *trainer) crew() (release func()) {
	if t.bs.meet != nil {
		return func() {}
	}
	held, done := t.b.pool.Crew()
	t.bs.pool = held
	return func() {
		t.bs.pool = t.b.pool
		done()
	}
}

func (t *trainer) prepare(groups []model.PrefixGroup, temperature float64) (*batch, error) {
	if t.closed {
		return nil, ErrClosed
	}
	if !(temperature > 0) || math.IsInf(temperature, 0) {
		return nil, fmt.Errorf("temperature is %v, want a finite number above 0", temperature)
	}
	return pack(t.b.m.Config, t.cfg, groups)
}

// Backward implements model.Trainer. The gradient is unchanged when it fails
// before computing (wrong lengths, no Forward); otherwise call ZeroGrad.
func (t *trainer) Backward(ctx context.Context, d model.Scores) error {
	if err := t.backward(ctx, d); err != nil {
		return fmt.Errorf("gobackend: backward: %w", err)
	}
	return nil
}

// checkGradients says what is wrong with d for the last Forward.
func (t *trainer) checkGradients(d model.Scores) error {
	b := t.batch
	switch {
	case t.closed:
		return ErrClosed
	case b == nil:
		return errors.New("no forward pass to differentiate: call Forward first (SetParams drops it)")
	}
	if err := t.cfg.CheckDerivatives(d); err != nil {
		return err
	}
	for _, x := range []struct {
		name, short, of string
		d               []float32
		want            int
	}{{"LogProb", "logprob", "scored token", d.LogProbs, len(b.rows)}, {"Entropy", "entropy", "scored token", d.Entropy, len(b.rows)},
		{"MeanLogProb", "mean logprob", "scored token", d.MeanLogProb, len(b.rows)}, {"Value", "value", "valued token", d.Values, len(b.valued)}} {
		if x.d != nil && len(x.d) != x.want {
			return fmt.Errorf("%d %s gradients for %d %ss", len(x.d), x.short, x.want, x.of)
		}
		if i := firstBad(x.d); i >= 0 {
			return fmt.Errorf("%w: dLoss/d%s of %s %d is %v", ErrNonFinite, x.name, x.of, i, x.d[i])
		}
	}
	return nil
}

func (t *trainer) backward(ctx context.Context, d model.Scores) error {
	if err := t.checkGradients(d); err != nil {
		return err
	}
	b := t.batch
	scored := len(d.LogProbs) + len(d.Entropy) + len(d.MeanLogProb)
	if scored+len(d.Values) == 0 {
		return nil
	}
	defer t.crew()()
	n, bs, rows := t.net, &t.bs, len(b.tokens)
	var dHead, dNorm []float32
	if t.grads.full != nil {
		dHead, dNorm = t.grads.full.head, t.grads.full.norm
	}
	bs.dx = zeroed(bs.dx, rows*n.hidden)
	bs.enter(0)
	if scored > 0 {
		t.mixed = !allZero(d.Entropy) || !allZero(d.MeanLogProb)
		n.backwardHead(&bs.exec, b, &t.head, d, dHead)
		// Through the final norm, on scored rows, then back to their places: the
		// last prompt row may predict the first token of several members.
		dx := make([]float32, len(b.rows)*n.hidden)
		bs.rmsNormBackward(dx, t.head.dhn, t.head.x, t.head.inv, n.norm, len(b.rows), dNorm)
		bs.addRows(b.rows, dx, n.hidden)
	}
	if len(d.Values) > 0 {
		_, dValue := t.split(t.grads.flat)
		n.backwardValues(bs, b, &t.values, d.Values, t.value, dValue, dNorm)
	}
	for l := len(n.layers) - 1; l >= 0; l-- {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("layer %d: %w", l, err)
		}
		a := &t.kept[l]
		again := 1 + 2*(len(n.layers)-1-l)
		if l < t.keepFrom {
			bs.enter(again)
			a = t.lean(l)
			n.fill(&bs.exec, b, l, t.ad, a, t.angles, l < t.attendFrom)
		}
		if l >= t.keepFrom {
			n.refill(&bs.exec, l, a, rows)
		}
		bs.enter(again + 1)
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
	t.forget()
	*t = trainer{b: t.b, cfg: t.cfg, closed: true, grads: gradients{layout: t.grads.layout}}
	return nil
}
