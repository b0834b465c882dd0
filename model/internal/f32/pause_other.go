//go:build !amd64

package f32

import "runtime"

// pause lets other goroutines run: there is no pause instruction here.
func pause(int) { runtime.Gosched() }
