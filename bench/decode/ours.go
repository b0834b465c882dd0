package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"time"

	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/model/gobackend"
)

// job is one measurement of ours, made in a process of its own so that its peak
// memory is its own.
type job struct {
	Model   string `json:"model"`
	Threads int    `json:"threads"`
	Batch   int    `json:"batch"`
	// Group sequences share a prompt; 1 means that every prompt is its own.
	Group  int `json:"group"`
	Prompt int `json:"prompt"` // tokens
	New    int `json:"new"`    // tokens per sequence
	// Roof has the machine measured instead; of the rest only Threads counts.
	Roof bool `json:"roof,omitempty"`
}

// result is what a job, ours or a peer's, measured.
type result struct {
	Prefill float64 `json:"prefill"` // prompt tokens per second, a shared prompt counted once
	Decode  float64 `json:"decode"`  // new tokens per second after the first
	Total   float64 `json:"total"`   // new tokens per second, prefill included
	First   float64 `json:"first"`   // seconds from the start to the first token of all sequences
	P50     float64 `json:"p50"`     // seconds between tokens of a sequence
	P99     float64 `json:"p99"`
	RSS     float64 `json:"rss"` // peak, MB
	Backend string  `json:"backend"`
	// What a step in the middle has to read, in bytes, and to compute; of a job
	// with Roof, what a second allows of both.
	StepBytes float64 `json:"step_bytes,omitempty"`
	StepFlops float64 `json:"step_flops,omitempty"`
	roof      roof
}

// roof compares decoding with what the machine can do, measured right after: the
// time of reading weights and caches once per step, and of computing it at the
// peak of a product, as parts of the time it took.
type roof struct {
	ReadGBs     float64 `json:"read_gbs"`
	PeakGflops  float64 `json:"peak_gflops"`
	MemoryShare float64 `json:"memory_share"`
	FlopsShare  float64 `json:"flops_share"`
}

// cost sets what a step costs.
func (r *result) cost(b model.Backend, j job) {
	r.StepBytes, r.StepFlops = gobackend.StepCost(b, j.Batch, j.Prompt+j.New/2)
	if j.Group > 1 { // a shared prompt is read once for all
		own, _ := gobackend.StepCost(b, j.Batch, j.New/2)
		shared, _ := gobackend.StepCost(b, j.Batch/j.Group, j.Prompt)
		none, _ := gobackend.StepCost(b, 1, 0)
		r.StepBytes = own + shared - none
	}
}

// compare sets the roof from the machine's.
func (r *result) compare(j job, machine result) {
	read, peak, step := machine.StepBytes, machine.StepFlops, float64(j.Batch)/r.Decode
	r.roof = roof{part(read / 1e9), part(peak / 1e9), part(r.StepBytes / read / step), part(r.StepFlops / peak / step)}
}

func part(x float64) float64 { return math.Round(x*1000) / 1000 }

// measure runs a job, and then the machine's roof, in fresh processes. This one
// stays small: its memory would count as the least of theirs.
func measure(ctx context.Context, j job) (result, error) {
	r, err := spawn(ctx, j)
	if err != nil {
		return r, err
	}
	machine, err := spawn(ctx, job{Threads: j.Threads, Roof: true})
	if err == nil {
		r.compare(j, machine)
	}
	return r, err
}

func spawn(ctx context.Context, j job) (result, error) {
	self, err := os.Executable()
	if err != nil {
		return result{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, self, "-worker", mustJSON(j))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return result{}, fmt.Errorf("job %s: %w", mustJSON(j), err)
	}
	var r result
	if err := json.Unmarshal(out, &r); err != nil {
		return result{}, fmt.Errorf("job %s: result %q: %w", mustJSON(j), out, err)
	}
	r.RSS = peakMB(cmd.ProcessState)
	return r, nil
}

func peakMB(s *os.ProcessState) float64 {
	if u, ok := s.SysUsage().(*syscall.Rusage); ok {
		return float64(u.Maxrss) / 1024 // Linux counts KB
	}
	return 0
}

