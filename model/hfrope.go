package model

import (
	"encoding/json"
	"maps"
	"slices"
)

// hfRope is one dictionary of rope_scaling or rope_parameters.
type hfRope struct {
	Theta           *float64  `json:"rope_theta"`
	Type            string    `json:"rope_type"`
	OldType         string    `json:"type"`
	Factor          *float64  `json:"factor"`
	OriginalMax     *int      `json:"original_max_position_embeddings"`
	AttentionFactor *float64  `json:"attention_factor"`
	BetaFast        *float64  `json:"beta_fast"`
	BetaSlow        *float64  `json:"beta_slow"`
	MScale          *float64  `json:"mscale"`
	MScaleAllDim    *float64  `json:"mscale_all_dim"`
	Truncate        *bool     `json:"truncate"`
	LowFreqFactor   *float64  `json:"low_freq_factor"`
	HighFreqFactor  *float64  `json:"high_freq_factor"`
	ShortFactor     []float64 `json:"short_factor"`
	LongFactor      []float64 `json:"long_factor"`
	Partial         *float64  `json:"partial_rotary_factor"`
}

// hfRopeKeys are what hfRope reads; "finetuned" is provenance.
var hfRopeKeys = []string{"rope_theta", "rope_type", "type", "factor", "original_max_position_embeddings", "attention_factor", "beta_fast",
	"beta_slow", "mscale", "mscale_all_dim", "truncate", "low_freq_factor", "high_freq_factor", "short_factor", "long_factor",
	"partial_rotary_factor", "finetuned"}

// rope reads the base and the scaling. rope_parameters, transformers 5's name,
// is read last and so says it; in old files only rope_scaling exists.
func (p *hfParser) rope() {
	h, c := p.raw, &p.c
	c.RopeTheta = or(h.Theta, p.fam.theta)
	if h.ModelType == "gemma3_text" {
		c.LocalRopeTheta = or(h.LocalTheta, 1e4)
	} else if h.LocalTheta != nil {
		p.refuse("rope_local_base_freq is not implemented for model_type %q", h.ModelType)
	}
	partial := h.PartialRope
	for _, f := range []struct {
		name string
		raw  json.RawMessage
	}{{"rope_scaling", h.RopeScaling}, {"rope_parameters", h.RopeParams}} {
		if isNull(f.raw) {
			continue
		}
		var dict map[string]json.RawMessage
		if err := json.Unmarshal(f.raw, &dict); err != nil {
			p.refuse("%s: %v", f.name, err)
			continue
		}
		_, full := dict["full_attention"]
		_, local := dict["sliding_attention"]
		switch {
		case full || local:
			p.ropeByLayerType(f.name, dict)
		case f.name == "rope_parameters" && h.ModelType == "gemma3_text" && len(dict) > 0:
			p.refuse("rope_parameters of model_type %q wants one dictionary for full_attention and one for sliding_attention", h.ModelType)
		default:
			if r, ok := p.ropeDict(f.name, f.raw); ok {
				p.ropeScaling(f.name, r)
				if r.Partial != nil {
					partial = r.Partial
				}
			}
		}
	}
	p.partialRope(or(partial, 1))
	if h.ModelType == "gemma3_text" && c.LocalRopeTheta == 0 { // which would mean the global one
		p.refuse("rope_local_base_freq is 0, want a positive number")
	}
}

// partialRope sets RotaryDim; only Phi-3's class looks at it.
func (p *hfParser) partialRope(f float64) {
	switch {
	case f == 1:
	case p.raw.ModelType != "phi3":
		p.refuse("partial_rotary_factor %v is not implemented for model_type %q (have 1)", f, p.raw.ModelType)
	case !(f > 0 && f < 1):
		p.refuse("partial_rotary_factor is %v, want more than 0 and at most 1", f)
	default:
		if p.c.RotaryDim = int(float64(p.c.HeadDim) * f); p.c.RotaryDim < 2 {
			p.refuse("partial_rotary_factor %v leaves nothing of a head of %d", f, p.c.HeadDim)
		}
	}
}

