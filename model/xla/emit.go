//go:build xla

package xla

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// value is an SSA value of a StableHLO program: its name, element type ("f32",
// "f64", "bf16", "i32", "ui32",
// "i1") and dimensions.
type value struct {
	name string
	elem string
	dims []int
}

func (v value) typ() string { return tensorType(v.elem, v.dims) }

func tensorType(elem string, dims []int) string {
	var b strings.Builder
	b.WriteString("tensor<")
	for _, d := range dims {
		fmt.Fprintf(&b, "%dx", d)
	}
	return b.String() + elem + ">"
}

func types(vs []value) string {
	s := make([]string, len(vs))
	for i, v := range vs {
		s[i] = v.typ()
	}
	return strings.Join(s, ", ")
}

func names(vs []value) string {
	s := make([]string, len(vs))
	for i, v := range vs {
		s[i] = v.name
	}
	return strings.Join(s, ", ")
}

func intList(d []int) string {
	s := make([]string, len(d))
	for i, x := range d {
		s[i] = fmt.Sprint(x)
	}
	return "[" + strings.Join(s, ", ") + "]"
}

// emitter writes StableHLO text, one operation a line. go-xla's own builder has
// no while, optimization_barrier or output aliasing, which decoding needs.
// Shapes are the caller's business: a wrong program is refused when compiled.
type emitter struct {
	body strings.Builder
	next int
	args []value
	// alias[i] is the result that shares argument i's memory.
	alias map[int]int
	// accel says that the device is not a CPU: f32 products must be asked for in
	// full precision (the default is TF32 there), and many small operations cost
	// more than one indexed one.
	accel bool
}

func (e *emitter) linef(format string, a ...any) { fmt.Fprintf(&e.body, format+"\n", a...) }

func (e *emitter) fresh(elem string, dims ...int) value {
	e.next++
	return value{fmt.Sprintf("%%v%d", e.next), elem, slices.Clone(dims)}
}

// arg adds an argument of the program.
func (e *emitter) arg(name, elem string, dims ...int) value {
	v := value{"%" + name, elem, slices.Clone(dims)}
	e.args = append(e.args, v)
	return v
}

// module wraps the body so far into a program that returns results.
func (e *emitter) module(results []value) []byte {
	as := make([]string, len(e.args))
	for i, a := range e.args {
		as[i] = a.name + ": " + a.typ()
		if r, ok := e.alias[i]; ok {
			as[i] += fmt.Sprintf(" {tf.aliasing_output = %d : i32}", r)
		}
	}
	return fmt.Appendf(nil, "module @skein {\nfunc.func @main(%s) -> (%s) {\n%sreturn %s : %s\n}\n}\n",
		strings.Join(as, ", "), types(results), e.body.String(), names(results), types(results))
}

// literal renders a constant exactly.
func literal(elem string, x float64) string {
	switch elem {
	case "f32":
		return fmt.Sprintf("0x%08X", math.Float32bits(float32(x)))
	case "f64":
		return fmt.Sprintf("0x%016X", math.Float64bits(x))
	case "bf16":
		return fmt.Sprintf("0x%04X", bf16(float32(x)))
	case "i1":
		return fmt.Sprint(x != 0)
	}
	return fmt.Sprint(int64(x))
}

// constant is a tensor filled with x.
func (e *emitter) constant(elem string, x float64, dims ...int) value {
	o := e.fresh(elem, dims...)
	e.linef("%s = stablehlo.constant dense<%s> : %s", o.name, literal(elem, x), o.typ())
	return o
}

// vector is a constant f32 vector.
func (e *emitter) vector(xs []float32) value {
	s := make([]string, len(xs))
	for i, x := range xs {
		s[i] = literal("f32", float64(x))
	}
	o := e.fresh("f32", len(xs))
	e.linef("%s = stablehlo.constant dense<[%s]> : %s", o.name, strings.Join(s, ", "), o.typ())
	return o
}

func (e *emitter) binary(op string, a, b value) value {
	o := e.fresh(a.elem, a.dims...)
	e.linef("%s = stablehlo.%s %s, %s : %s", o.name, op, a.name, b.name, o.typ())
	return o
}

func (e *emitter) add(a, b value) value { return e.binary("add", a, b) }
func (e *emitter) sub(a, b value) value { return e.binary("subtract", a, b) }
func (e *emitter) mul(a, b value) value { return e.binary("multiply", a, b) }
func (e *emitter) div(a, b value) value { return e.binary("divide", a, b) }
func (e *emitter) and(a, b value) value { return e.binary("and", a, b) }

