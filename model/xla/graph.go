//go:build xla

package xla

import (
	"fmt"
	"runtime/debug"
	"time"

	"github.com/gomlx/go-xla/pkg/pjrt"
	"github.com/gomlx/gomlx/backends"
	"github.com/gomlx/gomlx/pkg/core/dtypes"
	. "github.com/gomlx/gomlx/pkg/core/graph"
	"github.com/gomlx/gomlx/pkg/core/shapes"
)

// graphProgram is a compiled GoMLX graph on the device's own buffers.
type graphProgram struct {
	name  string
	graph *Graph
}

// param declares a graph parameter.
type param struct {
	dtype dtypes.DType
	dims  []int
}

func f32Param(dims ...int) param { return param{dtypes.Float32, dims} }
func i32Param(dims ...int) param { return param{dtypes.Int32, dims} }

// buildGraph compiles what build makes of the parameters. GoMLX reports errors
// by panic; they end here.
func (d *device) buildGraph(name string, params []param, build func([]*Node) []*Node) (p *graphProgram, err error) {
	defer recoverAs(&err, "compile "+name)
	start := time.Now()
	g := NewGraph(d.backend, name)
	in := make([]*Node, len(params))
	for i, q := range params {
		in[i] = Parameter(g, fmt.Sprintf("p%d", i), shapes.Make(q.dtype, q.dims...))
	}
	g.Compile(build(in)...)
	d.log.Debug("xla: compiled", "program", name, "device", d.name, "duration", time.Since(start))
	return &graphProgram{name, g}, nil
}

// run executes the graph. Nothing is donated: GoMLX aliases no outputs.
func (p *graphProgram) run(args ...*pjrt.Buffer) (out []*pjrt.Buffer, err error) {
	defer recoverAs(&err, "run "+p.name)
	in := make([]backends.Buffer, len(args))
	for i, a := range args {
		in[i] = a
	}
	for _, t := range p.graph.RunWithBuffers(in, make([]bool, len(args)), 0) {
		b, err := t.DonateBuffer(p.graph.Backend(), 0) // ours from here
		if err != nil {
			return nil, fmt.Errorf("xla: run %s: %w", p.name, err)
		}
		out = append(out, b.(*pjrt.Buffer))
	}
	return out, nil
}

func (p *graphProgram) close() error {
	p.graph.Finalize()
	return nil
}

// recoverAs turns a panic into an error, with the stack for the log's reader.
func recoverAs(err *error, what string) {
	switch r := recover().(type) {
	case nil:
	case error:
		*err = fmt.Errorf("xla: %s: %w", what, r)
	default:
		*err = fmt.Errorf("xla: %s: panic: %v\n%s", what, r, debug.Stack())
	}
}

// The operations below are the only ones the layer graphs use products and
// masks through.

// dot is dot_general over operands of one type, result in f32: batch axes, then
// a's free axes, then b's.
func dot(a *Node, aSum, aBatch []int, b *Node, bSum, bBatch []int) *Node {
	return ConvertDType(DotGeneral(a, aSum, aBatch, b, bSum, bBatch), dtypes.Float32)
}

// matABt is a·bᵀ, [M,K]·[N,K]ᵀ; matAB is [M,K]·[K,N]; matAtB is [K,M]ᵀ·[K,N].
func matABt(a, b *Node) *Node { return dot(a, []int{1}, nil, b, []int{1}, nil) }
func matAB(a, b *Node) *Node  { return dot(a, []int{1}, nil, b, []int{0}, nil) }
func matAtB(a, b *Node) *Node { return dot(a, []int{0}, nil, b, []int{0}, nil) }

// The same with one batch axis in front.
func batchABt(a, b *Node) *Node { return dot(a, []int{2}, []int{0}, b, []int{2}, []int{0}) }
func batchAB(a, b *Node) *Node  { return dot(a, []int{2}, []int{0}, b, []int{1}, []int{0}) }
func batchAtB(a, b *Node) *Node { return dot(a, []int{1}, []int{0}, b, []int{1}, []int{0}) }

// cut is x[lo:hi] along an axis.
func cut(x *Node, axis, lo, hi int) *Node { return SliceAxis(x, axis, AxisRange(lo, hi)) }

// masked replaces scores where mask (broadcastable) is false.
func masked(scores, mask *Node) *Node {
	return Where(BroadcastToShape(mask, scores.Shape()), scores, BroadcastToShape(Scalar(scores.Graph(), dtypes.Float32, -1e30), scores.Shape()))
}

func iotaI32(g *Graph, axis int, dims ...int) *Node {
	return Iota(g, shapes.Make(dtypes.Int32, dims...), axis)
}
