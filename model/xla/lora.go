//go:build xla

package xla

import (
	"fmt"
	"strings"

	"github.com/skein-rl/skein/model"
)

// loraPart is one adapted projection inside a layer's flat vector: A [rank, in]
// at offset a, then B [out, rank] at offset b.
type loraPart struct {
	projection
	rank  int
	scale float64 // of B(Ax)
	a, b  int
}

// loraShape is what of an adapter decides a layer's program: targets with their
// ranks and scales.
type loraShape struct {
	parts []loraPart
	size  int // of the layer's flat vector
}

// String names the shape in program keys.
func (l loraShape) String() string {
	var on []string
	for _, p := range l.parts {
		on = append(on, fmt.Sprintf("%s r=%d scale=%g", p.name, p.rank, p.scale))
	}
	return "lora " + strings.Join(on, ", ")
}

// layOut places the projections that of gives a rank and a scale; rank 0 leaves
// one out.
func (s shape) layOut(of func(name string) (rank int, scale float64)) (l loraShape) {
	for _, p := range s.proj {
		if rank, scale := of(p.name); rank > 0 {
			l.parts = append(l.parts, loraPart{p, rank, scale, l.size, l.size + rank*p.in})
			l.size += rank * (p.in + p.out)
		}
	}
	return l
}

// loraShapes lays an adapter out exactly as model.LoRAModules does: layers one
// after the other.
func (s shape) loraShapes(c model.Config, cfg model.LoRAConfig) (loraShapes, error) {
	modules, err := model.LoRAModules(c, cfg)
	if err != nil {
		return nil, fmt.Errorf("xla: %w", err)
	}
	out := make(loraShapes, s.layers)
	at := 0
	for i := range out {
		own := map[string]model.LoRAModule{}
		for len(modules) > 0 && modules[0].Layer == i {
			own[modules[0].Name], modules = modules[0], modules[1:]
		}
		out[i] = s.layOut(func(name string) (int, float64) { return own[name].Rank, own[name].Scale })
		for _, p := range out[i].parts {
			if m := own[p.name]; m.A != at+p.a || m.B != at+p.b {
				return nil, fmt.Errorf("xla: %s stands at %d and %d of the adapter's vector, %d and %d expected", m.Path, m.A, m.B, at+p.a, at+p.b)
			}
		}
		at += out[i].size
	}
	return out, nil
}

// loraShapes are those of all layers.
type loraShapes []loraShape

// size is that of the whole flat vector.
func (ls loraShapes) size() (n int) {
	for _, l := range ls {
		n += l.size
	}
	return n
}

// each calls f with every layer's part of a flat vector, until an error.
func (ls loraShapes) each(flat []float32, f func(layer int, own []float32) error) error {
	for i, l := range ls {
		if err := f(i, flat[:l.size]); err != nil {
			return err
		}
		flat = flat[l.size:]
	}
	return nil
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
		a := e.reshape(e.slice(flat, 0, p.a, p.b), p.rank, p.in)
		b := e.reshape(e.slice(flat, 0, p.b, p.b+p.out*p.rank), p.out, p.rank)
		out = append(out, adapted{p, e.convert(a, elem), e.convert(e.scale(b, p.scale), elem)})
	}
	return out
}
