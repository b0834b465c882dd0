// Package f32 holds the float32 arithmetic of the pure-Go backend: matrix
// products, the exponential and other vector loops, and a fork-join helper.
//
// # Invariant
//
// Every element of a product is one chain of fused multiply-adds in the order
// of the contracted index:
//
//	c = fma(a[i,K-1], b[K-1,j], ... fma(a[i,1], b[1,j], fma(a[i,0], b[0,j], c0)))
//
// whatever the number of rows, the tile, the number of goroutines and the
// vector width (AVX-512 and AVX2 give the same bits). A row of a batch hence
// never depends on its neighbours, and a decoder may chunk a prefill as it
// likes. The portable kernel keeps the order but rounds the product and the
// sum separately where the Go compiler does not fuse them.
//
// The right-hand side of a product is stored in panels of PanelWidth columns
// (see B), which is also how the backend keeps weights and key caches. Weights
// that 16 bits hold exactly are kept in 16 bits (see Matrix).
package f32

//go:generate go run gen/main.go
