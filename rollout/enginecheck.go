package rollout

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/model/sample"
)

// check refuses a request that can never be served. Token ids beyond the
// vocabulary are the decoder's to find.
func (e *LocalEngine) check(req GenerateRequest) error {
	switch {
	case len(req.Prompt) == 0:
		return errors.New("engine: Prompt is empty; give at least one token")
	case req.MaxNew < 1:
		return fmt.Errorf("engine: MaxNew is %d; give at least 1", req.MaxNew)
	case req.MaxNew > e.cfg.MaxLen-len(req.Prompt):
		return fmt.Errorf("%w: a prompt of %d tokens and %d new ones, limit %d; shorten the prompt, ask for fewer, or raise the context limit",
			ErrContextFull, len(req.Prompt), req.MaxNew, e.cfg.MaxLen)
	case len(req.StopText) > 0 && e.cfg.Text == nil:
		return errors.New("engine: StopText needs text, and this engine has no text side; set EngineConfig.Text")
	case slices.Contains(req.StopText, ""):
		return errors.New("engine: StopText has an empty string; leave it out")
	}
	row := model.DecodeRow{Sampling: req.Sampling, Bias: req.Bias, Top: req.Top}
	if sample.NeedsHistory(req.Sampling) {
		row.History, row.Prompt, row.Last = req.Prompt, len(req.Prompt), req.Prompt[len(req.Prompt)-1]
	}
	if err := sample.CheckRow(&row, math.MaxInt32); err != nil {
		return fmt.Errorf("engine: %w", err)
	}
	return nil
}

// Stats returns the counters so far.
func (e *LocalEngine) Stats() EngineStats {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := e.stats
	out.Refused = e.refused
	out.Waiting = e.held - out.Active
	out.Adapters = []AdapterStats{e.policy.stats}
	for _, name := range slices.Sorted(maps.Keys(e.named)) {
		out.Adapters = append(out.Adapters, e.named[name].stats)
	}
	return out
}

// publish makes the scheduler's counters visible. The caller holds the lock.
func (e *LocalEngine) publish() {
	s := &e.sched
	e.stats = s.counts
	e.policy.publish()
	for _, b := range e.named {
		b.publish()
	}
	for i := range s.slots {
		if r := s.slots[i].req; r != nil {
			e.stats.Active++
			r.bind.stats.Active++
		}
	}
}
