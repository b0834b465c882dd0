package project

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/skein-rl/skein/learner"
	"github.com/skein-rl/skein/model"
)

// RowsStatus is how far a training on files is, read from its folder alone: it
// may be running, stopped or finished.
type RowsStatus struct {
	Run       string `json:"run"`
	Algorithm string `json:"algorithm"`
	// Running says that a process trains in the folder now, Finished that the last
	// step is saved.
	Running  bool `json:"running"`
	Finished bool `json:"finished"`
	// Step is the last one recorded of Steps; Saved are the steps with a sealed
	// checkpoint: what was trained after the last of them is trained again when the
	// process is killed.
	Step    uint64             `json:"step"`
	Steps   uint64             `json:"steps,omitempty"`
	Saved   []uint64           `json:"saved"`
	Epoch   float64            `json:"epoch"`
	At      *time.Time         `json:"at,omitempty"` // of the last step
	Adapter string             `json:"adapter,omitempty"`
	Base    string             `json:"base,omitempty"`
	Dataset *learner.Dataset   `json:"dataset,omitempty"`
	Metrics map[string]float64 `json:"metrics,omitempty"` // of the last step
	Eval    map[string]float64 `json:"eval,omitempty"`    // the last evaluation
	Config  string             `json:"config"`            // resolved, YAML
}

// IsRows says whether a folder holds a training on files.
func IsRows(dir string) bool {
	l, err := readLayout(dir)
	return err == nil && l.Kind == kindRows
}

// RowsStatusOf reads the status of the training on files in dir.
func RowsStatusOf(dir string) (RowsStatus, error) {
	c, text, err := rowsConfigOf(dir)
	if err != nil {
		return RowsStatus{}, err
	}
	s := RowsStatus{Run: c.Run, Algorithm: c.Training.Algorithm, Config: string(text)}
	points, err := readRowsLog(filepath.Join(dir, metricsFile))
	if err != nil {
		return s, err
	}
	for _, p := range points {
		if p.evaluates() {
			s.Eval = p.Metrics
			continue
		}
		s.Step, s.Steps, s.Epoch, s.Adapter, s.Metrics = p.Step, p.Steps, p.Epoch, p.Adapter, p.Metrics
		if !p.Time.IsZero() {
			s.At = &p.Time
		}
	}
	checkpoints := filepath.Join(dir, checkpointsDir)
	if s.Saved, err = learner.Checkpoints(checkpoints); err != nil {
		return s, err
	}
	ck, err := learner.LoadLatest(checkpoints, nil)
	if err != nil {
		return s, err
	}
	if ck != nil {
		s.Base, s.Dataset = ck.Base, &ck.Dataset
		s.Finished = s.Steps > 0 && ck.Step == s.Steps
	}
	lock, err := lockDir(dir)
	if err != nil {
		s.Running = errors.Is(err, errInUse)
		return s, onlyOther(err, errInUse)
	}
	return s, lock.Close()
}

// onlyOther is err unless it is the one expected.
func onlyOther(err, expected error) error {
	if errors.Is(err, expected) {
		return nil
	}
	return err
}

// rowsConfigOf reads the resolved configuration of a training on files.
func rowsConfigOf(dir string) (Config, []byte, error) {
	path := filepath.Join(dir, configFile)
	c, _, err := Load(path, nil)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil, fmt.Errorf("project: %s has no %s: its training has not begun", dir, configFile)
	}
	if err != nil {
		return c, nil, err
	}
	text, err := c.YAML()
	return c, text, err
}

// VerifyRows recomputes a saved step of the training on files in dir, from its
// rows, and compares it with what was recorded. Rows that have changed since are
// an error by digest.
func VerifyRows(ctx context.Context, dir string, step uint64, log *slog.Logger) (rep *learner.VerifyReport, err error) {
	c, _, err := rowsConfigOf(dir)
	if err != nil {
		return nil, err
	}
	c.StartAdapter = "" // checkpoints hold the start
	r, err := openRows(ctx, newBases(), c, log)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	rec, err := recordedStep(dir, step)
	if err != nil {
		return nil, err
	}
	be, err := OpenBackend(c, r.model, log)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, be.Close()) }()
	return learner.VerifyOffline(ctx, filepath.Join(dir, checkpointsDir), rec, r.train, learner.OfflineParts{
		Base: r.model.Digest, NewTrainer: func(t model.TrainerConfig) (model.Trainer, error) { return be.NewTrainer(t) },
		Adapter: func(params []float32) (string, error) {
			a, err := r.adapter(params)
			if err != nil {
				return "", err
			}
			return a.Digest(), nil
		},
	})
}

// recordedStep is what the training's log has of a step.
func recordedStep(dir string, step uint64) (learner.OfflineRecord, error) {
	rec := learner.OfflineRecord{Step: step}
	points, err := readRowsLog(filepath.Join(dir, metricsFile))
	for _, p := range points {
		if p.Step == step && !p.evaluates() {
			rec.Adapter, rec.Metrics = p.Adapter, p.Metrics
		}
	}
	return rec, err
}
