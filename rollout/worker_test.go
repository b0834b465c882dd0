package rollout

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/agent/tool"
	"github.com/skein-rl/skein/eventlog"
	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/replay"
)

// baseModel has a shape but no weights: a scripted engine samples.
func baseModel() *model.Model {
	return &model.Model{Name: "none", Digest: "blake3:base", Config: model.Config{
		ModelType: "llama", VocabSize: 300, HiddenSize: 8, IntermediateSize: 16, NumHiddenLayers: 1,
		NumAttentionHeads: 2, NumKeyValueHeads: 1, HeadDim: 4,
	}}
}

// adapterOf is an adapter that acts: its B is not zero.
func adapterOf(t testing.TB, m *model.Model, seed uint64) *model.Adapter {
	t.Helper()
	a, err := model.NewAdapter(m.Config, model.LoRAConfig{Rank: 2, Alpha: 4, Targets: []string{"q_proj"}}, m.Digest, seed)
	require.NoError(t, err)
	for i := range a.Params {
		a.Params[i] += 0.1
	}
	return a
}

// taskSource makes every index the same echo task.
type taskSource struct {
	task func(table string, i uint64) (Task, error)
}

func (taskSource) Name() string                     { return "test" }
func (s taskSource) Train(i uint64) (Task, error)   { return s.task("train", i) }
func (s taskSource) Heldout(i uint64) (Task, error) { return s.task("eval", i) }
func (taskSource) HeldoutSize() int                 { return 0 }
func echoSource() taskSource {
	return taskSource{func(table string, i uint64) (Task, error) {
		t := echoTask()
		t.ID = fmt.Sprint(table, "/", i)
		return t, nil
	}}
}

// actingEngine answers the probe with logprobs that depend on the adapter.
func actingEngine(answer string) *scriptEngine {
	e := scripted(nil)
	e.script = func(_ int, req GenerateRequest) (Generation, error) {
		g := said(answer)
		if req.Session == "probe" {
			e.mu.Lock()
			if e.adapter != nil {
				g.Logprobs[0] -= 0.25
			}
			e.mu.Unlock()
		}
		return g, nil
	}
	return e
}

type bench struct {
	store  *fakeStore
	worker *Worker
	mu     sync.Mutex
	errs   []string
	cancel context.CancelFunc
	done   chan error
}

func startWorker(t *testing.T, s *fakeStore, e Engine, src Source, change func(*WorkerConfig, *LoopConfig)) *bench {
	t.Helper()
	cfg := DefaultWorkerConfig()
	cfg.Run, cfg.Name, cfg.Members, cfg.Seed = "r", "w1", 8, 11
	loop := DefaultLoopConfig()
	loop.MaxCompletionLength = 4096
	if change != nil {
		change(&cfg, &loop)
	}
	b := &bench{store: s, done: make(chan error, 1)}
	w, err := NewWorker(cfg, Parts{Store: s, Source: src, Engine: e, Chat: byteChat{}, Loop: loop, Base: baseModel()}, Hooks{
		Error: func(op string, err error) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.errs = append(b.errs, op+": "+err.Error())
		},
	})
	require.NoError(t, err)
	b.worker = w
	ctx, cancel := context.WithCancel(context.Background())
	b.cancel = cancel
	go func() { b.done <- w.Run(ctx) }()
	return b
}

func (b *bench) stop(t *testing.T) {
	t.Helper()
	b.cancel()
	require.NoError(t, <-b.done)
}

func (b *bench) errors() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Join(b.errs, "\n")
}

