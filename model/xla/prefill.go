//go:build xla

package xla

import (
	"context"
	"fmt"

	"github.com/gomlx/go-xla/pkg/pjrt"
	"github.com/skein-rl/skein/model"
)

// piece is what of a row is still to be prefilled.
type piece struct {
	model.PrefillRow
	t int // the length of program its next tokens take
}

// Prefill appends tokens to caches: pieces that take programs of one length run
// together. How a row is cut does not depend on the others.
func (d *decoder) Prefill(ctx context.Context, rows []model.PrefillRow) error {
	if err := d.check(ctx); err != nil {
		return err
	}
	if err := d.checkPrefill(rows); err != nil {
		return err
	}
	var left []piece
	for _, r := range rows {
		left = append(left, piece{PrefillRow: r})
	}
	for {
		left = d.cut(left)
		if len(left) == 0 {
			return nil
		}
		if err := d.check(ctx); err != nil {
			return err
		}
		// The first piece and others of its length.
		var batch []*piece
		for i := range left {
			if left[i].t == left[0].t {
				batch = append(batch, &left[i])
			}
		}
		rows := prefillRows(d.b.dev.limits.rows, len(batch))
		if _, err := d.prefill(batch[:min(rows, len(batch))], rows, false); err != nil {
			return err
		}
	}
}

// checkPrefill refuses rows before any is computed.
func (d *decoder) checkPrefill(rows []model.PrefillRow) error {
	seen := map[int]bool{}
	for i, r := range rows {
		if r.Slot < 0 || r.Slot >= d.cfg.Slots {
			return fmt.Errorf("xla: prefill row %d: slot %d: want 0 to %d", i, r.Slot, d.cfg.Slots-1)
		}
		if seen[r.Slot] {
			return fmt.Errorf("xla: prefill row %d: slot %d is named twice", i, r.Slot)
		}
		seen[r.Slot] = true
		if n := d.length[r.Slot] + len(r.Tokens); n > d.cfg.MaxLen {
			return fmt.Errorf("xla: prefill row %d: slot %d would hold %d tokens, max_len is %d", i, r.Slot, n, d.cfg.MaxLen)
		}
		if err := d.checkTokens(r.Tokens); err != nil {
			return fmt.Errorf("xla: prefill row %d: %w", i, err)
		}
		if err := d.stack.has(r.Adapter); err != nil {
			return fmt.Errorf("xla: prefill row %d: %w", i, err)
		}
	}
	return nil
}

// cut drops finished pieces and sizes the others' next step.
func (d *decoder) cut(all []piece) []piece {
	left := all[:0]
	for _, p := range all {
		if len(p.Tokens) > 0 {
			p.t = prefillChunk(d.b.dev.limits.prefill, len(p.Tokens), d.most()-d.length[p.Slot])
			left = append(left, p)
		}
	}
	return left
}

// prefillChunk picks the program's length for the next of n tokens with room
// positions left: the smallest that holds them all if at least half full, else
// the largest that is filled.
func prefillChunk(sizes []int, n, room int) int {
	t := sizes[0]
	for _, s := range sizes {
		if s <= n {
			t = s
		} else if s <= 2*n && s <= room {
			return s
		}
	}
	return t
}

// prefillRows picks how many rows the program for n pieces has: the most that
// are more than half used.
func prefillRows(sizes []int, n int) int {
	out := sizes[0]
	for _, s := range sizes {
		if 2*n > s {
			out = s
		}
	}
	return out
}

// prefill runs one step of some pieces and takes its tokens off them. Rows that
// fill up the program's repeat the first. With logits it returns theirs, [rows*t, V].
func (d *decoder) prefill(batch []*piece, rows int, logits bool) (*pjrt.Buffer, error) {
	t, need := batch[0].t, 0
	ids := make([]int32, rows*t)
	slot, start, place := make([]int32, rows), make([]int32, rows), make([]int32, rows)
	for i := range rows {
		p := batch[0]
		if i < len(batch) {
			p = batch[i]
		}
		copy(ids[i*t:(i+1)*t], p.Tokens)
		slot[i], start[i], place[i] = int32(p.Slot), int32(d.length[p.Slot]), int32(p.Adapter)
		need = max(need, d.length[p.Slot]+t)
	}
	if err := d.reserve(need); err != nil {
		return nil, err
	}
	size, st := d.size, d.stack.shape
	name := "prefill"
	if logits {
		name = "score"
	}
	p, err := d.b.stablehlo(fmt.Sprintf("%s %d x %d into %d x %d %v", name, rows, t, d.cfg.Slots, size, st), func(e *emitter) []value {
		return emitPrefill(e, d.b.shape, d.b.dev.elem, st, d.cfg.Slots, size, rows, t, logits)
	})
	if err != nil {
		return nil, err
	}
	var args []*pjrt.Buffer
	for _, x := range []struct {
		data []int32
		dims []int
	}{{ids, []int{rows, t}}, {slot, []int{rows}}, {start, []int{rows}}, {place, []int{rows}}} {
		buf, err := d.b.dev.putI32(x.data, x.dims...)
		if err != nil {
			free(args...)
			return nil, err
		}
		args = append(args, buf)
	}
	out, err := d.runCaches(p, args, true)
	if err != nil {
		return nil, err
	}
	for _, p := range batch {
		n := min(t, len(p.Tokens))
		d.length[p.Slot] += n
		p.Tokens = p.Tokens[n:]
	}
	if logits {
		return out[0], nil
	}
	return nil, nil
}