// scale multiplies by a constant.
func (e *emitter) scale(a value, x float64) value {
	return e.mul(a, e.constant(a.elem, x, a.dims...))
}

func (e *emitter) unary(op string, a value) value {
	o := e.fresh(a.elem, a.dims...)
	e.linef("%s = stablehlo.%s %s : %s", o.name, op, a.name, o.typ())
	return o
}

func (e *emitter) exp(a value) value { return e.unary("exponential", a) }

// spread repeats x [M] along new last axes: [M, dims...].
func (e *emitter) spread(x value, dims ...int) value {
	return e.broadcast(x, axes(len(x.dims)), append(slices.Clone(x.dims), dims...)...)
}

// axes are 0, 1, ..., n-1.
func axes(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

func (e *emitter) convert(a value, elem string) value {
	if a.elem == elem {
		return a
	}
	o := e.fresh(elem, a.dims...)
	e.linef("%s = stablehlo.convert %s : (%s) -> %s", o.name, a.name, a.typ(), o.typ())
	return o
}

// bitcast reinterprets 32-bit elements.
func (e *emitter) bitcast(a value, elem string) value {
	o := e.fresh(elem, a.dims...)
	e.linef("%s = stablehlo.bitcast_convert %s : (%s) -> %s", o.name, a.name, a.typ(), o.typ())
	return o
}

// broadcast maps axis i of a to axis axes[i] of the result.
func (e *emitter) broadcast(a value, axes []int, dims ...int) value {
	o := e.fresh(a.elem, dims...)
	e.linef("%s = stablehlo.broadcast_in_dim %s, dims = %s : (%s) -> %s", o.name, a.name, intList(axes), a.typ(), o.typ())
	return o
}

func (e *emitter) reshape(a value, dims ...int) value {
	o := e.fresh(a.elem, dims...)
	e.linef("%s = stablehlo.reshape %s : (%s) -> %s", o.name, a.name, a.typ(), o.typ())
	return o
}

func (e *emitter) transpose(a value, perm ...int) value {
	d := make([]int, len(perm))
	for i, x := range perm {
		d[i] = a.dims[x]
	}
	o := e.fresh(a.elem, d...)
	e.linef("%s = stablehlo.transpose %s, dims = %s : (%s) -> %s", o.name, a.name, intList(perm), a.typ(), o.typ())
	return o
}

// reduce folds axes with add, maximum, minimum, and, or.
func (e *emitter) reduce(a value, op string, axes ...int) value {
	init := map[string]float64{"add": 0, "maximum": math.Inf(-1), "minimum": math.Inf(1), "and": 1, "or": 0}[op]
	z := e.constant(a.elem, init)
	var d []int
	for i, x := range a.dims {
		if !slices.Contains(axes, i) {
			d = append(d, x)
		}
	}
	o := e.fresh(a.elem, d...)
	e.linef("%s = stablehlo.reduce(%s init: %s) applies stablehlo.%s across dimensions = %s : (%s, %s) -> %s",
		o.name, a.name, z.name, op, intList(axes), a.typ(), z.typ(), o.typ())
	return o
}

// dot is dot_general: batch axes, then a's free axes, then b's, in f32.
func (e *emitter) dot(a value, aBatch, aSum []int, b value, bBatch, bSum []int) value {
	return e.dotAs("f32", a, aBatch, aSum, b, bBatch, bSum)
}

// dotAs is dot with a result type.
func (e *emitter) dotAs(elem string, a value, aBatch, aSum []int, b value, bBatch, bSum []int) value {
	var d []int
	for _, i := range aBatch {
		d = append(d, a.dims[i])
	}
	for i, x := range a.dims {
		if !slices.Contains(aBatch, i) && !slices.Contains(aSum, i) {
			d = append(d, x)
		}
	}
	for i, x := range b.dims {
		if !slices.Contains(bBatch, i) && !slices.Contains(bSum, i) {
			d = append(d, x)
		}
	}
	o := e.fresh(elem, d...)
	batch, prec := "", ""
	if len(aBatch) > 0 {
		batch = fmt.Sprintf("batching_dims = %s x %s, ", intList(aBatch), intList(bBatch))
	}
	if e.accel && a.elem == "f32" {
		prec = ", precision = [HIGHEST, HIGHEST]"
	}
	e.linef("%s = stablehlo.dot_general %s, %s, %scontracting_dims = %s x %s%s : (%s, %s) -> %s",
		o.name, a.name, b.name, batch, intList(aSum), intList(bSum), prec, a.typ(), b.typ(), o.typ())
	return o
}

// matABt is a·bᵀ, [M,K]·[N,K]ᵀ; matAB is [M,K]·[K,N]; matAtB is [K,M]ᵀ·[K,N].
func (e *emitter) matABt(a, b value) value { return e.dot(a, nil, []int{1}, b, nil, []int{1}) }
func (e *emitter) matAB(a, b value) value  { return e.dot(a, nil, []int{1}, b, nil, []int{0}) }
func (e *emitter) matAtB(a, b value) value { return e.dot(a, nil, []int{0}, b, nil, []int{0}) }

// The same with one batch axis in front.
func (e *emitter) batchABt(a, b value) value {
	return e.dot(a, []int{0}, []int{2}, b, []int{0}, []int{2})
}
func (e *emitter) batchAB(a, b value) value {
	return e.dot(a, []int{0}, []int{2}, b, []int{0}, []int{1})
}
func (e *emitter) batchAtB(a, b value) value {
	return e.dot(a, []int{0}, []int{1}, b, []int{0}, []int{1})
}

// compare gives i1; dir is EQ, NE, LT, LE, GT, GE.
func (e *emitter) compare(dir string, a, b value) value {
	o := e.fresh("i1", a.dims...)
	e.linef("%s = stablehlo.compare %s, %s, %s : (%s, %s) -> %s", o.name, dir, a.name, b.name, a.typ(), b.typ(), o.typ())
	return o
}

func (e *emitter) choose(cond, yes, no value) value {
	o := e.fresh(yes.elem, yes.dims...)
	e.linef("%s = stablehlo.select %s, %s, %s : %s, %s", o.name, cond.name, yes.name, no.name, cond.typ(), o.typ())
	return o
}

func (e *emitter) iota(elem string, axis int, dims ...int) value {
	o := e.fresh(elem, dims...)
	e.linef("%s = stablehlo.iota dim = %d : %s", o.name, axis, o.typ())
	return o
}

// slice keeps [lo, hi) of one axis.
func (e *emitter) slice(a value, axis, lo, hi int) value {
	s := make([]string, len(a.dims))
	d := slices.Clone(a.dims)
	for i, x := range a.dims {
		s[i] = fmt.Sprintf("0:%d", x)
	}
	s[axis], d[axis] = fmt.Sprintf("%d:%d", lo, hi), hi-lo
	o := e.fresh(a.elem, d...)
	e.linef("%s = stablehlo.slice %s [%s] : (%s) -> %s", o.name, a.name, strings.Join(s, ", "), a.typ(), o.typ())
	return o
}

func (e *emitter) concat(axis int, vs ...value) value {
	d := slices.Clone(vs[0].dims)
	d[axis] = 0
	for _, v := range vs {
		d[axis] += v.dims[axis]
	}
	o := e.fresh(vs[0].elem, d...)
	e.linef("%s = stablehlo.concatenate %s, dim = %d : (%s) -> %s", o.name, names(vs), axis, types(vs), o.typ())
	return o
}

// barrier keeps XLA from fusing across it.
func (e *emitter) barrier(a value) value {
	o := e.fresh(a.elem, a.dims...)
	e.linef("%s = stablehlo.optimization_barrier %s : %s", o.name, a.name, a.typ())
	return o
}

// while loops body over the carried values as long as cond holds.
func (e *emitter) while(init []value, cond func([]value) value, body func([]value) []value) []value {
	e.next++
	id := e.next
	carry, out, bind := make([]value, len(init)), make([]value, len(init)), make([]string, len(init))
	for i, v := range init {
		carry[i] = value{fmt.Sprintf("%%c%d_%d", id, i), v.elem, v.dims}
		out[i] = value{fmt.Sprintf("%%w%d#%d", id, i), v.elem, v.dims}
		bind[i] = carry[i].name + " = " + v.name
	}
	if len(init) == 1 {
		out[0].name = fmt.Sprintf("%%w%d", id)
	}
	e.linef("%%w%d:%d = stablehlo.while(%s) : %s", id, len(init), strings.Join(bind, ", "), types(init))
	e.linef("cond {")
	e.linef("stablehlo.return %s : tensor<i1>", cond(carry).name)
	e.linef("} do {")
	r := body(carry)
	e.linef("stablehlo.return %s : %s", names(r), types(r))
	e.linef("}")
	return out
}

// bf16 rounds to nearest even.
func bf16(x float32) uint16 {
	u := math.Float32bits(x)
	if u&0x7fffffff > 0x7f800000 { // NaN stays NaN
		return uint16(u>>16) | 0x40
	}
	return uint16((u + 0x7fff + (u>>16)&1) >> 16)
}
