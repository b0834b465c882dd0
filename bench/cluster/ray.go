package main

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"
)

//go:embed peer_ray.py
var rayProgram string

// rates is what Ray reached, in calls per second: forms of a call without
// arguments ("call"), and of one that carries a log's bytes ("log").
type rates struct {
	Forms   map[string]map[string]float64 `json:"forms"`
	Version string                        `json:"version"`
	Error   string                        `json:"error"`
}

// best is the fastest form of a kind.
func (r rates) best(kind string) (rate float64, form string) {
	for _, name := range slices.Sorted(maps.Keys(r.Forms[kind])) {
		if v := r.Forms[kind][name]; v > rate {
			rate, form = v, name
		}
	}
	return rate, form
}

// ray is the peer's process; it is started once and asked between runs of ours.
type ray struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func (s *session) startRay() (*ray, error) {
	r := &ray{cmd: exec.Command(s.python, "-c", rayProgram)}
	r.cmd.Env = append(os.Environ(), "CUDA_VISIBLE_DEVICES=", "PYTHONUNBUFFERED=1")
	log, err := os.Create(filepath.Join(s.dir, "ray.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	r.cmd.Stderr = log
	if r.in, err = r.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := r.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	r.out = bufio.NewReader(out)
	return r, r.cmd.Start()
}

// ask measures for so long; a minute more is for starting.
func (r *ray) ask(ctx context.Context, size int, d time.Duration) (a rates, err error) {
	ctx, cancel := context.WithTimeout(ctx, d+time.Minute)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = r.cmd.Process.Kill() })()
	if _, err = fmt.Fprintf(r.in, "{\"size\": %d, \"seconds\": %g}\n", size, d.Seconds()); err != nil {
		return a, fmt.Errorf("ray: %w", err)
	}
	line, err := r.out.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &a)
	}
	if err == nil && a.Error != "" {
		err = errors.New(a.Error)
	}
	if err != nil {
		return a, fmt.Errorf("ray: %w", err)
	}
	return a, nil
}

// close ends the process, in order if it does so within 20 s.
func (r *ray) close() error {
	_ = r.in.Close()
	done := make(chan error, 1)
	go func() { done <- r.cmd.Wait() }()
	select {
	case <-done: // Ray's exit code at shutdown says nothing
		return nil
	case <-time.After(20 * time.Second):
		_ = r.cmd.Process.Kill()
		return <-done
	}
}
