package f32

// Exp replaces every x by exp(x*scale + shift), clamped to the range of normal
// floats (arguments below -86.5 give 2.7e-38, not 0). Relative error about
// 1.2e-7. NaN stays NaN.
func Exp(x []float32, scale, shift float32) { expKernel(x, scale, shift) }

// Sum adds x in 16 interleaved chains, joined as a tree: appending zeros does
// not change the result.
func Sum(x []float32) float32 {
	var s [16]float32
	for len(x) >= 16 {
		v := (*[16]float32)(x)
		for i := range s {
			s[i] += v[i]
		}
		x = x[16:]
	}
	for i, v := range x {
		s[i] += v
	}
	for w := 8; w > 0; w /= 2 {
		for i := range w {
			s[i] += s[i+w]
		}
	}
	return s[0]
}

// Dot is the inner product of two equally long vectors, in four interleaved
// chains.
func Dot(x, y []float32) float32 {
	y = y[:len(x)]
	var s0, s1, s2, s3 float32
	i := 0
	for ; i+4 <= len(x); i += 4 {
		s0 += x[i] * y[i]
		s1 += x[i+1] * y[i+1]
		s2 += x[i+2] * y[i+2]
		s3 += x[i+3] * y[i+3]
	}
	for ; i < len(x); i++ {
		s0 += x[i] * y[i]
	}
	return (s0 + s1) + (s2 + s3)
}

// Max is the largest element of a non-empty vector. A NaN is skipped unless it
// comes first: it shows again in whatever is made of the vector.
func Max(x []float32) float32 {
	m0 := x[0]
	m1, m2, m3 := m0, m0, m0
	for len(x) >= 4 {
		v := (*[4]float32)(x)
		if v[0] > m0 {
			m0 = v[0]
		}
		if v[1] > m1 {
			m1 = v[1]
		}
		if v[2] > m2 {
			m2 = v[2]
		}
		if v[3] > m3 {
			m3 = v[3]
		}
		x = x[4:]
	}
	for _, v := range x {
		if v > m0 {
			m0 = v
		}
	}
	if m1 > m0 {
		m0 = m1
	}
	if m3 > m2 {
		m2 = m3
	}
	if m2 > m0 {
		m0 = m2
	}
	return m0
}

// Add adds y to x, element by element.
func Add(x, y []float32) {
	y = y[:len(x)]
	for i := range x {
		x[i] += y[i]
	}
}

// Scale multiplies x by s.
func Scale(x []float32, s float32) {
	for i := range x {
		x[i] *= s
	}
}
