package gobackend

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"

	"github.com/skein-rl/skein/model"
)

// ErrClosed is returned by a decoder or trainer after Close.
var ErrClosed = errors.New("gobackend: closed")

const prefillRows = 256 // rows of one forward pass of a prefill

// decoder implements model.Decoder.
type decoder struct {
	b        *backend
	cfg      model.DecoderConfig
	shape    cacheShape
	slots    []*slotCache // nil until first used
	adapters []*lora      // by place; 0 is the base
	lanes    []*lane
	closed   bool
}

// lane is the working memory of one goroutine's forward passes.
type lane struct {
	exec
	net    *net // of the batch
	acts   acts
	angles []float32
	logits []float32
	tokens []int32
	spans  []span
	shares []share // of tokens, by adapter

	clusters []cluster // of spans
}

// begin empties the batch, whose rows n will compute.
func (ln *lane) begin(n *net) {
	ln.net, ln.tokens, ln.spans, ln.shares = n, ln.tokens[:0], ln.spans[:0], ln.shares[:0]
}

// add appends tokens of one slot.
func (ln *lane) add(c *slotCache, ad *lora, pos int, tokens ...int32) {
	row := len(ln.tokens)
	ln.spans = append(ln.spans, span{c, row, len(tokens), pos})
	ln.tokens = append(ln.tokens, tokens...)
	if n := len(ln.shares); n > 0 && ln.shares[n-1].ad == ad {
		ln.shares[n-1].rows += len(tokens)
	} else {
		ln.shares = append(ln.shares, share{ad: ad, row: row, rows: len(tokens)})
	}
}

// NewDecoder implements model.Backend. Caches are
// allocated as they grow, by pages of 32 positions: layers*kvHeads*32*(headDim +
// headDim padded to 32) floats. CopyPrefix shares pages.
func (b *backend) NewDecoder(cfg model.DecoderConfig) (model.Decoder, error) {
	var errs []error
	if cfg.Slots < 1 {
		errs = append(errs, fmt.Errorf("slots is %d, want at least 1", cfg.Slots))
	}
	if limit := b.m.Config.ContextLimit(); cfg.MaxLen < 2 || cfg.MaxLen > limit {
		errs = append(errs, fmt.Errorf("max_len is %d, want 2 to the model's context, %d", cfg.MaxLen, limit))
	}
	if cfg.Adapters < 0 {
		errs = append(errs, fmt.Errorf("adapters is %d, want 1 or more, or 0 for 1", cfg.Adapters))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("gobackend: decoder: %w", err)
	}
	d := &decoder{b: b, cfg: cfg, shape: newCacheShape(b.net.dims),
		slots: make([]*slotCache, cfg.Slots), adapters: make([]*lora, 1+max(cfg.Adapters, 1))}
	for range b.pool.Threads() {
		d.lanes = append(d.lanes, &lane{})
	}
	return d, nil
}

// SetAdapter implements model.Decoder. It fails, keeping the old adapter, when
// the new one is of another base or shape, or not finite.
func (d *decoder) SetAdapter(place int, a *model.Adapter) error {
	if err := d.setAdapter(place, a); err != nil {
		return fmt.Errorf("gobackend: set adapter: %w", err)
	}
	return nil
}

func (d *decoder) setAdapter(place int, a *model.Adapter) error {
	switch {
	case d.closed:
		return ErrClosed
	case place < 1 || place >= len(d.adapters):
		return fmt.Errorf("place %d, the decoder has 1 to %d (DecoderConfig.Adapters); 0 is the base", place, len(d.adapters)-1)
	case a == nil:
		d.adapters[place] = nil
		return nil
	}
	if d.b.m.Digest != "" {
		if err := a.CheckBase(d.b.m.Digest); err != nil {
			return err
		}
	}
	if err := a.Check(d.b.m.Config); err != nil {
		return err
	}
	l, err := newAdapter(d.b.m.Config, a, d.b.pool)
	if err != nil {
		return err
	}
	d.adapters[place] = l
	return nil
}

// net is what computes the rows of a place.
func (d *decoder) net(place int) *net { return d.adapters[place].net(d.b.net) }

// order sorts places so that those of one net, and of one adapter, stand
// together.
func (d *decoder) order(a, b int) int {
	if x, y := d.net(a) == d.b.net, d.net(b) == d.b.net; x != y {
		if x {
			return -1
		}
		return 1
	}
	return a - b
}

// checkPlace reports a row's place that holds no adapter.
func (d *decoder) checkPlace(place int) error {
	if place < 0 || place >= len(d.adapters) {
		return fmt.Errorf("adapter %d, the decoder has places 0 (the base) to %d", place, len(d.adapters)-1)
	}
	if place > 0 && d.adapters[place] == nil {
		return fmt.Errorf("adapter %d: the place is empty; call SetAdapter first, or use 0 for the base", place)
	}
	return nil
}

// Len implements model.Decoder.
func (d *decoder) Len(slot int) int {
	if d.slots[slot] == nil {
		return 0
	}
	return d.slots[slot].len
}

// Truncate implements model.Decoder; n beyond the cached length does nothing.
func (d *decoder) Truncate(slot, n int) {
	if c := d.slots[slot]; c != nil && n < c.len {
		d.shape.truncate(c, max(n, 0))
	}
}

