package model

import (
	"math"
	"slices"
)

// ggufRopeTensors divide rope's frequencies: the first for llama3's scaling,
// the others for longrope's.
var ggufRopeTensors = []string{"rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight"}

// rope reads the scaling of rope from metadata and factor tensors.
func (p *ggufParser) rope() {
	c := &p.c
	kind, _ := p.g.Meta[p.own("rope.scaling.type")].(string)
	factor := p.number(p.own("rope.scaling.factor"), p.number(p.own("rope.scale_linear"), 0))
	original := p.size(p.own("rope.scaling.original_context_length"), c.MaxPositionEmbeddings)
	attention := p.number(p.own("rope.scaling.attn_factor"), 1)
	var factors [3][]float64
	for i, name := range ggufRopeTensors {
		factors[i] = p.factors(name)
	}
	freqs, short, long := factors[0], factors[1], factors[2]
	s := RopeScaling{}
	switch {
	case (short == nil) != (long == nil):
		p.refuse("of the tensors %q and %q there is only one", ggufRopeTensors[1], ggufRopeTensors[2])
	case freqs != nil && short != nil:
		p.refuse("tensors %q and %q exclude each other", ggufRopeTensors[0], ggufRopeTensors[1])
	case short != nil:
		s = RopeScaling{Type: "longrope", OriginalMaxPositions: original, ShortFactor: short, LongFactor: long, AttentionFactor: attention}
	case freqs != nil:
		// The parameters of llama3's formula are not in the file; its result is,
		// as factors that hold at every length.
		s = RopeScaling{Type: "longrope", OriginalMaxPositions: c.MaxPositionEmbeddings, ShortFactor: freqs, LongFactor: freqs, AttentionFactor: attention}
	case kind == "longrope":
		p.refuse("%s is longrope, but there are no tensors %q and %q", p.own("rope.scaling.type"), ggufRopeTensors[1], ggufRopeTensors[2])
	}
	scaled := factor != 0 && factor != 1
	switch {
	case s.Type != "" && scaled && kind != "none":
		p.refuse("%s %v together with factors in tensors is not implemented", p.own("rope.scaling.factor"), factor)
	case s.Type != "" || kind == "none":
	case kind == "yarn":
		s = RopeScaling{Type: "yarn", Factor: max(factor, 1), OriginalMaxPositions: original,
			BetaFast: p.number(p.own("rope.scaling.yarn_beta_fast"), 0), BetaSlow: p.number(p.own("rope.scaling.yarn_beta_slow"), 0)}
		// What HF's attention_factor is in files of llama.cpp's converter; the
		// other key multiplies the rule's own value.
		s.AttentionFactor = p.number(p.own("rope.scaling.yarn_attn_factor"), 0)
		if s.AttentionFactor == 0 && attention != 1 {
			s.AttentionFactor = attention * (1 + 0.1*math.Log(s.Factor))
		}
		if v := p.number(p.own("rope.scaling.yarn_ext_factor"), 1); v != 1 {
			p.refuse("%s %v is not implemented (have 1)", p.own("rope.scaling.yarn_ext_factor"), v)
		}
	case kind == "" || kind == "linear":
		if scaled {
			s = RopeScaling{Type: "linear", Factor: factor}
		}
		if attention != 1 {
			p.refuse("%s %v is not implemented for linear scaling", p.own("rope.scaling.attn_factor"), attention)
		}
	default:
		p.refuse("%s %q is not implemented (have none, linear, yarn, longrope)", p.own("rope.scaling.type"), kind)
	}
	c.RopeScaling = s
}

// factors reads a tensor of one factor for each rotated pair; nil when the file
// has none or it can't be read.
func (p *ggufParser) factors(name string) []float64 {
	if !p.has(name) {
		return nil
	}
	n := p.c.Rotary() / 2
	if t := p.g.tensors[name]; !slices.Equal(t.Shape, []int{n}) {
		p.refuse("tensor %q has shape %v, %d rotated pairs want [%d]", name, t.Shape, n, n)
		return nil
	}
	data := make([]float32, n)
	if err := p.g.ReadF32(name, []int{n}, data); err != nil {
		p.refuse("%w", err)
		return nil
	}
	out := make([]float64, n)
	for i, v := range data {
		out[i] = float64(v)
	}
	return out
}
