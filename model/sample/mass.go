package sample

import (
	"math"
	"slices"
	"sync"

	"github.com/skein-rl/skein/model/internal/f32"
)

// mass holds unnormalised probabilities and their sums by block, in float64: a
// draw then looks through the sums and one block only.
type mass struct {
	p      []float32
	blocks []float64
	sum    float64
}

const massBlock = 256 // terms of a float32 sum

var masses = sync.Pool{New: func() any { return new(mass) }}

// softmax sets p to exp((z - top)*inv), at most 1.
func (m *mass) softmax(logits []float32, top float32, inv float64) {
	m.p = slices.Grow(m.p[:0], len(logits))[:len(logits)]
	f32.Offset(m.p, logits, -top)
	f32.Exp(m.p, float32(inv), 0)
	m.add()
}

// add sums p anew.
func (m *mass) add() {
	m.blocks, m.sum = m.blocks[:0], 0
	for lo := 0; lo < len(m.p); lo += massBlock {
		s := float64(f32.Sum(m.p[lo:min(len(m.p), lo+massBlock)]))
		m.blocks = append(m.blocks, s)
		m.sum += s
	}
}

// invert finds the first index whose cumulative mass exceeds u*sum; rounding
// at the end falls back to the last index with mass.
func (m *mass) invert(u float64) int {
	target, cum, b := u*m.sum, 0.0, 0
	for ; b < len(m.blocks) && cum+m.blocks[b] <= target; b++ {
		cum += m.blocks[b]
	}
	for i := b * massBlock; i < len(m.p); i++ {
		if p := float64(m.p[i]); p > 0 {
			if cum += p; cum > target {
				return i
			}
		}
	}
	for i := len(m.p) - 1; i > 0; i-- {
		if m.p[i] > 0 {
			return i
		}
	}
	return 0
}

// logSumExp of logits without NaN or +Inf of which one at least is finite.
func logSumExp(logits []float32) float64 {
	m := masses.Get().(*mass)
	defer masses.Put(m)
	top := f32.Max(logits)
	m.softmax(logits, top, 1)
	return float64(top) + math.Log(m.sum)
}