// CopyPrefix implements model.Decoder.
func (d *decoder) CopyPrefix(dst, src, n int) error {
	if err := errors.Join(d.checkSlot(dst), d.checkSlot(src)); err != nil {
		return fmt.Errorf("gobackend: copy prefix: %w", err)
	}
	if n < 0 || n > d.Len(src) {
		return fmt.Errorf("gobackend: copy prefix: %d tokens asked, slot %d holds %d", n, src, d.Len(src))
	}
	if dst == src {
		d.Truncate(dst, n)
		return nil
	}
	if n == 0 {
		d.Truncate(dst, 0)
		return nil
	}
	d.shape.share(d.slot(dst), d.slots[src], n)
	return nil
}

func (d *decoder) checkSlot(slot int) error {
	if d.closed {
		return ErrClosed
	}
	if slot < 0 || slot >= d.cfg.Slots {
		return fmt.Errorf("slot %d, the decoder has 0 to %d", slot, d.cfg.Slots-1)
	}
	return nil
}

func (d *decoder) slot(i int) *slotCache {
	if d.slots[i] == nil {
		d.slots[i] = &slotCache{}
	}
	return d.slots[i]
}

func (d *decoder) checkToken(id int32) error {
	if id < 0 || int(id) >= d.b.net.vocab {
		return fmt.Errorf("token %d, the vocabulary has 0 to %d: the tokenizer does not match the weights", id, d.b.net.vocab-1)
	}
	return nil
}

// Prefill implements model.Decoder. Rows are checked before anything is
// computed. When ctx ends in the middle the tokens of the passes already run
// stay cached: Len says how many.
func (d *decoder) Prefill(ctx context.Context, rows []model.PrefillRow) error {
	defer runtime.KeepAlive(d) // the cache's memory
	if err := d.checkPrefill(rows); err != nil {
		return fmt.Errorf("gobackend: prefill: %w", err)
	}
	rows = slices.Clone(rows)
	slices.SortStableFunc(rows, func(a, b model.PrefillRow) int { return d.order(a.Adapter, b.Adapter) })
	ln := d.lanes[0]
	var release func()
	ln.pool, release = d.b.pool.Crew()
	defer release()
	for r, at := 0, 0; r < len(rows); {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("gobackend: prefill: %w", err)
		}
		ln.begin(d.net(rows[r].Adapter))
		for r < len(rows) && len(ln.tokens) < prefillRows && d.net(rows[r].Adapter) == ln.net {
			row := rows[r]
			take := min(len(row.Tokens)-at, prefillRows-len(ln.tokens))
			if take > 0 {
				c := d.slot(row.Slot)
				ln.add(c, d.adapters[row.Adapter], c.len, row.Tokens[at:at+take]...)
				at += take
			}
			if at == len(row.Tokens) {
				r, at = r+1, 0
			}
		}
		if len(ln.tokens) > 0 {
			d.forward(ln, true)
		}
	}
	return nil
}

// checkPrefill reports the first row that cannot be appended.
func (d *decoder) checkPrefill(rows []model.PrefillRow) error {
	seen := map[int]bool{}
	for i, r := range rows {
		err := d.checkSlot(r.Slot)
		switch {
		case err != nil:
		case seen[r.Slot]:
			err = fmt.Errorf("slot %d is listed twice", r.Slot)
		case d.checkPlace(r.Adapter) != nil:
			err = d.checkPlace(r.Adapter)
		case d.Len(r.Slot)+len(r.Tokens) > d.cfg.MaxLen:
			err = fmt.Errorf("slot %d holds %d tokens and %d more exceed max_len %d", r.Slot, d.Len(r.Slot), len(r.Tokens), d.cfg.MaxLen)
		}
		seen[r.Slot] = true
		for j, id := range r.Tokens {
			if err == nil {
				if err = d.checkToken(id); err != nil {
					err = fmt.Errorf("index %d: %w", j, err)
				}
			}
		}
		if err != nil {
			return fmt.Errorf("row %d: %w", i, err)
		}
	}
	return nil
}

// forward runs ln.tokens through the layers, appends them to the caches of
// ln.spans, and leaves the final residual in ln.acts.x. With cacheOnly the last
// layer stops at its keys and values.
func (d *decoder) forward(ln *lane, cacheOnly bool) {
	n, a, rows := ln.net, &ln.acts, len(ln.tokens)
	a.resize(n.dims, rows)
	ln.angles = resize(ln.angles, rows*n.ropes.width)
	for _, sp := range ln.spans {
		d.shape.reserve(sp.cache, sp.pos, sp.pos+sp.rows)
		for r := range sp.rows {
			n.ropes.angles(ln.angles[(sp.row+r)*n.ropes.width:], sp.pos+r)
		}
	}
	ln.clusters = n.clusters(ln.clusters[:0], ln.spans)
	n.embedRows(&ln.exec, a.x, ln.tokens)
	for l := range n.layers {
		n.qkvRows(&ln.exec, l, ln.shares, a, ln.angles, rows)
		d.shape.attendCache(&ln.exec, l, n.layers[l].window, a, ln.spans, ln.clusters)
		if cacheOnly && l == len(n.layers)-1 {
			break
		}
		n.midRows(&ln.exec, l, ln.shares, a, rows)
		n.outRows(&ln.exec, l, ln.shares, a, a.x, rows)
	}
	for _, sp := range ln.spans {
		sp.cache.len = sp.pos + sp.rows
	}
}

// Close implements model.Decoder.
func (d *decoder) Close() error {
	if d.closed {
		return nil
	}
	d.shape.free.mem.Free()
	d.closed, d.slots, d.lanes, d.adapters, d.shape = true, make([]*slotCache, d.cfg.Slots), nil, nil, cacheShape{}
	return nil
}
