package f32

// PackT packs B = W^T into panels: w is [n, k] row-major with row stride ld
// (a weight as stored, [out, in]), so B(i, j) = w[j*ld+i].
func PackT(p *Pool, dst, w []float32, n, k, ld int) {
	p.Rows(panels(n), 1+(1<<15)/(PanelWidth*max(k, 1)), func(lo, hi int) {
		for q := lo; q < hi; q++ {
			packPanelT(dst[q*k*PanelWidth:(q+1)*k*PanelWidth], w[q*PanelWidth*ld:], min(PanelWidth, n-q*PanelWidth), k, ld)
		}
	})
}

func packPanelT(dst, w []float32, width, k, ld int) {
	if width < PanelWidth {
		clear(dst)
	}
	for j := range width {
		row := w[j*ld : j*ld+k]
		for i, v := range row {
			dst[i*PanelWidth+j] = v
		}
	}
}

// PackN packs a row-major B [k, n] with row stride ld into panels.
func PackN(p *Pool, dst, b []float32, k, n, ld int) {
	p.Rows(panels(n), 1+(1<<15)/(PanelWidth*max(k, 1)), func(lo, hi int) {
		for q := lo; q < hi; q++ {
			width := min(PanelWidth, n-q*PanelWidth)
			out := dst[q*k*PanelWidth : (q+1)*k*PanelWidth]
			if width < PanelWidth {
				clear(out)
			}
			for i := range k {
				copy(out[i*PanelWidth:i*PanelWidth+width], b[i*ld+q*PanelWidth:])
			}
		}
	})
}

// Transpose turns the panels of B [k, n] (as PackT wrote a weight [n, k]) into
// the panels of B^T [n, k], the right operand of a backward product.
func Transpose(p *Pool, dst, src []float32, k, n int) {
	p.Rows(panels(k), 1+(1<<15)/(PanelWidth*max(n, 1)), func(lo, hi int) {
		for q := lo; q < hi; q++ {
			width := min(PanelWidth, k-q*PanelWidth)
			out := dst[q*n*PanelWidth : (q+1)*n*PanelWidth]
			if width < PanelWidth {
				clear(out)
			}
			for s := range panels(n) {
				rows := min(PanelWidth, n-s*PanelWidth)
				in := src[(s*k+q*PanelWidth)*PanelWidth:]
				for j := range width {
					line := in[j*PanelWidth : j*PanelWidth+rows]
					o := out[s*PanelWidth*PanelWidth+j:]
					for r, v := range line {
						o[r*PanelWidth] = v
					}
				}
			}
		}
	})
}

// Column copies column j of packed panels of B [k, n] into dst [k]: row j of
// the weight that PackT packed.
func Column(dst, panels []float32, k, j int) {
	src := panels[(j/PanelWidth)*k*PanelWidth+j%PanelWidth:]
	for i := range dst[:k] {
		dst[i] = src[i*PanelWidth]
	}
}
