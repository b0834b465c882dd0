package gobackend

import (
	"strings"

	"github.com/skein-rl/skein/model"
)

// gradients is the flat gradient vector and, in full training, where the base
// tensors lie in it.
type gradients struct {
	flat   []float32
	layout model.Layout
	full   *fullGradients // nil for LoRA
}

// fullGradients are windows of the flat vector. Projections that are fused in
// the forward pass are neighbours in model.FullLayout, so their gradients are
// one window.
type fullGradients struct {
	embed, norm, head []float32 // head is embed when tied
	layers            []layerGradients
}

type layerGradients struct {
	inNorm, qkv, o, postNorm, gateUp, down []float32
}

func newFullGradients(c model.Config, flat []float32, layout model.Layout) *fullGradients {
	window := func(name string, parts int) []float32 {
		for i, p := range layout {
			if p.Name == name {
				last := layout[i+parts-1]
				return flat[p.Offset : last.Offset+last.Len()]
			}
		}
		return nil
	}
	g := &fullGradients{
		embed: window("model.embed_tokens.weight", 1),
		norm:  window("model.norm.weight", 1),
		head:  window("lm_head.weight", 1),
	}
	if c.TieWordEmbeddings {
		g.head = g.embed
	}
	for _, p := range layout {
		pre, ok := strings.CutSuffix(p.Name, "input_layernorm.weight")
		if !ok {
			continue
		}
		g.layers = append(g.layers, layerGradients{
			inNorm: window(p.Name, 1), qkv: window(pre+"self_attn.q_proj.weight", 3), o: window(pre+"self_attn.o_proj.weight", 1),
			postNorm: window(pre+"post_attention_layernorm.weight", 1), gateUp: window(pre+"mlp.gate_proj.weight", 2), down: window(pre+"mlp.down_proj.weight", 1),
		})
	}
	return g
}

// layer gives the windows of one layer; nil fields when not training them.
func (g *gradients) layer(l int) layerGradients {
	if g.full == nil {
		return layerGradients{}
	}
	return g.full.layers[l]
}
