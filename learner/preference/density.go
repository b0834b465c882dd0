package preference

import (
	"errors"
	"fmt"
	"math"
)

// DensityConfig is the classifier behind BCO's density ratio. Names follow
// TRL's BCOConfig.
type DensityConfig struct {
	// C is the inverse strength of the L2 penalty, > 0 (scikit-learn's C).
	C float64
	// MinRatio and MaxRatio bound the ratio; 0 < MinRatio <= MaxRatio.
	MinRatio, MaxRatio float64
	// MaxIterations bounds the Newton steps, >= 1; Tolerance is the largest
	// gradient component to stop at, > 0.
	MaxIterations int
	Tolerance     float64
}

// DefaultDensityConfig has the defaults of TRL 0.24 and scikit-learn, with a
// tighter tolerance.
func DefaultDensityConfig() DensityConfig {
	return DensityConfig{C: 1, MinRatio: 0.5, MaxRatio: 10, MaxIterations: 100, Tolerance: 1e-8}
}

// Validate reports every problem with field, value and remedy.
func (c DensityConfig) Validate() error {
	var errs []error
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	if !(c.C > 0 && finite(c.C)) {
		bad("density_c: %v is not a finite number > 0; use 1", c.C)
	}
	if !(c.MinRatio > 0 && c.MinRatio <= c.MaxRatio && finite(c.MaxRatio)) {
		bad("min_density_ratio, max_density_ratio: %v, %v are not 0 < min <= max; use 0.5 and 10", c.MinRatio, c.MaxRatio)
	}
	if c.MaxIterations < 1 {
		bad("density_max_iterations: %d is below 1; use 100", c.MaxIterations)
	}
	if !(c.Tolerance > 0 && finite(c.Tolerance)) {
		bad("density_tolerance: %v is not a finite number > 0; use 1e-8", c.Tolerance)
	}
	return errors.Join(errs...)
}

// Density is a trained logistic classifier: how much likelier a prompt is among
// desirable than among undesirable rows. Plain data, for checkpoints.
type Density struct {
	Weights  []float64 `json:"weights"` // one per embedding dimension
	Bias     float64   `json:"bias"`
	MinRatio float64   `json:"min_ratio"`
	MaxRatio float64   `json:"max_ratio"`
}

// Ratio is the density ratio p(desirable | x)/(1 - p) of a prompt's embedding
// within the bounds (BCO, arXiv:2404.04656, the underlying
// distribution matching).
func (d Density) Ratio(x []float64) (float64, error) {
	if len(x) != len(d.Weights) {
		return 0, fmt.Errorf("preference: density: an embedding of %d dimensions for a classifier of %d", len(x), len(d.Weights))
	}
	z := d.Bias + dot(d.Weights, x)
	if math.IsNaN(z) {
		return 0, errors.New("preference: density: the embedding holds a number that is not finite")
	}
	return min(max(math.Exp(z), d.MinRatio), d.MaxRatio), nil
}

// FitDensity trains the classifier on embeddings of desirable and undesirable
// prompts: logistic regression with balanced classes, minimising
//
//	|w|²/2 + C Σ_i c_i log(1 + exp(-y_i (w·x_i + b))),  c_i = n/(2 n_class)
//
// by Newton's method with conjugate gradients. It is a pure function: the same
// embeddings in the same order give the same bits. Errors: a class without
// rows, embeddings of different length or not finite, no convergence.
func FitDensity(c DensityConfig, desirable, undesirable [][]float64) (Density, error) {
	if err := c.Validate(); err != nil {
		return Density{}, err
	}
	if len(desirable) == 0 || len(undesirable) == 0 {
		return Density{}, fmt.Errorf("preference: density: %d desirable and %d undesirable prompts; both classes are needed, or leave the density ratio off", len(desirable), len(undesirable))
	}
	f := logistic{dim: len(desirable[0])}
	for k, class := range [][][]float64{desirable, undesirable} {
		y := float64(1 - 2*k)
		w := c.C * float64(len(desirable)+len(undesirable)) / (2 * float64(len(class)))
		for i, x := range class {
			if len(x) != f.dim {
				return Density{}, fmt.Errorf("preference: density: %s prompt %d has %d dimensions, the first %d", [...]string{"desirable", "undesirable"}[k], i, len(x), f.dim)
			}
			for j, v := range x {
				if !finite(v) {
					return Density{}, fmt.Errorf("preference: density: %s prompt %d dimension %d is %v", [...]string{"desirable", "undesirable"}[k], i, j, v)
				}
			}
			f.x, f.y, f.w = append(f.x, x), append(f.y, y), append(f.w, w)
		}
	}
	theta, err := f.fit(c)
	if err != nil {
		return Density{}, err
	}
	return Density{Weights: theta[:f.dim], Bias: theta[f.dim], MinRatio: c.MinRatio, MaxRatio: c.MaxRatio}, nil
}
