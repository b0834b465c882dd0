package main

import (
	"context"
	_ "embed"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"github.com/skein-rl/skein/bench"
)

//go:embed peer_ray.py
var rayProgram string

// rates is what Ray reached, in calls per second: forms of a call without
// arguments ("call"), and of one that carries a log's bytes ("log").
type rates struct {
	Forms   map[string]map[string]float64 `json:"forms"`
	Version string                        `json:"version"`
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

// ray is the peer's process.
type ray struct{ *bench.Program }

func (s *session) startRay() (ray, error) {
	p, err := bench.StartProgram(s.python, rayProgram, nil, nil, filepath.Join(s.dir, "ray.log"))
	return ray{p}, err
}

// ask measures for so long; a minute more is for starting.
func (r ray) ask(ctx context.Context, size int, d time.Duration) (a rates, err error) {
	ctx, cancel := context.WithTimeout(ctx, d+time.Minute)
	defer cancel()
	if err := r.Ask(ctx, map[string]any{"size": size, "seconds": d.Seconds()}, &a); err != nil {
		return a, fmt.Errorf("ray: %w", err)
	}
	return a, nil
}
