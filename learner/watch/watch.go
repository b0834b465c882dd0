package watch

import (
	"fmt"
	"math"
)

// Step is one committed step's metrics.
type Step struct {
	Step    uint64
	Metrics map[string]float64
}

// Warning says that something began to go wrong at a step.
type Warning struct {
	Step uint64 `json:"step"`
	Kind string `json:"kind"` // one of Kinds()
	// Value crossed Limit; both in the unit of the metric.
	Value float64 `json:"value"`
	Limit float64 `json:"limit"`
	// What happened, why that is likely, and what to try.
	What   string `json:"what"`
	Cause  string `json:"cause"`
	Remedy string `json:"remedy"`
}

// String is one line.
func (w Warning) String() string {
	return fmt.Sprintf("%s: %s. Likely cause: %s. Try: %s.", w.Kind, w.What, w.Cause, w.Remedy)
}

// Detect gives the warnings of a whole history, in order.
func Detect(c Config, history []Step) []Warning {
	var out []Warning
	d := NewDetector(c)
	for _, s := range history {
		out = append(out, d.Add(s)...)
	}
	return out
}

// Detector is Detect one step at a time, in memory that does not grow. Not safe
// for concurrent use.
type Detector struct {
	c      Config
	n      int // steps seen
	first  []Step
	last   []Step
	active map[string]int // steps since the condition last held
}

// NewDetector begins a history. The configuration must be valid.
func NewDetector(c Config) *Detector { return &Detector{c: c, active: map[string]int{}} }

// Active lists the kinds whose condition holds or has not been away for Window
// steps.
func (d *Detector) Active() []string {
	var out []string
	for _, r := range rules {
		if _, on := d.active[r.kind]; on {
			out = append(out, r.kind)
		}
	}
	return out
}

// Add takes the next step and gives the warnings that begin with it.
func (d *Detector) Add(s Step) (begun []Warning) {
	d.n++
	if len(d.first) < d.c.Baseline {
		d.first = append(d.first, s)
	}
	if d.last = append(d.last, s); len(d.last) > d.c.Window {
		d.last = append(d.last[:0], d.last[1:]...)
	}
	if len(d.last) < d.c.Window {
		return nil
	}
	v := view{d}
	for _, r := range rules {
		w, on := r.check(d.c, v)
		switch away, was := d.active[r.kind]; {
		case on && !was:
			w.Step, w.Kind = s.Step, r.kind
			begun = append(begun, w)
			fallthrough
		case on:
			d.active[r.kind] = 0
		case was && away+1 >= d.c.Window:
			delete(d.active, r.kind)
		case was:
			d.active[r.kind] = away + 1
		}
	}
	return begun
}

// view is what a rule may look at.
type view struct{ d *Detector }

// recent is a metric's mean over the window; ok is false when a step lacks it.
func (v view) recent(metric string) (x float64, ok bool) { return mean(v.d.last, metric) }

// start is the same over the first steps, once the window no longer overlaps
// them.
func (v view) start(metric string) (x float64, ok bool) {
	if v.d.n < v.d.c.Baseline+v.d.c.Window {
		return 0, false
	}
	return mean(v.d.first, metric)
}

// constant is the mean share of groups whose rewards are all equal, those left
// out of the batch for it included, and the least of the window.
func (v view) constant() (share, least float64, ok bool) {
	least = 1
	for _, s := range v.d.last {
		x, ok := s.Metrics["frac_reward_zero_std"]
		if !ok || math.IsNaN(x) {
			return 0, 0, false
		}
		if n, out := s.Metrics["groups"], s.Metrics["excluded/group_constant"]; out > 0 {
			x = (x*n + out) / (n + out)
		}
		share += x / float64(len(v.d.last))
		least = min(least, x)
	}
	return share, least, true
}

func mean(steps []Step, metric string) (float64, bool) {
	sum := 0.0
	for _, s := range steps {
		x, ok := s.Metrics[metric]
		if !ok || math.IsNaN(x) {
			return 0, false
		}
		sum += x
	}
	return sum / float64(len(steps)), len(steps) > 0
}
