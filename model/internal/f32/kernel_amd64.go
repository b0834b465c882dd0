package f32

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

// level is the instruction set in use; tests lower it to compare kernels. Every
// CPU with AVX2 also converts binary16 (F16C), which has no flag in x/sys/cpu.
type level int

const (
	portable level = iota
	avx2
	avx512
)

var active = detect()

func detect() level {
	switch {
	case cpu.X86.HasAVX512F && cpu.X86.HasAVX2 && cpu.X86.HasFMA:
		return avx512
	case cpu.X86.HasAVX2 && cpu.X86.HasFMA:
		return avx2
	}
	return portable
}

// kernelRows is the height of the next micro-kernel when n rows are left: the
// rows in as few micro-kernels as possible, all about equally high, since low
// ones do not fill the pipeline.
func kernelRows(n int) int {
	most := 12
	if active == avx2 {
		most = 6
	}
	blocks := (n + most - 1) / most
	return (n + blocks - 1) / blocks
}

// blockKernels says whether the micro-kernels read block forms.
func blockKernels() bool { return active == avx512 }

func kernel(f Form, mr int, a *float32, rs, cs int, b unsafe.Pointer, bs int, c *float32, ldc, k int, acc bool) {
	if active == portable {
		kernelPortable(f, mr, a, rs, cs, b, bs, c, ldc, k, acc)
		return
	}
	ra, ca, rb, rc := 4*uintptr(rs), 4*uintptr(cs), 4*uintptr(bs), 4*uintptr(ldc)
	if f != Full {
		rb /= 2
	}
	add := 0
	if acc {
		add = 1
	}
	if active == avx512 {
		gemm512([...]form512{full512, bf16512, f16512, q8512, q4512}[f], mr, a, ra, ca, b, rb, c, rc, k, add)
		return
	}
	// A panel is two halves of 16 columns.
	lo := [...]form256{full256, bf16lo256, f16256}[f]
	hi := [...]form256{full256, bf16hi256, f16256}[f]
	skip := [...]uintptr{4, 0, 2}[f] * PanelWidth / 2
	gemm256(lo, mr, a, ra, ca, b, rb, c, rc, k, add)
	if k > 0 {
		b = unsafe.Add(b, skip)
	}
	gemm256(hi, mr, a, ra, ca, b, rb, (*float32)(unsafe.Add(unsafe.Pointer(c), 4*PanelWidth/2)), rc, k, add)
}

func expKernel(x []float32, scale, shift float32) {
	if active == portable {
		expPortable(x, scale, shift)
		return
	}
	table := expTable
	for i := range 16 {
		table[0][i], table[1][i] = scale, shift
	}
	n := len(x) &^ 15
	if n > 0 {
		expVector(&x[0], n, &table)
	}
	if n < len(x) {
		var tail [16]float32
		copy(tail[:], x[n:])
		expVector(&tail[0], 16, &table)
		copy(x[n:], tail[:])
	}
}

func expVector(x *float32, n int, table *[14][16]float32) {
	if active == avx512 {
		exp512(x, n, table)
	} else {
		exp256(x, n, table)
	}
}

func sumKernel(acc *[16]float32, x []float32) {
	switch {
	case len(x) == 0:
	case active == avx512:
		sum512(acc, &x[0], len(x))
	case active == avx2:
		sum256(acc, &x[0], len(x))
	default:
		sumPortable(acc, x)
	}
}

func maxKernel(acc *[16]float32, x []float32) {
	switch {
	case active == avx512:
		max512(acc, &x[0], len(x))
	case active == avx2:
		max256(acc, &x[0], len(x))
	default:
		maxPortable(acc, x)
	}
}

func siluKernel(e, gate, up []float32) {
	switch {
	case len(e) == 0:
	case active == avx512:
		silu512(&e[0], &gate[0], &up[0], len(e), 1)
	case active == avx2:
		silu256(&e[0], &gate[0], &up[0], len(e), 1)
	default:
		siluPortable(e, gate, up)
	}
}

func addKernel(x, y []float32) {
	switch {
	case len(x) == 0:
	case active == avx512:
		add512(&x[0], &y[0], len(x))
	case active == avx2:
		add256(&x[0], &y[0], len(x))
	default:
		addPortable(x, y)
	}
}

func offsetKernel(dst, src []float32, by float32) {
	switch {
	case len(dst) == 0:
	case active == avx512:
		offset512(&dst[0], &src[0], len(dst), by)
	case active == avx2:
		offset256(&dst[0], &src[0], len(dst), by)
	default:
		offsetPortable(dst, src, by)
	}
}

func dotKernel(acc *[16]float32, x, y []float32) {
	switch {
	case len(x) == 0:
	case active == avx512:
		dot512(acc, &x[0], &y[0], len(x))
	case active == avx2:
		dot256(acc, &x[0], &y[0], len(x))
	default:
		dotPortable(acc, x, y)
	}
}

func normKernel(y, x []float32, r float32, w []float32) {
	switch {
	case len(y) == 0:
	case active == avx512:
		norm512(&y[0], &x[0], &w[0], len(y), r)
	case active == avx2:
		norm256(&y[0], &x[0], &w[0], len(y), r)
	default:
		normPortable(y, x, r, w)
	}
}

// transposeKernel transposes a square of 32 by 32 numbers; false when there is no
// kernel for it.
func transposeKernel(f Form, dst *float32, src unsafe.Pointer) bool {
	if active != avx512 {
		return false
	}
	switch f {
	case Full:
		transpose512full(dst, src)
	case BF16:
		transpose512bf16(dst, src)
	case F16:
		transpose512f16(dst, src)
	default:
		return false
	}
	return true
}
