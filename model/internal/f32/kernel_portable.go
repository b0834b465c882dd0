package f32

import (
	"math"
	"unsafe"
)

// kernelPortable is the reference micro-kernel: any height up to 12, same
// order of additions as the assembly.
func kernelPortable(f Form, mr int, a *float32, rs, cs int, b unsafe.Pointer, bs int, c *float32, ldc, k int, acc bool) {
	for i := range mr {
		row := unsafe.Slice((*float32)(unsafe.Add(unsafe.Pointer(c), 4*i*ldc)), PanelWidth)
		if !acc {
			clear(row)
		}
	}
	var wide [PanelWidth]float32
	for t := range k {
		br := wide[:]
		if f == Full {
			br = unsafe.Slice((*float32)(unsafe.Add(b, 4*t*bs)), PanelWidth)
		} else {
			half := unsafe.Slice((*uint16)(unsafe.Add(b, 2*t*bs)), PanelWidth)
			for j := range wide {
				wide[j] = math.Float32frombits(widen(f, half[f.place(j)]))
			}
		}
		for i := range mr {
			v := *(*float32)(unsafe.Add(unsafe.Pointer(a), 4*(i*rs+t*cs)))
			row := unsafe.Slice((*float32)(unsafe.Add(unsafe.Pointer(c), 4*i*ldc)), PanelWidth)
			for j := range row {
				row[j] += v * br[j]
			}
		}
	}
}

// expTable holds the constants of the vector exponential, each 16 times:
// scale and shift (set by the caller), log2(e), -ln2 in two parts, the minimax
// polynomial of degree 5 of Cephes' expf, one, and the clamp.
var expTable = func() (t [14][16]float32) {
	for i, v := range [14]float32{1, 0, math.Log2E, -0.693359375, 2.12194440e-4,
		1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1,
		1, expMin, expMax} {
		for j := range t[i] {
			t[i][j] = v
		}
	}
	return t
}()

// Arguments of the exponential are clamped to [expMin, expMax], inside the
// range of normal floats.
const (
	expMin = -86.5
	expMax = 88
)

func expPortable(x []float32, scale, shift float32) {
	for i, v := range x {
		t := v*scale + shift
		if t < expMin {
			x[i] = 0
			continue
		} else if t > expMax {
			t = expMax
		}
		n := float32(math.RoundToEven(float64(t * expTable[2][0])))
		r := t + n*expTable[3][0]
		r += n * expTable[4][0]
		p := expTable[5][0]
		for _, c := range expTable[6:11] {
			p = p*r + c[0]
		}
		p = p*(r*r) + r + 1
		if n == n {
			p = math.Float32frombits(math.Float32bits(p) + uint32(int32(n))<<23)
		}
		x[i] = p
	}
}

// The loops below take lengths that are multiples of 16.

func sumPortable(acc *[16]float32, x []float32) {
	for ; len(x) >= 16; x = x[16:] {
		for i, v := range x[:16] {
			acc[i] += v
		}
	}
}

func maxPortable(acc *[16]float32, x []float32) {
	for ; len(x) >= 16; x = x[16:] {
		for i, v := range x[:16] {
			if v > acc[i] {
				acc[i] = v
			}
		}
	}
}

func siluPortable(e, gate, up []float32) {
	for i, v := range e {
		e[i] = gate[i] / (1 + v) * up[i]
	}
}

func addPortable(x, y []float32) {
	for i := range x {
		x[i] += y[i]
	}
}

func offsetPortable(dst, src []float32, by float32) {
	for i := range dst {
		dst[i] = src[i] + by
	}
}

func dotPortable(acc *[16]float32, x, y []float32) {
	for ; len(x) >= 16; x, y = x[16:], y[16:] {
		for i, v := range x[:16] {
			acc[i] += v * y[i]
		}
	}
}

func normPortable(y, x []float32, r float32, w []float32) {
	for i := range y {
		y[i] = x[i] * r * w[i]
	}
}
