package project

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/skein-rl/skein/internal/spread"
	"github.com/skein-rl/skein/internal/tfevents"
	"github.com/skein-rl/skein/learner"
	"github.com/skein-rl/skein/learner/watch"
	"github.com/skein-rl/skein/replay"
)

// Where a learner can report to beside the terminal and Prometheus.
const (
	reportJSONL       = "jsonl"
	reportTensorBoard = "tensorboard"
	tensorboardDir    = "tensorboard"
)

// WatchConfig says where steps are reported to and when to warn.
type WatchConfig struct {
	// ReportTo lists "jsonl" (metrics.jsonl, a line a step) and "tensorboard"
	// (tensorboard/, event files) in the learner's folder. None can stop training.
	ReportTo []string `yaml:"report_to"`
	// Thresholds of early warnings; 0 switches a rule off.
	watch.Config `yaml:",inline"`
}

func defaultWatch() WatchConfig {
	return WatchConfig{ReportTo: []string{reportJSONL, reportTensorBoard}, Config: watch.DefaultConfig()}
}

// Validate reports every problem with field, value and remedy.
func (c WatchConfig) Validate() error {
	var errs []error
	for _, r := range c.ReportTo {
		if r != reportJSONL && r != reportTensorBoard {
			errs = append(errs, fmt.Errorf("report_to: unknown %q; use %q, %q or none: []", r, reportJSONL, reportTensorBoard))
		}
	}
	return errors.Join(append(errs, c.Config.Validate())...)
}

// catchUp is how many of the last steps a started recorder reads from the store:
// those a crash may have kept from the files.
const catchUp = 256

// recorder writes a run's steps to files and warns. The steps of a run come to
// it in order, on one goroutine. A nil recorder does nothing.
type recorder struct {
	run   string
	log   *slog.Logger
	level slog.Level // of warnings
	now   func() time.Time
	jsonl *appender // nil = off
	tb    *appender

	mu       sync.Mutex
	detector *watch.Detector
	config   watch.Config
}

// newRecorder writes into dir. Close it.
func newRecorder(c WatchConfig, dir, run string, log *slog.Logger) *recorder {
	r := &recorder{run: run, log: log, level: slog.LevelWarn, now: time.Now, config: c.Config, detector: watch.NewDetector(c.Config)}
	if slices.Contains(c.ReportTo, reportJSONL) {
		path := filepath.Join(dir, metricsFile)
		r.jsonl = newAppender(reportJSONL, log.With("path", path), func() (tail, int64, uint64, error) { return openLines(path) })
	}
	if slices.Contains(c.ReportTo, reportTensorBoard) {
		path := filepath.Join(dir, tensorboardDir)
		r.tb = newAppender(reportTensorBoard, log.With("path", path), func() (tail, int64, uint64, error) { return openEvents(path, r.now()) })
	}
	return r
}

func (r *recorder) appenders() []*appender {
	var out []*appender
	for _, a := range []*appender{r.jsonl, r.tb} {
		if a != nil {
			out = append(out, a)
		}
	}
	return out
}

// Close writes what is left, for a bounded time.
func (r *recorder) Close() {
	if r == nil {
		return
	}
	for _, a := range r.appenders() {
		a.Close()
	}
}

// active lists the kinds of warnings that hold.
func (r *recorder) active() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.detector.Active()
}

// hooks adds the recorder to a learner's. st is where steps before this process
// are read from.
func (r *recorder) hooks(ctx context.Context, st replay.Store, h learner.Hooks) learner.Hooks {
	if r == nil {
		return h
	}
	start, step, lost := h.OnStart, h.OnStep, h.OnLost
	h.OnStart = func(n, version uint64, resumed bool) {
		r.resume(ctx, st, n)
		if start != nil {
			start(n, version, resumed)
		}
	}
	h.OnStep = func(rec replay.StepRecord, res learner.StepResult, ckpt *learner.Checkpoint) {
		for _, w := range r.step(rec, res.Histograms) {
			r.log.Log(ctx, r.level, w.What, "warning", w.Kind, "step", w.Step, "cause", w.Cause, "remedy", w.Remedy)
		}
		if step != nil {
			step(rec, res, ckpt)
		}
	}
	h.OnLost = func(err error, n uint64) {
		r.resume(ctx, st, n) // another learner's steps
		if lost != nil {
			lost(err, n)
		}
	}
	return h
}

// resume reads the steps up to n that another process made: it puts those that
// the files lack into them, and remembers what was warned of already.
func (r *recorder) resume(ctx context.Context, st replay.Store, n uint64) {
	r.mu.Lock()
	r.detector = watch.NewDetector(r.config)
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	from := n - min(n, catchUp) + 1
	for k := uint64(1); k <= n; k++ {
		if k > uint64(r.config.Baseline) && k < from {
			k = from
		}
		rec, err := st.Step(ctx, r.run, k)
		if err != nil {
			r.log.Warn("metrics of an earlier step cannot be read", "step", k, "error", err)
			return
		}
		r.step(rec, nil)
	}
}

