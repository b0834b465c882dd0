package project

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/skein-rl/skein/cluster"
	"github.com/skein-rl/skein/eventlog"
	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/replay"
)

// smallRun dispatches four groups of two short rollouts.
func smallRun(name string, seed uint64) Config {
	c := DefaultConfig()
	c.Run, c.Rollout.Slots, c.Rollout.MaxLen, c.Eval.Tasks = name, 8, 448, 0
	c.Rollout.MaxToolCallingIterations = 2
	c.LoRA.Rank = 2
	c.Training.Seed, c.Training.NumGenerations, c.Training.GroupsPerStep, c.Training.MaxStaleness, c.Training.MaxCompletionLength = seed, 2, 4, 0, 32
	return c
}

// register makes a run whose policy version 0 is an adapter of its own.
func register(t *testing.T, st replay.Store, c Config, tenant string) {
	t.Helper()
	p, err := openParts(c, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	defer p.Close()
	a, err := model.NewAdapter(p.model.Config, c.LoRA, p.model.Digest, c.Training.Seed)
	require.NoError(t, err)
	r := rand.New(rand.NewPCG(c.Training.Seed, 1))
	for i := range a.Params {
		a.Params[i] = float32(r.NormFloat64()) * 0.02
	}
	spec, err := p.spec()
	require.NoError(t, err)
	spec.Tenant = tenant
	spec.StartAdapter, err = st.PutBlob(t.Context(), a.Encode())
	require.NoError(t, err)
	require.NoError(t, st.CreateRun(t.Context(), spec))
}

// sampled are the ids and logprobs of a run's rollouts, by group and member.
func sampled(t *testing.T, st replay.Store, run string) map[string]string {
	t.Helper()
	out := map[string]string{}
	items, _, err := st.Scan(t.Context(), run, replay.TableTrain, "", 1000)
	require.NoError(t, err)
	for _, it := range items {
		recs, err := st.Fetch(t.Context(), []string{it.LogID})
		require.NoError(t, err)
		l, err := eventlog.Decode(recs[0].Bytes)
		require.NoError(t, err)
		var b bytes.Buffer
		for i := range l.Branches {
			fmt.Fprintln(&b, l.Branches[i].IDs, l.Branches[i].Logprobs)
		}
		out[fmt.Sprintf("%s/%d", it.Group, it.Member)] = b.String()
	}
	return out
}

// worker runs a worker process's loop in this one until the test ends.
func worker(t *testing.T, node *cluster.Node, name, tenant string, log *slog.Logger) (stop func() error) {
	t.Helper()
	o := NodeOptions{Roles: []string{cluster.RoleWorker}, Dir: t.TempDir(), Token: node.Identity().Token().Reveal(), Tenant: tenant, Log: log, ID: name}
	m, err := joinAs(t.Context(), o, cluster.RoleWorker, []string{node.Addr()})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.workForever(ctx) }()
	return sync.OnceValue(func() error {
		cancel()
		err := <-done
		return errors.Join(err, m.Close())
	})
}

func testNode(t *testing.T) *cluster.Node {
	t.Helper()
	cfg := cluster.DefaultConfig(t.TempDir())
	cfg.Logger, cfg.Store.MinFreeBytes = slog.New(slog.DiscardHandler), 0
	n, err := cluster.Open(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, n.Close()) })
	require.NoError(t, n.WaitReady(t.Context(), 1))
	return n
}

// One worker serves two tenants' runs at once, in one batch, with the very tokens
// and logprobs that each has alone, while a third run, whose configuration names
// what is not here, is told of and stops nobody.
func TestAWorkerServesEveryRunOfItsBase(t *testing.T) {
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) }) // after what comes later
	a, b := smallRun("a", 1), smallRun("b", 2)
	b.Rollout.MaxLen, b.Share = 400, 2
	alone := map[string]map[string]string{}
	for _, c := range []Config{a, b} {
		p, st := openTest(t, c, t.TempDir())
		register(t, st, c, "")
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- p.work(ctx, st, "w", slog.New(slog.DiscardHandler), nil) }()
		require.Eventually(t, func() bool { return len(sampled(t, st, c.Run)) == 8 }, time.Minute, 20*time.Millisecond)
		cancel()
		require.NoError(t, <-done)
		alone[c.Run] = sampled(t, st, c.Run)
	}
	require.NotEqual(t, alone["a"]["a/train/0/0"], alone["b"]["b/train/0/0"])

	node := testNode(t)
	st := node.Store()
	broken := smallRun("aa-broken", 3)
	register(t, st, broken, "t2")
	spec := mustSpec(t, st, broken.Run)
	spec.Run, spec.Config, spec.Tenant = "aaa-nonsense", []byte("task: {name: no-such-task}\n"), "t2"
	require.NoError(t, st.CreateRun(t.Context(), spec))
	spec.Run, spec.Config = "aaa-unreadable", []byte("run: [")
	require.NoError(t, st.CreateRun(t.Context(), spec))
	register(t, st, a, "t1")
	register(t, st, b, "t2")
	said := &lines{}
	stop := worker(t, node, "w", cluster.AllTenants, slog.New(slog.NewTextHandler(said, nil)))
	t.Cleanup(func() { _ = stop() })
	for _, run := range []string{"a", "b"} {
		require.Eventually(t, func() bool { return len(sampled(t, st, run)) == 8 }, time.Minute, 20*time.Millisecond)
		require.Equal(t, alone[run], sampled(t, st, run), "bit for bit as alone")
	}
	for _, run := range []string{"aaa-nonsense", "aaa-unreadable"} {
		require.Eventually(t, func() bool { return said.contain("run is not served here for now\" run=" + run) }, 10*time.Second, 10*time.Millisecond)
	}
	require.Eventually(t, func() bool {
		s, err := node.ClusterStatus(t.Context())
		require.NoError(t, err)
		return slices.ContainsFunc(s.Nodes, func(n cluster.NodeStatus) bool { return n.ID == "w" && n.Run == "a aa-broken b" })
	}, 10*time.Second, 10*time.Millisecond, "the heartbeat names the runs")
	require.NoError(t, st.FinishRun(t.Context(), "a"))
	require.ErrorIs(t, stop(), context.Canceled)
}

