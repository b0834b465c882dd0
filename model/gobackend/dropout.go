package gobackend

import (
	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/model/internal/f32"
)

// dropRow is model.Dropout for one row.
type dropRow struct {
	key   uint64
	bound uint32
	scale float32
}

// appendDrop adds the drop of the newest rows, which have these keys, after rows
// without any. A batch in which nothing is dropped has none.
func (b *batch) appendDrop(d model.Dropout, keys []uint64) {
	if len(keys) == 0 && b.drop == nil {
		return
	}
	for len(b.drop)+len(keys) < len(b.tokens) {
		b.drop = append(b.drop, dropRow{scale: 1})
	}
	for _, k := range keys {
		b.drop = append(b.drop, dropRow{k, d.Threshold(), d.Scale()})
	}
}

// mask is the dropout of rows in front of a layer's projections; no rows means
// none.
type mask struct {
	rows  []dropRow
	layer int
}

// apply sets dst, or adds to it, x [rows, in] with what a projection's adapter
// drops dropped.
func (m mask) apply(pool *f32.Pool, dst, x []float32, projection string, in int, add bool) {
	site := model.DropoutSite(m.layer, projection)
	pool.Rows(len(m.rows), rowGrain(4*in), func(lo, hi int) {
		for i := lo; i < hi; i++ {
			r := m.rows[i]
			a, b := model.MaskKeys(r.key, site)
			to := dst[i*in : (i+1)*in]
			for f, v := range x[i*in : (i+1)*in] {
				if model.MaskBits(a, b, uint32(f)) < r.bound {
					v = 0
				}
				if v *= r.scale; add {
					v += to[f]
				}
				to[f] = v
			}
		}
	})
}
