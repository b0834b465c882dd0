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