func mustSpec(t *testing.T, st replay.Store, run string) replay.RunSpec {
	s, err := st.Status(t.Context(), run)
	require.NoError(t, err)
	return s.Spec
}

// lines keeps what is logged.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lines) contain(s string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Contains(l.b.Bytes(), []byte(s))
}

// A worker of one tenant serves that tenant's runs and sees no other.
func TestAWorkerServesItsTenantOnly(t *testing.T) {
	node := testNode(t)
	st := node.Store()
	register(t, st, smallRun("a", 1), "t1")
	register(t, st, smallRun("b", 2), "t2")
	stop := worker(t, node, "w", "t2", slog.New(slog.DiscardHandler))
	t.Cleanup(func() { _ = stop() })
	require.Eventually(t, func() bool { return len(sampled(t, st, "b")) == 8 }, time.Minute, 20*time.Millisecond)
	require.Empty(t, sampled(t, st, "a"))
}

// A worker that took up runs of a base it cannot have turns to another's at once.
func TestAWorkerTurnsToAnotherBase(t *testing.T) {
	node := testNode(t)
	st := node.Store()
	good := smallRun("good", 1)
	register(t, st, good, "")
	spec := mustSpec(t, st, "good")
	here := baseKey(good, spec.BaseDigest)
	spec.Run, spec.BaseDigest = "elsewhere", "blake3:00"
	require.NoError(t, st.CreateRun(t.Context(), spec))
	name := "w"
	for chooseBase(name, []string{here, baseKey(good, "blake3:00")}, "") == here {
		name += "w"
	}
	stop := worker(t, node, name, "", slog.New(slog.DiscardHandler))
	t.Cleanup(func() { _ = stop() })
	require.Eventually(t, func() bool { return len(sampled(t, st, "good")) == 8 }, time.Minute, 20*time.Millisecond)
}

// The only run is one that this worker can never serve: its error ends the role.
func TestAWorkerWithOneHopelessRunEnds(t *testing.T) {
	node := testNode(t)
	spec := replay.RunSpec{Run: "r", Config: []byte("run: ["), GroupSize: 1, GroupsPerStep: 1, TicketTTL: time.Minute, MaxAttempts: 1}
	require.NoError(t, node.Store().CreateRun(t.Context(), spec))
	m, err := joinAs(t.Context(), NodeOptions{Roles: []string{cluster.RoleWorker}, Dir: t.TempDir(), Token: node.Identity().Token().Reveal(), Log: slog.New(slog.DiscardHandler), ID: "w"}, cluster.RoleWorker, []string{node.Addr()})
	require.NoError(t, err)
	defer m.Close()
	require.ErrorContains(t, m.workForever(t.Context()), "configuration of run r")
}

func TestWorkersSpreadOverBases(t *testing.T) {
	keys := func() []string { return []string{"x", "y", "z"} }
	first := map[string]int{}
	for i := range 300 {
		w := fmt.Sprint("worker-", i)
		k := chooseBase(w, keys(), "")
		first[k]++
		require.Equal(t, k, chooseBase(w, []string{"z", "y", "x"}, ""), "whatever the order")
		seen := map[string]bool{k: true}
		for range 2 { // it turns to each of them in time
			k = chooseBase(w, keys(), k)
			seen[k] = true
		}
		require.Len(t, seen, 3)
	}
	for k, n := range first {
		require.Greater(t, n, 60, k)
	}
	require.Equal(t, "x", chooseBase("w", []string{"x"}, "gone"))
}
