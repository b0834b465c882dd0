//go:build xla

package xla

import (
	"fmt"

	"github.com/gomlx/gomlx/pkg/core/dtypes"
	. "github.com/gomlx/gomlx/pkg/core/graph"
)

// The trainer's programs, compiled on first use: GoMLX graphs per layout, the
// head in StableHLO per chunk size.

func (t *trainer) dtype() dtypes.DType {
	if t.b.dev.elem == "bf16" {
		return dtypes.BFloat16
	}
	return dtypes.Float32
}

// graph returns the GoMLX program of a key, compiling it once.
func (t *trainer) graph(key string, params []param, build func([]*Node) []*Node) (*graphProgram, error) {
	return compiled(&t.b.programs, key, func() (*graphProgram, error) { return t.b.dev.buildGraph(key, params, build) })
}

// embed: embedding, ids, pos -> x [N, hidden], cos and sin [N, D/2].
func (t *trainer) embed(l layout) (*graphProgram, error) {
	s, n := t.b.shape, l.rows()
	return t.graph(fmt.Sprintf("embed rows=%d", n), []param{{t.dtype(), []int{s.vocab, s.hidden}}, i32Param(n), i32Param(n)},
		func(in []*Node) []*Node {
			inv := Const(in[0].Graph(), s.ropeInv())
			angle := Mul(InsertAxes(ConvertDType(in[2], dtypes.Float32), -1), InsertAxes(inv, 0))
			return []*Node{f32(Gather(in[0], InsertAxes(in[1], -1))), Cos(angle), Sin(angle)}
		})
}

// layerForward: x, layer inputs -> x.
func (t *trainer) layerForward(l layout) (*graphProgram, error) {
	s, dt := t.b.shape, t.dtype()
	params := append([]param{f32Param(l.rows(), s.hidden)}, layerParams(l, s, dt, &t.lora)...)
	return t.graph(fmt.Sprintf("layer forward %v %v", l, &t.lora), params, func(in []*Node) []*Node {
		return []*Node{newLayer(l, s, dt, &t.lora, in[1:]).forward(in[0]).out}
	})
}

// layerBackward: x, d, accumulator, layer inputs -> dx, accumulator.
func (t *trainer) layerBackward(l layout) (*graphProgram, error) {
	s, dt := t.b.shape, t.dtype()
	x := f32Param(l.rows(), s.hidden)
	params := append([]param{x, x, f32Param(t.lora.size)}, layerParams(l, s, dt, &t.lora)...)
	return t.graph(fmt.Sprintf("layer backward %v %v", l, &t.lora), params, func(in []*Node) []*Node {
		dx, flat := newLayer(l, s, dt, &t.lora, in[3:]).backward(in[0], in[1])
		return []*Node{dx, Add(in[2], flat)}
	})
}

// gather: x [N, hidden], rows [m] -> the rows.
func (t *trainer) gather(n, m int) (*graphProgram, error) {
	return t.graph(fmt.Sprintf("gather %d of %d rows", m, n), []param{f32Param(n, t.b.shape.hidden), i32Param(m)},
		func(in []*Node) []*Node { return []*Node{Gather(in[0], InsertAxes(in[1], -1))} })
}

// scatter: dx [N, hidden], rows [m], d [m, hidden] -> dx with d added to its
// rows; several members share the prompt's last row.
func (t *trainer) scatter(n, m int) (*graphProgram, error) {
	h := t.b.shape.hidden
	return t.graph(fmt.Sprintf("scatter %d of %d rows", m, n), []param{f32Param(n, h), i32Param(m), f32Param(m, h)},
		func(in []*Node) []*Node {
			return []*Node{ScatterSum(in[0], InsertAxes(in[1], -1), in[2], false, false)}
		})
}

// head returns a head program of a chunk size.
func (t *trainer) head(name string, m int, emit func(*emitter, shape, string, int) []value) (*program, error) {
	return t.b.stablehlo(fmt.Sprintf("%s rows=%d", name, m), func(e *emitter) []value {
		return emit(e, t.b.shape, t.b.dev.elem, m)
	})
}
