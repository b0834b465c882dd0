package loss

import (
	"fmt"
	"math"
)

// Result is a loss and its derivatives for the rows given.
type Result struct {
	// Loss is this micro-batch's share of the step's loss; shares add up.
	Loss float64
	// PolicyLoss is Loss without the entropy bonus.
	PolicyLoss float64
	// DLogP is dLoss/dLogP, one per token of each row, 0 where masked.
	DLogP [][]float64
	// DEntropy is dLoss/dEntropy in the same shape; nil without entropy bonus.
	DEntropy [][]float64
	// Stats are the sums behind the metrics; merge those of all micro-batches.
	Stats Stats
}

// Compute evaluates the loss of a micro-batch within a step of the given
// totals. Errors: an invalid configuration, a row that lacks what the
// configuration needs, a non-finite input or result. It never returns NaN.
func Compute(c Config, rows []Row, tot Totals) (Result, error) {
	if err := c.Validate(); err != nil {
		return Result{}, err
	}
	res := Result{DLogP: make([][]float64, len(rows)), Stats: newStats()}
	if c.EntropyCoef != 0 {
		res.DEntropy = make([][]float64, len(rows))
	}
	for i, r := range rows {
		if err := r.check(i, c); err != nil {
			return Result{}, err
		}
		policy, bonus := res.row(c, i, r, tot)
		if l := policy + bonus; math.IsNaN(l) || math.IsInf(l, 0) {
			return Result{}, fmt.Errorf("loss: row %d: loss is %v (largest log-ratio %.3g); the policy has diverged from the one that sampled: lower learning_rate or set delta", i, l, maxLogRatio(r))
		}
		res.PolicyLoss += policy
		res.Loss += policy + bonus
	}
	return res, nil
}

// row adds one row's derivatives and statistics, and returns its shares.
func (res *Result) row(c Config, i int, r Row, tot Totals) (policy, bonus float64) {
	n, kept := r.count()
	counted := n
	if c.Denominator == DenominatorKept {
		counted = kept
	}
	how := kinds[c.LossType]
	w := how.weight(counted, tot, c)
	ratio := importance(c.Level, r)
	logW := 0.0
	if c.LossType == "vespo" {
		logW = vespoLogW(r)
	}
	off := drift(r)

	d := make([]float64, len(r.LogP))
	res.DLogP[i] = d
	if res.DEntropy != nil {
		res.DEntropy[i] = make([]float64, len(r.LogP))
	}
	dSeq := 0.0 // dLoss/d(row ratio), where the row has one
	acc := rowStats{}
	for t := range r.LogP {
		if !r.on(t) {
			continue
		}
		high := r.Entropy == nil || r.Entropy[t] >= tot.EntropyFloor
		use := 1.0
		if c.LossType != "vespo" { // there it is part of the sequence weight
			use = r.ratio(t)
		}
		if !high || !offPolicyKeep(c, off, r.adv(t)) {
			use = 0
		}
		p := how.term(c, tokenIn{ratio[t], r.adv(t), r.LogP[t], logW})
		l, dRatio := p.loss*use, p.dRatio*use
		d[t] += w * p.dLogP * use
		kl := 0.0
		if c.Beta != 0 {
			k, dk := KL(c.KLEstimator, r.LogP[t], r.Ref[t])
			kl = k
			if c.BiasCorrectedKL {
				kl = k * ratio[t]
				dRatio += c.Beta * k
				dk *= ratio[t]
			}
			l += c.Beta * kl
			d[t] += w * c.Beta * dk
		}
		if c.Level != LevelToken {
			dSeq += w * dRatio
		} else {
			d[t] += scaled(w*dRatio, ratio[t])
		}
		policy += w * l
		if res.DEntropy != nil && high {
			coef := c.EntropyCoef / floor1(tot.EntropyTokens)
			bonus -= coef * r.Entropy[t]
			res.DEntropy[i][t] = -coef
		}
		acc.token(c, r, t, tokenIn{ratio[t], r.adv(t), r.LogP[t], logW}, kl, high)
	}
	if c.Level != LevelToken {
		share := 1.0 // dlog(ratio)/dLogP of each token
		if c.Level == LevelSequence {
			share = 1 / floor1(n)
		}
		for t := range d {
			if r.on(t) {
				d[t] += scaled(dSeq, ratio[t]) * share
			}
		}
	}
	res.Stats.add(c, r, acc, n, kept, !offPolicyKeep(c, off, minAdv(r)))
	return policy, bonus
}

// scaled is a*ratio where a zero derivative (a clipped token) stays zero even
// when the ratio has overflowed.
func scaled(a, ratio float64) float64 {
	if a == 0 {
		return 0
	}
	return a * ratio
}

func minAdv(r Row) float64 {
	m := math.Inf(1)
	for _, a := range r.Adv {
		m = min(m, a)
	}
	return m
}

func maxLogRatio(r Row) float64 {
	m := 0.0
	for t := range r.LogP {
		if r.on(t) {
			m = max(m, math.Abs(r.LogP[t]-r.old(t)))
		}
	}
	return m
}
