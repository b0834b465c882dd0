package model

import (
	"fmt"
	"math"
)

// RopeScaling changes rope's frequencies for longer contexts. Fields that a
// kind does not use are zero.
type RopeScaling struct {
	Type   string  `json:"rope_type,omitempty"` // "" none, linear, dynamic, yarn, llama3, longrope
	Factor float64 `json:"factor,omitempty"`
	// OriginalMaxPositions is the context the base was trained with.
	OriginalMaxPositions int     `json:"original_max_position_embeddings,omitempty"`
	LowFreqFactor        float64 `json:"low_freq_factor,omitempty"`  // llama3
	HighFreqFactor       float64 `json:"high_freq_factor,omitempty"` // llama3
	BetaFast             float64 `json:"beta_fast,omitempty"`        // yarn
	BetaSlow             float64 `json:"beta_slow,omitempty"`        // yarn
	MScale               float64 `json:"mscale,omitempty"`           // yarn
	MScaleAllDim         float64 `json:"mscale_all_dim,omitempty"`   // yarn
	NoTruncate           bool    `json:"no_truncate,omitempty"`      // yarn: truncate=false
	// AttentionFactor multiplies cosines and sines; 0 = the kind's own rule.
	AttentionFactor float64   `json:"attention_factor,omitempty"`
	ShortFactor     []float64 `json:"short_factor,omitempty"` // longrope, [rotary/2]
	LongFactor      []float64 `json:"long_factor,omitempty"`  // longrope
	// Long: contexts beyond OriginalMaxPositions are served; see
	// WithLongContext. It decides for dynamic and longrope, once for the whole model, which frequencies hold at
	// every position; otherwise cached keys of one sequence would have been
	// rotated by different tables as it grew.
	Long bool `json:"long,omitempty"`
}

// RopeTable is how positions rotate one layer's q and k: pair i, the numbers i
// and i+len(Inv) of a head, turns by position*Inv[i]; cosine and sine are
// multiplied by Scale. An empty Inv means the layer has no positions.
type RopeTable struct {
	Inv   []float32
	Scale float32
}

// Rotary is how many leading numbers of a head are rotated.
func (c Config) Rotary() int {
	if c.RotaryDim > 0 {
		return c.RotaryDim
	}
	return c.HeadDim
}

// Window is how many positions, its own included, a query of this layer sees;
// 0 = all.
func (c Config) Window(layer int) int {
	if c.SlidingWindow == 0 || layer < len(c.FullLayers) && c.FullLayers[layer] {
		return 0
	}
	return c.SlidingWindow
}

// MoE reports whether a layer is a mixture of experts.
func (c Config) MoE(layer int) bool {
	return c.Experts > 0 && !(layer < len(c.DenseLayers) && c.DenseLayers[layer])
}

// ScoreScale is the factor on attention scores.
func (c Config) ScoreScale() float64 {
	if c.AttnScale > 0 {
		return c.AttnScale
	}
	return 1 / math.Sqrt(float64(c.HeadDim))
}

// Rope gives a layer's table. Frequencies are computed in float64 and rounded.
func (c Config) Rope(layer int) RopeTable {
	if layer < len(c.NoRopeLayers) && c.NoRopeLayers[layer] {
		return RopeTable{Scale: 1}
	}
	theta, scaling := c.RopeTheta, c.RopeScaling
	if c.LocalRopeTheta > 0 && c.Window(layer) > 0 {
		theta, scaling = c.LocalRopeTheta, RopeScaling{}
	}
	inv := make([]float64, c.Rotary()/2)
	for i := range inv {
		inv[i] = 1 / math.Pow(theta, float64(2*i)/float64(c.Rotary()))
	}
	t := RopeTable{Inv: make([]float32, len(inv)), Scale: float32(scaling.apply(inv, theta, c))}
	for i, f := range inv {
		t.Inv[i] = float32(f)
	}
	return t
}

// scaledContext is factor times the trained context.
func (s RopeScaling) scaledContext() int {
	return int(min(s.Factor*float64(s.OriginalMaxPositions), 1<<28))
}

// apply scales frequencies in place and returns the factor on cosine and sine.
// The formulas are those of transformers' modeling_rope_utils, whose sources
// the cases name.
func (s RopeScaling) apply(inv []float64, theta float64, c Config) float64 {
	original, dim := float64(s.OriginalMaxPositions), float64(2*len(inv))
	switch s.Type {
	case "linear": // position interpolation, Chen et al. 2023, arXiv:2306.15595
		for i := range inv {
			inv[i] /= s.Factor
		}
	case "dynamic": // "NTK-aware" base; for the longest sequence when Long
		length := original
		if s.Long {
			length = float64(s.scaledContext())
		}
		grown := theta * math.Pow(s.Factor*length/original-(s.Factor-1), dim/(dim-2))
		for i := range inv {
			inv[i] = math.Pow(grown, -float64(2*i)/dim)
		}
	case "yarn":
		return s.yarn(inv, theta)
	case "llama3": // Llama 3.1's model card; keep short waves, stretch long ones
		for i, f := range inv {
			turns := original * f / (2 * math.Pi) // in the trained context
			switch {
			case turns > s.HighFreqFactor:
			case turns < s.LowFreqFactor:
				inv[i] = f / s.Factor
			default:
				smooth := (turns - s.LowFreqFactor) / (s.HighFreqFactor - s.LowFreqFactor)
				inv[i] = (1-smooth)*f/s.Factor + smooth*f
			}
		}
	case "longrope": // Ding et al. 2024, arXiv:2402.13753
		by := s.ShortFactor
		if s.Long {
			by = s.LongFactor
		}
		for i := range inv {
			inv[i] /= by[i]
		}
		if s.AttentionFactor > 0 {
			return s.AttentionFactor
		}
		factor := s.Factor
		if factor == 0 {
			factor = float64(c.MaxPositionEmbeddings) / original
		}
		if factor > 1 {
			return math.Sqrt(1 + math.Log(factor)/math.Log(original))
		}
	}
	return 1
}

