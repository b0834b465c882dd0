//go:build !amd64

package f32

func kernelRows(n int) int { return min(n, 12) }

func kernel(mr int, a *float32, rs, cs int, b *float32, bs int, c *float32, ldc, k int, acc bool) {
	kernelPortable(mr, a, rs, cs, b, bs, c, ldc, k, acc)
}

func expKernel(x []float32, scale, shift float32) { expPortable(x, scale, shift) }
