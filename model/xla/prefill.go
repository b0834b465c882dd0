//go:build xla

package xla

import (
	"context"
	"fmt"

	"github.com/gomlx/go-xla/pkg/pjrt"
	"github.com/skein-rl/skein/model"
)

// Prefill appends tokens to caches, row by row: on a CPU a row of 16 tokens
// already keeps the cores busy.
func (d *decoder) Prefill(ctx context.Context, rows []model.PrefillRow) error {
	if err := d.check(ctx); err != nil {
		return err
	}
	for i, r := range rows {
		if r.Slot < 0 || r.Slot >= d.cfg.Slots {
			return fmt.Errorf("xla: prefill row %d: slot %d: want 0 to %d", i, r.Slot, d.cfg.Slots-1)
		}
		if n := d.length[r.Slot] + len(r.Tokens); n > d.cfg.MaxLen {
			return fmt.Errorf("xla: prefill row %d: slot %d would hold %d tokens, max_len is %d", i, r.Slot, n, d.cfg.MaxLen)
		}
		if err := d.checkTokens(r.Tokens); err != nil {
			return fmt.Errorf("xla: prefill row %d: %w", i, err)
		}
	}
	for _, r := range rows {
		for tokens := r.Tokens; len(tokens) > 0; {
			if err := d.check(ctx); err != nil {
				return err
			}
			t := prefillChunk(len(tokens), d.most()-d.length[r.Slot])
			n := min(t, len(tokens))
			if err := d.prefill(r.Slot, tokens[:n], t); err != nil {
				return err
			}
			tokens = tokens[n:]
		}
	}
	return nil
}

// prefillChunk picks the program's length for the next of n tokens with room
// positions left: the smallest that holds them all if at least half full, else
// the largest that is filled.
func prefillChunk(n, room int) int {
	t := prefillSizes[0]
	for _, s := range prefillSizes {
		if s <= n {
			t = s
		} else if s <= 2*n && s <= room {
			return s
		}
	}
	return t
}

func (d *decoder) prefill(slot int, tokens []int32, t int) error {
	start := d.length[slot]
	if err := d.reserve(start + t); err != nil {
		return err
	}
	size := d.size
	p, err := d.b.stablehlo(fmt.Sprintf("prefill %d into %d x %d %v", t, d.cfg.Slots, size, d.lora), func(e *emitter) []value {
		return emitPrefill(e, d.b.shape, d.b.dev.elem, d.lora, d.cfg.Slots, size, t)
	})
	if err != nil {
		return err
	}
	ids := make([]int32, t)
	copy(ids, tokens)
	idBuf, err := d.b.dev.putI32(ids, t)
	if err != nil {
		return err
	}
	rest, err := d.ints(int32(slot), int32(start))
	if err != nil {
		free(idBuf)
		return err
	}
	if _, err := d.runCaches(p, append([]*pjrt.Buffer{idBuf}, rest...), true); err != nil {
		return err
	}
	d.length[slot] = start + len(tokens)
	return nil
}
