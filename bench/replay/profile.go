package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime/pprof"
	"slices"

	"github.com/skein-rl/skein/replay/table"
)

// profiles measures ours once, for finding out where the time goes: appends of
// both sizes and samples on three nodes, in folders of their own.
func (s *session) profiles(ctx context.Context) error {
	top := s.profile
	jobs := []struct {
		name string
		f    func() error
	}{
		{"append-8KB", func() error { return s.profileAppend(ctx, small, 3) }},
		{"append-64KB", func() error { return s.profileAppend(ctx, large, 3) }},
		{"append-8KB-r1", func() error { return s.profileAppend(ctx, small, 1) }},
		{"stored-100k", func() error { return s.profileStored(ctx, 100_000) }},
		{"sample-8KB", func() error { return s.profileSample(ctx, small) }},
		{"sample-64KB", func() error { return s.profileSample(ctx, large) }},
	}
	for _, j := range jobs {
		if len(s.only) > 0 && !slices.Contains(s.only, j.name) {
			continue
		}
		s.profile = filepath.Join(top, j.name)
		if err := os.MkdirAll(s.profile, 0o755); err != nil {
			return err
		}
		f, err := os.Create(filepath.Join(s.profile, "client.prof"))
		if err != nil {
			return err
		}
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		err = j.f()
		pprof.StopCPUProfile()
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return nil
}

func (s *session) profileAppend(ctx context.Context, size, nodes int) error {
	l, err := s.appends(ctx, nodes, size, producers, 0)
	if err == nil {
		say("append %s r%d: %.0f logs/s, p50 %.1f ms, p99 %.1f ms, %.0f µs of CPU a log", sizeName(size), nodes, l.rate(), l.quantile(0.5), l.quantile(0.99), l.cpu)
	}
	return err
}

func (s *session) profileSample(ctx context.Context, size int) (err error) {
	g, err := s.startGroup(ctx, 3)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.close()) }()
	st, err := g.sampler(ctx, size, table.Uniform)
	if err != nil {
		return err
	}
	rate, err := st.run(ctx, s.seconds)
	if err == nil {
		say("sample %s uniform: %.0f logs/s", sizeName(size), rate)
	}
	return err
}

func (s *session) profileStored(ctx context.Context, n int) (err error) {
	g, err := s.startGroup(ctx, 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.close()) }()
	cfg := table.Default()
	cfg.Sampler, cfg.MaxTimesSampled, cfg.GroupSize = table.Selector{Kind: table.Uniform}, 0, members
	if _, err := g.cl.SetTable(ctx, runName, "bench", cfg, 0); err != nil {
		return err
	}
	before := g.cpu()
	if err := g.store(ctx, n); err != nil {
		return err
	}
	rss, err := g.sum("status", "VmRSS")
	if err != nil {
		return err
	}
	anon, err := g.sum("status", "RssAnon")
	say("stored %d: %.0f MB, anonymous %.0f MB, %.0f µs of CPU a log", n, rss/1024, anon/1024, (g.cpu()-before)/float64(n)*1e6)
	return err
}
