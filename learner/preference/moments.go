package preference

import "math"

// Moments are a running count, mean and sum of squared deviations; the zero
// value has seen nothing. It is plain data, for checkpoints.
type Moments struct {
	Count float64 `json:"count"`
	Mean  float64 `json:"mean"`
	M2    float64 `json:"m2"`
}

// Merge is the moments of both (Chan et al. 1979, "Updating formulae and a
// pairwise algorithm for computing sample variances", eq. 2.1).
func (m Moments) Merge(o Moments) Moments {
	n := m.Count + o.Count
	if n == 0 {
		return Moments{}
	}
	d := o.Mean - m.Mean
	return Moments{n, m.Mean + d*o.Count/n, m.M2 + o.M2 + d*d*m.Count*o.Count/n}
}

// Std is the Bessel-corrected deviation; 0 for fewer than two.
func (m Moments) Std() float64 {
	if m.Count < 2 {
		return 0
	}
	return math.Sqrt(m.M2 / (m.Count - 1))
}

func momentsOf(v []float64) Moments {
	m := Moments{Count: float64(len(v))}
	for _, x := range v {
		m.Mean += x / m.Count
	}
	for _, x := range v {
		m.M2 += (x - m.Mean) * (x - m.Mean)
	}
	return m
}
