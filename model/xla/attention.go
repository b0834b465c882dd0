//go:build xla

package xla

import (
	"github.com/gomlx/gomlx/pkg/core/dtypes"
	. "github.com/gomlx/gomlx/pkg/core/graph"
)

// Attention over a shared prompt. N = P + G*C rows: the prompt's, then each
// member's. Prompt rows attend causally to the prompt. A member's rows attend to
// the real prompt (its first `prompt` rows) and causally to their own member;
// both blocks share one softmax. The prompt's keys and values meet the queries
// of all members in one product per key/value head.
//
// Shapes: KV key/value heads, R query heads per key/value head, D head size.
// Queries arrive scaled. Softmax is unnormalised: e = exp(s - max), and the row
// sum's reciprocal is applied to the result.

// attention holds the forward nodes that backward needs.
type attention struct {
	layout
	s  shape
	dt dtypes.DType // of products

	q0, k0, v0 *Node // prompt: [KV, R*P, D], [KV, P, D] twice
	e0, z0, o0 *Node // [KV, R*P, P], 1/sum [KV, R*P, 1], out [KV, R*P, D]
	q1         *Node // members: [KV, G*R*C, D], order G, R, C
	k1, v1     *Node // [KV*G, C, D]
	ea, eb     *Node // against the prompt [KV, G*R*C, P], against itself [KV*G, R*C, C]
	z1, o1     *Node // [KV, G*R*C, 1], [KV, G*R*C, D]
}

// byHead views member rows per key/value head, byMember per head and member.
func (a *attention) byHead(x *Node) *Node   { return Reshape(x, a.s.kv, a.G*a.s.rep()*a.C, -1) }
func (a *attention) byMember(x *Node) *Node { return Reshape(x, a.s.kv*a.G, a.s.rep()*a.C, -1) }

// Rows [P, KV*R*D] or [P, KV*D] to heads and back.
func (a *attention) promptQ(x *Node) *Node {
	return Reshape(TransposeAllDims(Reshape(x, a.P, a.s.kv, a.s.rep(), a.s.headDim), 1, 2, 0, 3), a.s.kv, a.s.rep()*a.P, a.s.headDim)
}
func (a *attention) promptQBack(x *Node) *Node {
	return Reshape(TransposeAllDims(Reshape(x, a.s.kv, a.s.rep(), a.P, a.s.headDim), 2, 0, 1, 3), a.P, a.s.qDim())
}
func (a *attention) promptK(x *Node) *Node {
	return TransposeAllDims(Reshape(x, a.P, a.s.kv, a.s.headDim), 1, 0, 2)
}
func (a *attention) promptKBack(x *Node) *Node {
	return Reshape(TransposeAllDims(x, 1, 0, 2), a.P, a.s.kvDim())
}

// Rows [G*C, ...] to heads and back.
func (a *attention) memberQ(x *Node) *Node {
	return Reshape(TransposeAllDims(Reshape(x, a.G, a.C, a.s.kv, a.s.rep(), a.s.headDim), 2, 0, 3, 1, 4), a.s.kv, a.G*a.s.rep()*a.C, a.s.headDim)
}
func (a *attention) memberQBack(x *Node) *Node {
	return Reshape(TransposeAllDims(Reshape(x, a.s.kv, a.G, a.s.rep(), a.C, a.s.headDim), 1, 3, 0, 2, 4), a.G*a.C, a.s.qDim())
}
func (a *attention) memberK(x *Node) *Node {
	return Reshape(TransposeAllDims(Reshape(x, a.G, a.C, a.s.kv, a.s.headDim), 2, 0, 1, 3), a.s.kv*a.G, a.C, a.s.headDim)
}
func (a *attention) memberKBack(x *Node) *Node {
	return Reshape(TransposeAllDims(Reshape(x, a.s.kv, a.G, a.C, a.s.headDim), 1, 2, 0, 3), a.G*a.C, a.s.kvDim())
}

// causal is the mask [1, R*T, T] of T rows repeated for R heads.
func (a *attention) causal(g *Graph, t int) *Node {
	m := GreaterOrEqual(iotaI32(g, 0, t, t), iotaI32(g, 1, t, t))
	return Reshape(BroadcastToDims(Reshape(m, 1, t, t), a.s.rep(), t, t), 1, a.s.rep()*t, t)
}

func rowMax(x *Node) *Node { return ReduceAndKeep(x, ReduceMax, -1) }
func rowSum(x *Node) *Node { return ReduceAndKeep(x, ReduceSum, -1) }

