package f32

import (
	"runtime"
	"unsafe"
)

// Shapes: A [m, k], B [k, n], C [m, n]. B lies in panels of PanelWidth columns.

// PanelWidth is the number of columns a micro-kernel computes at once; the
// columns of a B operand are stored and padded in multiples of it.
const PanelWidth = 32

// A is a strided view of a left operand: element (i, k) is
// Data[i*RowStride + k*ColStride]. Transposed operands swap the strides.
type A struct {
	Data      []float32
	RowStride int
	ColStride int
}

// B is a right operand in panels: element (k, j) is
// Data[(j/32)*PanelStride + k*RowStride + j%32]. The last panel is padded to
// its full width: the padding is read, and its results are dropped. A Matrix
// gives operands in smaller forms.
type B struct {
	Data        []float32
	PanelStride int
	RowStride   int
	form        Form
	half        []uint16 // instead of Data in 16-bit forms
	blocks      []byte   // instead of Data in block forms; then PanelStride counts bytes
	mem         *Memory  // that the numbers lie in; nil = Go's heap
}

// at is the address of panel q.
func (b B) at(q int) unsafe.Pointer {
	if b.form == Full {
		return unsafe.Pointer(&b.Data[q*b.PanelStride])
	}
	if b.form >= Q8 {
		return unsafe.Pointer(&b.blocks[q*b.PanelStride])
	}
	return unsafe.Pointer(&b.half[q*b.PanelStride])
}

// Packed describes panels laid one after the other, as PackT and PackN write.
func Packed(data []float32, k int) B {
	return B{Data: data, PanelStride: k * PanelWidth, RowStride: PanelWidth}
}

// PackedLen is the length of the panels of a [k, n] operand.
func PackedLen(k, n int) int { return panels(n) * PanelWidth * k }

func panels(n int) int { return (n + PanelWidth - 1) / PanelWidth }

// Pad rounds n up to a multiple of PanelWidth.
func Pad(n int) int { return panels(n) * PanelWidth }

const (
	rowBlock = 96        // rows of A a task walks per panel: 8 micro-kernels of 12 rows
	serialOp = 1_500_000 // multiply-adds under which goroutines cost more than they save
	crewOp   = 100_000   // the same of a crew, whose goroutines stand by

	memoryRows = 12 // up to so many rows a product waits for memory
)

// Gemm computes C = A*B, or C += A*B when acc. c is row-major with stride ldc;
// only columns below n are written. Rows and columns are split over the pool,
// the contracted index never is (see the package's invariant).
func Gemm(p *Pool, m, n, k int, a A, b B, c []float32, ldc int, acc bool) {
	if m == 0 || n == 0 {
		return
	}
	check(m, n, k, a, b, c, ldc)
	np := panels(n)
	if p.Threads() == 1 || m*n*k < p.serial() {
		block(0, m, 0, np, n, k, a, b, c, ldc, acc)
		return
	}
	rowTasks := (m + rowBlock - 1) / rowBlock
	// Column ranges are few and even: each is one stream from memory, which the
	// prefetcher follows. More of them balance threads better where there is more
	// to compute than to read.
	shares := 2 * p.Threads()
	switch {
	case m > rowBlock:
		shares *= 8
	case m > memoryRows:
		shares *= 2
	}
	perTask := (np*rowTasks + shares - 1) / shares
	colTasks := (np + perTask - 1) / perTask
	p.For(rowTasks*colTasks, func(t int) {
		r, q := t%rowTasks, t/rowTasks
		block(r*rowBlock, min(m, (r+1)*rowBlock), q*perTask, min(np, (q+1)*perTask), n, k, a, b, c, ldc, acc)
	})
}

// check panics when a view is shorter than its shape says: the kernels do no
// bounds checks.
func check(m, n, k int, a A, b B, c []float32, ldc int) {
	if k > 0 {
		_ = a.Data[(m-1)*a.RowStride+(k-1)*a.ColStride]
		last := (panels(n)-1)*b.PanelStride + (k-1)*b.RowStride + PanelWidth - 1
		switch {
		case b.form == Full:
			_ = b.Data[last]
		case b.form < Q8:
			_ = b.half[last]
		case k%blockLen > 0:
			panic("f32: a block operand's depth is a multiple of 32")
		default:
			_ = b.blocks[(panels(n)-1)*b.PanelStride+k/blockLen*b.form.blockBytes()-1]
		}
	}
	_ = c[(m-1)*ldc+n-1]
}

// block computes rows [r0, r1) of panels [p0, p1).
func block(r0, r1, p0, p1, n, k int, a A, b B, c []float32, ldc int, acc bool) {
	var tile [12 * PanelWidth]float32
	for lo := r0; lo < r1; lo += rowBlock {
		hi := min(r1, lo+rowBlock)
		for q := p0; q < p1; q++ {
			width := min(PanelWidth, n-q*PanelWidth)
			var bp unsafe.Pointer
			if k > 0 {
				bp = b.at(q)
			}
			for i := lo; i < hi; {
				mr := kernelRows(hi - i)
				var ap *float32
				if k > 0 {
					ap = &a.Data[i*a.RowStride]
				}
				dst := c[i*ldc+q*PanelWidth:]
				if width == PanelWidth {
					kernel(b.form, mr, ap, a.RowStride, a.ColStride, bp, b.RowStride, &dst[0], ldc, k, acc)
				} else {
					if acc {
						for r := range mr {
							copy(tile[r*PanelWidth:r*PanelWidth+width], dst[r*ldc:])
						}
					}
					kernel(b.form, mr, ap, a.RowStride, a.ColStride, bp, b.RowStride, &tile[0], PanelWidth, k, acc)
					for r := range mr {
						copy(dst[r*ldc:r*ldc+width], tile[r*PanelWidth:])
					}
				}
				i += mr
			}
		}
	}
	runtime.KeepAlive(b.mem)
}
