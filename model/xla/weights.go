//go:build xla

package xla

import (
	"fmt"

	"github.com/gomlx/go-xla/pkg/pjrt"
	"github.com/skein-rl/skein/model"
)

// layerBuffers are one layer's base weights on the device, [out, in] as stored;
// q, k, v and gate, up are fused. Norms are f32.
type layerBuffers struct {
	inputNorm *pjrt.Buffer // [hidden]
	qkv       *pjrt.Buffer // [q+2kv, hidden]
	o         *pjrt.Buffer // [hidden, q]
	postNorm  *pjrt.Buffer // [hidden]
	gateUp    *pjrt.Buffer // [2 inter, hidden]
	down      *pjrt.Buffer // [hidden, inter]
}

func (l layerBuffers) all() []*pjrt.Buffer {
	return []*pjrt.Buffer{l.inputNorm, l.qkv, l.o, l.postNorm, l.gateUp, l.down}
}

// weightBuffers are the base weights on the device, shared by every decoder and
// trainer of a backend.
type weightBuffers struct {
	embed, norm, head *pjrt.Buffer // head is embed when tied
	layers            []layerBuffers
}

func (w *weightBuffers) free() {
	if w.head != w.embed {
		free(w.head)
	}
	free(w.embed, w.norm)
	for _, l := range w.layers {
		free(l.all()...)
	}
}

func loadWeights(d *device, s shape, w *model.Weights) (_ *weightBuffers, err error) {
	out := &weightBuffers{}
	defer func() {
		if err != nil {
			out.free()
		}
	}()
	if w == nil || len(w.Layers) != s.layers {
		return nil, fmt.Errorf("xla: the model has no weights for its %d layers", s.layers)
	}
	put := func(name string, store func([]float32, ...int) (*pjrt.Buffer, error), data []float32, dims ...int) *pjrt.Buffer {
		if err != nil {
			return nil
		}
		if len(data) != count(dims) {
			err = fmt.Errorf("xla: weight %s has %d numbers, %v expected", name, len(data), dims)
			return nil
		}
		b, e := store(data, dims...)
		if e != nil {
			err = fmt.Errorf("xla: weight %s: %w", name, e)
		}
		return b
	}
	out.embed = put("embed", d.putElem, w.Embed, s.vocab, s.hidden)
	out.norm = put("norm", d.putF32, w.Norm, s.hidden)
	out.head = out.embed
	if !s.tied {
		out.head = put("head", d.putElem, w.Head, s.vocab, s.hidden)
	}
	var fused []float32
	fuse := func(parts ...[]float32) []float32 {
		fused = fused[:0]
		for _, p := range parts {
			fused = append(fused, p...)
		}
		return fused
	}
	for i, l := range w.Layers {
		at := func(n string) string { return fmt.Sprintf("layers.%d.%s", i, n) }
		out.layers = append(out.layers, layerBuffers{
			inputNorm: put(at("input_norm"), d.putF32, l.InputNorm, s.hidden),
			qkv:       put(at("qkv"), d.putElem, fuse(l.Q, l.K, l.V), s.qkvDim(), s.hidden),
			o:         put(at("o"), d.putElem, l.O, s.hidden, s.qDim()),
			postNorm:  put(at("post_norm"), d.putF32, l.PostNorm, s.hidden),
			gateUp:    put(at("gate_up"), d.putElem, fuse(l.Gate, l.Up), 2*s.inter, s.hidden),
			down:      put(at("down"), d.putElem, l.Down, s.hidden, s.inter),
		})
	}
	return out, err
}

// args are the base weights in the order newNet declares them.
func (w *weightBuffers) args() []*pjrt.Buffer {
	out := []*pjrt.Buffer{w.embed, w.norm}
	if w.head != w.embed {
		out = append(out, w.head)
	}
	for _, l := range w.layers {
		out = append(out, l.all()...)
	}
	return out
}
