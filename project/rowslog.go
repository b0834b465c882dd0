package project

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/skein-rl/skein/internal/tfevents"
	"github.com/skein-rl/skein/learner"
	"github.com/skein-rl/skein/learner/data"
)

// rowsPoint is a line of metrics.jsonl: a step, or an evaluation after one.
type rowsPoint struct {
	Step  uint64  `json:"step"`
	Steps uint64  `json:"steps,omitempty"` // of the whole training
	Epoch float64 `json:"epoch"`
	// Adapter is the digest of what the step made; evaluations have none.
	Adapter string             `json:"adapter,omitempty"`
	Time    time.Time          `json:"time,omitzero"`
	Metrics map[string]float64 `json:"metrics"`
}

// evaluates says that the point is an evaluation.
func (p rowsPoint) evaluates() bool {
	_, ok := p.Metrics["eval_loss"]
	return ok
}

// rowsLog writes steps and evaluations to metrics.jsonl and, when asked for, to
// event files; neither can stop training. Evaluations follow the step they are
// after, so 2·step and 2·step+1 order both.
type rowsLog struct {
	jsonl *appender
	tb    *appender // nil = off
	log   *slog.Logger
}

// openRowsLog keeps the lines up to a step: what a life that was killed wrote
// after its last checkpoint is computed again, and is in the event files already.
func openRowsLog(c WatchConfig, dir string, step uint64, log *slog.Logger) *rowsLog {
	path := filepath.Join(dir, metricsFile)
	l := &rowsLog{log: log, jsonl: newAppender(reportJSONL, log.With("path", path), func() (tail, int64, uint64, error) { return keepRows(path, step) })}
	if slices.Contains(c.ReportTo, reportTensorBoard) {
		path := filepath.Join(dir, tensorboardDir)
		l.tb = newAppender(reportTensorBoard, log.With("path", path), func() (tail, int64, uint64, error) {
			f, size, last, err := openEvents(path, time.Now())
			if last > 0 {
				last = 2*last + 1
			}
			return f, size, last, err
		})
	}
	return l
}

// keepRows opens the log for appending after its lines up to a step.
func keepRows(path string, step uint64) (tail, int64, uint64, error) {
	points, err := readRowsLog(path)
	if err != nil {
		return nil, 0, 0, err
	}
	var keep []byte
	last := uint64(0)
	for _, p := range points {
		if p.Step > step {
			continue
		}
		line, err := json.Marshal(p)
		if err != nil {
			return nil, 0, 0, err
		}
		keep = append(append(keep, line...), '\n')
		last = max(last, p.order())
	}
	if err := writeFile(path, keep); err != nil {
		return nil, 0, 0, err
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0o644)
	return f, int64(len(keep)), last, err
}

// order is where a point stands among the others.
func (p rowsPoint) order() uint64 {
	if p.evaluates() {
		return 2*p.Step + 1
	}
	return 2 * p.Step
}

func (l *rowsLog) write(p rowsPoint) {
	now := time.Now()
	p.Time = now.UTC().Truncate(time.Millisecond)
	line, err := json.Marshal(p)
	if err != nil { // a metric is not finite, which the learner refuses
		l.log.Error("metrics of a step", "step", p.Step, "error", err)
		return
	}
	l.jsonl.add(p.order(), append(line, '\n'))
	if l.tb != nil {
		l.tb.add(p.order(), tfevents.Append(nil, tfevents.Event{Wall: now, Step: int64(p.Step), Scalars: p.Metrics}))
	}
}

// step records one; adapter is the digest of what it made.
func (l *rowsLog) step(s learner.OfflineStep, adapter string) {
	l.write(rowsPoint{Step: s.Step, Steps: s.Steps, Epoch: s.Epoch, Adapter: adapter, Metrics: s.Metrics})
}

func (l *rowsLog) eval(e learner.OfflineEval) {
	l.write(rowsPoint{Step: e.Step, Epoch: e.Epoch, Metrics: e.Metrics})
}

func (l *rowsLog) appenders() []*appender {
	if l.tb == nil {
		return []*appender{l.jsonl}
	}
	return []*appender{l.jsonl, l.tb}
}

// active: no early warnings are kept for rows.
func (l *rowsLog) active() []string { return nil }

func (l *rowsLog) close() {
	for _, a := range l.appenders() {
		a.Close()
	}
}

