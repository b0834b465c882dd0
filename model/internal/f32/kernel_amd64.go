package f32

import "golang.org/x/sys/cpu"

// level is the instruction set in use; tests lower it to compare kernels.
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

// kernelRows is the height of the next micro-kernel when n rows are left.
func kernelRows(n int) int {
	switch {
	case n >= 12 && active != avx2:
		return 12
	case n >= 8 && active != avx2:
		return 8
	case n >= 6 && active == avx2:
		return 6
	case n >= 4:
		return 4
	}
	return min(n, 2)
}

func kernel(mr int, a *float32, rs, cs int, b *float32, bs int, c *float32, ldc, k int, acc bool) {
	if active == portable {
		kernelPortable(mr, a, rs, cs, b, bs, c, ldc, k, acc)
		return
	}
	ra, ca, rb, rc := 4*uintptr(rs), 4*uintptr(cs), 4*uintptr(bs), 4*uintptr(ldc)
	add := 0
	if acc {
		add = 1
	}
	if active == avx512 {
		switch mr {
		case 1:
			gemm512_1(a, ra, ca, b, rb, c, rc, k, add)
		case 2:
			gemm512_2(a, ra, ca, b, rb, c, rc, k, add)
		case 4:
			gemm512_4(a, ra, ca, b, rb, c, rc, k, add)
		case 8:
			gemm512_8(a, ra, ca, b, rb, c, rc, k, add)
		default:
			gemm512_12(a, ra, ca, b, rb, c, rc, k, add)
		}
		return
	}
	for range 2 { // a panel is two 16-column halves
		switch mr {
		case 1:
			gemm256_1(a, ra, ca, b, rb, c, rc, k, add)
		case 2:
			gemm256_2(a, ra, ca, b, rb, c, rc, k, add)
		case 4:
			gemm256_4(a, ra, ca, b, rb, c, rc, k, add)
		default:
			gemm256_6(a, ra, ca, b, rb, c, rc, k, add)
		}
		b, c = half(b), half(c)
	}
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
