//go:build xla

package xla

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/gomlx/go-xla/pkg/pjrt"
	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/model/sample"
)

// rowState is one slot's part of a decode call.
type rowState struct {
	row  int // index in rows; -1 = idle
	last int32
	left int // tokens it may still make
	done bool
	// host: the row is drawn on the host from its logits; history is its
	// sequence then.
	host    bool
	history []int32
}

// onHost says whether a row is drawn on the host: whatever the device's sampler
// does not know.
func onHost(r model.DecodeRow) bool {
	r.Raw, r.Sampling.MinP = false, 0
	return sample.NeedsHost(&r)
}

// Decode runs all rows together, many tokens per device call; one per call while
// a row among them needs the host. Rows that don't are drawn on the device in
// either case, so their numbers stay the same. Slots that are not named idle
// through the call.
func (d *decoder) Decode(ctx context.Context, rows []model.DecodeRow, n int) ([]model.DecodeOut, error) {
	if err := d.check(ctx); err != nil {
		return nil, err
	}
	if err := d.validateRows(rows, n); err != nil {
		return nil, err
	}
	out := make([]model.DecodeOut, len(rows))
	slots := make([]rowState, d.cfg.Slots)
	for i := range slots {
		slots[i] = rowState{row: -1, done: true}
	}
	need := 0
	spec := decodeSpec{slots: d.cfg.Slots}
	for i, r := range rows {
		left := min(n, r.MaxNew)
		slots[r.Slot] = rowState{row: i, last: r.Last, left: left, host: onHost(r), history: slices.Clone(r.History)}
		need = max(need, d.length[r.Slot]+left+1)
		spec.stops = max(spec.stops, len(r.Stop))
		spec.filter = spec.filter || filters(r.Sampling)
		spec.raw = spec.raw || r.Raw
	}
	if len(rows) == 0 {
		return out, nil
	}
	if err := d.reserve(need); err != nil {
		return nil, err
	}
	spec.size, spec.stops = d.size, bucket(spec.stops, stopSizes)
	for n > 0 && slices.ContainsFunc(slots, func(s rowState) bool { return !s.done }) {
		if err := d.check(ctx); err != nil {
			return out, err
		}
		spec.logits = slices.ContainsFunc(slots, func(s rowState) bool { return !s.done && s.host })
		spec.steps = d.b.dev.limits.steps
		if spec.logits {
			spec.steps = 1
		}
		steps := min(n, spec.steps)
		if err := d.decode(spec, rows, slots, steps, out); err != nil {
			return nil, err
		}
		n -= steps
	}
	return out, nil
}

// filters says whether a row needs top-k, top-p or min-p; greedy rows never do.
func filters(s model.Sampling) bool {
	return s.Temperature > 0 && (s.TopK > 0 || s.TopP > 0 && s.TopP < 1 || s.MinP > 0)
}

func (d *decoder) validateRows(rows []model.DecodeRow, n int) error {
	var errs []error
	if n < 1 {
		errs = append(errs, fmt.Errorf("xla: decode of n=%d tokens: want at least 1", n))
	}
	seen := map[int]bool{}
	for i, r := range rows {
		bad := func(format string, a ...any) {
			errs = append(errs, fmt.Errorf("xla: decode row %d: "+format, append([]any{i}, a...)...))
		}
		if r.Slot < 0 || r.Slot >= d.cfg.Slots {
			bad("slot %d: want 0 to %d", r.Slot, d.cfg.Slots-1)
			continue
		}
		if seen[r.Slot] {
			bad("slot %d is named twice", r.Slot)
		}
		seen[r.Slot] = true
		if r.MaxNew < 1 {
			bad("max_new %d: want at least 1", r.MaxNew)
		}
		if got := d.length[r.Slot] + min(n, r.MaxNew); got > d.cfg.MaxLen {
			bad("slot %d would hold %d tokens, max_len is %d", r.Slot, got, d.cfg.MaxLen)
		}
		if err := d.checkTokens([]int32{r.Last}); err != nil {
			bad("last %w", err)
		}
		if err := sample.CheckRow(&r, d.b.shape.vocab); err != nil {
			bad("%w", err)
		}
		if err := d.stack.has(r.Adapter); err != nil {
			bad("%w", err)
		}
	}
	return errors.Join(errs...)
}

