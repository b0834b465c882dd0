package f32

import "math"

// Matrix is a constant weight W [n, k] kept as the right operand W^T [k, n] in
// the smallest form that holds it exactly. It is read-only.
type Matrix struct {
	n, k int
	b    B
}

// NewMatrix packs row-major parts [*, k], stacked.
func NewMatrix(p *Pool, k int, parts ...[]float32) Matrix {
	return NewMatrixAs(p, ExactForm(p, k, parts...), k, parts...)
}

// NewMatrixAs is NewMatrix in a given form, which must hold the parts exactly.
func NewMatrixAs(p *Pool, form Form, k int, parts ...[]float32) Matrix {
	n := 0
	for _, x := range parts {
		n += len(x) / k
	}
	m := Matrix{n: n, k: k, b: B{form: form, PanelStride: k * PanelWidth, RowStride: PanelWidth}}
	switch {
	case form == Full:
		m.b.Data = make([]float32, PackedLen(k, n))
	case form < Q8:
		m.b.half = make([]uint16, PackedLen(k, n))
	default:
		m.b.PanelStride = k / blockLen * form.blockBytes()
		m.b.blocks = make([]byte, panels(n)*m.b.PanelStride)
	}
	p.Rows(panels(n), 1+(1<<15)/(PanelWidth*max(k, 1)), func(lo, hi int) {
		j := 0 // row of the stack
		for _, x := range parts {
			rows := len(x) / k
			for i := max(0, lo*PanelWidth-j); i < min(rows, hi*PanelWidth-j); i++ {
				m.put(j+i, x[i*k:(i+1)*k])
			}
			j += rows
		}
	})
	return m
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

// Row copies row j of W into dst [k].
func (m Matrix) Row(dst []float32, j int) {
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
				for j := range width {
					o := out[s*PanelWidth*PanelWidth+j:]
					for r, v := range m.line(&line, at+j*PanelWidth)[:rows] {
						o[r*PanelWidth] = v
					}
				}
			}
		}
	})
}

// line gives the panel row at an offset as float32 numbers.
func (m Matrix) line(buf *[PanelWidth]float32, at int) []float32 {
	if m.b.form == Full {
		return m.b.Data[at : at+PanelWidth]
	}
	src := m.b.half[at : at+PanelWidth]
	for j := range buf {
		buf[j] = math.Float32frombits(widen(m.b.form, src[m.b.form.place(j)]))
	}
	return buf[:]
}
