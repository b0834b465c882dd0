package learner

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/replay"
)

// VerifyStore is what verification reads; replay.Store has it all.
type VerifyStore interface {
	Step(ctx context.Context, run string, step uint64) (replay.StepRecord, error)
	GetBlob(ctx context.Context, digest string) ([]byte, error)
	Fetch(ctx context.Context, logIDs []string) ([]replay.Record, error)
}

// MetricDiff is one metric that came out differently.
type MetricDiff struct {
	Name       string  `json:"name"`
	Recorded   float64 `json:"recorded"`
	Recomputed float64 `json:"recomputed"`
}

// CriticDiff compares a critic's parameters.
type CriticDiff struct {
	Params     int     `json:"params"`
	Different  int     `json:"different"`
	MaxAbsDiff float64 `json:"max_abs_diff"`
}

// VerifyReport compares a recorded step with its recomputation.
type VerifyReport struct {
	Run     string `json:"run"`
	Step    uint64 `json:"step"`
	Version uint64 `json:"version"`
	// OK: the recomputed adapter is the recorded one, bit for bit, and so is the
	// critic.
	OK                   bool    `json:"ok"`
	AdapterRecorded      string  `json:"adapter_recorded"`
	AdapterRecomputed    string  `json:"adapter_recomputed"`
	CheckpointRecorded   string  `json:"checkpoint_recorded"`
	CheckpointRecomputed string  `json:"checkpoint_recomputed"`
	Params               int     `json:"params"`
	Different            int     `json:"different"`    // parameters that differ
	MaxAbsDiff           float64 `json:"max_abs_diff"` // largest difference of a parameter
	// Critic compares ppo's critic; nil without one.
	Critic *CriticDiff `json:"critic,omitempty"`

	Metrics        []MetricDiff `json:"metrics,omitempty"`
	LogsRecorded   int          `json:"logs_recorded"`
	LogsRecomputed int          `json:"logs_recomputed"`
	LogsVerified   int          `json:"logs_verified"`
	// Of a step on rows: how many, and the step that recomputing began after.
	Rows int     `json:"rows,omitempty"`
	From *uint64 `json:"from_step,omitempty"`
}

// VerifyStep recomputes a committed step from the checkpoint it started from
// and the logs it trained, with trainers over the checkpoint's base, and compares every number. On another machine or backend small
// differences are expected: OK is then false and MaxAbsDiff says how small. An
// error means that the step could not be recomputed at all.
func VerifyStep(ctx context.Context, store VerifyStore, run string, step uint64, newTrainer func(model.TrainerConfig) (model.Trainer, error)) (*VerifyReport, error) {
	rec, err := store.Step(ctx, run, step)
	if err != nil {
		return nil, fmt.Errorf("learner: verify step %d of run %q: %w", step, run, err)
	}
	if _, ok := rec.Metrics[metricRollback]; ok {
		return verifyRollback(ctx, store, rec)
	}
	before, err := readCheckpoint(ctx, store, rec.PrevCheckpoint)
	if err != nil {
		return nil, fmt.Errorf("learner: verify step %d: start: %w", step, err)
	}
	after, err := readCheckpoint(ctx, store, rec.Checkpoint)
	if err != nil {
		return nil, fmt.Errorf("learner: verify step %d: result: %w", step, err)
	}
	groups, err := readGroups(ctx, store, rec)
	if err != nil {
		return nil, fmt.Errorf("learner: verify step %d: %w", step, err)
	}
	for i := range groups { // what was trained had been admitted
		groups[i].Extra = uint32(max(0, int(groups[i].Logs[0].Meta.GroupSize)-after.Config.NumGenerations))
	}
	l, done, err := verifier(before, after.Config, newTrainer)
	if err != nil {
		return nil, fmt.Errorf("learner: verify step %d: %w", step, err)
	}
	defer done()
	if err := l.Restore(before); err != nil {
		return nil, err
	}
	res, err := l.Step(ctx, groups)
	if err != nil {
		return nil, fmt.Errorf("learner: verify step %d: %w", step, err)
	}
	l.lease = rec.Lease
	return report(rec, after, l, res)
}

