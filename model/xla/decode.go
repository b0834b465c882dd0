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
}

// Decode runs all rows together, up to decodeSteps tokens per device call.
// Slots that are not named idle through the call.
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
	need, stops := 0, 0
	for i, r := range rows {
		left := min(n, r.MaxNew)
		slots[r.Slot] = rowState{row: i, last: r.Last, left: left}
		need = max(need, d.length[r.Slot]+left+1)
		stops = max(stops, len(r.Stop))
	}
	if len(rows) == 0 {
		return out, nil
	}
	if err := d.reserve(need); err != nil {
		return nil, err
	}
	spec := decodeSpec{slots: d.cfg.Slots, size: d.size, steps: decodeSteps, stops: bucket(stops, stopSizes)}
	for _, r := range rows {
		spec.filter = spec.filter || filters(r.Sampling)
	}
	p, err := d.b.stablehlo(fmt.Sprintf("decode %v %v", spec, d.lora), func(e *emitter) []value {
		return emitDecode(e, d.b.shape, d.b.dev.elem, d.lora, spec)
	})
	if err != nil {
		return nil, err
	}
	for n > 0 {
		if err := d.check(ctx); err != nil {
			return out, err
		}
		steps := min(n, decodeSteps)
		if err := d.decode(p, spec, rows, slots, steps, out); err != nil {
			return nil, err
		}
		n -= steps
		if !slices.ContainsFunc(slots, func(s rowState) bool { return !s.done }) {
			break
		}
	}
	return out, nil
}

// filters says whether a row needs top-k or top-p; greedy rows never do.
func filters(s model.Sampling) bool {
	return s.Temperature > 0 && (s.TopK > 0 || s.TopP > 0 && s.TopP < 1)
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
		if err := sample.Check(r.Sampling); err != nil {
			bad("%w", err)
		}
	}
	return errors.Join(errs...)
}

// decode is one device call: it advances every unfinished slot.
func (d *decoder) decode(p *program, spec decodeSpec, rows []model.DecodeRow, slots []rowState, steps int, out []model.DecodeOut) error {
	b := d.cfg.Slots
	last, pos, active, limit := make([]int32, b), make([]int32, b), make([]bool, b), make([]int32, b)
	stop := make([]int32, b*spec.stops)
	for i := range stop {
		stop[i] = -1
	}
	greedy, inv, topK, topP := make([]bool, b), make([]float32, b), make([]int32, b), make([]float32, b)
	u := make([]float64, spec.steps*b)
	for i, s := range slots {
		pos[i] = int32(d.length[i])
		greedy[i], inv[i], topP[i] = true, 1, 1
		if s.done {
			continue
		}
		r := rows[s.row]
		last[i], active[i], limit[i] = s.last, true, int32(s.left)
		copy(stop[i*spec.stops:], r.Stop)
		if r.Sampling.Temperature > 0 {
			greedy[i], inv[i] = false, float32(1/r.Sampling.Temperature)
			for t := range steps {
				u[t*b+i] = sample.Uniform(r.Sampling.Seed, uint64(d.length[i]+1+t))
			}
		}
		if filters(r.Sampling) {
			topK[i] = int32(min(r.Sampling.TopK, math.MaxInt32))
			if r.Sampling.TopP > 0 {
				topP[i] = float32(r.Sampling.TopP)
			}
		}
	}
	var args []*pjrt.Buffer
	var err error
	add := func(buf *pjrt.Buffer, e error) {
		args = append(args, buf)
		err = errors.Join(err, e)
	}
	dev := d.b.dev
	add(dev.putI32(last, b))
	add(dev.putI32(pos, b))
	add(dev.putBool(active, b))
	add(dev.putI32(limit, b))
	add(dev.putI32(stop, b, spec.stops))
	add(dev.putBool(greedy, b))
	add(dev.putF32(inv, b))
	add(dev.putI32(topK, b))
	add(dev.putF32(topP, b))
	add(dev.putF64(u, spec.steps, b))
	add(dev.putI32([]int32{int32(steps)}))
	if err != nil {
		free(args...)
		return err
	}
	res, err := d.runCaches(p, args, true)
	if err != nil {
		return err
	}
	defer free(res...)
	ids, err := get[int32](res[0], spec.steps*b)
	if err != nil {
		return err
	}
	lps, err := get[float32](res[1], spec.steps*b)
	if err != nil {
		return err
	}
	for i := range slots {
		if err := d.collect(i, &slots[i], rows, ids, lps, steps, out); err != nil {
			return err
		}
	}
	return nil
}

// collect takes one slot's tokens out of a call's results ([steps, B]).
func (d *decoder) collect(slot int, s *rowState, rows []model.DecodeRow, ids []int32, lps []float32, steps int, out []model.DecodeOut) error {
	if s.done {
		return nil
	}
	r, o := rows[s.row], &out[s.row]
	for t := range steps {
		id, lp := ids[t*d.cfg.Slots+slot], lps[t*d.cfg.Slots+slot]
		if id < 0 {
			break
		}
		if int(id) >= d.b.shape.vocab || math.IsNaN(float64(lp)) || math.IsInf(float64(lp), 0) {
			return fmt.Errorf("xla: decode row %d: the logits at position %d are not finite (token %d, logprob %v): check the adapter for NaN or overflow",
				s.row, d.length[slot]+1, id, lp)
		}
		o.IDs, o.Logprobs = append(o.IDs, id), append(o.Logprobs, lp)
		d.length[slot]++ // the token fed, not the one drawn
		s.last = id
		s.left--
		o.Stopped = slices.Contains(r.Stop, id)
	}
	s.done = o.Stopped || s.left <= 0
	return nil
}