// decodeArgs uploads a call's inputs in the order of emitDecode.
func (d *decoder) decodeArgs(spec decodeSpec, rows []model.DecodeRow, slots []rowState, steps int) (args []*pjrt.Buffer, err error) {
	b := d.cfg.Slots
	last, pos, place, active, limit := make([]int32, b), make([]int32, b), make([]int32, b), make([]bool, b), make([]int32, b)
	stop := make([]int32, b*spec.stops)
	for i := range stop {
		stop[i] = -1
	}
	greedy, inv, topK, topP, minP := make([]bool, b), make([]float32, b), make([]int32, b), make([]float64, b), make([]float32, b)
	u := make([]float64, spec.steps*b)
	for i, s := range slots {
		pos[i] = int32(d.length[i])
		greedy[i], inv[i], topP[i] = true, 1, 1
		if s.done {
			continue
		}
		r := rows[s.row]
		last[i], place[i], active[i], limit[i] = s.last, int32(r.Adapter), true, int32(s.left)
		copy(stop[i*spec.stops:], r.Stop)
		if r.Sampling.Temperature > 0 {
			greedy[i], inv[i] = false, float32(1/r.Sampling.Temperature)
			for t := range steps {
				u[t*b+i] = sample.Uniform(r.Sampling.Seed, uint64(d.length[i]+1+t))
			}
		}
		if filters(r.Sampling) {
			topK[i], minP[i] = int32(min(r.Sampling.TopK, math.MaxInt32)), float32(r.Sampling.MinP)
			if r.Sampling.TopP > 0 {
				topP[i] = r.Sampling.TopP
			}
		}
	}
	add := func(buf *pjrt.Buffer, e error) {
		args = append(args, buf)
		err = errors.Join(err, e)
	}
	dev := d.b.dev
	add(dev.putI32(last, b))
	add(dev.putI32(pos, b))
	add(dev.putI32(place, b))
	add(dev.putBool(active, b))
	add(dev.putI32(limit, b))
	add(dev.putI32(stop, b, spec.stops))
	add(dev.putBool(greedy, b))
	add(dev.putF32(inv, b))
	add(dev.putI32(topK, b))
	add(dev.putF64(topP, b))
	add(dev.putF32(minP, b))
	add(dev.putF64(u, spec.steps, b))
	add(dev.putI32([]int32{int32(steps)}))
	if err != nil {
		free(args...)
		return nil, err
	}
	return args, nil
}

// decode is one device call: it advances every unfinished slot.
func (d *decoder) decode(spec decodeSpec, rows []model.DecodeRow, slots []rowState, steps int, out []model.DecodeOut) error {
	st := d.stack.shape
	p, err := d.b.stablehlo(fmt.Sprintf("decode %v %v", spec, st), func(e *emitter) []value {
		return emitDecode(e, d.b.shape, d.b.dev.elem, st, spec)
	})
	if err != nil {
		return err
	}
	args, err := d.decodeArgs(spec, rows, slots, steps)
	if err != nil {
		return err
	}
	res, err := d.runCaches(p, args, true)
	if err != nil {
		return err
	}
	defer free(res...)
	n := spec.steps * d.cfg.Slots
	var got drawn
	if got.ids, err = get[int32](res[0], n); err == nil {
		got.lps, err = get[float32](res[1], n)
	}
	if err == nil && spec.raw {
		got.raws, err = get[float32](res[2], n)
	}
	if err != nil {
		return err
	}
	if spec.logits {
		if err := d.drawOnHost(res[3], rows, slots, out); err != nil {
			return err
		}
	}
	for i := range slots {
		if !slots[i].host {
			d.collect(i, &slots[i], rows, got, steps, out)
		}
	}
	return nil
}

// drawn are a call's tokens, [steps, B].
type drawn struct {
	ids       []int32
	lps, raws []float32
}

// collect takes one slot's tokens out of a call's results.
func (d *decoder) collect(slot int, s *rowState, rows []model.DecodeRow, got drawn, steps int, out []model.DecodeOut) {
	if s.done {
		return
	}
	r, o := rows[s.row], &out[s.row]
	for t := range steps {
		at := t*d.cfg.Slots + slot
		id, lp := got.ids[at], got.lps[at]
		if id < 0 {
			break
		}
		d.length[slot]++ // the token fed, not the one drawn
		if int(id) >= d.b.shape.vocab || math.IsNaN(float64(lp)) || math.IsInf(float64(lp), 0) {
			o.Err = fmt.Errorf("xla: decode row %d at position %d: %w (token %d, logprob %v): check the adapter for NaN or overflow",
				s.row, d.length[slot], sample.ErrNonFinite, id, lp)
			s.done = true
			return
		}
		o.IDs, o.Logprobs = append(o.IDs, id), append(o.Logprobs, lp)
		if r.Raw {
			o.Raw = append(o.Raw, got.raws[at])
		}
		s.last = id
		s.left--
		o.Stopped = slices.Contains(r.Stop, id)
	}
	s.done = o.Stopped || s.left <= 0
}
