package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/skein-rl/skein/bench"
)

const (
	llamaPrompt  = 32  // tokens before the first generated one
	llamaNew     = 64  // tokens generated per sequence
	prefillLen   = 256 // tokens of a prompt when prefill is measured
	prefillBatch = 8   // at most as many prompts
)

// llamaLine is a line of llama-batched-bench's jsonl output.
type llamaLine struct {
	PP      int     `json:"pp"`
	PL      int     `json:"pl"`
	TimePP  float64 `json:"t_pp"`
	SpeedPP float64 `json:"speed_pp"`
	SpeedTG float64 `json:"speed_tg"`
}

// llama runs llama-batched-bench once. It samples nothing and reads back no
// token: the time is that of the forward passes alone.
func llama(ctx context.Context, o options, file string, batch, prompt, n int) (result, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	t := strconv.Itoa(o.threads)
	cmd := exec.CommandContext(ctx, filepath.Join(o.llama, "llama-batched-bench"), "-m", file, "-t", t, "-tb", t,
		"-c", strconv.Itoa(batch*(prompt+n)+256), "-b", "2048", "-ub", "512",
		"-npp", strconv.Itoa(prompt), "-ntg", strconv.Itoa(n), "-npl", strconv.Itoa(batch), "--output-format", "jsonl")
	var errOut bytes.Buffer
	cmd.Stderr = &errOut
	out, err := cmd.Output()
	if err != nil {
		return result{}, fmt.Errorf("%v: %w: %s", cmd.Args, err, tail(errOut.Bytes()))
	}
	for line := range strings.Lines(string(out)) {
		var l llamaLine
		if json.Unmarshal([]byte(line), &l) == nil && l.PL == batch {
			return result{Prefill: l.SpeedPP, Decode: l.SpeedTG, First: l.TimePP, RSS: peakMB(cmd.ProcessState)}, nil
		}
	}
	return result{}, fmt.Errorf("%v printed no line of batch %d: %q, %s", cmd.Args, batch, out, tail(errOut.Bytes()))
}

func tail(text []byte) []byte { return text[max(0, len(text)-500):] }

func againstLlama(ctx context.Context, o options, log *bench.Log) error {
	if err := needs(map[string]string{"file": o.file, "f16": o.model, "f32": o.f32, "llama": filepath.Join(o.llama, "llama-batched-bench")}); err != nil {
		return err
	}
	version, err := os.ReadFile(filepath.Join(o.llama, "VERSION"))
	if err != nil {
		return fmt.Errorf("llama.cpp's version: %w (make peers-decode writes it)", err)
	}
	row := bench.Row{Peer: "llama.cpp", PeerVersion: strings.TrimSpace(string(version)), Runs: o.runs}
	decode := func(r result) float64 { return r.Decode }
	halves := map[string]string{"F16": o.model, "F32": o.f32}
	for _, batch := range o.sizes {
		j := job{Model: o.model, Threads: o.threads, Batch: batch, Group: 1, Prompt: llamaPrompt, New: llamaNew}
		ours, theirs, form, err := duel(ctx, o, j, halves, llamaNew, decode)
		if err != nil {
			return err
		}
		row.Size = fmt.Sprintf("b=%d", batch)
		row.Bench, row.Unit, row.Ours, row.Theirs = "decode", "tokens/s", ours.Decode, theirs.Decode
		row.Detail = ours.detail(j, map[string]any{"peer_form": form, "peer_first_ms": ms(theirs.First), "peer_samples": false})
		if err := log.Add(row, bench.Higher); err != nil {
			return err
		}
		row.Bench, row.Unit, row.Ours, row.Theirs = "decode_rss", "MB", ours.RSS, theirs.RSS
		row.Detail = map[string]any{"peer_form": form, "model": name(j.Model)}
		if err := log.Add(row, bench.Lower); err != nil {
			return err
		}
		j.Model = o.file
		ours, theirs, form, err = duel(ctx, o, j, map[string]string{"as published": o.file}, llamaNew, decode)
		if err != nil {
			return err
		}
		row.Bench, row.Unit, row.Ours, row.Theirs = "decode_published", "tokens/s", ours.Decode, theirs.Decode
		row.Detail = ours.detail(j, map[string]any{"peer_form": form, "rss_mb": ours.RSS, "peer_rss_mb": theirs.RSS, "peer_samples": false})
		if err := log.Add(row, bench.Higher); err != nil {
			return err
		}
		if batch > prefillBatch {
			continue
		}
		j.Model, j.Prompt, j.New = o.model, prefillLen, 2
		ours, theirs, form, err = duel(ctx, o, j, halves, 1, func(r result) float64 { return r.Prefill })
		if err != nil {
			return err
		}
		row.Bench, row.Unit, row.Ours, row.Theirs = "prefill", "tokens/s", ours.Prefill, theirs.Prefill
		row.Detail = map[string]any{"peer_form": form, "prompt": prefillLen, "first_ms": ms(ours.First), "model": name(j.Model)}
		if err := log.Add(row, bench.Higher); err != nil {
			return err
		}
	}
	return nil
}

// duel measures ours and llama.cpp's forms of the model in turn and returns the
// best run of each by a figure, with the least memory of any run.
func duel(ctx context.Context, o options, j job, forms map[string]string, theirNew int, figure func(result) float64) (ours, theirs result, form string, err error) {
	for i := range o.runs {
		r, err := measure(ctx, j)
		if err != nil {
			return ours, theirs, form, err
		}
		ours = better(ours, r, figure)
		for f, file := range forms {
			p, err := llama(ctx, o, file, j.Batch, j.Prompt, theirNew)
			if err != nil {
				return ours, theirs, form, err
			}
			if figure(p) > figure(theirs) {
				form = f
			}
			theirs = better(theirs, p, figure)
			say("run %d, batch %d, prompt %d: ours %.1f, llama.cpp %s %.1f, load %.1f", i+1, j.Batch, j.Prompt, figure(r), f, figure(p), bench.LoadAverage())
		}
	}
	return ours, theirs, form, nil
}

// better is the run with the higher figure, with the lower memory of both.
func better(best, r result, figure func(result) float64) result {
	rss := best.RSS
	if rss == 0 || r.RSS < rss {
		rss = r.RSS
	}
	if figure(r) > figure(best) {
		best = r
	}
	best.RSS = rss
	return best
}
