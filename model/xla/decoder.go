//go:build xla

package xla

import (
	"context"
	"errors"
	"fmt"

	"github.com/gomlx/go-xla/pkg/pjrt"
	"github.com/skein-rl/skein/model"
)

// maxAdapters bounds the places of a decoder: every row pays for all of them.
const maxAdapters = 64

var errClosed = errors.New("xla: the decoder is closed")

// decoder implements model.Decoder. The batch is always all slots: rows that
// don't take part are computed and ignored, so that a row's numbers never depend
// on its company.
type decoder struct {
	b      *backend
	cfg    model.DecoderConfig
	size   int            // positions per slot now allocated
	caches []*pjrt.Buffer // K, V of each layer
	length []int          // cached tokens per slot
	stack  stack          // adapters
	net    []*pjrt.Buffer // the base weights
	undo   func()         // frees what of them was copied for this decoder
	broken error          // a failed call left no caches
	closed bool
}

// NewDecoder makes a decoder of cfg.Slots slots. Programs compile on first use.
func (b *backend) NewDecoder(cfg model.DecoderConfig) (model.Decoder, error) {
	var errs []error
	if cfg.Slots < 1 {
		errs = append(errs, fmt.Errorf("xla: decoder slots %d: want at least 1", cfg.Slots))
	}
	if limit := b.model.Config.ContextLimit(); cfg.MaxLen < 1 || cfg.MaxLen > limit {
		errs = append(errs, fmt.Errorf("xla: decoder max_len %d: want 1 to the model's context of %d", cfg.MaxLen, limit))
	}
	if cfg.Adapters < 0 || cfg.Adapters > maxAdapters {
		errs = append(errs, fmt.Errorf("xla: decoder adapters %d: want 0 (one) to %d", cfg.Adapters, maxAdapters))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if err := b.acquire(); err != nil {
		return nil, err
	}
	places := max(1, cfg.Adapters)
	d := &decoder{b: b, cfg: cfg, length: make([]int, cfg.Slots), stack: stack{b: b, places: places, filled: make([]bool, places)}}
	var err error
	if d.net, d.undo, err = b.weights.whole(b.dev); err == nil {
		if err = d.allocate(d.sizeFor(1)); err == nil {
			return d, nil
		}
		d.undo()
	}
	b.release()
	return nil, err
}

// most is the largest capacity: max_len, one spare position, and the padding of
// the shortest prefill program.
func (d *decoder) most() int {
	least := d.b.dev.limits.prefill[0]
	return (d.cfg.MaxLen + 2*least - 1) / least * least
}

// sizeFor is the capacity to hold need positions.
func (d *decoder) sizeFor(need int) int { return min(bucket(need, d.b.dev.limits.cache), d.most()) }

func (d *decoder) allocate(size int) error {
	s := d.b.shape
	dims := []int{d.cfg.Slots, s.kv, size, s.headDim}
	for range 2 * s.layers {
		c, err := d.b.dev.zeros(dims...)
		if err != nil {
			free(d.caches...)
			d.caches = nil
			return fmt.Errorf("xla: allocate a KV cache of %d slots x %d: %w", d.cfg.Slots, size, err)
		}
		d.caches = append(d.caches, c)
	}
	d.size = size
	return nil
}

// check refuses work on a closed or broken decoder.
func (d *decoder) check(ctx context.Context) error {
	switch {
	case d.closed:
		return errClosed
	case d.broken != nil:
		return fmt.Errorf("xla: the decoder lost its caches in an earlier call; make a new one: %w", d.broken)
	}
	return ctx.Err()
}

// runCaches runs a program that donates the caches; its last results are the
// new ones. The other results are returned.
func (d *decoder) runCaches(p *program, args []*pjrt.Buffer, withNet bool) ([]*pjrt.Buffer, error) {
	all := append(append([]*pjrt.Buffer{}, args...), d.caches...)
	if withNet {
		all = append(append(all, d.net...), d.stack.bufs...)
	}
	out, err := d.b.dev.run(p, all)
	free(args...)
	if err != nil {
		d.broken = err
		return nil, err
	}
	n := len(out) - len(d.caches)
	if len(p.donate) == 0 {
		free(d.caches...)
	}
	d.caches = out[n:]
	return out[:n], nil
}

// reserve makes every slot hold at least need positions, and gives memory back
// when less than half is used.
func (d *decoder) reserve(need int) error {
	for _, n := range d.length {
		need = max(need, n+1) // idle rows write one position past their end
	}
	want := d.sizeFor(need)
	if want == d.size || want < d.size && 2*want > d.size {
		return nil
	}
	empty := true
	for _, n := range d.length {
		empty = empty && n == 0
	}
	if empty {
		free(d.caches...)
		d.caches = nil
		if err := d.allocate(want); err != nil {
			d.broken = err
			return err
		}
		return nil
	}
	from := d.size
	p, err := d.b.stablehlo(fmt.Sprintf("resize %d x %d to %d", d.cfg.Slots, from, want), func(e *emitter) []value {
		return emitResize(e, d.b.shape, d.b.dev.elem, d.cfg.Slots, from, want)
	})
	if err != nil {
		return err
	}
	if _, err := d.runCaches(p, nil, false); err != nil {
		return err
	}
	d.size = want
	return nil
}

// Len is the number of tokens cached in a slot.
func (d *decoder) Len(slot int) int { return d.length[slot] }

// Truncate forgets cached tokens from position n on.
func (d *decoder) Truncate(slot, n int) { d.length[slot] = max(0, min(d.length[slot], n)) }

// CopyPrefix copies on the device.
func (d *decoder) CopyPrefix(dst, src, n int) error {
	if err := d.check(context.Background()); err != nil {
		return err
	}
	for _, s := range []int{dst, src} {
		if s < 0 || s >= d.cfg.Slots {
			return fmt.Errorf("xla: copy prefix: slot %d: want 0 to %d", s, d.cfg.Slots-1)
		}
	}
	if n < 0 || n > d.length[src] {
		return fmt.Errorf("xla: copy prefix of %d tokens: slot %d holds %d", n, src, d.length[src])
	}
	if dst != src && n > 0 {
		size := d.size
		p, err := d.b.stablehlo(fmt.Sprintf("copy slot %d x %d", d.cfg.Slots, size), func(e *emitter) []value {
			return emitCopySlot(e, d.b.shape, d.b.dev.elem, d.cfg.Slots, size)
		})
		if err != nil {
			return err
		}
		args, err := d.ints(int32(dst), int32(src))
		if err != nil {
			return err
		}
		if _, err := d.runCaches(p, args, false); err != nil {
			return err
		}
	}
	d.length[dst] = n
	return nil
}

// ints uploads i32 scalars.
func (d *decoder) ints(xs ...int32) ([]*pjrt.Buffer, error) {
	var out []*pjrt.Buffer
	for _, x := range xs {
		b, err := d.b.dev.putI32([]int32{x})
		if err != nil {
			free(out...)
			return nil, err
		}
		out = append(out, b)
	}
	return out, nil
}

func (d *decoder) checkTokens(ids []int32) error {
	for i, t := range ids {
		if t < 0 || int(t) >= d.b.shape.vocab {
			return fmt.Errorf("token %d is %d: the vocabulary has %d", i, t, d.b.shape.vocab)
		}
	}
	return nil
}

// Close frees the caches, the adapter and the programs.
func (d *decoder) Close() error {
	if d.closed {
		return nil
	}
	d.closed = true
	free(d.caches...)
	free(d.stack.bufs...)
	d.undo()
	d.b.release()
	return nil
}
