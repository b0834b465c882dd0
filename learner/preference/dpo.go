package preference

import (
	"fmt"
	"math"
)

// DPOTotals are the sums over a whole optimizer step that the loss divides by.
type DPOTotals struct {
	Pairs float64
	// ChosenTokens is the number of counted tokens in the chosen completions; the
	// sft term's denominator.
	ChosenTokens float64
}

// NewDPOTotals counts a whole step; LogP is read for its length only.
func NewDPOTotals(pairs []Pair) (DPOTotals, error) {
	t := DPOTotals{Pairs: float64(len(pairs))}
	for i, p := range pairs {
		if m := p.Chosen.Mask; m != nil && len(m) != len(p.Chosen.LogP) {
			return DPOTotals{}, fmt.Errorf("preference: pair %d chosen: Mask has %d values for %d tokens", i, len(m), len(p.Chosen.LogP))
		}
		t.ChosenTokens += p.Chosen.tokens()
	}
	return t, nil
}

// DPOResult is a micro-batch's share of the step's loss and its derivatives.
type DPOResult struct {
	Loss  float64
	DLogP []PairGrad // in the order of the pairs
	Stats PairStats  // merge those of all micro-batches
}

// side is one completion of a pair, summed over its tokens.
type side struct {
	lp, ref       float64 // log-probabilities; the tail weighed by LDAlpha
	n             float64 // tokens, at least 1
	ratio         float64 // lp - ref
	score, dScore float64 // f'(ratio) and its derivative
}

// term is one pair's loss and its derivatives with respect to the lp of both
// sides.
type term struct{ loss, dChosen, dRejected float64 }

// DPO evaluates the loss of a micro-batch within a step of the given totals:
//
//	Σ_types weight · mean over the step's pairs
//
// An empty micro-batch, or a step without pairs, has loss 0. A completion
// without counted tokens contributes its constant and gets no derivative.
// Errors: an invalid configuration, a Seq that lacks what it needs, a
// non-finite input or result, totals of another step. It never returns NaN.
func DPO(c DPOConfig, pairs []Pair, tot DPOTotals) (DPOResult, error) {
	if err := c.Validate(); err != nil {
		return DPOResult{}, err
	}
	if err := checkTotal("pairs", tot.Pairs, len(pairs)); err != nil {
		return DPOResult{}, err
	}
	if c.WholeStep() && float64(len(pairs)) != tot.Pairs {
		return DPOResult{}, fmt.Errorf("preference: aot sorts across the step's %v pairs but got %d; score them all first and call DPO once", tot.Pairs, len(pairs))
	}
	chosen, rejected := make([]side, len(pairs)), make([]side, len(pairs))
	for i, p := range pairs {
		for _, s := range []struct {
			name string
			seq  Seq
		}{{"chosen", p.Chosen}, {"rejected", p.Rejected}} {
			if err := s.seq.check(fmt.Sprintf("pair %d %s", i, s.name), c.NeedsReference(), c.Weighting == WeightingWPOAligned); err != nil {
				return DPOResult{}, err
			}
		}
		chosen[i], rejected[i] = c.side(p.Chosen, p.Rejected), c.side(p.Rejected, p.Chosen)
		if !finite(chosen[i].ratio) || !finite(rejected[i].ratio) {
			return DPOResult{}, diverged(i, math.NaN(), chosen[i], rejected[i])
		}
	}
	res := DPOResult{DLogP: make([]PairGrad, len(pairs)), Stats: newPairStats(c)}
	d := make([]term, len(pairs)) // weighted sums of the parts
	for k, part := range c.parts() {
		if part.name == SFTTerm {
			continue
		}
		terms := c.terms(part, chosen, rejected)
		for i, t := range terms {
			w := c.pairWeight(pairs[i]) / floor1(tot.Pairs)
			d[i].loss += part.weight * w * t.loss
			d[i].dChosen += part.weight * w * t.dChosen
			d[i].dRejected += part.weight * w * t.dRejected
			res.Stats.Parts[k] += w * t.loss
		}
	}
	for i, p := range pairs {
		g := PairGrad{c.spread(p.Chosen, p.Rejected, d[i].dChosen), c.spread(p.Rejected, p.Chosen, d[i].dRejected)}
		d[i].loss += c.sft(p.Chosen, g.Chosen, tot, &res.Stats)
		if !finite(d[i].loss) || !finite(d[i].dChosen) || !finite(d[i].dRejected) {
			return DPOResult{}, diverged(i, d[i].loss, chosen[i], rejected[i])
		}
		res.Loss += d[i].loss
		res.DLogP[i] = g
		res.Stats.add(c, chosen[i], rejected[i])
	}
	return res, nil
}

func diverged(i int, loss float64, w, l side) error {
	return fmt.Errorf("preference: pair %d: loss is %v with log-ratios %.4g (chosen) and %.4g (rejected); the policy has left the reference: lower learning_rate", i, loss, w.ratio, l.ratio)
}

// terms evaluates one loss type on every pair.
func (c DPOConfig) terms(p part, chosen, rejected []side) []term {
	if p.step {
		return aotTerms(c, p.name == "aot", chosen, rejected)
	}
	out := make([]term, len(chosen))
	for i := range out {
		out[i] = p.term(c, chosen[i], rejected[i])
	}
	return out
}

// side sums a completion against the other of its pair.
func (c DPOConfig) side(s, other Seq) side {
	x := side{n: floor1(s.tokens())}
	each(s, c.tail(s, other), func(t int, w float64) {
		x.lp += w * s.LogP[t]
		if s.Ref != nil && !c.ReferenceFree {
			x.ref += w * s.Ref[t]
		}
	})
	x.ratio = x.lp - x.ref
	x.score, x.dScore = c.score(x.ratio)
	return x
}

// spread brings a derivative with respect to lp to the tokens.
func (c DPOConfig) spread(s, other Seq, d float64) []float64 {
	out := make([]float64, len(s.LogP))
	each(s, c.tail(s, other), func(t int, w float64) { out[t] = w * d })
	return out
}

// tail is LD-DPO's weighing: counted tokens from the first on weigh 1 up to the
// shorter completion's length and weight from there.
type tail struct{ shared, weight float64 }

func (c DPOConfig) tail(s, other Seq) tail {
	if c.LDAlpha == nil {
		return tail{shared: s.tokens(), weight: 1}
	}
	return tail{min(s.tokens(), other.tokens()), *c.LDAlpha}
}

// each visits the counted tokens with their weights.
func each(s Seq, l tail, f func(t int, w float64)) {
	n := 0.0
	for t := range s.LogP {
		if !s.on(t) {
			continue
		}
		w := 1.0
		if n++; n > l.shared {
			w = l.weight
		}
		f(t, w)
	}
}

// sft adds the sft term's derivative to d and returns its share of the loss.
func (c DPOConfig) sft(s Seq, d []float64, tot DPOTotals, st *PairStats) float64 {
	sum := 0.0
	for k, p := range c.parts() {
		if p.name != SFTTerm {
			continue
		}
		den := floor1(tot.ChosenTokens)
		for t := range d {
			if s.on(t) {
				d[t] -= p.weight / den
			}
		}
		l := -s.sum(s.LogP) / den
		st.Parts[k] += l
		sum += p.weight * l
	}
	return sum
}