// verifier makes a learner of the checkpoint's shape; done closes its trainers.
func verifier(c *Checkpoint, cfg Config, newTrainer func(model.TrainerConfig) (model.Trainer, error)) (l *Learner, done func(), err error) {
	var trs []model.Trainer
	done = func() {
		for _, tr := range trs {
			tr.Close()
		}
	}
	shapes := []model.TrainerConfig{cfg.Trainer(c.LoRA, c.Full)}
	if k := c.Identity.Critic; k != nil {
		shapes = append(shapes, model.TrainerConfig{LoRA: *k, Value: true})
	}
	for _, s := range shapes {
		tr, err := newTrainer(s)
		if err != nil {
			done()
			return nil, nil, fmt.Errorf("trainer: %w", err)
		}
		trs = append(trs, tr)
	}
	if len(trs) == 1 {
		l, err = New(cfg, c.Identity, trs[0], c.Start)
	} else if c.Critic == nil {
		err = fmt.Errorf("%w: it names a critic but holds none", ErrCheckpoint)
	} else {
		l, err = NewPPO(cfg, c.Identity, trs[0], c.Start, Critic{trs[1], c.Critic.Params})
	}
	if err != nil {
		done()
		return nil, nil, err
	}
	return l, done, nil
}

func report(rec replay.StepRecord, after *Checkpoint, l *Learner, res StepResult) (*VerifyReport, error) {
	r := &VerifyReport{Run: rec.Run, Step: rec.Step, Version: rec.Version, AdapterRecorded: rec.Adapter, AdapterRecomputed: l.published().Digest(),
		CheckpointRecorded: rec.Checkpoint, Params: len(l.params), LogsRecorded: len(rec.LogIDs), LogsRecomputed: len(res.Trained)}
	if len(after.Params) != len(l.params) {
		return nil, fmt.Errorf("%w: step %d's result has %d parameters, its start %d", ErrCheckpoint, rec.Step, len(after.Params), len(l.params))
	}
	r.Different, r.MaxAbsDiff = differences(l.params, after.Params)
	if k := after.Critic; k != nil && l.critic != nil && len(k.Params) == len(l.critic.params) {
		r.Critic = &CriticDiff{Params: len(k.Params)}
		r.Critic.Different, r.Critic.MaxAbsDiff = differences(l.critic.params, k.Params)
	} else if k != nil || l.critic != nil {
		return nil, fmt.Errorf("%w: step %d's result and its start have different critics", ErrCheckpoint, rec.Step)
	}
	for _, id := range res.Trained {
		if slices.Contains(rec.LogIDs, id) {
			r.LogsVerified++
		}
	}
	var err error
	if r.CheckpointRecomputed, err = l.Checkpoint().Digest(); err != nil {
		return nil, err
	}
	r.Metrics = diffMetrics(res.Metrics, rec.Metrics)
	r.OK = r.AdapterRecorded == r.AdapterRecomputed && (r.Critic == nil || r.Critic.Different == 0)
	return r, nil
}

// diffMetrics lists what came out differently. Times differ by nature; what was
// excluded is not among a step's logs.
func diffMetrics(got, want map[string]float64) (out []MetricDiff) {
	for _, k := range slices.Sorted(maps.Keys(got)) {
		if !strings.HasPrefix(k, "time/") && !strings.HasPrefix(k, "excluded/") && got[k] != want[k] {
			out = append(out, MetricDiff{k, want[k], got[k]})
		}
	}
	return out
}

// differences counts the numbers that differ, and the largest difference.
func differences(a, b []float32) (n int, largest float64) {
	for i, x := range a {
		if d := math.Abs(float64(x) - float64(b[i])); d != 0 {
			n++
			largest = max(largest, d)
		}
	}
	return n, largest
}

func readCheckpoint(ctx context.Context, store VerifyStore, digest string) (*Checkpoint, error) {
	data, err := store.GetBlob(ctx, digest)
	if err != nil {
		return nil, fmt.Errorf("checkpoint %s: %w", digest, err)
	}
	return DecodeCheckpoint(data)
}

// readGroups fetches a step's logs in their groups, in the order trained.
// Members the step did not train are missing, as they were from its batch.
func readGroups(ctx context.Context, store VerifyStore, rec replay.StepRecord) ([]Group, error) {
	recs, err := store.Fetch(ctx, rec.LogIDs)
	if err != nil {
		return nil, err
	}
	if len(recs) != len(rec.LogIDs) {
		return nil, fmt.Errorf("fetch returned %d records for %d logs", len(recs), len(rec.LogIDs))
	}
	var groups []Group
	for at := 0; at < len(recs); {
		id := recs[at].Item.Group
		end := at
		var items []replay.Item
		for ; end < len(recs) && recs[end].Item.Group == id; end++ {
			it := recs[end].Item
			if it.LogID != rec.LogIDs[end] {
				return nil, fmt.Errorf("%w: asked for %s, got %s", ErrCorruptLog, rec.LogIDs[end], it.LogID)
			}
			items = append(items, it)
		}
		g, err := assemble(id, uint64(len(groups)), items, recs[at:end])
		if err != nil {
			return nil, err
		}
		groups = append(groups, g)
		at = end
	}
	return groups, nil
}
