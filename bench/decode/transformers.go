package main

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"time"

	"github.com/skein-rl/skein/bench"
)

const (
	groupSize   = 8
	groupPrompt = 256
	groupNew    = 64
)

//go:embed generate.py
var generatePy string

// transformersPeer is a running generate.py: the model is loaded once.
type transformersPeer struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Scanner
	version string
}

func startTransformers(ctx context.Context, o options) (*transformersPeer, error) {
	cmd := exec.CommandContext(ctx, o.python, "-c", generatePy, o.hf, strconv.Itoa(o.threads))
	cmd.Env = append(os.Environ(), "OMP_NUM_THREADS="+strconv.Itoa(o.threads), "CUDA_VISIBLE_DEVICES=", "HF_HUB_OFFLINE=1", "TRANSFORMERS_VERBOSITY=error")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("transformers: %w", err)
	}
	p := &transformersPeer{cmd: cmd, in: in, out: bufio.NewScanner(out)}
	var hello struct{ Version string }
	if err := p.read(&hello); err != nil {
		return nil, err
	}
	p.version = hello.Version
	return p, nil
}

func (p *transformersPeer) read(v any) error {
	if !p.out.Scan() {
		return fmt.Errorf("transformers: the process ended: %w", p.cmd.Wait())
	}
	if err := json.Unmarshal(p.out.Bytes(), v); err != nil {
		return fmt.Errorf("transformers: answer %q: %w", p.out.Bytes(), err)
	}
	return nil
}

func (p *transformersPeer) measure(j job) (result, error) {
	if _, err := fmt.Fprintln(p.in, mustJSON(j)); err != nil {
		return result{}, fmt.Errorf("transformers: %w", err)
	}
	var r result
	return r, p.read(&r)
}

// close ends the process by closing its input.
func (p *transformersPeer) close() {
	p.in.Close()
	timer := time.AfterFunc(30*time.Second, func() { _ = p.cmd.Process.Kill() })
	defer timer.Stop()
	_ = p.cmd.Wait()
}

func againstTransformers(ctx context.Context, o options, log *bench.Log) error {
	if err := needs(map[string]string{"file": o.file, "f16": o.model, "hf": o.hf, "python": o.python}); err != nil {
		return err
	}
	p, err := startTransformers(ctx, o)
	if err != nil {
		return err
	}
	defer p.close()
	total := func(r result) float64 { return r.Total }
	for _, batch := range o.groups {
		j := job{Threads: o.threads, Batch: batch, Group: min(batch, groupSize), Prompt: groupPrompt, New: groupNew}
		if batch%j.Group != 0 {
			return fmt.Errorf("groups: %d is no multiple of %d", batch, groupSize)
		}
		// Ours from the file as published and from the peer's f16 copy of it.
		files := []string{o.file, o.model}
		var ours [2]result
		var theirs result
		for i := range o.runs {
			for k, file := range files {
				j.Model = file
				r, err := measure(ctx, j)
				if err != nil {
					return err
				}
				ours[k] = better(ours[k], r, total)
				say("run %d, batch %d: ours %.1f from %s, load %.1f", i+1, batch, r.Total, name(file), bench.LoadAverage())
			}
			t, err := p.measure(j)
			if err != nil {
				return err
			}
			theirs = better(theirs, t, total)
			say("run %d, batch %d: transformers %.1f, load %.1f", i+1, batch, t.Total, bench.LoadAverage())
		}
		for k, row := range []string{"group", "group_f16"} {
			j.Model = files[k]
			err := log.Add(bench.Row{
				Bench: row, Size: fmt.Sprintf("b=%d", batch), Unit: "tokens/s", Peer: "transformers", PeerVersion: p.version,
				Ours: ours[k].Total, Theirs: theirs.Total, Runs: o.runs,
				Detail: ours[k].detail(j, map[string]any{"group": j.Group, "peer_form": "bf16", "rss_mb": ours[k].RSS, "peer_rss_mb": theirs.RSS}),
			}, bench.Higher)
			if err != nil {
				return err
			}
		}
	}
	return nil
}
