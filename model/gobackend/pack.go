package gobackend

import (
	"fmt"
	"runtime/debug"
	"slices"

	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/model/internal/f32"
)

// newNet checks and packs w into mem (nil = Go's heap). Of weights in files one
// layer at a time is in memory besides.
func newNet(c model.Config, w *model.Weights, pool *f32.Pool, mem *f32.Memory) (*net, error) {
	n := &net{dims: newDims(c), norm: slices.Clone(w.Norm)}
	if len(w.Layers) != c.NumHiddenLayers {
		return nil, fmt.Errorf("weights have %d layers, num_hidden_layers is %d", len(w.Layers), c.NumHiddenLayers)
	}
	if err := checkTensor("model.norm.weight", w.Norm, n.hidden); err != nil {
		return nil, err
	}
	n.layers = make([]layer, n.dims.layers)
	var ropes []*rope
	n.ropes, ropes = newRopes(c)
	var buf model.LayerWeights
	for i := range n.layers {
		l, err := w.Layer(i, &buf)
		if err != nil {
			return nil, err
		}
		if n.layers[i], err = n.packLayer(c, i, l, pool, mem); err != nil {
			return nil, err
		}
		n.layers[i].rope, n.layers[i].window = ropes[i], c.Window(i)
	}
	if buf = (model.LayerWeights{}); mem != nil {
		// What opening and packing needed goes before the largest matrices come.
		debug.FreeOSMemory()
	}
	embed, err := n.table("model.embed_tokens.weight", w.EmbedRows, pool, mem)
	if err != nil {
		return nil, err
	}
	n.embed, n.head = embed, embed
	if !c.TieWordEmbeddings {
		n.head, err = n.table("lm_head.weight", w.HeadRows, pool, mem)
	}
	return n, err
}

// table packs the embedding or the head, which is never in memory as a whole.
func (n *net) table(name string, read func(lo, hi int, buf []float32) ([]float32, error), pool *f32.Pool, mem *f32.Memory) (linear, error) {
	var buf []float32
	w, err := f32.Pack(pool, mem, n.vocab, n.hidden, func(lo, hi int) (x []float32, err error) {
		if x, err = read(lo, hi, buf); err != nil {
			return nil, err
		}
		buf = x
		if i := firstBad(x); i >= 0 {
			return nil, fmt.Errorf("tensor %q element %d is %v: the weights are damaged", name, lo*n.hidden+i, x[i])
		}
		return x, nil
	})
	return linear{out: n.vocab, in: n.hidden, w: w}, err
}

// packLayer checks layer i in the order of the tensors in its file, then packs.
// Nothing of w is kept.
func (n *net) packLayer(c model.Config, i int, w *model.LayerWeights, pool *f32.Pool, mem *f32.Memory) (layer, error) {
	if c.MoE(i) && len(w.Experts) != c.Experts {
		return layer{}, fmt.Errorf("layer %d has %d experts, num_experts is %d", i, len(w.Experts), c.Experts)
	}
	for _, t := range w.Tensors(c, i) {
		size := 1
		for _, d := range t.Shape {
			size *= d
		}
		if err := checkTensor(t.Name, t.Data, size); err != nil {
			return layer{}, err
		}
	}
	d := n.dims
	l := layer{
		inNorm: slices.Clone(w.InputNorm), postNorm: slices.Clone(w.PostNorm), attnNorm: slices.Clone(w.AttnOutNorm),
		mlpNorm: slices.Clone(w.MLPOutNorm), qNorm: slices.Clone(w.QNorm), kNorm: slices.Clone(w.KNorm),
	}
	qkv, gateUp := [][]float32{w.Q, w.K, w.V}, [][]float32{w.Gate, w.Up}
	if c.FusedProjections {
		qkv, gateUp = [][]float32{w.QKV}, [][]float32{w.GateUp}
	}
	fuse := func(in int, parts ...[]float32) linear {
		m := f32.NewMatrix(pool, mem, in, parts...)
		return linear{out: m.Rows(), in: in, w: m}
	}
	l.qkv = fuse(d.hidden, qkv...)
	if c.QKVBias {
		l.qkv.bias = slices.Concat(w.QBias, w.KBias, w.VBias)
	}
	l.o = fuse(d.q, w.O)
	if c.OutputBias {
		l.o.bias = slices.Clone(w.OBias)
	}
	if !c.MoE(i) {
		l.dense = expert{fuse(d.hidden, gateUp...), fuse(c.IntermediateSize, w.Down)}
		return l, nil
	}
	l.moe = &moe{router: fuse(d.hidden, w.Router)}
	for _, x := range w.Experts {
		l.moe.experts = append(l.moe.experts, expert{fuse(d.hidden, x.Gate, x.Up), fuse(c.ExpertSize, x.Down)})
	}
	return l, nil
}

// checkTensor reports a wrong size, a NaN or an infinity.
func checkTensor(name string, t []float32, size int) error {
	if len(t) != size {
		return fmt.Errorf("tensor %q has %d elements, the configuration wants %d", name, len(t), size)
	}
	if i := firstBad(t); i >= 0 {
		return fmt.Errorf("tensor %q element %d is %v: the weights are damaged", name, i, t[i])
	}
	return nil
}

// firstBad is the index of the first NaN or infinity, or -1.
func firstBad(x []float32) int {
	for i, v := range x {
		if v-v != 0 { // NaN for both
			return i
		}
	}
	return -1
}
