package model

import "math"

// The parts of config.json that say which layers look through a window, have
// positions or are mixtures: each family says it in its own way.

// layers is the number of layers to make lists for: none when it is absurd,
// which Validate reports.
func (p *hfParser) layers() int {
	if p.c.NumHiddenLayers > maxLayers {
		return 0
	}
	return max(p.c.NumHiddenLayers, 0)
}

// noWindow is for classes that ignore sliding_window; a file that has one
// anyway was made for another class.
func (p *hfParser) noWindow() {
	if w := or(p.raw.Sliding, 0); w > 0 && w < p.c.longestContext() {
		p.refuse("sliding_window %d is not implemented for model_type %q", w, p.c.ModelType)
	}
	p.uniform("full_attention")
}

// everyLayer gives every layer the window of sliding_window, or of the
// fallback when the field is absent.
func (p *hfParser) everyLayer(fallback int) {
	w := or(p.raw.Sliding, 0)
	if !p.raw.has("sliding_window") {
		w = fallback
	}
	p.window(w)
	if p.c.SlidingWindow > 0 {
		p.uniform("sliding_attention")
	} else {
		p.uniform("full_attention")
	}
}

func (p *hfParser) window(w int) {
	if w < 0 {
		p.refuse("sliding_window is %d, want a positive number or null", w)
		w = 0
	}
	p.c.SlidingWindow = w
}

// uniform refuses layer_types in classes that don't look at them, unless they
// say what is done anyway.
func (p *hfParser) uniform(want string) {
	for i, t := range p.raw.LayerTypes {
		if t != want {
			p.refuse("layer_types: layer %d is %q, model_type %q has %s everywhere", i, t, p.c.ModelType, want)
			return
		}
	}
}

// byLayer reads layer_types, or where it is absent asks full.
func (p *hfParser) byLayer(full func(layer int) bool) {
	list := make([]bool, p.layers())
	if p.raw.LayerTypes != nil && len(p.raw.LayerTypes) != p.c.NumHiddenLayers {
		p.refuse("layer_types has %d entries, num_hidden_layers is %d", len(p.raw.LayerTypes), p.c.NumHiddenLayers)
		return
	}
	windows := false
	for i := range list {
		list[i] = full(i)
		if p.raw.LayerTypes != nil {
			switch t := p.raw.LayerTypes[i]; t {
			case "full_attention":
				list[i] = true
			case "sliding_attention":
				list[i] = false
			default:
				p.refuse("layer_types: layer %d is %q, which is not implemented (have full_attention, sliding_attention)", i, t)
			}
		}
		windows = windows || !list[i]
	}
	switch {
	case !windows:
		p.c.SlidingWindow = 0
	case p.c.SlidingWindow == 0:
		p.refuse("layer_types has sliding_attention, but there is no sliding_window")
	default:
		p.c.FullLayers = list
	}
}

// tidyLayers forgets windows that no sequence reaches, and lists that mark
// nothing. Where window layers have their own rope, they stay.
func (c *Config) tidyLayers() {
	if c.LocalRopeTheta == 0 && c.SlidingWindow >= c.longestContext() {
		c.SlidingWindow, c.FullLayers = 0, nil
	}
	c.FullLayers, c.NoRopeLayers, c.DenseLayers = someOf(c.FullLayers), someOf(c.NoRopeLayers), someOf(c.DenseLayers)
}

// someOf is list, or nil when nothing in it is set.
func someOf(list []bool) []bool {
	for _, v := range list {
		if v {
			return list
		}
	}
	return nil
}

func (p *hfParser) mistral() { p.everyLayer(4096) }

func (p *hfParser) smolLM3() {
	h, c := p.raw, &p.c
	every := or(h.NoRopeEvery, 4)
	if every < 1 {
		p.refuse("no_rope_layer_interval is %d, want 1 or more", every)
		every = 1
	}
	// transformers wants at least as many entries as there are layers.
	if h.NoRope != nil && len(h.NoRope) < p.layers() {
		p.refuse("no_rope_layers has %d entries, num_hidden_layers is %d", len(h.NoRope), c.NumHiddenLayers)
		h.NoRope = nil
	}
	none := make([]bool, p.layers())
	for i := range none {
		none[i] = (i+1)%every == 0
		if h.NoRope != nil {
			none[i] = h.NoRope[i] == 0 // 1 means the layer has rope
		}
	}
	c.NoRopeLayers = none
	if h.UseSliding {
		p.window(or(h.Sliding, 0))
	}
	p.byLayer(func(i int) bool { return c.SlidingWindow == 0 || !none[i] })
}