// ropeByLayerType reads Gemma 3's form of rope_parameters.
func (p *hfParser) ropeByLayerType(name string, dict map[string]json.RawMessage) {
	if p.raw.ModelType != "gemma3_text" {
		p.refuse("%s by layer type is not implemented for model_type %q", name, p.raw.ModelType)
		return
	}
	for _, kind := range slices.Sorted(maps.Keys(dict)) {
		field := name + "." + kind
		if isNull(dict[kind]) {
			continue
		}
		switch kind {
		case "full_attention":
			if r, ok := p.ropeDict(field, dict[kind]); ok {
				p.ropeScaling(field, r)
				p.partialRope(or(r.Partial, 1))
			}
		case "sliding_attention":
			r, ok := p.ropeDict(field, dict[kind])
			if !ok {
				continue
			}
			if r.Type != "default" {
				p.refuse("%s type %q is not implemented (have default)", field, r.Type)
			}
			p.partialRope(or(r.Partial, 1))
			p.c.LocalRopeTheta = or(r.Theta, p.c.LocalRopeTheta)
		default:
			if !isNeutral(dict[kind]) {
				p.refuse("%s is not implemented", field)
			}
		}
	}
}

// ropeDict decodes one dictionary and refuses keys it doesn't know.
func (p *hfParser) ropeDict(field string, raw json.RawMessage) (hfRope, bool) {
	var r hfRope
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(raw, &r); err != nil {
		p.refuse("%s: %v", field, err)
		return r, false
	}
	if err := json.Unmarshal(raw, &keys); err != nil {
		p.refuse("%s: %v", field, err)
		return r, false
	}
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		if !slices.Contains(hfRopeKeys, k) && !isNeutral(keys[k]) {
			p.refuse("%s.%s is not implemented", field, k)
		}
	}
	if r.Type == "" {
		r.Type = r.OldType
	}
	if r.Type == "" {
		r.Type = "default"
	}
	return r, true
}

// ropeScaling sets RopeTheta and RopeScaling from one dictionary.
func (p *hfParser) ropeScaling(field string, r hfRope) {
	c := &p.c
	c.RopeTheta = or(r.Theta, c.RopeTheta)
	if p.raw.ModelType == "phi3" && (r.Type == "su" || r.Type == "yarn") {
		r.Type = "longrope" // what Phi-3's older files called it
	}
	s := RopeScaling{Type: r.Type}
	need := func(name string, v *float64) float64 {
		if v == nil {
			p.refuse("%s.%s is missing, type %q needs it", field, name, r.Type)
			return 1
		}
		return *v
	}
	original := or(r.OriginalMax, or(p.raw.OriginalMax, c.MaxPositionEmbeddings))
	if p.raw.ModelType == "phi3" { // whose class always has the outer field, which goes first
		original = or(p.raw.OriginalMax, 4096)
	} else if r.OriginalMax != nil && p.raw.OriginalMax != nil && *r.OriginalMax != *p.raw.OriginalMax {
		p.refuse("original_max_position_embeddings is %d, and %d in %s", *p.raw.OriginalMax, *r.OriginalMax, field)
	}
	switch r.Type {
	case "default":
		c.RopeScaling = RopeScaling{}
		return
	case "linear":
		s.Factor = need("factor", r.Factor)
	case "dynamic":
		s.Factor = need("factor", r.Factor)
		s.OriginalMaxPositions = c.MaxPositionEmbeddings
		if r.OriginalMax != nil && *r.OriginalMax != c.MaxPositionEmbeddings {
			p.refuse("%s.original_max_position_embeddings %d other than max_position_embeddings %d is not implemented for type dynamic", field, *r.OriginalMax, c.MaxPositionEmbeddings)
		}
	case "yarn":
		s.OriginalMaxPositions = original
		s.Factor = float64(c.MaxPositionEmbeddings) / float64(max(original, 1))
		if r.Factor != nil {
			s.Factor = *r.Factor
		}
		s.BetaFast, s.BetaSlow, s.MScale, s.MScaleAllDim = or(r.BetaFast, 0), or(r.BetaSlow, 0), or(r.MScale, 0), or(r.MScaleAllDim, 0)
		s.NoTruncate = !or(r.Truncate, true)
	case "llama3":
		s.Factor, s.OriginalMaxPositions = need("factor", r.Factor), original
		s.LowFreqFactor, s.HighFreqFactor = need("low_freq_factor", r.LowFreqFactor), need("high_freq_factor", r.HighFreqFactor)
	case "longrope":
		s.OriginalMaxPositions, s.Factor, s.ShortFactor, s.LongFactor = original, or(r.Factor, 0), r.ShortFactor, r.LongFactor
	default:
		p.refuse("%s type %q is not implemented (have default, linear, dynamic, yarn, llama3, longrope)", field, r.Type)
		return
	}
	if r.AttentionFactor != nil && (r.Type == "yarn" || r.Type == "longrope") {
		if s.AttentionFactor = *r.AttentionFactor; !(s.AttentionFactor > 0) {
			p.refuse("%s.attention_factor is %v, want a positive number or null", field, s.AttentionFactor)
		}
	}
	c.RopeScaling = s
}