func TestWorkerRollsOutGroups(t *testing.T) {
	base := baseModel()
	s := newFakeStore(base, 4)
	s.ticket(replay.Ticket{Table: "train", Group: "a:b", Index: 5, Seed: 1})
	s.ticket(replay.Ticket{Table: "train", Group: "a:b:c", Index: 6, Seed: 2, Done: []uint32{0, 2}, Attempt: 2})
	e := actingEngine("hi")
	b := startWorker(t, s, e, echoSource(), nil)
	items := s.logs(6)
	b.stop(t)
	require.Len(t, items, 6)
	require.Equal(t, "", s.returned[0], "a starting worker gives back what its earlier life held")
	require.Len(t, s.returned, 1)
	for i, it := range items {
		group, member := "a:b", uint32(i)
		if i >= 4 {
			group, member = "a:b:c", []uint32{1, 3}[i-4]
		}
		require.Equal(t, group, it.Group, "group ids are opaque")
		require.Equal(t, member, it.Member)
		require.Equal(t, uint8(eventlog.OK), it.Status, it.Cause)
		require.Equal(t, 1.0, it.Reward)
		require.True(t, it.HasReward)
		require.Equal(t, uint32(3), it.Tokens)
		log, err := eventlog.Decode(s.bytes[it.LogID])
		require.NoError(t, err)
		require.Equal(t, it.Digest, log.Digest())
		require.Equal(t, it, ItemOf(log, len(s.bytes[it.LogID])))
	}
	require.Equal(t, "train/5", items[0].Task)
	require.Equal(t, uint32(2), items[4].Attempt)
	seeds := map[uint64]bool{}
	for _, r := range e.requests {
		if r.Session != "probe" {
			seeds[r.Sampling.Seed] = true
		}
	}
	require.Len(t, seeds, 6, "every member draws its own")
	require.Equal(t, memberSeed(11, 1, 0), memberSeed(11, 1, 0))
	h := b.worker.Snapshot()
	require.Equal(t, [3]uint64{6, 0, 6}, [3]uint64{h.Rollouts, h.Failed, h.Appended})
	require.Zero(t, h.Groups+h.Members)
}

// Cases rows "weight-sync" and "version": the worker serves and reports exactly
// the registry's adapter, stamps its version, and samples no older one.
func TestWorkerFollowsPolicies(t *testing.T) {
	base := baseModel()
	s := newFakeStore(base, 2)
	e := actingEngine("hi")
	b := startWorker(t, s, e, echoSource(), nil)
	for range 2 {
		s.publish(adapterOf(t, base, 1))
	}
	digest := s.publish(adapterOf(t, base, 3))
	s.ticket(replay.Ticket{Table: "train", Group: "g", Version: 3})
	items := s.logs(2)
	h := b.worker.Snapshot()
	require.Equal(t, uint64(3), h.Version)
	require.Equal(t, digest, h.Adapter)
	require.Equal(t, digest, e.adapter.Digest(), "what the engine holds is what the registry names")
	for _, it := range items {
		require.Equal(t, [2]uint64{3, 3}, [2]uint64{it.MinVersion, it.MaxVersion})
	}
	b.stop(t)
	require.Empty(t, b.errors())
}

// P6: a worker serves nothing it could not verify; it keeps the old policy,
// says why, and gives tickets back that demand the newer one.
func TestWorkerRefusesPoliciesItCannotVerify(t *testing.T) {
	base := baseModel()
	other := *base
	other.Digest = "blake3:other"
	for why, c := range map[string]struct {
		engine *scriptEngine
		damage func(s *fakeStore, digest string)
		make   func() *model.Adapter
		want   string
	}{
		"another blob under the digest": {actingEngine("hi"), func(s *fakeStore, d string) { s.blobs[d] = adapterOf(t, base, 9).Encode() }, nil, "refusing to serve it"},
		"another base":                  {actingEngine("hi"), nil, func() *model.Adapter { return adapterOf(t, &other, 1) }, "blake3:other"},
		"blob is lost":                  {actingEngine("hi"), func(s *fakeStore, d string) { delete(s.blobs, d) }, nil, "not found"},
		"the adapter has no effect":     {newProbeBlind(), nil, nil, "no effect"},
	} {
		t.Run(why, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newFakeStore(base, 2)
				b := startWorker(t, s, c.engine, echoSource(), nil)
				synctest.Wait()
				a := adapterOf(t, base, 1)
				if c.make != nil {
					a = c.make()
				}
				s.mu.Lock()
				digest := model.BlobDigest(a.Encode())
				s.blobs[digest] = a.Encode()
				if c.damage != nil {
					c.damage(s, digest)
				}
				s.mu.Unlock()
				s.edit(func() { s.policies = append(s.policies, replay.Policy{Run: "r", Version: 1, Adapter: digest}) })
				s.ticket(replay.Ticket{Table: "train", Group: "new", Version: 1})
				s.ticket(replay.Ticket{Table: "train", Group: "old", Version: 0})
				items := s.logs(2)
				require.Equal(t, "old", items[0].Group)
				time.Sleep(2 * time.Minute)
				require.Contains(t, b.errors(), c.want)
				require.Contains(t, b.errors(), "did not arrive before the group's deadline")
				require.Zero(t, b.worker.Snapshot().Version)
				require.Zero(t, c.engine.Version())
				require.NotEmpty(t, b.worker.Snapshot().LastError)
				b.stop(t)
				require.Contains(t, s.returned, "new")
				require.Len(t, s.items, 2)
			})
		})
	}
}

// newProbeBlind ignores every adapter it is given.
func newProbeBlind() *scriptEngine {
	return scripted(func(int, GenerateRequest) (Generation, error) { return said("hi"), nil })
}

