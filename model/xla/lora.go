//go:build xla

package xla

import (
	"fmt"
	"slices"
	"strings"

	"github.com/skein-rl/skein/model"
)

// loraPart is one adapted projection inside a layer's flat vector: A [rank, in]
// at offset a, then B [out, rank] at offset b.
type loraPart struct {
	projection
	a, b int
}

// loraShape is what of an adapter decides a program: rank, scale and targets.
type loraShape struct {
	rank  int
	scale float64
	parts []loraPart
	size  int // of a layer's flat vector
}

// String names the shape in program keys.
func (l loraShape) String() string {
	var on []string
	for _, p := range l.parts {
		on = append(on, p.name)
	}
	return fmt.Sprintf("lora r=%d scale=%g on %s", l.rank, l.scale, strings.Join(on, ","))
}

// layOut places the projections that on selects.
func (s shape) layOut(rank int, scale float64, on func(name string) bool) loraShape {
	l := loraShape{rank: rank, scale: scale}
	for _, p := range s.proj {
		if on(p.name) {
			l.parts = append(l.parts, loraPart{p, l.size, l.size + rank*p.in})
			l.size += rank * (p.in + p.out)
		}
	}
	return l
}

// loraShapeOf lays an adapter out exactly as model.LoRALayout does, which every
// layer repeats.
func (s shape) loraShapeOf(c model.Config, l model.LoRAConfig) (loraShape, error) {
	layout, err := model.LoRALayout(c, l)
	if err != nil {
		return loraShape{}, fmt.Errorf("xla: %w", err)
	}
	out := s.layOut(l.Rank, l.Scale(), func(name string) bool { return slices.Contains(l.Targets, name) })
	if got := layout.Size(); got != out.size*s.layers {
		return loraShape{}, fmt.Errorf("xla: the adapter layout has %d numbers, %d layers of %d expected", got, s.layers, out.size)
	}
	return out, nil
}

// adapted is an adapter's part in a program: A [K, in] and B [out, K] in the
// compute type, B scaled; K is the rank, or of a stack all places' ranks.
type adapted struct {
	loraPart
	aw, bw value
}

// slicedLoRA takes an adapter out of a layer's flat vector.
func (e *emitter) slicedLoRA(flat value, l loraShape, elem string) []adapted {
	var out []adapted
	for _, p := range l.parts {
		a := e.reshape(e.slice(flat, 0, p.a, p.b), l.rank, p.in)
		b := e.reshape(e.slice(flat, 0, p.b, p.b+p.out*l.rank), p.out, l.rank)
		out = append(out, adapted{p, e.convert(a, elem), e.convert(e.scale(b, l.scale), elem)})
	}
	return out
}
