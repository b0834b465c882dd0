package project

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/skein-rl/skein/cluster"
	"github.com/skein-rl/skein/replay"
	"github.com/skein-rl/skein/rollout"
	"github.com/skein-rl/skein/rollout/remote"
)

const (
	hostLook = 500 * time.Millisecond // how often a worker looks for runs
	// idleSwitch is for how long nothing is rolled out before a worker takes up
	// runs of another base model.
	idleSwitch = 15 * time.Second
)

// Pauses of a run that could not be served.
const (
	serveRetry    = 5 * time.Second
	serveRetryMax = time.Minute
)

// host serves, in one worker process, every unfinished run of one base model at
// once, in one batch and by fair shares. Runs of other bases are other workers'
// business; this one turns to them when its own have nothing to do.
type host struct {
	m     *member
	bases *bases
	now   func() time.Time

	key    string          // of the base served, "" = none
	keep   *base           // it, while no run holds it
	over   map[string]bool // runs known to be finished
	paused map[string]*pause
	busy   time.Time // when something was last rolled out
	ended  chan ending
	prices prices

	mu     sync.Mutex
	served map[string]*service
}

// service is one run being served.
type service struct {
	stop context.CancelFunc
	last rollout.Heartbeat
}

type pause struct {
	until time.Time
	next  time.Duration
}

type ending struct {
	run string
	err error
}

// wanted is an unfinished run.
type wanted struct {
	spec replay.RunSpec
	cfg  Config
	key  string
	err  error // its configuration cannot be read
}

func newHost(m *member) *host {
	bases := newBases()
	if e := m.opt.Engine; e != nil {
		cfg := *e
		cfg.Log = m.opt.Log
		bases.remote = newServers(cfg)
	}
	return &host{
		m: m, bases: bases, now: time.Now, over: map[string]bool{}, paused: map[string]*pause{},
		served: map[string]*service{}, ended: make(chan ending),
	}
}

// serve works until ctx ends. A run that cannot be served is told of and tried
// again later while there are others; when it is the only one its error ends
// serve.
func (h *host) serve(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, h.leave()) }()
	h.busy = h.now()
	tick := time.NewTicker(hostLook)
	defer tick.Stop()
	for beat := 0; ; beat++ {
		runs, err := h.unfinished(ctx)
		if err != nil && !errors.Is(err, replay.ErrUnavailable) && ctx.Err() == nil {
			return err
		}
		if err == nil {
			if err := h.turn(ctx, runs); err != nil {
				return err
			}
		}
		if beat%2 == 0 {
			h.m.heartbeat(ctx, h.state())
			if e := h.m.opt.Engine; e != nil {
				h.prices.look(ctx, h.m.client, e.Price, h.now())
			}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case e := <-h.ended:
			if err := h.end(ctx, e, len(runs) < 2); err != nil {
				return err
			}
		case <-tick.C:
		}
	}
}

