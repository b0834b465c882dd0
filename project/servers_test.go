package project

import (
	"context"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/cluster"
	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/model/gobackend"
	"github.com/skein-rl/skein/model/tiny"
	"github.com/skein-rl/skein/rollout"
	"github.com/skein-rl/skein/rollout/remote"
	"github.com/skein-rl/skein/serve/openai"
)

// A worker whose engine is a skein serve elsewhere rolls out, to the bit, what a
// worker with the model in its process does, under the run's adapter; it tells its
// capacity and price. Its server may be started after it.
func TestAWorkerOnAServer(t *testing.T) {
	c := smallRun("a", 1)
	p, st := openTest(t, c, t.TempDir())
	register(t, st, c, "")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.work(ctx, st, "w", slog.New(slog.DiscardHandler), nil) }()
	require.Eventually(t, func() bool { return len(sampled(t, st, "a")) == 8 }, time.Minute, 20*time.Millisecond)
	cancel()
	require.NoError(t, <-done)
	alone := sampled(t, st, "a")

	root := t.TempDir()
	m, err := tiny.Open()
	require.NoError(t, err)
	defer m.Close()
	b, err := gobackend.New(m, gobackend.Options{Threads: 2})
	require.NoError(t, err)
	defer b.Close()
	dec, err := b.NewDecoder(model.DecoderConfig{Slots: 8, MaxLen: 448, Adapters: 3})
	require.NoError(t, err)
	e, err := rollout.NewEngine(dec, rollout.EngineConfig{Slots: 8, MaxLen: 448, Adapters: 3, Text: openai.TextOf(m.Tokenizer)})
	require.NoError(t, err)
	defer e.Close()
	h, err := openai.New(openai.Config{Name: "tiny", Model: m, Engine: e, AdapterRoot: root})
	require.NoError(t, err)
	server := httptest.NewServer(h)
	defer server.Close()

	node := testNode(t)
	register(t, node.Store(), c, "")
	engine, err := ReadEngine("skein="+server.URL+",capacity=8,price=0.5,adapters="+root, "", "")
	require.NoError(t, err)
	o := NodeOptions{Roles: []string{cluster.RoleWorker}, Dir: t.TempDir(), Token: node.Identity().Token().Reveal(), Log: slog.New(slog.DiscardHandler), ID: "w", Engine: engine}
	mem, err := joinAs(t.Context(), o, cluster.RoleWorker, []string{node.Addr()})
	require.NoError(t, err)
	ctx, cancel = context.WithCancel(t.Context())
	go func() { done <- mem.workForever(ctx) }()
	require.Eventually(t, func() bool { return len(sampled(t, node.Store(), "a")) == 8 }, time.Minute, 20*time.Millisecond)
	require.Equal(t, alone, sampled(t, node.Store(), "a"), "bit for bit as in one process")
	require.Eventually(t, func() bool {
		s, err := node.ClusterStatus(t.Context())
		require.NoError(t, err)
		return slices.ContainsFunc(s.Nodes, func(n cluster.NodeStatus) bool {
			return n.ID == "w" && n.Metrics["capacity"] == 8 && n.Metrics["price"] == 0.5
		})
	}, 10*time.Second, 10*time.Millisecond)
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	require.NoError(t, mem.Close())
	left, err := os.ReadDir(root)
	require.NoError(t, err)
	require.Empty(t, left, "no adapter is left behind")
}

// A server that is not there yet is waited for, though its run is the only one; one
// that can never serve the run ends the worker with the reason.
func TestAWorkerWaitsForItsServer(t *testing.T) {
	c := smallRun("a", 1)
	cfg := remote.DefaultConfig()
	cfg.Kind, cfg.URL, cfg.Attempts = remote.VLLM, "http://127.0.0.1:1", 1
	node := testNode(t)
	register(t, node.Store(), c, "")
	said := &lines{}
	o := NodeOptions{Roles: []string{cluster.RoleWorker}, Dir: t.TempDir(), Token: node.Identity().Token().Reveal(), Log: slog.New(slog.NewTextHandler(said, nil)), ID: "w", Engine: &cfg}
	mem, err := joinAs(t.Context(), o, cluster.RoleWorker, []string{node.Addr()})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- mem.workForever(ctx) }()
	require.Eventually(t, func() bool { return said.contain("server does not answer") }, 20*time.Second, 10*time.Millisecond)
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	require.NoError(t, mem.Close())

	s := newServers(cfg)
	m, err := tiny.Open()
	require.NoError(t, err)
	defer m.Close()
	_, _, err = s.seat(c, m)
	require.ErrorIs(t, err, remote.ErrUnreachable)
}

func TestPriceRank(t *testing.T) {
	worker := func(price float64, alive bool, run string) cluster.NodeStatus {
		return cluster.NodeStatus{NodeInfo: cluster.NodeInfo{Role: cluster.RoleWorker, Run: run, Metrics: map[string]float64{"price": price}}, Alive: alive}
	}
	nodes := []cluster.NodeStatus{
		worker(0, true, "a"), worker(0.5, true, "a"), worker(0.5, true, "a"), worker(2, true, "a"),
		worker(0.1, false, "a"), worker(0.2, true, ""), {NodeInfo: cluster.NodeInfo{Role: cluster.RoleLearner, Run: "a"}, Alive: true},
	}
	for own, want := range map[float64]int{0.5: 1, 1: 2, 2: 2, 3: 3} {
		require.Equal(t, want, priceRank(nodes, own), own)
	}
	require.Zero(t, (&prices{}).yield())
	require.Equal(t, 2*yieldStep, (&prices{rank: 2}).yield())
}

func TestReadEngine(t *testing.T) {
	dir := t.TempDir()
	key := filepath.Join(dir, "key")
	require.NoError(t, os.WriteFile(key, []byte("secret\n"), 0o600))
	c, err := ReadEngine("vllm=http://h:1", key, dir)
	require.NoError(t, err)
	require.Equal(t, "secret", c.Key)
	require.DirExists(t, c.Adapters)
	none, err := ReadEngine("", "", dir)
	require.NoError(t, err)
	require.Nil(t, none)
	_, err = ReadEngine("", key, dir)
	require.ErrorContains(t, err, "needs --engine")
	_, err = ReadEngine("vllm=h", "", dir)
	require.ErrorContains(t, err, "--engine:")
	require.NoError(t, os.WriteFile(key, nil, 0o600))
	_, err = ReadEngine("vllm=http://h:1", key, dir)
	require.ErrorContains(t, err, "first line is empty")
	require.ErrorContains(t, NodeOptions{Roles: []string{"learner"}, Join: []string{"x"}, Engine: &remote.Config{}}.Validate(), "only workers generate")
}
