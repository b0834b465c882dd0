package gobackend

import (
	"fmt"
	"slices"

	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/model/internal/f32"
)

// lora is an adapter (Hu et al. 2021, arXiv:2106.09685) in the form the
// kernels want. It follows the fused projections of layer: the A matrices of
// one input are stacked, so that u = scale*Ax is one product.
type lora struct {
	layers [][4]loraLinear // by fused projection: qkv, o, gateUp, down; nil when full
	full   *net            // of a full adapter, takes the base's place
}

// net is what computes under the adapter, given the base's.
func (l *lora) net(base *net) *net {
	if l != nil && l.full != nil {
		return l.full
	}
	return base
}

// newAdapter packs an adapter for decoding.
func newAdapter(c model.Config, a *model.Adapter, pool *f32.Pool) (*lora, error) {
	if !a.Full {
		return newLoRA(c, a.LoRA, slices.Clone(a.Params), pool)
	}
	w, err := model.UnflattenWeights(c, a.Params)
	if err != nil {
		return nil, err
	}
	n, err := newNet(c, w, pool, nil)
	return &lora{full: n}, err
}

// The fused projections of a layer, as indexes.
const (
	fusedQKV = iota
	fusedO
	fusedGateUp
	fusedDown
)

// fusedParts names the projections that can be adapted in each fused one: whole
// ones where the files hold them so, none of a mixture's experts.
func fusedParts(c model.Config) [4][]string {
	switch {
	case c.FusedProjections:
		return [4][]string{{"qkv_proj"}, {"o_proj"}, {"gate_up_proj"}, {"down_proj"}}
	case c.Experts > 0:
		return [4][]string{{"q_proj", "k_proj", "v_proj"}, {"o_proj"}}
	}
	return [4][]string{{"q_proj", "k_proj", "v_proj"}, {"o_proj"}, {"gate_proj", "up_proj"}, {"down_proj"}}
}

// share is a run of consecutive rows under one adapter; nil means none.
type share struct {
	ad        *lora
	row, rows int
	drop      []dropRow // of the rows, nil: no dropout
}

// loraLinear is the adapter of one fused projection; no parts means none.
type loraLinear struct {
	in    int
	width int       // sum of the parts' ranks
	a     []float32 // panels of A^T: B operand [in, width]
	parts []loraPart
}

// loraPart is the adapter of one projection inside a fused one.
type loraPart struct {
	name       string
	out, at    int // output width and first output column
	rank, col  int // its rank R and first column in u
	scale      float32
	aRaw, bRaw []float32 // A [R, in], B [out, R], as in the flat vector
	b          []float32 // panels of B^T: B operand [R, out]
	aOff, bOff int       // where A and B stand in the flat vector
}

// newLoRA packs a flat vector of model.LoRALayout's order. The vector is kept:
// the caller must not change it.
func newLoRA(c model.Config, cfg model.LoRAConfig, params []float32, pool *f32.Pool) (*lora, error) {
	modules, err := model.LoRAModules(c, cfg)
	if err != nil {
		return nil, err
	}
	if end := modules[len(modules)-1]; len(params) != end.B+end.Out*end.Rank {
		return nil, fmt.Errorf("adapter has %d numbers, %v of this model wants %d", len(params), cfg, end.B+end.Out*end.Rank)
	}
	l := &lora{layers: make([][4]loraLinear, c.NumHiddenLayers)}
	parts := fusedParts(c)
	for i := range l.layers {
		for f, names := range parts {
			at := 0
			lin := &l.layers[i][f]
			for _, name := range names {
				out, in, err := model.ProjectionShape(c, name)
				if err != nil {
					return nil, err
				}
				// Modules come in our order of layers and projections.
				if len(modules) > 0 && modules[0].Layer == i && modules[0].Name == name {
					m := modules[0]
					modules = modules[1:]
					part := loraPart{name: name, out: out, at: at, rank: m.Rank, col: lin.width, scale: float32(m.Scale), aOff: m.A, bOff: m.B,
						aRaw: params[m.A:m.B], bRaw: params[m.B : m.B+out*m.Rank]}
					part.b = make([]float32, f32.PackedLen(m.Rank, out))
					f32.PackT(pool, part.b, part.bRaw, out, m.Rank, m.Rank)
					lin.parts = append(lin.parts, part)
					lin.in = in
					lin.width += m.Rank
				}
				at += out
			}
			lin.pack(pool)
		}
	}
	return l, nil
}

// pack stacks the parts' A matrices and packs them.
func (l *loraLinear) pack(pool *f32.Pool) {
	if len(l.parts) == 0 {
		return
	}
	stacked := make([]float32, 0, l.width*l.in)
	for _, p := range l.parts {
		stacked = append(stacked, p.aRaw...)
	}
	l.a = make([]float32, f32.PackedLen(l.in, l.width))
	f32.PackT(pool, l.a, stacked, l.width, l.in, l.in)
}

// scale multiplies each part's columns of u [N, width] by the part's scale.
func (l *loraLinear) scale(u []float32, rows int) {
	first := l.parts[0].scale
	if !slices.ContainsFunc(l.parts, func(p loraPart) bool { return p.scale != first }) {
		f32.Scale(u[:rows*l.width], first)
		return
	}
	for i := range rows {
		for _, p := range l.parts {
			f32.Scale(u[i*l.width+p.col:][:p.rank], p.scale)
		}
	}
}

// at is the adapter of one fused projection; nil receiver and nil result mean
// no adapter there.
func (l *lora) at(layer, fused int) *loraLinear {
	if l == nil || l.full != nil || len(l.layers[layer][fused].parts) == 0 {
		return nil
	}
	return &l.layers[layer][fused]
}