// readRowsLog reads the whole lines of a log; a last half line is left out.
func readRowsLog(path string) ([]rowsPoint, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("project: %w", err)
	}
	defer f.Close()
	var out []rowsPoint
	in := bufio.NewScanner(f)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		var p rowsPoint
		if json.Unmarshal(in.Bytes(), &p) == nil {
			out = append(out, p)
		}
	}
	return out, in.Err()
}

// RowsSummary is the outcome of a training on files, as summary.json has it.
type RowsSummary struct {
	Run           string      `json:"run"`
	Algorithm     string      `json:"algorithm"`
	Model         string      `json:"model"`
	Backend       string      `json:"backend"`
	Dataset       string      `json:"dataset"`
	DatasetDigest string      `json:"dataset_digest"`
	Data          data.Counts `json:"data"`
	Report        data.Report `json:"data_report"`
	EvalRows      int         `json:"eval_rows,omitempty"`
	Steps         uint64      `json:"steps"`
	// First and Last are the metrics of the first and last step, EvalFirst and
	// EvalLast of the first and last evaluation.
	First         map[string]float64 `json:"first,omitempty"`
	Last          map[string]float64 `json:"last,omitempty"`
	EvalFirst     map[string]float64 `json:"eval_first,omitempty"`
	EvalLast      map[string]float64 `json:"eval_last,omitempty"`
	Adapter       string             `json:"adapter,omitempty"` // folder: PEFT, or with train: full a model
	AdapterDigest string             `json:"adapter_digest,omitempty"`
	Seconds       float64            `json:"seconds"`
	PeakRSSMB     float64            `json:"peak_rss_mb"`
}

// read takes the first and last metrics from the log.
func (s *RowsSummary) read(path string) error {
	points, err := readRowsLog(path)
	for _, p := range points {
		first, last := &s.First, &s.Last
		if p.evaluates() {
			first, last = &s.EvalFirst, &s.EvalLast
		}
		if *first == nil {
			*first = p.Metrics
		}
		*last = p.Metrics
	}
	return err
}

// Save writes summary.json into dir.
func (s RowsSummary) Save(dir string) error {
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("project: encoding the summary: %w", err)
	}
	return writeFile(filepath.Join(dir, "summary.json"), append(b, '\n'))
}

// told are the metrics worth a place in a line and in the table.
var told = []string{"loss", "rewards/accuracies", "accuracy", "rewards/margins", "margin", "rewards/chosen", "rewards/rejected", "kl", "delta", "entropy", "grad_norm"}

// Table compares the first and last metrics.
func (s RowsSummary) Table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "  %-28s %10s %10s  %10s\n", "", "first", "last", "change")
	rows := func(prefix string, first, last map[string]float64) {
		for _, name := range told {
			x, ok := first[prefix+name]
			y, also := last[prefix+name]
			if ok && also {
				fmt.Fprintf(&b, "  %-28s %10.4f %10.4f  %+10.4f\n", prefix+name, x, y, y-x)
			}
		}
	}
	rows("", s.First, s.Last)
	rows("eval_", s.EvalFirst, s.EvalLast)
	fmt.Fprintf(&b, "  %d steps of %s on %d rows with %s (%s) in %s, peak memory %.0f MB\n", s.Steps, s.Algorithm, s.Data.Rows, s.Model, s.Backend,
		time.Duration(s.Seconds*float64(time.Second)).Round(time.Second/10), s.PeakRSSMB)
	return b.String()
}

func stepLine(s learner.OfflineStep) string {
	return fmt.Sprintf("step %4d/%-4d epoch %.2f  %s  %d rows  %.0f tok/s  %s", s.Step, s.Steps, s.Epoch, metricsLine("", s.Metrics), s.Rows, s.Metrics["time/tokens_per_second"], s.Elapsed.Round(time.Second/10))
}

func evalLine(e learner.OfflineEval) string {
	return fmt.Sprintf("eval after step %d  %s", e.Step, metricsLine("eval_", e.Metrics))
}

func metricsLine(prefix string, m map[string]float64) string {
	var parts []string
	for _, name := range told {
		if v, ok := m[prefix+name]; ok {
			parts = append(parts, fmt.Sprintf("%s %.4f", name, v))
		}
	}
	if len(parts) == 0 {
		return fmt.Sprint(slices.Sorted(maps.Keys(m)))
	}
	return strings.Join(parts, "  ")
}
