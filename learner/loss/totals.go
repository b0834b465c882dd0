package loss

import "math"

// Totals are the sums over a whole optimizer step that the losses divide by.
// They are computed once and given to every micro-batch.
type Totals struct {
	// Rows is the number of trajectories, those without trained tokens included.
	Rows float64
	// Tokens is the number of counted tokens by the denominator rule.
	Tokens float64
	// EntropyFloor is the least entropy whose token keeps its policy term; -Inf
	// when TopEntropyQuantile is 1.
	EntropyFloor float64
	// EntropyTokens is the number of tokens in the entropy bonus.
	EntropyTokens float64
}

// NewTotals counts a whole step. Rows need LogP (for its length), Mask, Ratio
// when Denominator is kept, and Entropy when TopEntropyQuantile < 1.
func NewTotals(c Config, rows []Row) (Totals, error) {
	if err := c.Validate(); err != nil {
		return Totals{}, err
	}
	tot := Totals{Rows: float64(len(rows)), EntropyFloor: math.Inf(-1)}
	for i, r := range rows {
		if c.TopEntropyQuantile < 1 || c.Denominator == DenominatorKept {
			if err := r.check(i, Config{TopEntropyQuantile: c.TopEntropyQuantile}); err != nil {
				return Totals{}, err
			}
		}
		n, kept := r.count()
		tot.EntropyTokens += n
		if c.Denominator == DenominatorKept {
			n = kept
		}
		tot.Tokens += n
	}
	if c.TopEntropyQuantile < 1 {
		tot.EntropyFloor, tot.EntropyTokens = entropyFloor(rows, 1-c.TopEntropyQuantile)
	}
	return tot, nil
}

// floor1 is torch's clamp(min=1): a denominator that is never zero, so that a
// fully masked batch has loss 0 and zero gradients instead of NaN.
func floor1(n float64) float64 { return max(n, 1) }