func TestWorkerRefusesAnotherBase(t *testing.T) {
	s := newFakeStore(baseModel(), 2)
	s.spec.BaseDigest = "blake3:big"
	b := startWorker(t, s, actingEngine("hi"), echoSource(), nil)
	require.ErrorContains(t, <-b.done, "trains base blake3:big; the loaded model is blake3:base")
	b.cancel()
}

func TestWorkerEvaluatesAtExactlyTheVersion(t *testing.T) {
	base := baseModel()
	s := newFakeStore(base, 4)
	e := actingEngine("hi")
	for i := range uint64(3) {
		s.publish(adapterOf(t, base, i))
	}
	b := startWorker(t, s, e, echoSource(), nil)
	for v := range uint64(4) {
		s.ticket(replay.Ticket{Table: "eval", Group: strings.Repeat("e", int(v)+1), Index: v, Version: v, Greedy: true, GroupSize: 1})
	}
	s.ticket(replay.Ticket{Table: "train", Group: strings.Repeat("t", 9), Version: 3})
	items := s.logs(8)
	b.stop(t)
	require.Empty(t, b.errors())
	for v := range uint64(4) {
		it := items[v]
		require.Equal(t, uint8(eventlog.OK), it.Status, it.Cause)
		require.Equal(t, [2]uint64{v, v}, [2]uint64{it.MinVersion, it.MaxVersion})
		require.Equal(t, fmt.Sprint("eval/", v), it.Task)
	}
	for _, it := range items[4:] {
		require.Equal(t, uint64(3), it.MinVersion)
	}
	for _, r := range e.requests {
		if r.Version != nil && r.Session != "probe" {
			require.Zero(t, r.Sampling.Temperature)
		}
	}
}

// Cases row "straggler": a group of four, one of which never returns; the
// deadline closes it with a cause, the others are there at once, and nothing
// waits.
func TestStragglerDelaysNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore(baseModel(), 4)
		s.spec.TicketTTL = 40 * time.Second
		release := make(chan struct{})
		defer close(release)
		e := actingEngine("hi")
		answer := e.script
		var mu sync.Mutex
		first := true
		e.script = func(turn int, req GenerateRequest) (Generation, error) {
			mu.Lock()
			stuck := first && req.Session != "probe"
			first = first && !stuck
			mu.Unlock()
			if stuck {
				return said(call("echo", `{}`)), nil
			}
			if turn > 0 {
				return Generation{}, errors.New("unreachable")
			}
			return answer(turn, req)
		}
		src := taskSource{func(string, uint64) (Task, error) {
			task := echoTask()
			task.NewEnv = func() tool.Env {
				return envFunc(func(context.Context, tool.Call) (string, error) { <-release; return "", nil })
			}
			return task, nil
		}}
		b := startWorker(t, s, e, src, func(_ *WorkerConfig, l *LoopConfig) { l.ToolTimeout = time.Hour; l.RolloutTimeout = time.Hour })
		synctest.Wait()
		begin := time.Now()
		s.ticket(replay.Ticket{Table: "train", Group: "g"})
		s.logs(3)
		require.Less(t, time.Since(begin), time.Second)
		time.Sleep(39 * time.Second)
		items := s.logs(4)
		require.Len(t, items, 4)
		statuses := map[uint8]int{}
		for _, it := range items {
			statuses[it.Status]++
			if it.Status != uint8(eventlog.OK) {
				require.Equal(t, "group: deadline exceeded", it.Cause)
				require.False(t, it.HasReward)
			}
		}
		require.Equal(t, map[uint8]int{uint8(eventlog.OK): 3, uint8(eventlog.TimedOut): 1}, statuses)
		b.stop(t)
		require.NotContains(t, s.returned, "g", "a closed group is not given back")
	})
}

// A store whose clock is hours behind hands out tickets that seem long over;
// they live for TicketTTL here all the same.
func TestTicketsLiveByTheWorkersClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore(baseModel(), 2)
		e := actingEngine("hi")
		answer := e.script
		e.script = func(turn int, req GenerateRequest) (Generation, error) {
			if req.Session != "probe" {
				time.Sleep(10 * time.Second)
			}
			return answer(turn, req)
		}
		b := startWorker(t, s, e, echoSource(), nil)
		s.ticket(replay.Ticket{Table: "train", Group: "g", Expires: time.Now().Add(-3 * time.Hour)})
		items := s.logs(2)
		require.Len(t, items, 2)
		for _, it := range items {
			require.Equal(t, uint8(eventlog.OK), it.Status, it.Cause)
		}
		b.stop(t)
		require.NotContains(t, s.returned, "g")
	})
}