// step records one and gives the warnings that begin with it.
func (r *recorder) step(rec replay.StepRecord, histograms map[string]spread.Histogram) []watch.Warning {
	r.mu.Lock()
	begun := r.detector.Add(watch.Step{Step: rec.Step, Metrics: rec.Metrics})
	active := r.detector.Active()
	r.mu.Unlock()
	at := rec.Committed
	if at.IsZero() {
		at = r.now()
	}
	if r.jsonl != nil {
		line, err := json.Marshal(stepLineJSON{Run: r.run, Step: rec.Step, Version: rec.Version, Time: at.UTC().Truncate(time.Millisecond), Metrics: rec.Metrics, Warnings: begun})
		if err == nil { // else a metric is not finite, which the learner refuses
			r.jsonl.add(rec.Step, append(line, '\n'))
		}
	}
	if r.tb != nil {
		scalars := maps.Clone(rec.Metrics)
		for _, kind := range watch.Kinds() {
			if slices.Contains(active, kind) {
				scalars["warnings/"+kind] = 1
			} else {
				scalars["warnings/"+kind] = 0
			}
		}
		r.tb.add(rec.Step, tfevents.Append(nil, tfevents.Event{Wall: at, Step: int64(rec.Step), Scalars: scalars, Histograms: histograms}))
	}
	return begun
}

// stepLineJSON is a line of metrics.jsonl.
type stepLineJSON struct {
	Run     string             `json:"run"`
	Step    uint64             `json:"step"`
	Version uint64             `json:"version"`
	Time    time.Time          `json:"time"`
	Metrics map[string]float64 `json:"metrics"`
	// Warnings that began with this step.
	Warnings []watch.Warning `json:"warnings,omitempty"`
}

// openLines opens a file of JSON lines for appending, without a half line that a
// crash may have left, and tells the step of its last line.
func openLines(path string) (tail, int64, uint64, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, 0, 0, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o644)
	if err != nil {
		return nil, 0, 0, err
	}
	size, last, err := lastLine(f)
	if err == nil {
		err = f.Truncate(size)
	}
	if err != nil {
		return nil, 0, 0, errors.Join(err, f.Close())
	}
	return f, size, last, nil
}

// lastLine finds where the last whole line ends, and its step.
func lastLine(f *os.File) (size int64, step uint64, err error) {
	info, err := f.Stat()
	if err != nil {
		return 0, 0, err
	}
	const most = 4 << 20 // more than two lines
	from := max(0, info.Size()-most)
	b := make([]byte, info.Size()-from)
	if _, err := f.ReadAt(b, from); err != nil {
		return 0, 0, err
	}
	end := bytes.LastIndexByte(b, '\n') + 1
	for rest := b[:end]; len(rest) > 0; {
		at := bytes.LastIndexByte(rest[:len(rest)-1], '\n') + 1
		var line stepLineJSON
		if json.Unmarshal(rest[at:], &line) == nil {
			step = line.Step
			break
		}
		rest = rest[:at]
	}
	return from + int64(end), step, nil
}

// openEvents begins a new event file and tells the last step in those there are.
func openEvents(dir string, now time.Time) (tail, int64, uint64, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, 0, 0, err
	}
	last, err := lastEvent(dir)
	if err != nil {
		return nil, 0, 0, err
	}
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	host = strings.ReplaceAll(host, string(filepath.Separator), "-")
	for n := 0; ; n++ {
		f, err := os.OpenFile(filepath.Join(dir, tfevents.FileName(now, host, os.Getpid(), n)), os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o644)
		if errors.Is(err, os.ErrExist) {
			continue
		}
		if err != nil {
			return nil, 0, 0, err
		}
		head := tfevents.AppendHeader(nil, now)
		if _, err := f.Write(head); err != nil {
			return nil, 0, 0, errors.Join(err, f.Close(), os.Remove(f.Name()))
		}
		return f, int64(len(head)), last, nil
	}
}

// lastEvent is the last step of the newest event file that has one.
func lastEvent(dir string) (uint64, error) {
	names, err := filepath.Glob(filepath.Join(dir, "events.out.tfevents.*"))
	if err != nil {
		return 0, err
	}
	slices.Sort(names) // their creation time leads
	for _, name := range slices.Backward(names) {
		f, err := os.Open(name)
		if err != nil {
			return 0, err
		}
		last := int64(0)
		derr := tfevents.Decode(f, func(e tfevents.Event) error {
			last = max(last, e.Step)
			return nil
		})
		if err := f.Close(); err != nil {
			return 0, err
		}
		if derr != nil && !errors.Is(derr, tfevents.ErrCorrupt) { // a torn last record is no event
			return 0, derr
		}
		if last > 0 {
			return uint64(last), nil
		}
	}
	return 0, nil
}