// qwenWindows: layers from max_window_layers on have the window.
func (p *hfParser) qwenWindows() {
	if p.raw.UseSliding {
		w := or(p.raw.Sliding, 0)
		if !p.raw.has("sliding_window") {
			w = 4096
		}
		p.window(w)
	}
	from := or(p.raw.MaxWindow, 28)
	p.byLayer(func(i int) bool { return p.c.SlidingWindow == 0 || i < from })
}

func (p *hfParser) qwen2() {
	p.c.QKVBias = true
	p.qwenWindows()
}

func (p *hfParser) qwen3() { p.qwenWindows() }

func (p *hfParser) qwen3MoE() {
	h, c := p.raw, &p.c
	if h.UseSliding {
		p.everyLayer(4096)
	} else {
		p.uniform("full_attention")
	}
	if h.Experts != nil && h.LocalExperts != nil && *h.Experts != *h.LocalExperts {
		p.refuse("num_experts %d and num_local_experts %d differ", *h.Experts, *h.LocalExperts)
	}
	c.Experts = or(h.Experts, or(h.LocalExperts, 128))
	if c.Experts == 0 {
		p.refuse("num_experts is 0, which is not implemented for model_type %q", c.ModelType)
	}
	c.ExpertsPerToken, c.ExpertSize, c.NormTopK = or(h.ExpertsPerTok, 8), or(h.ExpertSize, 768), h.NormTopK
	step := or(h.SparseStep, 1)
	if step < 1 {
		p.refuse("decoder_sparse_step is %d, want 1 or more", step)
		step = 1
	}
	c.DenseLayers = make([]bool, p.layers())
	for i := range c.DenseLayers {
		c.DenseLayers[i] = (i+1)%step != 0
	}
	for _, i := range h.DenseLayers {
		if i >= 0 && i < len(c.DenseLayers) {
			c.DenseLayers[i] = true
		}
	}
}

func (p *hfParser) mixtral() {
	p.everyLayer(0)
	h, c := p.raw, &p.c
	c.Experts, c.ExpertsPerToken, c.ExpertSize, c.NormTopK = or(h.LocalExperts, 8), or(h.ExpertsPerTok, 2), c.IntermediateSize, true
	if c.Experts == 0 {
		p.refuse("num_local_experts is 0, want 1 or more")
	}
}

func (p *hfParser) phi3() {
	p.c.FusedProjections = true
	p.everyLayer(0)
}

func (p *hfParser) gemma2() {
	h := p.raw
	p.softcap(&p.c.AttnSoftcap, h.AttnSoftcap, "attn_logit_softcapping", 50)
	p.softcap(&p.c.LogitSoftcap, h.LogitSoftcap, "final_logit_softcapping", 30)
	p.gemmaWindows(2)
}

func (p *hfParser) gemma3() {
	h := p.raw
	p.softcap(&p.c.AttnSoftcap, h.AttnSoftcap, "attn_logit_softcapping", 0)
	p.softcap(&p.c.LogitSoftcap, h.LogitSoftcap, "final_logit_softcapping", 0)
	p.gemmaWindows(or(h.Pattern, 6))
}

// softcap reads a cap; null means none, absence the fallback.
func (p *hfParser) softcap(to, v *float64, field string, fallback float64) {
	switch {
	case v != nil && (!(*v > 0) || math.IsInf(*v, 0)):
		p.refuse("%s is %v, want a positive number or null", field, *v)
	case v != nil:
		*to = *v
	case !p.raw.has(field):
		*to = fallback
	}
}

// gemmaWindows: every pattern-th layer is global.
func (p *hfParser) gemmaWindows(pattern int) {
	if pattern < 1 {
		p.refuse("sliding_window_pattern is %d, want 1 or more", pattern)
		pattern = 1
	}
	w := or(p.raw.Sliding, 0)
	if !p.raw.has("sliding_window") {
		w = 4096
	}
	p.window(w)
	p.byLayer(func(i int) bool { return (i+1)%pattern == 0 })
}
