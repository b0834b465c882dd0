package gobackend

import (
	"math"

	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/model/internal/f32"
)

const (
	headRows  = 256  // rows of logits held at once
	headVocab = 4096 // vocabulary rows of the head transposed at once, a multiple of f32.PanelWidth
)

// headState is the language-model head on the S scored rows of a batch.
type headState struct {
	temperature float64
	x, hn, inv  []float32 // [S, H] residual and normed rows, [S] reciprocal RMS
	logits      []float32 // [headRows, V]
	logp, ent   []float32 // [S]
	mean, sumSq []float32 // [S], nil unless asked for: mean of log p, log Σ p²
	dhn         []float32 // [S, H]
	unit        []float32 // [S, H] derivatives of logp with respect to hn
	units       bool      // unit is there
}

// logits computes the logits [rows, V] of normed rows, soft-capped where the
// model does.
func (n *net) logits(ex *exec, z, hn []float32, rows int) {
	times(hn, n.head, z, rows).compute(ex) // never with others': their logits together would take too much memory
	if n.logitCap == 0 {
		return
	}
	ex.pool.Rows(rows*n.vocab, 1<<12, func(lo, hi int) { softcap(z[lo:hi], 1, n.logitCap) })
}

// forwardHead scores the batch: z = logits/T, logp = z_target - logsumexp(z),
// entropy = logsumexp(z) - sum softmax(z) z.
// What tc asks for besides is computed too. With units, logits that are in memory
// are turned into the derivatives of logp at once, which spares a backward pass
// from computing them again.
func (n *net) forwardHead(ex *exec, b *batch, x []float32, temperature float64, tc model.TrainerConfig, units bool, s *headState) {
	rows := len(b.rows)
	s.temperature, s.units = temperature, units
	if units {
		s.unit = resize(s.unit, rows*n.hidden)
	}
	if tc.MeanLogProb {
		s.mean = resize(s.mean, rows)
	}
	if tc.LogSumSq {
		s.sumSq = resize(s.sumSq, rows)
	}
	s.x, s.hn, s.inv = resize(s.x, rows*n.hidden), resize(s.hn, rows*n.hidden), resize(s.inv, rows)
	s.logp, s.ent = resize(s.logp, rows), resize(s.ent, rows)
	for i, r := range b.rows {
		copy(s.x[i*n.hidden:(i+1)*n.hidden], x[r*n.hidden:])
	}
	ex.rmsNorm(s.hn, s.inv, s.x, n.norm, n.eps, rows)
	s.logits = resize(s.logits, min(rows, headRows)*n.vocab)
	for lo := 0; lo < rows; lo += headRows {
		m := min(headRows, rows-lo)
		n.logits(ex, s.logits, s.hn[lo*n.hidden:], m)
		ex.pool.For(m, func(i int) {
			z := s.logits[i*n.vocab : (i+1)*n.vocab]
			s.logp[lo+i], s.ent[lo+i] = scoreRow(z, int(b.target[lo+i]), temperature)
			if tc.MeanLogProb {
				s.mean[lo+i] = meanRow(z, int(b.target[lo+i]), temperature, s.logp[lo+i])
			}
			if tc.LogSumSq {
				s.sumSq[lo+i] = sumSqRow(z, temperature)
			}
			if units {
				n.unitRow(s, z, int(b.target[lo+i]), lo+i)
			}
		})
		if units {
			n.headBack(ex, s, s.unit, lo, m)
		}
	}
}

// unitRow replaces the logits of scored token i by their derivatives of its logp.
func (n *net) unitRow(s *headState, z []float32, target, i int) {
	gradRow(z, target, s.temperature, n.logitCap, s.logp[i], s.ent[i], 1, 0, 0)
}

// headBack computes dst[lo:lo+m] from the gradient of m rows of logits.
func (n *net) headBack(ex *exec, s *headState, dst []float32, lo, m int) {
	for v := 0; v < n.vocab; v += headVocab {
		k := min(headVocab, n.vocab-v)
		ex.compute(product{
			lin: n.head, back: true, lo: v, n: k, rows: m,
			x: f32.A{Data: s.logits[v:], RowStride: n.vocab, ColStride: 1}, y: dst[lo*n.hidden:], stride: n.hidden, add: v > 0,
		})
	}
}

// scoreRow turns logits into softmax terms, in place, after reading the
// target's.
func scoreRow(z []float32, target int, temperature float64) (logp, entropy float32) {
	inv := 1 / temperature
	top := float64(f32.Max(z))
	zt := float64(z[target])
	// The terms are recomputed from a copy in blocks: the weighted sum needs both.
	var terms [256]float32
	var sum, weighted float64
	for lo := 0; lo < len(z); lo += len(terms) {
		block := z[lo:min(len(z), lo+len(terms))]
		e := terms[:copy(terms[:], block)]
		f32.Exp(e, float32(inv), float32(-top*inv))
		for i, v := range e {
			sum += float64(v)
			weighted += float64(v) * (float64(block[i]) - top)
		}
	}
	log := math.Log(sum)
	return float32((zt-top)*inv - log), float32(log - weighted*inv/sum)
}

