package preference

import (
	"fmt"
	"math"
)

// logistic is the objective of FitDensity; its parameters are the weights, then
// the bias, which the penalty spares.
type logistic struct {
	dim  int
	x    [][]float64
	y, w []float64 // ±1; weight
}

func (f logistic) at(theta []float64, i int) float64 {
	return dot(theta[:f.dim], f.x[i]) + theta[f.dim]
}

func (f logistic) value(theta []float64) float64 {
	v := dot(theta[:f.dim], theta[:f.dim]) / 2
	for i := range f.x {
		v -= f.w[i] * logSigmoid(f.y[i]*f.at(theta, i))
	}
	return v
}

// slope is the gradient, and each row's second derivative.
func (f logistic) slope(theta []float64) (g, curve []float64) {
	g, curve = make([]float64, f.dim+1), make([]float64, len(f.x))
	copy(g, theta[:f.dim])
	for i := range f.x {
		z := f.y[i] * f.at(theta, i)
		curve[i] = f.w[i] * dSigmoid(z)
		f.axpy(g, i, -f.w[i]*f.y[i]*sigmoid(-z))
	}
	return g, curve
}

// axpy adds a times row i, extended by 1 for the bias.
func (f logistic) axpy(to []float64, i int, a float64) {
	for j, v := range f.x[i] {
		to[j] += a * v
	}
	to[f.dim] += a
}

// times is the Hessian times v.
func (f logistic) times(curve, v []float64) []float64 {
	out := make([]float64, f.dim+1)
	copy(out, v[:f.dim])
	for i := range f.x {
		f.axpy(out, i, curve[i]*f.at(v, i))
	}
	return out
}

// fit is Newton's method with an inexact solve and backtracking (Nocedal and
// Wright, "Numerical Optimization", 2nd ed., algorithm 7.1).
func (f logistic) fit(c DensityConfig) ([]float64, error) {
	theta := make([]float64, f.dim+1)
	v := f.value(theta)
	size := 0.0
	for range c.MaxIterations {
		g, curve := f.slope(theta)
		if size = largest(g); size <= c.Tolerance {
			return theta, nil
		}
		p := f.solve(curve, g, min(.5, math.Sqrt(size))*size)
		down := dot(g, p) // p points up the gradient: step against it
		step := 1.0
		for ; ; step /= 2 {
			next := make([]float64, len(theta))
			for j := range theta {
				next[j] = theta[j] - step*p[j]
			}
			if n := f.value(next); n <= v-1e-4*step*down {
				theta, v = next, n
				break
			}
			if step < 1e-12 { // at the limit of rounding
				if size <= 1e-6*float64(1+len(f.x)) {
					return theta, nil
				}
				return nil, fmt.Errorf("preference: density: the classifier stopped at a gradient of %.3g; scale the embeddings to about unit length", size)
			}
		}
	}
	return nil, fmt.Errorf("preference: density: no convergence in density_max_iterations %d (gradient %.3g); raise it, or lower density_c", c.MaxIterations, size)
}

// solve gives p with H p ≈ g by conjugate gradients, to a residual of tol.
func (f logistic) solve(curve, g []float64, tol float64) []float64 {
	p := make([]float64, len(g))
	r := append([]float64(nil), g...)
	d := append([]float64(nil), g...)
	rr := dot(r, r)
	for range 2*len(g) + 10 {
		if largest(r) <= tol || rr == 0 {
			break
		}
		h := f.times(curve, d)
		bend := dot(d, h)
		if !(bend > 0) { // flat along the bias: all rows saturated
			break
		}
		a := rr / bend
		for j := range p {
			p[j] += a * d[j]
			r[j] -= a * h[j]
		}
		next := dot(r, r)
		for j := range d {
			d[j] = r[j] + next/rr*d[j]
		}
		rr = next
	}
	if dot(g, p) <= 0 {
		return g
	}
	return p
}

func dot(a, b []float64) float64 {
	s := 0.0
	for i := range a {
		s += a[i] * b[i]
	}
	return s
}

func largest(v []float64) float64 {
	m := 0.0
	for _, x := range v {
		m = max(m, math.Abs(x))
	}
	return m
}
