package gobackend

import (
	"fmt"
	"math"
	"strconv"

	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/model/internal/f32"
)

// dims are the widths of a model, spelled out once.
type dims struct {
	layers, vocab, hidden, inter int
	heads, kvHeads, headDim      int
	group                        int // query heads per key/value head
	q, kv, qkv                   int // widths of q, of k or v, and of the fused projection
	hdPad                        int // headDim padded to a panel
	eps                          float32
}

func newDims(c model.Config) dims {
	d := dims{
		layers: c.NumHiddenLayers, vocab: c.VocabSize, hidden: c.HiddenSize, inter: c.IntermediateSize,
		heads: c.NumAttentionHeads, kvHeads: c.NumKeyValueHeads, headDim: c.HeadDim,
		eps: float32(c.RMSNormEps),
	}
	d.group = d.heads / d.kvHeads
	d.q, d.kv = d.heads*d.headDim, d.kvHeads*d.headDim
	d.qkv = d.q + 2*d.kv
	d.hdPad = f32.Pad(d.headDim)
	return d
}

// net holds weights in the form the kernels want. It is read-only after
// newNet.
type net struct {
	dims
	embed  []float32 // [V, H], shared with the caller
	norm   []float32 // [H]
	layers []layer
	head   linear // [V, H]
	rope   *rope
}

// layer is one decoder layer: projections that share an input are fused.
type layer struct {
	inNorm, postNorm []float32
	qkv              linear // q, k, v
	o                linear
	gateUp           linear // gate, up
	down             linear
}

// linear is a projection y = Wx, W [out, in], as panels of W^T.
type linear struct {
	out, in int
	w       []float32
}

func (l linear) panels() f32.B { return f32.Packed(l.w, l.in) }

// newNet checks and packs w. With drop it clears the layers' matrices of w as
// it goes.
func newNet(c model.Config, w *model.Weights, pool *f32.Pool, drop bool) (*net, error) {
	n := &net{dims: newDims(c), embed: w.Embed, norm: w.Norm, rope: newRope(c)}
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
	for i := range n.layers {
		if err := n.packLayer(i, &w.Layers[i], pool); err != nil {
			return nil, err
		}
		if drop {
			l := &w.Layers[i]
			w.Layers[i] = model.LayerWeights{InputNorm: l.InputNorm, PostNorm: l.PostNorm}
		}
	}
	n.head = fuse(pool, n.hidden, head)
	return n, nil
}

func (n *net) packLayer(i int, w *model.LayerWeights, pool *f32.Pool) error {
	pre := "model.layers." + strconv.Itoa(i) + "."
	for _, t := range []struct {
		name string
		data []float32
		size int
	}{
		{"input_layernorm", w.InputNorm, n.hidden},
		{"self_attn.q_proj", w.Q, n.q * n.hidden}, {"self_attn.k_proj", w.K, n.kv * n.hidden},
		{"self_attn.v_proj", w.V, n.kv * n.hidden}, {"self_attn.o_proj", w.O, n.hidden * n.q},
		{"post_attention_layernorm", w.PostNorm, n.hidden},
		{"mlp.gate_proj", w.Gate, n.inter * n.hidden}, {"mlp.up_proj", w.Up, n.inter * n.hidden},
		{"mlp.down_proj", w.Down, n.hidden * n.inter},
	} {
		if err := checkTensor(pre+t.name+".weight", t.data, t.size); err != nil {
			return err
		}
	}
	n.layers[i] = layer{
		inNorm: w.InputNorm, postNorm: w.PostNorm,
		qkv:    fuse(pool, n.hidden, w.Q, w.K, w.V),
		o:      fuse(pool, n.q, w.O),
		gateUp: fuse(pool, n.hidden, w.Gate, w.Up),
		down:   fuse(pool, n.inter, w.Down),
	}
	return nil
}

// fuse packs row-major matrices [*, in], stacked, into one projection.
func fuse(pool *f32.Pool, in int, parts ...[]float32) linear {
	if len(parts) == 1 {
		l := linear{out: len(parts[0]) / in, in: in}
		l.w = make([]float32, f32.PackedLen(in, l.out))
		f32.PackT(pool, l.w, parts[0], l.out, in, in)
		return l
	}
	var stacked []float32
	for _, p := range parts {
		stacked = append(stacked, p...)
	}
	return fuse(pool, in, stacked)
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

// rope rotates pairs (i, i+D/2) of a head by position*theta^(-2i/D), angles in
// float32 as HF computes them (Su et al. 2021, arXiv:2104.09864, equation 15,
// in the half-split layout).
type rope struct {
	half int
	freq []float32 // [D/2]
}

func newRope(c model.Config) *rope {
	r := &rope{half: c.HeadDim / 2, freq: make([]float32, c.HeadDim/2)}
	for i := range r.freq {
		r.freq[i] = 1 / float32(math.Pow(c.RopeTheta, float64(2*i)/float64(c.HeadDim)))
	}
	return r
}

// angles writes the cosines [D/2] and sines [D/2] of one position.
func (r *rope) angles(dst []float32, pos int) {
	for i, f := range r.freq {
		s, c := math.Sincos(float64(float32(pos) * f))
		dst[i], dst[r.half+i] = float32(c), float32(s)
	}
}

// apply rotates one head [D] in place; inverse rotates back (the backward of a
// rotation is its transpose).
func (r *rope) apply(x, angles []float32, inverse bool) {
	h := r.half
	a, b := x[:h], x[h:2*h]
	cos, sin := angles[:h], angles[h:2*h]
	for i, c := range cos {
		s := sin[i]
		if inverse {
			s = -s
		}
		u, v := a[i], b[i]
		a[i], b[i] = u*c-v*s, v*c+u*s
	}
}

// scoreScale is the factor on attention scores, 1/sqrt(D).
func (d dims) scoreScale() float32 { return float32(1 / math.Sqrt(float64(d.headDim))) }

// bytes is the size of the packed weights.
func (n *net) bytes() int {
	total := len(n.head.w)
	for _, l := range n.layers {
		total += len(l.qkv.w) + len(l.o.w) + len(l.gateUp.w) + len(l.down.w)
	}
	return 4 * total
}
