package gobackend

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"

	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/model/internal/f32"
	"github.com/skein-rl/skein/model/sample"
)

// splitBytes of weights or less: decoding splits rows, not products, over
// goroutines.
const splitBytes = 24 << 20

// decodeRow is a row in progress.
type decodeRow struct {
	model.DecodeRow
	index int
	cache *slotCache
	ad    *lora
	left  int
	last  int32
	// history is the row's sequence up to last, kept when penalties need it.
	history []int32
	out     *model.DecodeOut
}

// Decode implements model.Decoder. Products with the base weights are computed
// once for all rows, those with an adapter once for the rows under it.
//
// A row makes at most min(n, MaxNew) tokens, and that many must fit in its slot even if it stops earlier. The newest
// token of each row is returned but not cached: pass it as Last next time.
// When ctx ends in the middle, the tokens made so far are returned with its
// error.
func (d *decoder) Decode(ctx context.Context, rows []model.DecodeRow, n int) ([]model.DecodeOut, error) {
	defer runtime.KeepAlive(d) // the cache's memory
	outs := make([]model.DecodeOut, len(rows))
	active := make([]*decodeRow, 0, len(rows))
	seen := map[int]bool{}
	for i, r := range rows {
		left := max(min(n, r.MaxNew), 0)
		err := d.checkSlot(r.Slot)
		switch {
		case err != nil:
		case seen[r.Slot]:
			err = fmt.Errorf("slot %d is listed twice", r.Slot)
		case d.Len(r.Slot)+left > d.cfg.MaxLen:
			err = fmt.Errorf("slot %d holds %d tokens and %d more exceed max_len %d", r.Slot, d.Len(r.Slot), left, d.cfg.MaxLen)
		default:
			err = errors.Join(d.checkPlace(r.Adapter), d.checkToken(r.Last), sample.CheckRow(&r, d.b.net.vocab))
		}
		if err != nil {
			return nil, fmt.Errorf("gobackend: decode: row %d: %w", i, err)
		}
		seen[r.Slot] = true
		if left > 0 {
			active = append(active, &decodeRow{
				DecodeRow: r, index: i, cache: d.slot(r.Slot), ad: d.adapters[r.Adapter],
				left: left, last: r.Last, history: slices.Clip(r.History), out: &outs[i],
			})
		}
	}
	if len(active) == 0 {
		return outs, ctx.Err()
	}
	slices.SortStableFunc(active, func(a, b *decodeRow) int { return d.order(a.Adapter, b.Adapter) })
	var errs []error
	for len(active) > 0 {
		n := d.net(active[0].Adapter)
		k := slices.IndexFunc(active, func(r *decodeRow) bool { return d.net(r.Adapter) != n })
		if k < 0 {
			k = len(active)
		}
		errs = append(errs, d.decodeNet(ctx, n, active[:k:k]))
		active = active[k:]
	}
	if err := errors.Join(errs...); err != nil {
		return outs, fmt.Errorf("gobackend: decode: %w", err)
	}
	return outs, nil
}

// decodeNet decodes rows of one net.
func (d *decoder) decodeNet(ctx context.Context, n *net, active []*decodeRow) error {
	// Few weights: each goroutine decodes its own rows to the end, with no
	// meeting point. Many weights: all goroutines share each product, so that
	// the weights are read once per step.
	parts := 1
	if n.bytes() <= splitBytes {
		parts = min(d.b.pool.Threads(), len(active))
	}
	var shared *f32.Pool // of the products of a lone part
	if parts == 1 {
		var release func()
		shared, release = d.b.pool.Crew()
		defer release()
	}
	errs := make([]error, parts)
	d.b.pool.For(parts, func(p int) {
		ln := d.lanes[p]
		ln.pool = shared
		lo, hi := p*len(active)/parts, (p+1)*len(active)/parts
		errs[p] = d.decodeLane(ctx, n, ln, active[lo:hi:hi])
	})
	return errors.Join(errs...)
}

// decodeLane steps its rows until all are done.
func (d *decoder) decodeLane(ctx context.Context, n *net, ln *lane, rows []*decodeRow) error {
	for len(rows) > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		ln.begin(n)
		for _, r := range rows {
			ln.add(r.cache, r.ad, r.cache.len, r.last)
		}
		d.forward(ln, false)
		a := &ln.acts
		ln.logits = resize(ln.logits, len(rows)*n.vocab)
		ln.rmsNorm(a.xn, a.inv1, a.x, n.norm, n.eps, len(rows))
		n.logits(&ln.exec, ln.logits, a.xn, len(rows))
		ln.pool.For(len(rows), func(i int) { rows[i].draw(ln.logits[i*n.vocab : (i+1)*n.vocab]) })
		rows = slices.DeleteFunc(rows, func(r *decodeRow) bool { return r.left == 0 })
	}
	return nil
}

// draw samples the row's next token, or ends the row with its own error.
func (r *decodeRow) draw(logits []float32) {
	id, err := sample.DrawRow(logits, &r.DecodeRow, r.history, r.cache.len, r.out)
	if err != nil {
		r.out.Err = fmt.Errorf("gobackend: decode: row %d, slot %d, position %d: %w", r.index, r.Slot, r.cache.len, err)
		r.left = 0
		return
	}
	if len(r.history) > 0 {
		r.history = append(r.history, id)
	}
	r.last = id
	r.left--
	if slices.Contains(r.Stop, id) {
		r.out.Stopped, r.left = true, 0
	}
}