// yarn is Peng et al. 2023, arXiv:2309.00071: pairs that turn often in the
// trained context keep their frequency, slow ones are interpolated (equations
// 17 to 21), and scores are sharpened through the returned factor (equation 22).
func (s RopeScaling) yarn(inv []float64, theta float64) float64 {
	dim := float64(2 * len(inv))
	orDefault := func(v, fallback float64) float64 {
		if v == 0 {
			return fallback
		}
		return v
	}
	// The pair that makes so many turns in the trained context.
	pair := func(turns float64) float64 {
		return dim * math.Log(float64(s.OriginalMaxPositions)/(turns*2*math.Pi)) / (2 * math.Log(theta))
	}
	low, high := pair(orDefault(s.BetaFast, 32)), pair(orDefault(s.BetaSlow, 1))
	if !s.NoTruncate {
		low, high = math.Floor(low), math.Ceil(high)
	}
	low, high = max(low, 0), min(high, dim-1)
	if low == high {
		high += 0.001 // transformers' guard
	}
	for i, f := range inv {
		slow := min(max((float64(i)-low)/(high-low), 0), 1)
		inv[i] = f/s.Factor*slow + f*(1-slow)
	}
	if s.AttentionFactor > 0 {
		return s.AttentionFactor
	}
	sharpen := func(m float64) float64 {
		if s.Factor <= 1 {
			return 1
		}
		return 0.1*m*math.Log(s.Factor) + 1
	}
	if s.MScale != 0 && s.MScaleAllDim != 0 {
		return sharpen(s.MScale) / sharpen(s.MScaleAllDim)
	}
	return sharpen(1)
}

// validate reports what makes the scaling impossible to compute.
func (s RopeScaling) validate(c Config) []error {
	var errs []error
	bad := func(field string, value any, want string) {
		errs = append(errs, fmt.Errorf("rope scaling %s: %s is %v, want %s", s.Type, field, value, want))
	}
	finite := func(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }
	switch s.Type {
	case "":
		return nil
	case "linear", "dynamic", "yarn", "llama3", "longrope":
	default:
		return []error{fmt.Errorf("rope scaling type %q is not implemented (have linear, dynamic, yarn, llama3, longrope)", s.Type)}
	}
	// Absent in longrope, where the contexts' ratio stands for it.
	if !finite(s.Factor) || s.Factor < 1 && !(s.Type == "longrope" && s.Factor == 0) {
		bad("factor", s.Factor, "1 or more")
	}
	if s.Type != "linear" && (s.OriginalMaxPositions < 2 || s.OriginalMaxPositions > 1<<28) {
		bad("original_max_position_embeddings", s.OriginalMaxPositions, "2 or more")
	}
	if !finite(s.AttentionFactor) || s.AttentionFactor < 0 {
		bad("attention_factor", s.AttentionFactor, "a positive number")
	}
	pairs := c.Rotary() / 2
	switch s.Type {
	case "dynamic":
		if pairs < 2 {
			bad("head_dim", c.Rotary(), "4 or more")
		}
	case "yarn":
		for _, f := range []struct {
			name  string
			value float64
		}{{"beta_fast", s.BetaFast}, {"beta_slow", s.BetaSlow}, {"mscale", s.MScale}, {"mscale_all_dim", s.MScaleAllDim}} {
			if !finite(f.value) || f.value < 0 {
				bad(f.name, f.value, "a positive number")
			}
		}
		if c.RopeTheta == 1 {
			bad("rope_theta", c.RopeTheta, "another number")
		}
	case "llama3":
		if !finite(s.LowFreqFactor) || !finite(s.HighFreqFactor) || s.LowFreqFactor <= 0 || s.HighFreqFactor <= s.LowFreqFactor {
			bad("high_freq_factor", s.HighFreqFactor, fmt.Sprintf("more than low_freq_factor %v, and both above 0", s.LowFreqFactor))
		}
	case "longrope":
		for _, f := range []struct {
			name string
			list []float64
		}{{"short_factor", s.ShortFactor}, {"long_factor", s.LongFactor}} {
			if len(f.list) != pairs {
				bad(f.name, fmt.Sprintf("%d numbers", len(f.list)), fmt.Sprintf("%d, one for each rotated pair", pairs))
			}
			for i, v := range f.list {
				if !finite(v) || v <= 0 {
					bad(fmt.Sprintf("%s[%d]", f.name, i), v, "a positive number")
					break
				}
			}
		}
	}
	return errs
}
