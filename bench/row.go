// Package bench writes the results of benchmarks. Each benchmark is a main
// package below this one, run by a make target, that measures Skein and a peer
// alternately in one run and appends one Row per measurement to
// bench/results/NAME.jsonl.
package bench

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// Row is one measurement: the best of several runs of ours and of a peer.
type Row struct {
	Bench       string  `json:"bench"`
	Size        string  `json:"size"`
	Ours        float64 `json:"ours"`
	Peer        string  `json:"peer"`
	PeerVersion string  `json:"peer_version"`
	Theirs      float64 `json:"theirs"`
	Unit        string  `json:"unit"`
	Ratio       float64 `json:"ratio"` // above 1: ours is better, whatever the unit
	Commit      string  `json:"commit"`
	Machine     string  `json:"machine"`
	When        string  `json:"when"` // UTC
	// Load is the machine's load average over the last minute at the end of the
	// measurement, which itself adds up to the number of its threads.
	Load float64 `json:"load"`
	// Runs is how many runs of each the best was taken of.
	Runs int `json:"runs"`
	// Detail holds further figures of the best run and what was run.
	Detail map[string]any `json:"detail,omitempty"`
}

// Better says which way a unit improves.
type Better int

// Directions.
const (
	Higher Better = iota // rates
	Lower                // times, bytes
)

// Log appends rows to dir/name.jsonl and prints them.
type Log struct {
	path    string
	machine string
	commit  string
}

// Open makes a log of results. It fails when dir cannot be made.
func Open(dir, name string) (*Log, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	return &Log{path: filepath.Join(dir, name+".jsonl"), machine: machine(), commit: commit()}, nil
}

// Add completes a row (ratio, commit, machine, time, load), appends it and
// prints it.
func (l *Log) Add(r Row, better Better) error {
	ratio := r.Ours / r.Theirs
	if better == Lower {
		ratio = r.Theirs / r.Ours
	}
	if !(ratio > 0) || math.IsInf(ratio, 0) {
		return fmt.Errorf("bench: %s %s against %s: ours %v, theirs %v: both must be above 0", r.Bench, r.Size, r.Peer, r.Ours, r.Theirs)
	}
	r.Ours, r.Theirs, r.Ratio = round(r.Ours), round(r.Theirs), round(ratio)
	r.Commit, r.Machine, r.Load = l.commit, l.machine, LoadAverage()
	r.When = time.Now().UTC().Format(time.RFC3339)
	line, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	f, err := os.OpenFile(l.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	_, err = f.Write(append(line, '\n'))
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("bench: append to %s: %w", l.path, err)
	}
	fmt.Println(string(line))
	return nil
}

// round keeps four digits.
func round(x float64) float64 {
	if x == 0 {
		return 0
	}
	unit := math.Pow(10, math.Floor(math.Log10(math.Abs(x)))-3)
	v, _ := strconv.ParseFloat(strconv.FormatFloat(math.Round(x/unit)*unit, 'g', 6, 64), 64)
	return v
}

// LoadAverage is the machine's load over the last minute, 0 where it cannot be
// read.
func LoadAverage() float64 {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(text), " ")
	v, _ := strconv.ParseFloat(first, 64)
	return v
}

func machine() string {
	cpu := runtime.GOARCH
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(text)) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				cpu = strings.TrimSpace(value)
				break
			}
		}
	}
	return fmt.Sprintf("%d x %s", runtime.NumCPU(), cpu)
}

// commit is the checked-out commit, "+" when the tree differs from it.
func commit() string {
	out, err := exec.Command("git", "rev-parse", "--short=12", "HEAD").Output()
	if err != nil {
		return "unknown"
	}
	name := strings.TrimSpace(string(out))
	if exec.Command("git", "diff", "--quiet", "HEAD").Run() != nil {
		name += "+"
	}
	return name
}
