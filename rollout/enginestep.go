package rollout

import (
	"context"
	"fmt"
	"time"

	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/model/sample"
)

// step decodes up to n tokens of every ready slot, one while any of them
// streams, and returns the requests that ended.
func (s *scheduler) step(ctx context.Context, n int) (left []outcome) {
	var rows []model.DecodeRow
	for i := range s.slots {
		if sl := &s.slots[i]; sl.ready() {
			rows = append(rows, sl.req.row(i))
			if sl.req.stream != nil {
				n = 1
			}
		}
	}
	if len(rows) == 0 {
		return nil
	}
	outs, errs := s.decode(ctx, rows, n)
	s.tick++
	now := time.Now()
	for k, row := range rows {
		if errs[k] != nil {
			left = append(left, s.evict(row.Slot, fmt.Errorf("engine: decode: %w", errs[k])))
		} else if o := s.accept(row, outs[k], now); o != nil {
			left = append(left, *o)
		}
	}
	return left
}

// row is the request as the decoder sees it.
func (r *request) row(slot int) model.DecodeRow {
	row := model.DecodeRow{
		Slot: slot, Adapter: r.bind.place, Last: r.seq[len(r.seq)-1], MaxNew: r.req.MaxNew - len(r.out.IDs),
		Stop: r.req.Stop, Sampling: r.req.Sampling, Bias: r.req.Bias, Constraint: r.req.Constraint, Raw: r.req.Raw, Top: r.req.Top,
	}
	if sample.NeedsHistory(r.req.Sampling) {
		row.History, row.Prompt = r.seq, len(r.req.Prompt)
	}
	return row
}

// decode runs the rows together and says for each how it failed, if so. When
// the call fails, each row is tried alone.
func (s *scheduler) decode(ctx context.Context, rows []model.DecodeRow, n int) ([]model.DecodeOut, []error) {
	errs := make([]error, len(rows))
	outs, err := s.call(ctx, rows, n)
	if err != nil {
		outs = make([]model.DecodeOut, len(rows))
		for k := range rows {
			errs[k] = err
			if len(rows) > 1 && ctx.Err() == nil {
				outs[k], errs[k] = s.alone(ctx, rows[k], n, err)
			}
		}
	}
	for k := range rows {
		if errs[k] == nil {
			errs[k] = outs[k].Err
		}
	}
	return outs, errs
}

func (s *scheduler) call(ctx context.Context, rows []model.DecodeRow, n int) ([]model.DecodeOut, error) {
	outs, err := s.dec.Decode(ctx, rows, n)
	if err == nil && len(outs) != len(rows) {
		err = fmt.Errorf("%d rows gave %d results", len(rows), len(outs))
	}
	return outs, err
}

// alone repeats a row of a failed call: its draws depend on nothing but the
// sequence, so that they come out as they would have.
func (s *scheduler) alone(ctx context.Context, row model.DecodeRow, n int, why error) (model.DecodeOut, error) {
	if row.Constraint != nil {
		return model.DecodeOut{}, fmt.Errorf("the call failed, and the constraint may have moved on: %w", why)
	}
	have := len(s.slots[row.Slot].ids)
	s.dec.Truncate(row.Slot, have)
	if got := s.dec.Len(row.Slot); got != have {
		return model.DecodeOut{}, fmt.Errorf("the call failed and left %d of %d tokens in slot %d: %w", got, have, row.Slot, why)
	}
	outs, err := s.call(ctx, []model.DecodeRow{row}, n)
	if err != nil {
		return model.DecodeOut{}, err
	}
	return outs[0], nil
}

// accept appends one row's tokens to its request; non-nil when it left.
func (s *scheduler) accept(row model.DecodeRow, out model.DecodeOut, now time.Time) *outcome {
	sl := &s.slots[row.Slot]
	r := sl.req
	n := len(out.IDs)
	if n == 0 || n != len(out.Logprobs) || n > row.MaxNew || row.Raw && n != len(out.Raw) || row.Top > 0 && n != len(out.Top) {
		o := s.evict(row.Slot, fmt.Errorf("engine: decoder returned %d ids, %d logprobs, %d raw ones and %d top lists for at most %d tokens",
			n, len(out.Logprobs), len(out.Raw), len(out.Top), row.MaxNew))
		return &o
	}
	n = r.read(out)
	stopped := out.Stopped && n == len(out.IDs)
	from := len(r.out.IDs)
	s.observe(r, now, n)
	r.extend(out, n, sl.mixed)
	s.counts.Generated += uint64(n)
	r.bind.counts.Generated += uint64(n)
	// The newest token is not cached yet. A decoder that ran a stopped row on
	// with the others is cut back.
	s.dec.Truncate(row.Slot, len(r.seq)-1)
	have := s.dec.Len(row.Slot)
	sl.ids = append(sl.ids[:min(have, len(sl.ids))], r.seq[min(have, len(sl.ids)):have]...)
	sl.used = s.tick

	ended := stopped || r.matched() || len(r.out.IDs) == r.req.MaxNew
	if r.watch != nil && ended {
		r.watch.end()
		r.out.Text, r.out.TextTokens, r.out.StopText = string(r.watch.text), r.watch.tokens(), r.watch.match
	}
	if r.stream != nil {
		text := ""
		if r.watch != nil {
			text = r.watch.take(ended)
		}
		r.stream.add(r, from, text)
	}
	if !ended {
		return nil
	}
	r.out.Finish = FinishLength
	if stopped || r.matched() {
		r.out.Finish = FinishStop
	}
	return &outcome{s.release(row.Slot), nil}
}

// matched says whether a stop string was found.
func (r *request) matched() bool { return r.watch != nil && r.watch.match != "" }

// read follows the text of the new tokens and returns how many of them count:
// those up to the one that completes a stop string. A stop token has no text.
func (r *request) read(out model.DecodeOut) int {
	ids := out.IDs
	if out.Stopped {
		ids = ids[:len(ids)-1]
	}
	if r.watch != nil {
		for i, id := range ids {
			if r.watch.push(id) {
				return i + 1
			}
		}
	}
	return len(out.IDs)
}

// extend adds the first n new tokens.
func (r *request) extend(out model.DecodeOut, n int, stale bool) {
	r.seq = append(r.seq, out.IDs[:n]...)
	o := &r.out
	o.IDs, o.Logprobs = append(o.IDs, out.IDs[:n]...), append(o.Logprobs, out.Logprobs[:n]...)
	if r.req.Raw {
		o.Raw = append(o.Raw, out.Raw[:n]...)
	}
	if r.req.Top > 0 {
		o.Top = append(o.Top, out.Top[:n]...)
	}
	version := r.bind.version
	if k := len(o.Versions); k > 0 && o.Versions[k-1].Version == version && o.Versions[k-1].Stale == stale {
		o.Versions[k-1].End = len(o.IDs)
	} else {
		o.Versions = append(o.Versions, VersionRun{End: len(o.IDs), Version: version, Stale: stale})
	}
}

// observe times n new tokens.
func (s *scheduler) observe(r *request, now time.Time, n int) {
	if len(r.out.IDs) == 0 {
		s.counts.FirstToken.observe(now.Sub(r.since), 1)
	} else {
		s.counts.BetweenTokens.observe(now.Sub(r.since), n)
	}
	r.since = now
}