// meanRow is the mean of log p over the vocabulary, given the target's log p.
func meanRow(z []float32, target int, temperature float64, logp float32) float32 {
	var sum float64
	zt := float64(z[target])
	for _, v := range z {
		sum += float64(v) - zt
	}
	return float32(float64(logp) + sum/float64(len(z))/temperature)
}

// sumSqRow is log Σ p² = log Σ exp(2z) - 2 log Σ exp(z).
func sumSqRow(z []float32, temperature float64) float32 {
	inv := float32(1 / temperature)
	top := f32.Max(z)
	var terms [256]float32
	var sum, squares float64
	for lo := 0; lo < len(z); lo += len(terms) {
		e := terms[:copy(terms[:], z[lo:])]
		f32.Exp(e, inv, -top*inv)
		for _, v := range e {
			sum += float64(v)
			squares += float64(v) * float64(v)
		}
	}
	return float32(math.Log(squares) - 2*math.Log(sum))
}

// backwardHead computes dhn from the coefficients of logp, entropy and mean logp
// (nil: zero), and in full training the head's gradient. With p = softmax(z),
// z = logits/T:
//
//	dlogits = (dlogp (onehot - p) - dent p (log p + entropy) + dmean (1/V - p)) / T
//
// times the slope of the soft cap, if any. Without the last two, dhn is a multiple
// of a derivative that does not depend on the loss: always computed so, here or by
// forwardHead, for the same bits.
func (n *net) backwardHead(ex *exec, b *batch, s *headState, d model.Scores, dHead []float32) {
	at := func(v []float32, i int) float32 {
		if v == nil {
			return 0
		}
		return v[i]
	}
	rows := len(b.rows)
	s.dhn = resize(s.dhn, rows*n.hidden)
	plain := dHead == nil && allZero(d.Entropy) && allZero(d.MeanLogProb)
	for lo := 0; lo < rows && !(plain && s.units); lo += headRows {
		m := min(headRows, rows-lo)
		n.logits(ex, s.logits, s.hn[lo*n.hidden:], m)
		ex.pool.For(m, func(i int) {
			z, target := s.logits[i*n.vocab:(i+1)*n.vocab], int(b.target[lo+i])
			if plain {
				n.unitRow(s, z, target, lo+i)
				return
			}
			gradRow(z, target, s.temperature, n.logitCap, s.logp[lo+i], s.ent[lo+i], at(d.LogProbs, lo+i), at(d.Entropy, lo+i), at(d.MeanLogProb, lo+i))
		})
		if plain {
			s.unit = resize(s.unit, rows*n.hidden)
			n.headBack(ex, s, s.unit, lo, m)
			continue
		}
		n.headBack(ex, s, s.dhn, lo, m)
		if dHead != nil {
			ex.outer(dHead, s.logits, n.vocab, n.vocab, s.hn[lo*n.hidden:], n.hidden, m)
		}
	}
	if !plain {
		return
	}
	s.units = true
	ex.pool.Rows(rows, rowGrain(n.hidden), func(lo, hi int) {
		for i := lo; i < hi; i++ {
			to := s.dhn[i*n.hidden : (i+1)*n.hidden]
			copy(to, s.unit[i*n.hidden:])
			f32.Scale(to, at(d.LogProbs, i))
		}
	})
}

// allZero says whether every number is 0.
func allZero(x []float32) bool {
	for _, v := range x {
		if v != 0 {
			return false
		}
	}
	return true
}

// gradRow replaces logits by the gradient with respect to them, before the soft
// cap (0 = none), given the target's logp and the entropy.
func gradRow(z []float32, target int, temperature float64, limit, logp, entropy, dlogp, dent, dmean float32) {
	if dlogp == 0 && dent == 0 && dmean == 0 {
		clear(z)
		return
	}
	inv := float32(1 / temperature)
	hot := inv * dlogp                    // the one-hot part
	flat := inv * dmean / float32(len(z)) // the uniform part
	dlogp += dmean
	if limit > 0 {
		hot *= softcapSlope(z[target], limit)
	}
	lse := z[target]*inv - logp
	var terms [256]float32
	for lo := 0; lo < len(z); lo += len(terms) {
		block := z[lo:min(len(z), lo+len(terms))]
		p := terms[:copy(terms[:], block)]
		f32.Exp(p, inv, -lse)
		if dent == 0 && limit == 0 {
			for i, v := range p {
				block[i] = flat - inv*dlogp*v
			}
			continue
		}
		for i, v := range p {
			logp := block[i]*inv - lse
			g := flat - inv*v*(dlogp+dent*(logp+entropy))
			if limit > 0 {
				g *= softcapSlope(block[i], limit)
			}
			block[i] = g
		}
	}
	z[target] += hot
}
