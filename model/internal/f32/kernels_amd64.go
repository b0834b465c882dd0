package f32

import "unsafe"

func half(p *float32) *float32 {
	if p == nil {
		return nil
	}
	return (*float32)(unsafe.Add(unsafe.Pointer(p), 4*PanelWidth/2))
}

// The micro-kernels of kernels_amd64.s. Strides are bytes; acc is 0 or 1.

//go:noescape
func gemm512_1(a *float32, rs, cs uintptr, b *float32, bs uintptr, c *float32, ldc uintptr, k int, acc int)

//go:noescape
func gemm512_2(a *float32, rs, cs uintptr, b *float32, bs uintptr, c *float32, ldc uintptr, k int, acc int)

//go:noescape
func gemm512_4(a *float32, rs, cs uintptr, b *float32, bs uintptr, c *float32, ldc uintptr, k int, acc int)

//go:noescape
func gemm512_8(a *float32, rs, cs uintptr, b *float32, bs uintptr, c *float32, ldc uintptr, k int, acc int)

//go:noescape
func gemm512_12(a *float32, rs, cs uintptr, b *float32, bs uintptr, c *float32, ldc uintptr, k int, acc int)

//go:noescape
func gemm256_1(a *float32, rs, cs uintptr, b *float32, bs uintptr, c *float32, ldc uintptr, k int, acc int)

//go:noescape
func gemm256_2(a *float32, rs, cs uintptr, b *float32, bs uintptr, c *float32, ldc uintptr, k int, acc int)

//go:noescape
func gemm256_4(a *float32, rs, cs uintptr, b *float32, bs uintptr, c *float32, ldc uintptr, k int, acc int)

//go:noescape
func gemm256_6(a *float32, rs, cs uintptr, b *float32, bs uintptr, c *float32, ldc uintptr, k int, acc int)

//go:noescape
func exp512(x *float32, n int, table *[14][16]float32)

//go:noescape
func exp256(x *float32, n int, table *[14][16]float32)
