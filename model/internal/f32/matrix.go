package f32

import (
	"math"
	"runtime"
	"unsafe"
)

// Matrix is a constant weight W [n, k] kept as the right operand W^T [k, n] in
// the smallest form that holds it exactly. It is read-only.
type Matrix struct {
	n, k int
	b    B
}

// NewMatrix packs row-major parts [*, k], stacked, into mem.
func NewMatrix(p *Pool, mem *Memory, k int, parts ...[]float32) Matrix {
	return stack(p, mem, ExactForm(p, k, parts...), k, parts)
}

// NewMatrixAs is NewMatrix in a given form, which must hold the parts exactly,
// on Go's heap.
func NewMatrixAs(p *Pool, form Form, k int, parts ...[]float32) Matrix {
	return stack(p, nil, form, k, parts)
}

func stack(p *Pool, mem *Memory, form Form, k int, parts [][]float32) Matrix {
	n := 0
	for _, x := range parts {
		n += len(x) / k
	}
	m := empty(mem, form, n, k)
	j := 0
	for _, x := range parts {
		m.fill(p, j, x)
		j += len(x) / k
	}
	return m
}

// streamed is how many numbers Pack asks for at a time.
const streamed = 1 << 18

// Pack is NewMatrix for W [n, k] that does not lie in memory: rows gives rows
// [lo, hi), row-major, which need to last until it is called again. It is called
// for all rows in order, in blocks, once to choose the form and once to pack.
func Pack(p *Pool, mem *Memory, n, k int, rows func(lo, hi int) ([]float32, error)) (Matrix, error) {
	step := max(1, streamed/(PanelWidth*max(k, 1))) * PanelWidth
	form := Q4
	for lo := 0; lo < n; lo += step {
		x, err := rows(lo, min(n, lo+step))
		if err != nil {
			return Matrix{}, err
		}
		form = form.next(p, k, x)
	}
	m := empty(mem, form, n, k)
	for lo := 0; lo < n; lo += step {
		x, err := rows(lo, min(n, lo+step))
		if err != nil {
			return Matrix{}, err
		}
		m.fill(p, lo, x)
	}
	return m, nil
}

// empty is a matrix of zeros.
func empty(mem *Memory, form Form, n, k int) Matrix {
	m := Matrix{n: n, k: k, b: B{form: form, PanelStride: k * PanelWidth, RowStride: PanelWidth, mem: mem}}
	switch {
	case form == Full:
		m.b.Data = numbers[float32](mem, PackedLen(k, n))
	case form < Q8:
		m.b.half = numbers[uint16](mem, PackedLen(k, n))
	default:
		m.b.PanelStride = k / blockLen * form.blockBytes()
		m.b.blocks = numbers[byte](mem, panels(n)*m.b.PanelStride)
	}
	return m
}

// fill packs rows x [*, k] from row j on.
func (m Matrix) fill(p *Pool, j int, x []float32) {
	defer runtime.KeepAlive(m.b.mem)
	first, rows := j/PanelWidth, len(x)/m.k
	p.Rows(panels(j+rows)-first, 1+(1<<15)/(PanelWidth*max(m.k, 1)), func(lo, hi int) {
		for i := max(0, (first+lo)*PanelWidth-j); i < min(rows, (first+hi)*PanelWidth-j); i++ {
			m.put(j+i, x[i*m.k:(i+1)*m.k])
		}
	})
}

func (m Matrix) put(j int, row []float32) {
	at := (j / PanelWidth) * m.b.PanelStride
	if m.b.form >= Q8 {
		var b quant
		for i := 0; i < m.k; i += blockLen {
			b.find(m.b.form, row[i:i+blockLen])
			b.write(m.b.form, m.block(at, i), j%PanelWidth)
		}
		return
	}
	if m.b.form == Full {
		dst := m.b.Data[at+j%PanelWidth:]
		for i, v := range row {
			dst[i*PanelWidth] = v
		}
		return
	}
	dst := m.b.half[at+m.b.form.place(j%PanelWidth):]
	for i, v := range row {
		dst[i*PanelWidth] = narrow(m.b.form, v)
	}
}

// block is the block of a panel at byte offset `at` that holds contracted index
// i.
func (m Matrix) block(at, i int) []byte {
	size := m.b.form.blockBytes()
	return m.b.blocks[at+i/blockLen*size:][:size]
}

// Same says whether two matrices are the same one, not only equal.
func (m Matrix) Same(o Matrix) bool {
	return m.n == o.n && m.k == o.k && unsafe.SliceData(m.b.Data) == unsafe.SliceData(o.b.Data) &&
		unsafe.SliceData(m.b.half) == unsafe.SliceData(o.b.half) && unsafe.SliceData(m.b.blocks) == unsafe.SliceData(o.b.blocks)
}

