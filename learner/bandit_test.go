package learner

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/skein-rl/skein/model"
)

// bandit is an analytic trainer: a softmax over V tokens whose logits are a row
// of a [V,V] matrix chosen by the token before. Its gradients are exact, it
// needs no model, and a policy of it can be sampled.
type bandit struct {
	v            int
	params, grad []float32
	last         []model.PrefixGroup
	temp         float64

	forward, scored, backward int
	tokens                    int          // computed by Forward
	onForward                 func() error // injected
	ctx                       context.Context
	closed                    bool
}

func newBandit(v int) *bandit {
	return &bandit{v: v, params: make([]float32, v*v), grad: make([]float32, v*v)}
}

func (b *bandit) Layout() model.Layout {
	return model.Layout{{Name: "base_model.bigram.lora_B.weight", Shape: []int{b.v, b.v}}}
}

func (b *bandit) SetParams(p []float32) error {
	if len(p) != len(b.params) {
		return errors.New("bandit: wrong size")
	}
	copy(b.params, p)
	return nil
}

func (b *bandit) Grad() []float32 { return b.grad }
func (b *bandit) ZeroGrad()       { clear(b.grad) }
func (b *bandit) Close() error    { b.closed = true; return nil }

// logSoftmax of one row of params at a temperature.
func logSoftmax(params []float32, v, row int, temp float64) []float64 {
	z := make([]float64, v)
	hi := math.Inf(-1)
	for j := range z {
		z[j] = float64(params[row*v+j]) / temp
		hi = max(hi, z[j])
	}
	sum := 0.0
	for _, x := range z {
		sum += math.Exp(x - hi)
	}
	for j := range z {
		z[j] -= hi + math.Log(sum)
	}
	return z
}

func entropy(lp []float64) float64 {
	h := 0.0
	for _, x := range lp {
		h -= math.Exp(x) * x
	}
	return h
}

// each visits the trained tokens in score order.
func (b *bandit) each(groups []model.PrefixGroup, f func(prev, tok int32)) error {
	for _, g := range groups {
		if len(g.Prompt) == 0 {
			return errors.New("bandit: empty prompt")
		}
		branches, err := g.Branches()
		if err != nil {
			return err
		}
		for i, m := range g.Members {
			if len(m.Tokens) != len(m.Train) {
				return errors.New("bandit: mask of another length")
			}
			prev := g.Prompt[len(g.Prompt)-1]
			if k := branches[i].Before; k > 0 {
				above := g.Members[k-1].Tokens
				prev = above[len(above)-1]
			}
			for t, tok := range m.Tokens {
				if m.Train[t] {
					f(prev, tok)
				}
				prev = tok
			}
		}
	}
	return nil
}

func (b *bandit) score(groups []model.PrefixGroup, temp float64, params []float32) (sc model.Scores, err error) {
	err = b.each(groups, func(prev, tok int32) {
		lp := logSoftmax(params, b.v, int(prev), temp)
		sc.LogProbs = append(sc.LogProbs, float32(lp[tok]))
		sc.Entropy = append(sc.Entropy, float32(entropy(lp)))
	})
	return sc, err
}

func (b *bandit) Score(ctx context.Context, groups []model.PrefixGroup, temp float64, params []float32) (model.Scores, error) {
	b.scored++
	if params == nil {
		params = make([]float32, b.v*b.v)
	}
	return b.score(groups, temp, params)
}

func (b *bandit) Forward(ctx context.Context, groups []model.PrefixGroup, temp float64) (model.Scores, error) {
	b.forward++
	b.ctx = ctx
	if b.onForward != nil {
		if err := b.onForward(); err != nil {
			return model.Scores{}, err
		}
	}
	if err := ctx.Err(); err != nil {
		return model.Scores{}, err
	}
	b.last, b.temp = groups, temp
	for _, g := range groups {
		b.tokens += len(g.Prompt)
		for _, m := range g.Members {
			b.tokens += len(m.Tokens)
		}
	}
	return b.score(groups, temp, b.params)
}

func (b *bandit) Backward(ctx context.Context, d model.Scores) error {
	dLogP, dEntropy := d.LogProbs, d.Entropy
	b.backward++
	k := 0
	return b.each(b.last, func(prev, tok int32) {
		lp := logSoftmax(b.params, b.v, int(prev), b.temp)
		h := entropy(lp)
		for j, x := range lp {
			p := math.Exp(x)
			d := -p * float64(dLogP[k])
			if j == int(tok) {
				d += float64(dLogP[k])
			}
			if dEntropy != nil {
				d += -p * (x + h) * float64(dEntropy[k])
			}
			b.grad[int(prev)*b.v+j] += float32(d / b.temp)
		}
		k++
	})
}

// sample draws n tokens after prev from params.
func sample(rng *rand.Rand, params []float32, v int, prev int32, n int, temp float64) (ids []int32, lps []float32) {
	for range n {
		lp := logSoftmax(params, v, int(prev), temp)
		u, tok := rng.Float64(), v-1
		for j, x := range lp {
			if u -= math.Exp(x); u < 0 {
				tok = j
				break
			}
		}
		ids, lps = append(ids, int32(tok)), append(lps, float32(lp[tok]))
		prev = int32(tok)
	}
	return ids, lps
}

var _ model.Trainer = (*bandit)(nil)

func clonef(v []float32) []float32 { return slices.Clone(v) }
