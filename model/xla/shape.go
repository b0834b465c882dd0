//go:build xla

package xla

import (
	"fmt"
	"math"
	"slices"

	"github.com/skein-rl/skein/model"
)

// shape is the architecture under short names.
type shape struct {
	vocab, hidden, inter, layers int
	heads, kv, headDim           int
	eps                          float64
	theta                        float64
	tied                         bool
}

func shapeOf(c model.Config) shape {
	return shape{
		vocab: c.VocabSize, hidden: c.HiddenSize, inter: c.IntermediateSize, layers: c.NumHiddenLayers,
		heads: c.NumAttentionHeads, kv: c.NumKeyValueHeads, headDim: c.HeadDim,
		eps: c.RMSNormEps, theta: c.RopeTheta, tied: c.TieWordEmbeddings,
	}
}

func (s shape) qDim() int       { return s.heads * s.headDim }
func (s shape) kvDim() int      { return s.kv * s.headDim }
func (s shape) qkvDim() int     { return s.qDim() + 2*s.kvDim() }
func (s shape) rep() int        { return s.heads / s.kv }
func (s shape) qScale() float64 { return 1 / math.Sqrt(float64(s.headDim)) }

// ropeInv are the inverse frequencies theta^(-2i/headDim) of rotary position
// embedding (Su et al. 2021, arXiv:2104.09864, section 3.2.2), half-split form.
func (s shape) ropeInv() []float32 {
	inv := make([]float32, s.headDim/2)
	for i := range inv {
		inv[i] = float32(math.Pow(s.theta, -2*float64(i)/float64(s.headDim)))
	}
	return inv
}

// The projections' places, in the order of model.Projections.
const (
	projQ = iota
	projK
	projV
	projO
	projGate
	projUp
	projDown
	numProj
)

// loraPart is one adapted projection inside a layer's flat vector: A [rank, in]
// at offset a, then B [out, rank] at offset b.
type loraPart struct {
	on      bool
	a, b    int
	out, in int
}

// loraShape is what of an adapter decides a program: rank, scale and targets.
type loraShape struct {
	rank  int
	scale float64
	part  [numProj]loraPart
	size  int // of a layer's flat vector
}

// String names the shape in program keys.
func (l *loraShape) String() string {
	if l == nil {
		return "base"
	}
	on := ""
	for i, p := range l.part {
		if p.on {
			on += "qkvogud"[i : i+1]
		}
	}
	return fmt.Sprintf("lora r=%d scale=%g on %s", l.rank, l.scale, on)
}

// loraShapeOf lays an adapter out exactly as model.LoRALayout does, which every
// layer repeats.
func loraShapeOf(c model.Config, l model.LoRAConfig) (loraShape, error) {
	layout, err := model.LoRALayout(c, l)
	if err != nil {
		return loraShape{}, fmt.Errorf("xla: %w", err)
	}
	s := loraShape{rank: l.Rank, scale: l.Scale()}
	for i, name := range model.Projections {
		if !slices.Contains(l.Targets, name) {
			continue
		}
		out, in, err := model.ProjectionShape(c, name)
		if err != nil {
			return loraShape{}, fmt.Errorf("xla: %w", err)
		}
		s.part[i] = loraPart{on: true, a: s.size, b: s.size + l.Rank*in, out: out, in: in}
		s.size += l.Rank * (in + out)
	}
	if got := layout.Size(); got != s.size*c.NumHiddenLayers {
		return loraShape{}, fmt.Errorf("xla: the adapter layout has %d numbers, %d layers of %d expected", got, c.NumHiddenLayers, s.size)
	}
	return s, nil
}

// bucket is the smallest size that holds n; beyond the last it goes on in steps
// of a quarter of the last.
func bucket(n int, sizes []int) int {
	for _, s := range sizes {
		if n <= s {
			return s
		}
	}
	step := max(1, sizes[len(sizes)-1]/4)
	return (n + step - 1) / step * step
}