// yoyo is a store that hands a returned ticket out again at once.
type yoyo struct {
	*fakeStore
	t replay.Ticket
}

func (s *yoyo) ReturnTicket(ctx context.Context, run, group, worker string) error {
	if group != "" {
		s.ticket(s.t)
	}
	return s.fakeStore.ReturnTicket(ctx, run, group, worker)
}

// An evaluation whose adapter cannot be had goes back and comes again; that
// must not become a busy loop over the cluster.
func TestReturnedTicketsDoNotSpin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := baseModel()
		s := &yoyo{fakeStore: newFakeStore(base, 2)}
		delete(s.blobs, s.publish(adapterOf(t, base, 1)))
		s.publish(adapterOf(t, base, 2))
		s.t = replay.Ticket{Table: "eval", Group: "e", Version: 1, GroupSize: 1, Greedy: true}
		cfg := DefaultWorkerConfig()
		cfg.Run, cfg.Name, cfg.Members = "r", "w1", 8
		w, err := NewWorker(cfg, Parts{Store: s, Source: echoSource(), Engine: actingEngine("hi"), Chat: byteChat{}, Loop: DefaultLoopConfig(), Base: base}, Hooks{})
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		s.ticket(s.t)
		require.NoError(t, w.Run(ctx))
		n := len(s.returned)
		require.Greater(t, n, 10)
		require.Less(t, n, 70)
	})
}

// P7: what breaks is recorded with its cause, for every member, and the worker
// lives on.
func TestFailuresAreRecorded(t *testing.T) {
	s := newFakeStore(baseModel(), 2)
	src := taskSource{func(_ string, i uint64) (Task, error) {
		if i == 1 {
			return Task{}, errors.New("row 1 is damaged")
		}
		return echoTask(), nil
	}}
	calls := 0
	e := actingEngine("hi")
	answer := e.script
	var mu sync.Mutex
	e.script = func(turn int, req GenerateRequest) (Generation, error) {
		mu.Lock()
		defer mu.Unlock()
		if calls++; calls == 2 { // the first rollout after the probe
			return Generation{}, errors.New("engine: device lost")
		}
		return answer(turn, req)
	}
	b := startWorker(t, s, e, src, nil)
	s.ticket(replay.Ticket{Table: "train", Group: "g"})
	s.ticket(replay.Ticket{Table: "train", Group: "gg", Index: 1})
	s.ticket(replay.Ticket{Table: "other", Group: "ggg"})
	items := s.logs(6)
	b.stop(t)
	var causes []string
	for _, it := range items {
		causes = append(causes, it.Cause)
	}
	slices.Sort(causes[:2])
	require.Equal(t, []string{
		"", "no_model_calls: engine: device lost", "task: row 1 is damaged", "task: row 1 is damaged",
		`task: ticket of group ggg: unknown table "other"; want train or eval`, `task: ticket of group ggg: unknown table "other"; want train or eval`,
	}, causes)
	require.Equal(t, uint64(5), b.worker.Snapshot().Failed)
}

func TestAppendIsRetriedAndRejectionsAreNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore(baseModel(), 2)
		refusals := 3
		s.append = func(recs []replay.Record) ([]replay.AppendResult, error) {
			if refusals > 0 {
				refusals--
				return nil, replay.ErrDiskFull
			}
			for i, r := range recs {
				if r.Item.Group == "gg" && r.Item.Status == uint8(eventlog.OK) {
					out := make([]replay.AppendResult, len(recs))
					out[i].Rejected = "too large"
					return out, fmt.Errorf("%w: too large", replay.ErrInvalid)
				}
			}
			return nil, nil
		}
		b := startWorker(t, s, actingEngine("hi"), echoSource(), nil)
		s.ticket(replay.Ticket{Table: "train", Group: "g"})
		require.Len(t, s.logs(2), 2)
		require.Contains(t, b.errors(), "append: "+replay.ErrDiskFull.Error())
		s.ticket(replay.Ticket{Table: "train", Group: "gg", GroupSize: 1})
		items := s.logs(3) // the store's refusal is recorded instead
		require.Len(t, items, 3)
		require.Equal(t, uint8(eventlog.Failed), items[2].Status)
		require.Contains(t, items[2].Cause, "store: append log")
		require.Contains(t, items[2].Cause, "too large")
		require.Contains(t, b.errors(), "too large")
		require.Equal(t, uint64(1), b.worker.Snapshot().Rejected)
		b.stop(t)
		require.NotContains(t, s.returned, "gg")
	})
}

