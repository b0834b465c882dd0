package loss

import "math"

// Stats are sums over counted tokens and rows. Sums of micro-batches merge, so
// that a metric never depends on the partition or on padding.
type Stats struct {
	Rows, Tokens, Kept float64 // rows with tokens; tokens; tokens not rejected
	Entropy, KL        float64 // sums over tokens
	EntropyTokens      float64
	HighEntropy        float64 // tokens that reach the entropy floor
	ClipUnits          float64 // tokens, or rows at sequence level
	Low, High, Region  float64 // clipped units
	LowMin, HighMax    float64 // over rows; NaN without rows
	Perplexity         float64 // sum over rows of exp(-mean logp)
	Ratio              float64 // sum of rollout importance weights over tokens
	RatioMin, RatioMax float64
	RatioTokens        float64
	OffPolicyRows      float64 // rows with a token dropped by the off-policy mask
	Capped             float64 // cispo: tokens (rows at sequence level) whose weight the cap held
	Phi, PhiUnits      float64 // vespo: sum of φ over rows, or tokens with advantages of their own
}

func newStats() Stats {
	return Stats{LowMin: math.NaN(), HighMax: math.NaN(), RatioMin: math.Inf(1), RatioMax: math.Inf(-1)}
}

// rowStats collects one row.
type rowStats struct {
	entropy, kl, high, low, up, logp, capped, phi float64
}

func (a *rowStats) token(c Config, r Row, t int, in tokenIn, kl float64, high bool) {
	a.logp += r.LogP[t]
	a.kl += kl
	if r.Entropy != nil {
		a.entropy += r.Entropy[t]
	}
	if high {
		a.high++
	}
	switch {
	case c.clips():
		low, up := clipped(c, in.ratio, in.adv)
		a.low += b2f(low)
		a.up += b2f(up)
	case c.LossType == "cispo":
		a.capped += b2f(cispoCapped(c, in.ratio, in.adv))
	case c.LossType == "vespo":
		a.phi += vespoPhi(c, in.logW, in.adv)
	}
}

func (s *Stats) add(c Config, r Row, a rowStats, n, kept float64, dropped bool) {
	if n == 0 {
		return
	}
	s.Rows++
	s.Tokens += n
	s.Kept += kept
	s.KL += a.kl
	if r.Entropy != nil {
		s.Entropy += a.entropy
		s.EntropyTokens += n
	}
	s.HighEntropy += a.high
	s.Perplexity += math.Exp(-a.logp / n)
	if dropped {
		s.OffPolicyRows++
	}
	low, up, units := a.low, a.up, n
	if c.Level != LevelToken && len(r.Adv) == 1 { // one value per row
		low, up, units = a.low/n, a.up/n, 1
		a.capped /= n
	}
	s.Capped += a.capped
	if len(r.Adv) == 1 {
		s.Phi += a.phi / n
		s.PhiUnits++
	} else {
		s.Phi += a.phi
		s.PhiUnits += n
	}
	s.Low += low
	s.High += up
	s.Region += low + up // a unit is never clipped on both sides
	s.ClipUnits += units
	s.LowMin = nanMin(s.LowMin, low/units)
	s.HighMax = nanMax(s.HighMax, up/units)
	if r.Ratio != nil {
		for t := range r.LogP {
			if r.on(t) {
				x := r.ratio(t)
				s.Ratio += x
				s.RatioTokens++
				s.RatioMin = min(s.RatioMin, x)
				s.RatioMax = max(s.RatioMax, x)
			}
		}
	}
}

// Merge adds another micro-batch.
func (s *Stats) Merge(o Stats) {
	if s.Rows == 0 && s.RatioTokens == 0 && s.RatioMin == 0 {
		*s = newStats()
	}
	s.Rows += o.Rows
	s.Tokens += o.Tokens
	s.Kept += o.Kept
	s.Entropy += o.Entropy
	s.EntropyTokens += o.EntropyTokens
	s.KL += o.KL
	s.HighEntropy += o.HighEntropy
	s.ClipUnits += o.ClipUnits
	s.Low += o.Low
	s.High += o.High
	s.Region += o.Region
	s.LowMin = nanMin(s.LowMin, o.LowMin)
	s.HighMax = nanMax(s.HighMax, o.HighMax)
	s.Perplexity += o.Perplexity
	s.Ratio += o.Ratio
	s.RatioTokens += o.RatioTokens
	s.RatioMin = min(s.RatioMin, o.RatioMin)
	s.RatioMax = max(s.RatioMax, o.RatioMax)
	s.OffPolicyRows += o.OffPolicyRows
	s.Capped += o.Capped
	s.Phi += o.Phi
	s.PhiUnits += o.PhiUnits
}

// Metrics names the means as TRL does. A metric without data is left out.
func (s Stats) Metrics(c Config) map[string]float64 {
	m := map[string]float64{}
	if s.Tokens > 0 {
		m["training_ppl"] = s.Perplexity / s.Rows
		switch {
		case c.clips():
			m["clip_ratio/low_mean"] = s.Low / s.ClipUnits
			m["clip_ratio/high_mean"] = s.High / s.ClipUnits
			m["clip_ratio/region_mean"] = s.Region / s.ClipUnits
			m["clip_ratio/low_min"] = s.LowMin
			m["clip_ratio/high_max"] = s.HighMax
		case c.LossType == "cispo":
			m["cispo_clip_ratio"] = s.Capped / s.ClipUnits
		case c.LossType == "vespo":
			m["vespo/phi_seq_mean"] = s.Phi / s.PhiUnits
		}
		if c.Beta != 0 {
			m["kl"] = s.KL / s.Tokens
		}
		if c.OffPolicyMaskThreshold != nil {
			m["off_policy/dropped_rows"] = s.OffPolicyRows
		}
		if c.TopEntropyQuantile < 1 {
			m["entropy/kept_tokens"] = s.HighEntropy
		}
	}
	if s.EntropyTokens > 0 {
		m["entropy"] = s.Entropy / s.EntropyTokens
	}
	if c.EntropyCoef != 0 {
		m["entropy_coef"] = c.EntropyCoef
	}
	if s.RatioTokens > 0 {
		m["rollout_is/mean"] = s.Ratio / s.RatioTokens
		m["rollout_is/min"] = s.RatioMin
		m["rollout_is/max"] = s.RatioMax
		m["rollout_is/kept_tokens"] = s.Kept
		m["rollout_is/rejected_tokens"] = s.Tokens - s.Kept
		m["rollout_is/denominator_kept"] = b2f(c.Denominator == DenominatorKept)
	}
	return m
}

func b2f(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func nanMin(a, b float64) float64 {
	if math.IsNaN(a) || b < a {
		return b
	}
	return a
}

func nanMax(a, b float64) float64 {
	if math.IsNaN(a) || b > a {
		return b
	}
	return a
}
