package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/skein-rl/skein/bench"
)

//go:embed peer_reverb.py
var reverbPy string

//go:embed peer_redis.py
var redisPy string

//go:embed peer_ray.py
var rayPy string

// The peers' programs read one JSON object a line (a question) and write one
// back (an answer), so that each is started once and measured between runs of
// ours.
type question struct {
	Do      string  `json:"do"`
	Size    int     `json:"size"`
	Seconds float64 `json:"seconds"`
	Table   string  `json:"table,omitempty"`
	Writers int     `json:"writers,omitempty"`
	Pipe    int     `json:"pipe,omitempty"`
}

// answer is a rate of logs per second and how it came about.
type answer struct {
	Rate    float64            `json:"rate"`
	P50     float64            `json:"p50_ms,omitempty"`
	P99     float64            `json:"p99_ms,omitempty"`
	Version string             `json:"version"`
	What    string             `json:"what"`
	All     map[string]float64 `json:"all,omitempty"` // rates of all forms that were tried
}

// peer is a peer's process.
type peer struct {
	name string
	*bench.Program
	stop func() error
}

// peers are those started so far.
type peers struct{ redis, reverb, ray *peer }

func (p *peers) close() error {
	var errs []error
	for _, x := range []*peer{p.redis, p.reverb, p.ray} {
		if x != nil {
			errs = append(errs, x.close())
		}
	}
	return errors.Join(errs...)
}

func (p *peer) close() error {
	p.Close()
	return p.stop()
}

// startPeer runs a program of the peers' interpreter.
func (s *session) startPeer(name, code string, args []string, stop func() error) (*peer, error) {
	p, err := bench.StartProgram(s.python, code, args, []string{"TF_CPP_MIN_LOG_LEVEL=3", "RAY_DEDUP_LOGS=0"}, filepath.Join(s.dir, name+".log"))
	return &peer{name, p, stop}, err
}

// ask measures; ctx bounds it.
func (p *peer) ask(ctx context.Context, q question) (a answer, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	if err := p.Ask(ctx, q, &a); err != nil {
		return a, fmt.Errorf("%s, %s: %w", p.name, q.Do, err)
	}
	return a, nil
}

// startRedis starts a server with appendfsync always on a port and in a folder
// of its own.
func (s *session) startRedis() (*peer, error) {
	dir := filepath.Join(s.dir, "redis")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	srv := exec.Command(s.redis, "--port", fmt.Sprint(port), "--bind", "127.0.0.1", "--dir", dir, "--appendonly", "yes", "--appendfsync", "always",
		"--save", "", "--auto-aof-rewrite-percentage", "0", "--logfile", filepath.Join(dir, "log"), "--daemonize", "no")
	if err := srv.Start(); err != nil {
		return nil, err
	}
	stop := func() error {
		_ = srv.Process.Kill()
		_ = srv.Wait()
		return os.RemoveAll(dir)
	}
	p, err := s.startPeer("redis", redisPy, []string{fmt.Sprint(port)}, stop)
	if err != nil {
		return nil, errors.Join(err, stop())
	}
	return p, nil
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

func (s *session) reverb() (*peer, error) {
	if s.peers.reverb == nil {
		p, err := s.startPeer("reverb", reverbPy, nil, func() error { return nil })
		if err != nil {
			return nil, err
		}
		s.peers.reverb = p
	}
	return s.peers.reverb, nil
}

// appendRows are the peers that append is compared with. Redis is one copy on
// disk, fsync on every write; reverb is memory without a wait for each item;
// reverb-flush is memory with the wait.
var appendRows = []string{"redis-always", "redis-always-c", "reverb", "reverb-flush", "ray-put"}

// appendPeers measures each once and keeps the best; Ray, which takes long to
// start, only where it is asked for.
func (s *session) appendPeers(ctx context.Context, run, size int, withRay bool, best map[string]answer) error {
	add := func(name string, p *peer, q question) error {
		q.Size, q.Seconds = size, s.seconds.Seconds()
		a, err := p.ask(ctx, q)
		if err != nil {
			return err
		}
		say("run %d append %s: %s %.0f logs/s (%s) %v; load %.1f", run, sizeName(size), name, a.Rate, a.What, a.All, bench.LoadAverage())
		if old := best[name]; a.Rate > old.Rate {
			best[name] = a
		}
		return nil
	}
	r, err := s.startRedis() // anew each time: it keeps everything in memory
	if err != nil {
		return err
	}
	err = errors.Join(add("redis-always", r, question{Do: "append"}), add("redis-always-c", r, question{Do: "append_c"}), r.close())
	if err != nil {
		return err
	}
	rv, err := s.reverb()
	if err != nil {
		return err
	}
	if err := errors.Join(add("reverb", rv, question{Do: "insert"}), add("reverb-flush", rv, question{Do: "insert_flush"})); err != nil {
		return err
	}
	if !withRay {
		return nil
	}
	ray, err := s.startPeer("ray", rayPy, nil, func() error { return nil })
	if err != nil {
		return err
	}
	return errors.Join(add("ray-put", ray, question{Do: "put"}), ray.close())
}
