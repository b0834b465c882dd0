package f32

// Exp replaces every x by exp(x*scale + shift), clamped to the range of normal
// floats: arguments below -86.5 give 0, above 88 exp(88). Relative error about
// 1.2e-7. NaN stays NaN.
func Exp(x []float32, scale, shift float32) { expKernel(x, scale, shift) }

// Sum adds x in 16 interleaved chains, joined as a tree: appending zeros does
// not change the result.
func Sum(x []float32) float32 {
	var s [16]float32
	n := len(x) &^ 15
	sumKernel(&s, x[:n])
	for i, v := range x[n:] {
		s[i] += v
	}
	return join(&s)
}

func join(s *[16]float32) float32 {
	for w := 8; w > 0; w /= 2 {
		for i := range w {
			s[i] += s[i+w]
		}
	}
	return s[0]
}

// Dot is the inner product of two equally long vectors, in the chains of Sum.
func Dot(x, y []float32) float32 {
	y = y[:len(x)]
	var s [16]float32
	n := len(x) &^ 15
	dotKernel(&s, x[:n], y)
	for i, v := range x[n:] {
		s[i] += v * y[n+i]
	}
	return join(&s)
}

// NormMul sets y to x*r*w, element by element; y may be x.
func NormMul(y, x []float32, r float32, w []float32) {
	y, w = y[:len(x)], w[:len(x)]
	n := len(x) &^ 15
	normKernel(y[:n], x, r, w)
	for i := n; i < len(x); i++ {
		y[i] = x[i] * r * w[i]
	}
}

// Max is the largest element of a non-empty vector. A NaN is skipped unless it
// comes first: it shows again in whatever is made of the vector.
func Max(x []float32) float32 {
	top := x[0]
	if n := len(x) &^ 15; n > 0 {
		var m [16]float32
		for i := range m {
			m[i] = top
		}
		maxKernel(&m, x[:n])
		for _, v := range m {
			if v > top {
				top = v
			}
		}
		x = x[n:]
	}
	for _, v := range x {
		if v > top {
			top = v
		}
	}
	return top
}

// SiLUMul replaces e by gate/(1+e)*up; with e = exp(-gate) that is
// silu(gate)*up.
func SiLUMul(e, gate, up []float32) {
	gate, up = gate[:len(e)], up[:len(e)]
	n := len(e) &^ 15
	siluKernel(e[:n], gate, up)
	for i := n; i < len(e); i++ {
		e[i] = gate[i] / (1 + e[i]) * up[i]
	}
}

// Add adds y to x, element by element.
func Add(x, y []float32) {
	y = y[:len(x)]
	n := len(x) &^ 15
	addKernel(x[:n], y)
	for i := n; i < len(x); i++ {
		x[i] += y[i]
	}
}

// Offset sets dst to src + by; they may be one vector.
func Offset(dst, src []float32, by float32) {
	dst = dst[:len(src)]
	n := len(src) &^ 15
	offsetKernel(dst[:n], src, by)
	for i := n; i < len(src); i++ {
		dst[i] = src[i] + by
	}
}

// Scale multiplies x by s.
func Scale(x []float32, s float32) {
	for i := range x {
		x[i] *= s
	}
}