// Row copies row j of W into dst [k].
func (m Matrix) Row(dst []float32, j int) {
	defer runtime.KeepAlive(m.b.mem)
	at := (j / PanelWidth) * m.b.PanelStride
	if m.b.form >= Q8 {
		var b quant
		for i := 0; i < m.k; i += blockLen {
			b.read(m.b.form, m.block(at, i), j%PanelWidth)
			for r := range blockLen {
				dst[i+r] = b.value(m.b.form, r)
			}
		}
		return
	}
	if m.b.form == Full {
		src := m.b.Data[at+j%PanelWidth:]
		for i := range dst[:m.k] {
			dst[i] = src[i*PanelWidth]
		}
		return
	}
	src := m.b.half[at+m.b.form.place(j%PanelWidth):]
	for i := range dst[:m.k] {
		dst[i] = math.Float32frombits(widen(m.b.form, src[i*PanelWidth]))
	}
}

// Rows and Cols are n and k, the output and input widths of y = Wx.
func (m Matrix) Rows() int { return m.n }

// Cols is the input width.
func (m Matrix) Cols() int { return m.k }

// B is W^T as the right operand of a product.
func (m Matrix) B() B { return m.b }

// Form is how the numbers are kept.
func (m Matrix) Form() Form { return m.b.form }

// Bytes is the size in memory.
func (m Matrix) Bytes() int64 {
	return 4*int64(len(m.b.Data)) + 2*int64(len(m.b.half)) + int64(len(m.b.blocks))
}

// Transpose writes rows [lo, lo+count) of W as a float32 right operand
// [count, k], that of the backward product dx = dy W. lo is a multiple of
// PanelWidth; dst has PackedLen(count, k) numbers.
func (m Matrix) Transpose(p *Pool, dst []float32, lo, count int) {
	defer runtime.KeepAlive(m.b.mem)
	p.Rows(panels(m.k), 1+(1<<15)/(PanelWidth*max(count, 1)), func(first, last int) {
		var line [PanelWidth]float32
		for q := first; q < last; q++ {
			width := min(PanelWidth, m.k-q*PanelWidth)
			out := dst[q*count*PanelWidth : (q+1)*count*PanelWidth]
			if width < PanelWidth {
				clear(out)
			}
			for s := range panels(count) {
				rows := min(PanelWidth, count-s*PanelWidth)
				if m.b.form >= Q8 {
					src := m.block((lo/PanelWidth+s)*m.b.PanelStride, q*PanelWidth)
					var b quant
					for r := range rows {
						b.read(m.b.form, src, r)
						o := out[(s*PanelWidth+r)*PanelWidth:][:PanelWidth]
						for j := range o {
							o[j] = b.value(m.b.form, j)
						}
					}
					continue
				}
				at := (lo/PanelWidth+s)*m.b.PanelStride + q*PanelWidth*PanelWidth
				if rows == PanelWidth && width == PanelWidth && m.square(out[s*PanelWidth*PanelWidth:], at) {
					continue
				}
				for j := range width {
					o := out[s*PanelWidth*PanelWidth+j:]
					from := m.line(&line, at+j*PanelWidth)
					if rows == PanelWidth {
						spread((*[PanelWidth*(PanelWidth-1) + 1]float32)(o), (*[PanelWidth]float32)(from))
						continue
					}
					for r, v := range from[:rows] {
						o[r*PanelWidth] = v
					}
				}
			}
		}
	})
}

// square transposes 32 panel rows that start at an offset into panel rows of
// dst; false when this machine has no kernel for it.
func (m Matrix) square(dst []float32, at int) bool {
	const n = PanelWidth * PanelWidth
	if m.b.form == Full {
		return transposeKernel(Full, &dst[:n][0], unsafe.Pointer(&m.b.Data[at:][:n][0]))
	}
	return transposeKernel(m.b.form, &dst[:n][0], unsafe.Pointer(&m.b.half[at:][:n][0]))
}

// spread writes a row down a column of a square of panel rows.
func spread(column *[PanelWidth*(PanelWidth-1) + 1]float32, row *[PanelWidth]float32) {
	for r, v := range row {
		column[r*PanelWidth] = v
	}
}

// line gives the panel row at an offset as float32 numbers.
func (m Matrix) line(buf *[PanelWidth]float32, at int) []float32 {
	if m.b.form == Full {
		return m.b.Data[at : at+PanelWidth]
	}
	src := (*[PanelWidth]uint16)(m.b.half[at:])
	if m.b.form == BF16 {
		for j := range PanelWidth / 2 { // as place says
			buf[j] = math.Float32frombits(uint32(src[2*j]) << 16)
			buf[j+PanelWidth/2] = math.Float32frombits(uint32(src[2*j+1]) << 16)
		}
		return buf[:]
	}
	for j, h := range src {
		x := math.Float32frombits(uint32(h&0x7fff)<<13) * 0x1p112 // exact, subnormal numbers too
		if h&0x7c00 == 0x7c00 {
			x = math.Float32frombits(widen(m.b.form, h&0x7fff))
		}
		buf[j] = math.Float32frombits(math.Float32bits(x) | uint32(h&0x8000)<<16)
	}
	return buf[:]
}