// A cause of any length and bytes, such as a panic's stack or a tool's binary
// output, is recorded: whole in the log, cut in the index.
func TestLongCausesAreRecorded(t *testing.T) {
	s := newFakeStore(baseModel(), 1)
	src := taskSource{func(_ string, i uint64) (Task, error) {
		if i == 0 { // the probe's
			return echoTask(), nil
		}
		return Task{}, errors.New("\xff" + strings.Repeat("goroutine 1 [running] ", 1000))
	}}
	b := startWorker(t, s, actingEngine("hi"), src, nil)
	s.ticket(replay.Ticket{Table: "train", Group: "g", Index: 1})
	items := s.logs(1)
	b.stop(t)
	require.Len(t, items, 1)
	require.NoError(t, items[0].Validate())
	require.Less(t, len(items[0].Cause), 2000)
	log, err := eventlog.Decode(s.bytes[items[0].LogID])
	require.NoError(t, err)
	require.Greater(t, len(log.Meta.Cause), 20000)
}

// While the store takes nothing the worker takes no more tickets: back-pressure
// instead of a growing queue. What outlives its use is counted as lost.
func TestFullStoreHoldsTheWorkerBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore(baseModel(), 2)
		s.append = func([]replay.Record) ([]replay.AppendResult, error) { return nil, replay.ErrUnavailable }
		b := startWorker(t, s, actingEngine("hi"), echoSource(), func(c *WorkerConfig, _ *LoopConfig) { c.Members = 4 })
		for i := range 9 {
			s.ticket(replay.Ticket{Table: "train", Group: fmt.Sprint(i)})
		}
		time.Sleep(10 * time.Second)
		require.Equal(t, 4, b.worker.Snapshot().Members)
		s.mu.Lock()
		require.Len(t, s.tickets, 7)
		s.mu.Unlock()
		time.Sleep(3 * time.Minute) // expiry and one more TicketTTL
		require.GreaterOrEqual(t, b.worker.Snapshot().Lost, uint64(4))
		b.stop(t)
	})
}

func TestDrainReturnsUnfinishedGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore(baseModel(), 2)
		e := &stallEngine{scriptEngine: actingEngine("hi"), from: 2, block: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }}
		b := startWorker(t, s, e, echoSource(), nil)
		s.ticket(replay.Ticket{Table: "train", Group: "g"})
		require.Len(t, s.logs(1), 1)
		synctest.Wait()
		begin := time.Now()
		b.stop(t)
		require.Zero(t, time.Since(begin), "nothing to wait for")
		require.Equal(t, []string{"", "g"}, s.returned)
		require.Len(t, s.items, 1, "the finished member stays")
	})
}

func TestWorkerEndsWithItsRun(t *testing.T) {
	s := newFakeStore(baseModel(), 2)
	b := startWorker(t, s, actingEngine("hi"), echoSource(), func(c *WorkerConfig, _ *LoopConfig) { c.TakeWait = time.Millisecond })
	s.edit(func() { s.finished = true })
	require.NoError(t, <-b.done)
	b.cancel()
}

func TestHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore(baseModel(), 2)
		cfg := DefaultWorkerConfig()
		cfg.Run, cfg.Name, cfg.Members = "r", "w", 2
		beats := make(chan Heartbeat, 100)
		w, err := NewWorker(cfg, Parts{Store: s, Source: echoSource(), Engine: actingEngine("hi"), Chat: byteChat{}, Loop: DefaultLoopConfig(), Base: baseModel()},
			Hooks{Heartbeat: func(h Heartbeat) { beats <- h }})
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 3500*time.Millisecond)
		defer cancel()
		require.NoError(t, w.Run(ctx))
		require.Len(t, beats, 3)
		h := <-beats
		require.Equal(t, "w", h.Worker)
		require.Equal(t, "r", h.Run)
	})
}

func TestWorkerConfigReportsEveryProblem(t *testing.T) {
	err := WorkerConfig{}.Validate()
	for _, f := range []string{"Run", "Name", "Members", "TakeWait", "PolicyWait", "CallTimeout", "AppendMargin", "DrainTimeout", "Heartbeat"} {
		require.ErrorContains(t, err, f)
	}
	cfg := DefaultWorkerConfig()
	cfg.Run, cfg.Name, cfg.Members = "r", "w", 1
	require.NoError(t, cfg.Validate())
	_, err = NewWorker(cfg, Parts{}, Hooks{})
	require.ErrorContains(t, err, "a part is missing")
}
