//go:build xla

package xla

import (
	"fmt"

	"github.com/gomlx/go-xla/pkg/pjrt"
	"github.com/skein-rl/skein/model"
)

// weightBuffers are the base weights on the device, shared by every decoder and
// trainer of a backend: [out, in] as stored, fused as shape.tensors says.
type weightBuffers struct {
	embed, norm, head *pjrt.Buffer // head is embed when tied
	layers            [][]*pjrt.Buffer
}

func (w *weightBuffers) free() {
	if w.head != w.embed {
		free(w.head)
	}
	free(w.embed, w.norm)
	for _, l := range w.layers {
		free(l...)
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
	put := func(name string, low bool, data []float32, dims ...int) *pjrt.Buffer {
		if err != nil {
			return nil
		}
		if len(data) != count(dims) {
			err = fmt.Errorf("xla: weight %s has %d numbers, %v expected", name, len(data), dims)
			return nil
		}
		store := d.putF32
		if low {
			store = d.putElem
		}
		b, e := store(data, dims...)
		if e != nil {
			err = fmt.Errorf("xla: weight %s: %w", name, e)
		}
		return b
	}
	var rows []float32
	table := func(name string, read func(lo, hi int, buf []float32) ([]float32, error)) *pjrt.Buffer {
		if err == nil {
			rows, err = read(0, s.vocab, rows)
		}
		return put(name, true, rows, s.vocab, s.hidden)
	}
	out.norm = put("norm", false, w.Norm, s.hidden)
	out.embed = table("embed", w.EmbedRows)
	out.head = out.embed
	if !s.tied {
		out.head = table("head", w.HeadRows)
	}
	var f fuser
	var buf model.LayerWeights
	for i := range w.Layers {
		if err != nil {
			return nil, err
		}
		layer, e := w.Layer(i, &buf)
		if e != nil {
			return nil, fmt.Errorf("xla: %w", e)
		}
		var bufs []*pjrt.Buffer
		for _, t := range s.tensors(s.kinds[i]) {
			data, e := f.tensor(t.name, layer, s, s.kinds[i])
			if e != nil {
				return nil, fmt.Errorf("xla: weight layers.%d.%s: %w", i, t.name, e)
			}
			bufs = append(bufs, put(fmt.Sprintf("layers.%d.%s", i, t.name), t.low, data, t.dims...))
		}
		out.layers = append(out.layers, bufs)
	}
	return out, err
}

// fuser joins matrices in one buffer that it uses again.
type fuser struct{ buf []float32 }

func (f *fuser) join(parts ...[]float32) []float32 {
	f.buf = f.buf[:0]
	for _, p := range parts {
		f.buf = append(f.buf, p...)
	}
	return f.buf
}

// tensor gives the numbers of one of shape.tensors.
func (f *fuser) tensor(name string, l *model.LayerWeights, s shape, k layerKind) ([]float32, error) {
	switch name {
	case "input_norm":
		return l.InputNorm, nil
	case "qkv":
		return f.join(l.Q, l.K, l.V), nil
	case "qkv_bias":
		return f.join(l.QBias, l.KBias, l.VBias), nil
	case "o":
		return l.O, nil
	case "o_bias":
		return l.OBias, nil
	case "q_norm":
		return l.QNorm, nil
	case "k_norm":
		return l.KNorm, nil
	case "attn_out_norm":
		return l.AttnOutNorm, nil
	case "post_norm":
		return l.PostNorm, nil
	case "mlp_out_norm":
		return l.MLPOutNorm, nil
	case "router":
		return l.Router, nil
	}
	if k.moe {
		return f.experts(name, l.Experts, s)
	}
	if name == "down" {
		return l.Down, nil
	}
	return f.join(l.Gate, l.Up), nil
}

// experts lays experts out side by side: all gates, all ups, and down with the
// experts' inputs in a row.
func (f *fuser) experts(name string, experts []model.ExpertWeights, s shape) ([]float32, error) {
	if len(experts) != s.experts {
		return nil, fmt.Errorf("%d experts, the configuration has %d", len(experts), s.experts)
	}
	n := s.expertSize * s.hidden
	for i, e := range experts {
		if len(e.Gate) != n || len(e.Up) != n || len(e.Down) != n {
			return nil, fmt.Errorf("expert %d has %d, %d and %d numbers in gate, up and down, %d expected", i, len(e.Gate), len(e.Up), len(e.Down), n)
		}
	}
	f.buf = f.buf[:0]
	if name == "down" {
		for row := range s.hidden {
			for _, e := range experts {
				f.buf = append(f.buf, e.Down[row*s.expertSize:(row+1)*s.expertSize]...)
			}
		}
		return f.buf, nil
	}
	for _, e := range experts {
		f.buf = append(f.buf, e.Gate...)
	}
	for _, e := range experts {
		f.buf = append(f.buf, e.Up...)
	}
	return f.buf, nil
}

// args are the base weights in the order newNet declares them.
func (w *weightBuffers) args() []*pjrt.Buffer {
	out := []*pjrt.Buffer{w.embed, w.norm}
	if w.head != w.embed {
		out = append(out, w.head)
	}
	for _, l := range w.layers {
		out = append(out, l...)
	}
	return out
}