// work is the worker's main: it loads the model, warms up and measures.
func work(ctx context.Context, text string) error {
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return fmt.Errorf("worker: job %q: %w", text, err)
	}
	if j.Roof {
		var r result
		r.StepBytes, r.StepFlops = gobackend.Roof(j.Threads)
		return json.NewEncoder(os.Stdout).Encode(r)
	}
	m, err := model.Open(j.Model)
	if err != nil {
		return err
	}
	b, err := gobackend.New(m, gobackend.Options{Threads: j.Threads})
	if err = errors.Join(err, m.Close()); err != nil {
		return err
	}
	defer b.Close()
	d, err := b.NewDecoder(model.DecoderConfig{Slots: j.Batch, MaxLen: j.Prompt + j.New + 1})
	if err != nil {
		return err
	}
	defer d.Close()
	warm := j // as long as the measurement, so that its memory is there
	warm.New = min(j.New, 3)
	warm.Prompt += j.New - warm.New
	if _, err := generate(ctx, d, m, warm, 1); err != nil {
		return err
	}
	r, err := generate(ctx, d, m, j, 2)
	if err != nil {
		return err
	}
	r.Backend = b.Name() + " (" + gobackend.StorageText(b) + ")"
	r.cost(b, j)
	return json.NewEncoder(os.Stdout).Encode(r)
}

// generate prefills the prompts and samples token by token at temperature 1,
// one call per token, as an engine does that streams.
func generate(ctx context.Context, d model.Decoder, m *model.Model, j job, seed uint64) (result, error) {
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range j.Batch {
		d.Truncate(i, 0)
	}
	var fill []model.PrefillRow
	rows := make([]model.DecodeRow, j.Batch)
	for i := range rows {
		rows[i] = model.DecodeRow{Slot: i, MaxNew: j.New, Sampling: model.Sampling{Temperature: 1, Seed: seed<<32 + uint64(i)}}
		if i%j.Group > 0 {
			rows[i].Last = rows[i-1].Last
			continue
		}
		prompt := make([]int32, j.Prompt)
		for k := range prompt {
			prompt[k] = int32(r.IntN(m.Config.VocabSize))
		}
		fill = append(fill, model.PrefillRow{Slot: i, Tokens: prompt[:j.Prompt-1]})
		rows[i].Last = prompt[j.Prompt-1]
	}
	start := time.Now()
	if err := d.Prefill(ctx, fill); err != nil {
		return result{}, err
	}
	for i := range rows {
		if from := i - i%j.Group; from != i {
			if err := d.CopyPrefix(i, from, j.Prompt-1); err != nil {
				return result{}, err
			}
		}
	}
	filled := time.Since(start)
	var first time.Duration
	var gaps []float64
	last := start
	for step := range j.New {
		outs, err := d.Decode(ctx, rows, 1)
		if err != nil {
			return result{}, err
		}
		for i, o := range outs {
			if o.Err != nil {
				return result{}, o.Err
			}
			rows[i].Last = o.IDs[0]
			rows[i].MaxNew--
		}
		now := time.Now()
		if step == 0 {
			first = now.Sub(start)
		} else {
			gaps = append(gaps, now.Sub(last).Seconds())
		}
		last = now
	}
	total := last.Sub(start)
	if len(gaps) == 0 {
		return result{}, errors.New("new must be 2 or more")
	}
	slices.Sort(gaps)
	return result{
		Prefill: float64(len(fill)*(j.Prompt-1)) / filled.Seconds(),
		Decode:  float64(j.Batch*(j.New-1)) / (total - first).Seconds(),
		Total:   float64(j.Batch*j.New) / total.Seconds(),
		First:   first.Seconds(),
		P50:     gaps[len(gaps)/2], P99: gaps[len(gaps)*99/100],
	}, nil
}

// detail is what a row tells of our best run.
func (r result) detail(j job, more map[string]any) map[string]any {
	d := map[string]any{
		"prompt": j.Prompt, "new": j.New, "threads": j.Threads, "backend": r.Backend, "model": name(j.Model),
		"first_ms": ms(r.First), "p50_ms": ms(r.P50), "p99_ms": ms(r.P99), "roof": r.roof,
	}
	for k, v := range more {
		d[k] = v
	}
	return d
}

func ms(seconds float64) float64 { return float64(int(seconds*1e5+0.5)) / 100 }
