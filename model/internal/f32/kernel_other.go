//go:build !amd64

package f32

import "unsafe"

// blockKernels says whether the micro-kernels read block forms.
func blockKernels() bool { return false }

func kernelRows(n int) int { return min(n, 12) }

func kernel(f Form, mr int, a *float32, rs, cs int, b unsafe.Pointer, bs int, c *float32, ldc, k int, acc bool) {
	kernelPortable(f, mr, a, rs, cs, b, bs, c, ldc, k, acc)
}

func expKernel(x []float32, scale, shift float32) { expPortable(x, scale, shift) }

func sumKernel(acc *[16]float32, x []float32) { sumPortable(acc, x) }

func maxKernel(acc *[16]float32, x []float32) { maxPortable(acc, x) }

func siluKernel(e, gate, up []float32) { siluPortable(e, gate, up) }

func addKernel(x, y []float32) { addPortable(x, y) }

func offsetKernel(dst, src []float32, by float32) { offsetPortable(dst, src, by) }

func dotKernel(acc *[16]float32, x, y []float32) { dotPortable(acc, x, y) }

func normKernel(y, x []float32, r float32, w []float32) { normPortable(y, x, r, w) }

func transposeKernel(Form, *float32, unsafe.Pointer) bool { return false }
