package gobackend

import (
	"github.com/skein-rl/skein/model"
)

// gradients is the flat gradient vector and, in full training, where the base
// tensors lie in it.
type gradients struct {
	flat   []float32
	layout model.Layout
	full   *fullGradients // nil for LoRA
}

// fullGradients are windows of the flat vector, nil where the model has no such
// tensor.
type fullGradients struct {
	embed, norm, head []float32 // head is embed when tied
	layers            []layerGradients
}

type layerGradients struct {
	inNorm, attnNorm, postNorm, mlpNorm []float32
	qNorm, kNorm                        []float32
	qkv, o, gateUp, down, router        []gradPart
	experts                             []expertGradients
}

type expertGradients struct{ gateUp, down []gradPart }

// gradPart is the gradient of one matrix or bias of a fused projection: `out`
// rows from row `at` on.
type gradPart struct {
	at, out int
	w       []float32 // [out, in], nil for a bias
	bias    []float32 // [out], nil for a matrix
}

// parts lists the matrices [*, in] of a fused projection.
func parts(in int, ws ...[]float32) []gradPart {
	var out []gradPart
	at := 0
	for _, w := range ws {
		out = append(out, gradPart{at: at, out: len(w) / in, w: w})
		at += len(w) / in
	}
	return out
}

// biases lists the biases of a fused projection, those that there are.
func biases(bs ...[]float32) []gradPart {
	var out []gradPart
	at := 0
	for _, b := range bs {
		if len(b) > 0 {
			out = append(out, gradPart{at: at, out: len(b), bias: b})
		}
		at += len(b)
	}
	return out
}

// newFullGradients sees the flat vector as weights.
func newFullGradients(c model.Config, flat []float32) (*fullGradients, error) {
	w, err := model.UnflattenWeights(c, flat)
	if err != nil {
		return nil, err
	}
	g := &fullGradients{embed: w.Embed, norm: w.Norm, head: w.Head}
	d := newDims(c)
	for i := range w.Layers {
		l := &w.Layers[i]
		lg := layerGradients{
			inNorm: l.InputNorm, attnNorm: l.AttnOutNorm, postNorm: l.PostNorm, mlpNorm: l.MLPOutNorm,
			qNorm: l.QNorm, kNorm: l.KNorm, o: append(parts(d.q, l.O), biases(l.OBias)...),
		}
		if c.FusedProjections {
			lg.qkv = parts(d.hidden, l.QKV)
		} else {
			lg.qkv = parts(d.hidden, l.Q, l.K, l.V)
		}
		lg.qkv = append(lg.qkv, biases(l.QBias, l.KBias, l.VBias)...)
		switch {
		case c.MoE(i):
			lg.router = parts(d.hidden, l.Router)
			for _, x := range l.Experts {
				lg.experts = append(lg.experts, expertGradients{parts(d.hidden, x.Gate, x.Up), parts(c.ExpertSize, x.Down)})
			}
		case c.FusedProjections:
			lg.gateUp, lg.down = parts(d.hidden, l.GateUp), parts(c.IntermediateSize, l.Down)
		default:
			lg.gateUp, lg.down = parts(d.hidden, l.Gate, l.Up), parts(c.IntermediateSize, l.Down)
		}
		g.layers = append(g.layers, lg)
	}
	return g, nil
}

// layer gives the windows of one layer; nil fields when not training them.
func (g *gradients) layer(l int) *layerGradients {
	if g.full == nil {
		return &layerGradients{}
	}
	return &g.full.layers[l]
}