// unfinished lists the runs that this worker may serve, by name.
func (h *host) unfinished(ctx context.Context) (out []wanted, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	runs, err := h.m.client.Runs(ctx)
	if err != nil {
		return nil, err
	}
	for _, name := range runs {
		if h.over[name] {
			continue
		}
		s, err := h.m.client.Status(ctx, name)
		if errors.Is(err, replay.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if s.Finished {
			h.over[name] = true
			continue
		}
		w := wanted{spec: s.Spec}
		if w.cfg, err = Parse(s.Spec.Config); err != nil {
			w.err = fmt.Errorf("project: configuration of run %s: %w", name, err)
		} else {
			w.cfg.Run = name // a base model's evaluation has its run's configuration
			w.cfg.Devices, w.cfg.ShardBase = 1, false
		}
		w.key = baseKey(w.cfg, s.Spec.BaseDigest)
		out = append(out, w)
	}
	return out, nil
}

// turn takes up what is to be served.
func (h *host) turn(ctx context.Context, runs []wanted) error {
	h.mu.Lock()
	for _, s := range h.served {
		if s.last.Members > 0 {
			h.busy = h.now()
		}
	}
	h.mu.Unlock()
	keys := map[string]bool{}
	idle := true // so far: nothing of this base is served or may be
	for _, w := range runs {
		if w.err != nil {
			if err := h.end(ctx, ending{w.spec.Run, w.err}, len(runs) < 2); err != nil {
				return err
			}
			continue
		}
		keys[w.key] = true
		idle = idle && (w.key != h.key || !h.serves(w.spec.Run) && h.isPaused(w.spec.Run))
	}
	idle = idle || h.now().Sub(h.busy) >= idleSwitch
	if len(keys) > 0 && (!keys[h.key] || idle && len(keys) > 1) {
		if err := h.leave(); err != nil {
			return err
		}
		h.key, h.busy = chooseBase(h.m.name, slices.Collect(maps.Keys(keys)), h.key), h.now()
	}
	for _, w := range runs {
		if w.err != nil || w.key != h.key || h.serves(w.spec.Run) || h.isPaused(w.spec.Run) {
			continue
		}
		h.start(ctx, w, runs)
	}
	return nil
}

func (h *host) isPaused(run string) bool {
	p := h.paused[run]
	return p != nil && h.now().Before(p.until)
}

func (h *host) serves(run string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.served[run] != nil
}

// chooseBase spreads workers over the bases of unfinished runs: each has its own
// order (highest random weight, Thaler and Ravishankar 1998), and takes the first
// after the one it leaves.
func chooseBase(worker string, keys []string, left string) string {
	rank := func(key string) uint64 {
		f := fnv.New64a()
		fmt.Fprintf(f, "%s\x00%s", worker, key)
		x := f.Sum64() // FNV's last bytes hardly reach the high bits
		x = (x ^ x>>31) * 0x9e3779b97f4a7c15
		return x ^ x>>29
	}
	slices.SortFunc(keys, func(a, b string) int {
		return strings.Compare(fmt.Sprintf("%016x%s", rank(a), a), fmt.Sprintf("%016x%s", rank(b), b))
	})
	i := slices.Index(keys, left)
	return keys[(i+1)%len(keys)]
}

// start serves a run in the background.
func (h *host) start(ctx context.Context, w wanted, runs []wanted) {
	ctx, stop := context.WithCancel(ctx)
	s := &service{stop: stop}
	h.mu.Lock()
	h.served[w.spec.Run] = s
	h.mu.Unlock()
	log := h.m.opt.Log
	p, at, done, err := h.open(w, runs, log)
	go func() {
		if err == nil {
			log.Info("serving", "run", w.spec.Run, "share", w.cfg.Share)
			err = errors.Join(p.workOn(ctx, h.m.client, h.m.name, at, log, func(b rollout.Heartbeat) {
				h.mu.Lock()
				s.last = b
				h.mu.Unlock()
			}), done())
		}
		h.ended <- ending{w.spec.Run, err}
	}()
}

// open makes a run's parts and its place on an engine.
func (h *host) open(w wanted, runs []wanted, log *slog.Logger) (p *parts, at place, done func() error, err error) {
	if p, err = openPartsOn(h.bases, w.cfg, log); err != nil {
		return nil, at, nil, err
	}
	p.metrics = h.m.metrics
	fail := func(err error) (*parts, place, func() error, error) {
		return nil, at, nil, errors.Join(err, p.Close())
	}
	if err := sameBase(w.spec, w.cfg.Model, p.model.Digest); err != nil {
		return fail(err)
	}
	var likes []Config
	for _, o := range runs {
		if o.err == nil && o.key == h.key {
			likes = append(likes, o.cfg)
		}
	}
	at, leave, err := p.base.seat(w.cfg, likes)
	if err != nil {
		return fail(err)
	}
	at.policies = h.m.policies
	if h.keep == nil {
		h.keep = p.base.retain()
	}
	if h.m.opt.Engine != nil {
		at.yield = h.prices.yield
	}
	return p, at, func() error { return errors.Join(leave(), p.Close()) }, nil
}

// end takes note of a run that is served no more, or cannot be.
func (h *host) end(ctx context.Context, e ending, sole bool) error {
	h.mu.Lock()
	if s := h.served[e.run]; s != nil {
		s.stop()
	}
	delete(h.served, e.run)
	h.mu.Unlock()
	if e.err == nil || ctx.Err() != nil {
		delete(h.paused, e.run)
		return nil
	}
	// A server may be started later, or again.
	if sole && !errors.Is(e.err, remote.ErrUnreachable) {
		return e.err
	}
	if h.isPaused(e.run) {
		return nil
	}
	p := h.paused[e.run]
	if p == nil {
		p = &pause{next: serveRetry}
		h.paused[e.run] = p
	}
	p.until = h.now().Add(p.next)
	h.m.opt.Log.Warn("run is not served here for now", "run", e.run, "again_in", p.next, "error", e.err)
	p.next = min(2*p.next, serveRetryMax)
	return nil
}

// leave stops serving and frees the base.
func (h *host) leave() error {
	h.mu.Lock()
	left := len(h.served)
	for _, s := range h.served {
		s.stop()
	}
	h.mu.Unlock()
	for range left {
		e := <-h.ended
		if e.err != nil {
			h.m.opt.Log.Warn("worker leaves a run", "run", e.run, "error", e.err)
		}
		h.mu.Lock()
		delete(h.served, e.run)
		h.mu.Unlock()
	}
	if h.keep == nil {
		return nil
	}
	err := h.keep.release()
	h.keep = nil
	return err
}

// state is what the worker tells of itself: sums over its runs.
func (h *host) state() cluster.NodeInfo {
	h.mu.Lock()
	defer h.mu.Unlock()
	info := cluster.NodeInfo{Run: strings.Join(slices.Sorted(maps.Keys(h.served)), " "), Metrics: map[string]float64{}}
	if e := h.m.opt.Engine; e != nil {
		info.Metrics["capacity"], info.Metrics["price"] = float64(e.Capacity), e.Price
	}
	var newest time.Time
	for _, s := range h.served {
		b := s.last
		info.PolicyVersion = max(info.PolicyVersion, b.Version)
		info.TokensPerSecond += b.TokensPerSecond
		info.Metrics["rollouts"] += float64(b.Rollouts)
		info.Metrics["failed"] += float64(b.Failed)
		info.Metrics["in_flight"] += float64(b.Members)
		tellTools(info.Metrics, b.Loop.Tools)
		if b.LastErrorAt.After(newest) {
			info.LastError, newest = b.LastError, b.LastErrorAt
		}
	}
	return info
}
