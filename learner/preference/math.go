package preference

import "math"

// sigmoid is 1/(1+e^-x) without overflow.
func sigmoid(x float64) float64 {
	if x >= 0 {
		return 1 / (1 + math.Exp(-x))
	}
	e := math.Exp(x)
	return e / (1 + e)
}

// logSigmoid is log(sigmoid(x)) without overflow or cancellation; its
// derivative is sigmoid(-x).
func logSigmoid(x float64) float64 {
	return min(x, 0) - math.Log1p(math.Exp(-math.Abs(x)))
}

// expBound is where exponentials turn into straight lines.
const expBound = 80.0

// expLinear is e^x up to expBound and its tangent beyond, and the derivative.
// TRL clamps there (in alpha_divergence), which leaves no derivative to come
// back by.
func expLinear(x float64) (v, d float64) {
	if x <= expBound {
		v = math.Exp(x)
		return v, v
	}
	d = math.Exp(expBound)
	return d * (1 + x - expBound), d
}
