package gobackend

import (
	"fmt"
	"runtime"
	"strconv"

	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/model/internal/f32"
)

// newNet checks and packs w. With drop it clears the layers' matrices of w as
// it goes.
func newNet(c model.Config, w *model.Weights, pool *f32.Pool, drop bool) (*net, error) {
	n := &net{dims: newDims(c), embed: w.Embed, norm: w.Norm}
	if len(w.Layers) != c.NumHiddenLayers {
		return nil, fmt.Errorf("weights have %d layers, num_hidden_layers is %d", len(w.Layers), c.NumHiddenLayers)
	}
	if err := checkTensor("model.embed_tokens.weight", w.Embed, n.vocab*n.hidden); err != nil {
		return nil, err
	}
	if err := checkTensor("model.norm.weight", w.Norm, n.hidden); err != nil {
		return nil, err
	}
	head := w.Head
	if c.TieWordEmbeddings {
		head = w.Embed
	} else if err := checkTensor("lm_head.weight", head, n.vocab*n.hidden); err != nil {
		return nil, err
	}
	n.layers = make([]layer, n.dims.layers)
	var ropes []*rope
	dropped := 0
	n.ropes, ropes = newRopes(c)
	for i := range n.layers {
		l, err := n.packLayer(c, i, &w.Layers[i], pool)
		if err != nil {
			return nil, err
		}
		l.rope, l.window = ropes[i], c.Window(i)
		n.layers[i] = l
		if drop {
			dropMatrices(&w.Layers[i])
			// The collector would wait until the heap is twice what it was.
			if dropped += packedNumbers(&n.layers[i]); dropped > collectAfter {
				dropped = 0
				runtime.GC()
			}
		}
	}
	n.head = fuse(pool, n.hidden, head)
	return n, nil
}

// collectAfter so many numbers dropped, 64 MB, garbage is collected.
const collectAfter = 16 << 20

func packedNumbers(l *layer) (count int) {
	l.linears(func(m linear) { count += m.out * m.in })
	return count
}

func dropMatrices(l *model.LayerWeights) {
	l.Q, l.K, l.V, l.O, l.QKV = nil, nil, nil, nil, nil
	l.Gate, l.Up, l.Down, l.GateUp = nil, nil, nil, nil
	l.Router, l.Experts = nil, nil
}

// tensor is a base tensor with the size the configuration wants.
type tensor struct {
	name string
	data []float32
	size int
}

// packLayer checks layer i in the order of the tensors in its file, then packs.
func (n *net) packLayer(c model.Config, i int, w *model.LayerWeights, pool *f32.Pool) (layer, error) {
	d := n.dims
	l := layer{inNorm: w.InputNorm, postNorm: w.PostNorm}
	want := []tensor{{"input_layernorm.weight", w.InputNorm, d.hidden}}
	add := func(name string, data []float32, size int) { want = append(want, tensor{name, data, size}) }
	qkv := [][]float32{w.Q, w.K, w.V}
	if c.FusedProjections {
		qkv = [][]float32{w.QKV}
		add("self_attn.qkv_proj.weight", w.QKV, d.qkv*d.hidden)
	} else {
		add("self_attn.q_proj.weight", w.Q, d.q*d.hidden)
		add("self_attn.k_proj.weight", w.K, d.kv*d.hidden)
		add("self_attn.v_proj.weight", w.V, d.kv*d.hidden)
	}
	if c.QKVBias {
		add("self_attn.q_proj.bias", w.QBias, d.q)
		add("self_attn.k_proj.bias", w.KBias, d.kv)
		add("self_attn.v_proj.bias", w.VBias, d.kv)
	}
	add("self_attn.o_proj.weight", w.O, d.hidden*d.q)
	if c.OutputBias {
		add("self_attn.o_proj.bias", w.OBias, d.hidden)
	}
	if c.QKNorm {
		l.qNorm, l.kNorm = w.QNorm, w.KNorm
		add("self_attn.q_norm.weight", w.QNorm, d.headDim)
		add("self_attn.k_norm.weight", w.KNorm, d.headDim)
	}
	if c.SandwichNorm {
		l.attnNorm, l.mlpNorm = w.AttnOutNorm, w.MLPOutNorm
		add("post_attention_layernorm.weight", w.AttnOutNorm, d.hidden)
		add("pre_feedforward_layernorm.weight", w.PostNorm, d.hidden)
		add("post_feedforward_layernorm.weight", w.MLPOutNorm, d.hidden)
	} else {
		add("post_attention_layernorm.weight", w.PostNorm, d.hidden)
	}
	gateUp := [][]float32{w.Gate, w.Up}
	switch {
	case c.MoE(i):
		if len(w.Experts) != c.Experts {
			return l, fmt.Errorf("layer %d has %d experts, num_experts is %d", i, len(w.Experts), c.Experts)
		}
		add("mlp.gate.weight", w.Router, c.Experts*d.hidden)
		for e, x := range w.Experts {
			pre := "mlp.experts." + strconv.Itoa(e) + "."
			add(pre+"gate_proj.weight", x.Gate, c.ExpertSize*d.hidden)
			add(pre+"up_proj.weight", x.Up, c.ExpertSize*d.hidden)
			add(pre+"down_proj.weight", x.Down, c.ExpertSize*d.hidden)
		}
	case c.FusedProjections:
		gateUp = [][]float32{w.GateUp}
		add("mlp.gate_up_proj.weight", w.GateUp, 2*c.IntermediateSize*d.hidden)
		add("mlp.down_proj.weight", w.Down, c.IntermediateSize*d.hidden)
	default:
		add("mlp.gate_proj.weight", w.Gate, c.IntermediateSize*d.hidden)
		add("mlp.up_proj.weight", w.Up, c.IntermediateSize*d.hidden)
		add("mlp.down_proj.weight", w.Down, c.IntermediateSize*d.hidden)
	}
	for _, t := range want {
		if err := checkTensor("model.layers."+strconv.Itoa(i)+"."+t.name, t.data, t.size); err != nil {
			return l, err
		}
	}

	l.qkv = fuse(pool, d.hidden, qkv...)
	if c.QKVBias {
		l.qkv.bias = append(append(append(make([]float32, 0, d.qkv), w.QBias...), w.KBias...), w.VBias...)
	}
	l.o = fuse(pool, d.q, w.O)
	if c.OutputBias {
		l.o.bias = w.OBias
	}
	if !c.MoE(i) {
		l.dense = expert{fuse(pool, d.hidden, gateUp...), fuse(pool, c.IntermediateSize, w.Down)}
		return l, nil
	}
	l.moe = &moe{router: fuse(pool, d.hidden, w.Router)}
	for _, x := range w.Experts {
		l.moe.experts = append(l.moe.experts, expert{fuse(pool, d.hidden, x.Gate, x.Up), fuse(pool, c.ExpertSize, x.Down)})
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

// fuse packs row-major matrices [*, in], stacked, into one projection.
func fuse(pool *f32.Pool, in int, parts ...[]float32) linear {
	w := f32.NewMatrix(pool, in, parts...)
	return linear{out: w.Rows(), in: in, w: w}
}
