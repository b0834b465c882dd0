package project

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/skein-rl/skein/cluster"
	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/rollout"
	"github.com/skein-rl/skein/rollout/remote"
)

// serverOpen bounds finding out what a server can do.
const serverOpen = 30 * time.Second

// servers gives the runs of one worker their places on its engine server.
type servers struct {
	cfg remote.Config

	mu     sync.Mutex
	open   *remote.Server // nil until a run needs it
	digest string         // of the base it was opened for
	shares *rollout.Shares
	runs   int
}

func newServers(cfg remote.Config) *servers {
	return &servers{cfg: cfg, shares: rollout.NewShares(membersOf(cfg.Capacity))}
}

// seat is base.seat on a server.
func (s *servers) seat(c Config, m *model.Model) (at place, leave func() error, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), serverOpen)
	defer cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open != nil && s.runs == 0 { // who knows what is served there by now
		s.open.Close()
		s.open = nil
	}
	if s.open == nil {
		if s.open, err = remote.Open(ctx, s.cfg, m); err != nil {
			return at, nil, err
		}
		s.digest = m.Digest
	}
	if s.digest != m.Digest {
		return at, nil, fmt.Errorf("project: %s serves the base model %s, run %s has %s", s.cfg, s.digest, c.Run, m.Digest)
	}
	if err := s.open.CheckSampling(model.Sampling{Temperature: c.Training.Temperature, TopP: c.Rollout.TopP, TopK: c.Rollout.TopK}); err != nil {
		return at, nil, err
	}
	trains := !strings.HasSuffix(c.Run, baseSuffix)
	if trains && c.full() {
		return at, nil, fmt.Errorf("project: run %s trains all weights, and servers load LoRA adapters only: train with LoRA, or roll out on local engines", c.Run)
	}
	e, err := s.open.ForRun(ctx, c.Run, m, c.Rollout.MaxLen, trains)
	if err != nil {
		return at, nil, err
	}
	s.runs++
	at = place{engine: e, members: membersOf(s.cfg.Capacity), seat: s.shares.Join(c.Share)}
	return at, func() error {
		at.seat.Leave()
		err := e.Close()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.runs--
		return err
	}, nil
}

// yieldStep is how long a worker leaves work to each cheaper class of workers.
const yieldStep = 250 * time.Millisecond

// prices follows how many classes of workers are cheaper than this one. The zero
// value yields to nobody.
type prices struct {
	mu   sync.Mutex
	rank int
	seen time.Time
}

// yield is rollout.WorkerConfig.Yield.
func (p *prices) yield() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Duration(p.rank) * yieldStep
}

// look counts the distinct prices below own among the living workers. When nobody
// can say, the rank stays.
func (p *prices) look(ctx context.Context, c *cluster.Router, own float64, now time.Time) {
	if own == 0 || now.Sub(p.seen) < 5*time.Second {
		return
	}
	p.seen = now
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	st, err := c.ClusterStatus(ctx)
	if err != nil {
		return
	}
	rank := priceRank(st.Nodes, own)
	p.mu.Lock()
	p.rank = rank
	p.mu.Unlock()
}

func priceRank(nodes []cluster.NodeStatus, own float64) int {
	cheaper := map[float64]bool{}
	for _, n := range nodes {
		if price := n.Metrics["price"]; n.Role == cluster.RoleWorker && n.Alive && n.Run != "" && price < own {
			cheaper[price] = true
		}
	}
	return len(cheaper)
}

// ReadEngine reads --engine and the key of --engine-key-file ("" = none).
// Adapters go below dir unless the option names a folder.
func ReadEngine(spec, keyFile, dir string) (*remote.Config, error) {
	if spec == "" {
		if keyFile != "" {
			return nil, errors.New("--engine-key-file: needs --engine")
		}
		return nil, nil
	}
	c, err := remote.ParseConfig(spec)
	if err != nil {
		return nil, fmt.Errorf("--engine: %w", err)
	}
	if keyFile != "" {
		if c.Key, err = readFirstLine(keyFile); err != nil {
			return nil, fmt.Errorf("--engine-key-file: %w", err)
		}
		if c.Key == "" {
			return nil, fmt.Errorf("--engine-key-file: %s: its first line is empty: write the key there", keyFile)
		}
	}
	if c.Adapters == "" && dir != "" && (c.Kind == remote.VLLM || c.Kind == remote.Skein) {
		if c.Adapters, err = filepath.Abs(filepath.Join(dir, "worker", "adapters")); err != nil {
			return nil, fmt.Errorf("--engine: %w", err)
		}
	}
	if c.Adapters != "" {
		if err := os.MkdirAll(c.Adapters, 0o755); err != nil {
			return nil, fmt.Errorf("--engine: adapters: %w", err)
		}
	}
	return &c, nil
}