func (a *attention) low(x *Node) *Node { return ConvertDType(x, a.dt) }

// softmaxOf exponentiates in f32 and rounds to the product type, so that sums
// and products see the same numbers.
func (a *attention) softmaxOf(scores, top *Node) *Node { return a.low(Exp(Sub(scores, top))) }

func f32(x *Node) *Node { return ConvertDType(x, dtypes.Float32) }

// attend computes attention of q [N, heads*D], k and v [N, KV*D], given in the
// product type, with the prompt's real length [1] i32. The result [N, heads*D]
// is f32.
func attend(l layout, s shape, q, k, v, prompt *Node) (*Node, *attention) {
	a := &attention{layout: l, s: s, dt: q.DType()}
	g, n := q.Graph(), l.rows()
	a.q0, a.k0, a.v0 = a.promptQ(cut(q, 0, 0, l.P)), a.promptK(cut(k, 0, 0, l.P)), a.promptK(cut(v, 0, 0, l.P))
	s0 := masked(batchABt(a.q0, a.k0), a.causal(g, l.P))
	a.e0 = a.softmaxOf(s0, rowMax(s0))
	a.z0 = Reciprocal(rowSum(f32(a.e0)))
	a.o0 = Mul(batchAB(a.e0, a.v0), a.z0)

	a.q1, a.k1, a.v1 = a.memberQ(cut(q, 0, l.P, n)), a.memberK(cut(k, 0, l.P, n)), a.memberK(cut(v, 0, l.P, n))
	inPrompt := LessThan(iotaI32(g, 2, 1, 1, l.P), BroadcastToDims(Reshape(prompt, 1, 1, 1), 1, 1, l.P))
	sa := masked(batchABt(a.q1, a.k0), inPrompt)
	sb := masked(batchABt(a.byMember(a.q1), a.k1), a.causal(g, l.C))
	top := Max(rowMax(sa), a.byHead(rowMax(sb)))
	a.ea, a.eb = a.softmaxOf(sa, top), a.softmaxOf(sb, a.byMember(top))
	a.z1 = Reciprocal(Add(rowSum(f32(a.ea)), a.byHead(rowSum(f32(a.eb)))))
	a.o1 = Mul(Add(batchAB(a.ea, a.v0), a.byHead(batchAB(a.eb, a.v1))), a.z1)
	return Concatenate([]*Node{a.promptQBack(a.o0), a.memberQBack(a.o1)}, 0), a
}

// back gives the gradients of q, k and v, f32, from that of the result. With
// P = e/z and O = P·V: dV = Pᵀ·dO, dS = P∘(dO·Vᵀ - rowsum(dO∘O)), dQ = dS·K,
// dK = dSᵀ·Q.
func (a *attention) back(do *Node) (dq, dk, dv *Node) {
	n := a.rows()
	d0 := Mul(a.promptQ(cut(do, 0, 0, a.P)), a.z0) // dO/z
	d0c := a.low(d0)
	ds0 := a.low(Mul(f32(a.e0), Sub(batchABt(d0c, a.v0), rowSum(Mul(d0, a.o0)))))
	dv0, dq0, dk0 := batchAtB(a.e0, d0c), batchAB(ds0, a.k0), batchAtB(ds0, a.q0)

	d1 := Mul(a.memberQ(cut(do, 0, a.P, n)), a.z1)
	d1c := a.low(d1)
	r1 := rowSum(Mul(d1, a.o1))
	dsa := a.low(Mul(f32(a.ea), Sub(batchABt(d1c, a.v0), r1)))
	dsb := a.low(Mul(f32(a.eb), Sub(batchABt(a.byMember(d1c), a.v1), a.byMember(r1))))
	dv0 = Add(dv0, batchAtB(a.ea, d1c))
	dk0 = Add(dk0, batchAtB(dsa, a.q1))
	dv1, dk1 := batchAtB(a.eb, a.byMember(d1c)), batchAtB(dsb, a.byMember(a.q1))
	dq1 := Add(batchAB(dsa, a.k0), a.byHead(batchAB(dsb, a.k1)))

	join := func(p, m *Node) *Node { return Concatenate([]*Node{p, m}, 0) }
	return join(a.promptQBack(dq0), a.memberQBack(dq1)), join(a.promptKBack(dk0), a.memberKBack(dk1)), join(a.promptKBack(dv0), a.memberKBack(dv1))
}
