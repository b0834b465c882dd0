package learner

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/eventlog"
	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/replay"
)

const (
	vocab = 6
	run   = "r"
	base  = "blake3:base"
)

func lora() model.LoRAConfig {
	return model.LoRAConfig{Rank: 1, Alpha: 1, Targets: []string{"q_proj"}}
}

func identity() Identity {
	return Identity{Run: run, Base: base, LoRA: lora(), Dataset: Dataset{Name: "toy", Digest: "d1"}}
}

// small is a GRPO configuration for groups of g.
func small(g int) Config {
	c := DefaultConfig()
	c.NumGenerations, c.GroupsPerStep, c.MaxSteps, c.LearningRate, c.LRSchedulerType = g, 2, 20, .1, "constant"
	c.RolloutImportanceSampling = false
	return c
}

func newLearner(t testing.TB, c Config, start []float32) (*Learner, *bandit) {
	t.Helper()
	b := newBandit(vocab)
	if start == nil {
		start = make([]float32, vocab*vocab)
	}
	ident := identity()
	var l *Learner
	var err error
	if c.Algorithm == PPO {
		shape := lora()
		ident.Critic = &shape
		l, err = NewPPO(c, ident, b, start, Critic{Trainer: newTable(vocab), Start: make([]float32, vocab)})
	} else {
		l, err = New(c, ident, b, start)
	}
	require.NoError(t, err)
	return l, b
}

// part is a run of tokens of one writer.
type part struct {
	writer  eventlog.Writer
	ids     []int32
	lps     []float32 // policy: default -1 each
	version uint64
}

func pol(version uint64, ids ...int32) part {
	return part{writer: eventlog.Policy, ids: ids, version: version}
}
func env(ids ...int32) part { return part{writer: eventlog.Environment, ids: ids} }

// entry describes one log.
type entry struct {
	group   string
	member  uint32
	size    uint32
	prompt  []int32
	parts   []part
	reward  *float64
	parts2  map[string]any // reward components
	status  eventlog.Status
	cause   string
	attempt uint32
	judged  map[int]eventlog.Event // rewards of steps and turns, after parts
}

func r(x float64) *float64 { return &x }

func (e entry) log(t testing.TB) *eventlog.Log {
	t.Helper()
	if e.status == eventlog.StatusUnknown {
		e.status = eventlog.OK
	}
	if e.prompt == nil {
		e.prompt = []int32{1, 2}
	}
	b := eventlog.NewBuilder(eventlog.Meta{Run: run, Group: e.group, Member: e.member, GroupSize: e.size, Table: "train", Source: "toy", Task: "t", Attempt: e.attempt, Worker: "w"})
	b.SetTier(eventlog.Full)
	sp, err := b.AppendTokens(0, e.prompt, nil, eventlog.Prompt, 0)
	require.NoError(t, err)
	_, err = b.Append(eventlog.NewObservation("env", "task").In(0, sp))
	require.NoError(t, err)
	for k, p := range e.parts {
		if p.writer == eventlog.Policy && p.lps == nil {
			for range p.ids {
				p.lps = append(p.lps, -1)
			}
		}
		sp, err := b.AppendTokens(0, p.ids, p.lps, p.writer, p.version)
		require.NoError(t, err)
		if p.writer == eventlog.Policy {
			_, err = b.Append(eventlog.NewText("x").In(0, sp))
		} else {
			_, err = b.Append(eventlog.NewObservation("env", "y").In(0, sp))
		}
		require.NoError(t, err)
		if ev, ok := e.judged[k]; ok {
			_, err = b.Append(ev)
			require.NoError(t, err)
		}
	}
	if e.reward != nil {
		ev := eventlog.NewReward(eventlog.EpisodeScope, *e.reward)
		if e.parts2 != nil {
			ev.Payload["components"] = e.parts2
		}
		_, err := b.Append(ev)
		require.NoError(t, err)
	}
	l, err := b.Finish(e.status, e.cause)
	require.NoError(t, err)
	return l
}

// group makes a whole group: one log per reward, each with the parts given.
func group(t testing.TB, id string, index uint64, parts []part, rewards ...*float64) Group {
	g := Group{ID: id, Index: index}
	for m, rw := range rewards {
		g.Logs = append(g.Logs, entry{group: id, member: uint32(m), size: uint32(len(rewards)), parts: parts, reward: rw}.log(t))
	}
	return g
}

// sampled makes groups from a bandit policy: reward = share of token 3.
func sampled(t testing.TB, params []float32, version uint64, seed uint64, ids ...string) []Group {
	var out []Group
	for i, id := range ids {
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		g := Group{ID: id, Index: uint64(i)}
		for m := range uint32(4) {
			g.Logs = append(g.Logs, rollout(t, rng, params, version, id, m, 4))
		}
		out = append(out, g)
	}
	return out
}

func rollout(t testing.TB, rng *rand.Rand, params []float32, version uint64, id string, m, size uint32) *eventlog.Log {
	prompt := []int32{1, int32(2 + rng.IntN(2))}
	n := 2 + rng.IntN(4)
	ids, lps := sample(rng, params, vocab, prompt[1], n, 1)
	hits := 0.0
	for _, x := range ids {
		if x == 3 {
			hits++
		}
	}
	half := n / 2
	parts := []part{{eventlog.Policy, ids[:half], lps[:half], version}, {eventlog.Policy, ids[half:], lps[half:], version}}
	if half == 0 {
		parts = parts[1:]
	}
	return entry{group: id, member: m, size: size, prompt: prompt, parts: parts, reward: r(hits / float64(n))}.log(t)
}

// foldStore is replay's real fold over memory, with blobs and payloads beside
// it and faults to inject.
type foldStore struct {
	t     testing.TB
	mu    sync.Mutex
	kv    replay.KV
	blobs map[string][]byte
	bytes map[string][]byte
	fault func(op string) error // before an operation; nil error = go on
	after func(op string) error // after it was done: a lost answer
	calls map[string]int
	evals []replay.EvalRequest
}

func newFoldStore(t testing.TB, c Config) *foldStore {
	s := &foldStore{t: t, kv: replay.NewMemKV(), blobs: map[string][]byte{}, bytes: map[string][]byte{}, calls: map[string]int{}}
	s.must(replay.CreateRunCmd{Now: time.Now(), Spec: replay.RunSpec{Run: run, GroupSize: uint32(c.NumGenerations), GroupsPerStep: uint32(c.GroupsPerStep),
		MaxStaleness: c.MaxStaleness, TicketTTL: time.Hour, MaxAttempts: 1, BaseDigest: base}})
	return s
}

func (s *foldStore) must(cmd replay.Command) replay.Result {
	s.t.Helper()
	res, err := replay.Apply(s.kv, cmd)
	require.NoError(s.t, err)
	require.NoError(s.t, res.Err)
	return res
}

// do runs one operation with its faults.
func (s *foldStore) do(ctx context.Context, op string, f func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls[op]++
	if s.fault != nil {
		if err := s.fault(op); err != nil {
			return err
		}
	}
	if err := f(); err != nil {
		return err
	}
	if s.after != nil {
		return s.after(op)
	}
	return nil
}

func (s *foldStore) apply(ctx context.Context, op string, cmd replay.Command) (res replay.Result, err error) {
	err = s.do(ctx, op, func() error {
		var err error
		if res, err = replay.Apply(s.kv, cmd); err != nil {
			return err
		}
		return res.Err
	})
	return res, err
}

func (s *foldStore) Status(ctx context.Context, name string) (st replay.RunStatus, err error) {
	err = s.do(ctx, "status", func() (err error) { st, err = replay.Status(s.kv, name); return err })
	return st, err
}

func (s *foldStore) Lease(ctx context.Context, q replay.LeaseRequest) (*replay.Lease, error) {
	end := time.Now().Add(q.Wait)
	for {
		res, err := s.apply(ctx, "lease", replay.AcquireLeaseCmd{Now: time.Now(), Request: q})
		if err != nil || res.Lease != nil || !time.Now().Before(end) {
			return res.Lease, err
		}
		if err := sleep(ctx, time.Second); err != nil {
			return nil, err
		}
	}
}

func (s *foldStore) Extend(ctx context.Context, name string, lease uint64, ttl time.Duration) error {
	_, err := s.apply(ctx, "extend", replay.ExtendLeaseCmd{Now: time.Now(), Run: name, Lease: lease, TTL: ttl})
	return err
}

func (s *foldStore) Release(ctx context.Context, name string, lease uint64, drop string) error {
	_, err := s.apply(ctx, "release", replay.ReleaseLeaseCmd{Now: time.Now(), Run: name, Lease: lease, Drop: drop})
	return err
}

func (s *foldStore) Commit(ctx context.Context, step replay.StepRecord) error {
	_, err := s.apply(ctx, "commit", replay.CommitStepCmd{Now: time.Now(), Step: step})
	return err
}

func (s *foldStore) Fetch(ctx context.Context, ids []string) (recs []replay.Record, err error) {
	err = s.do(ctx, "fetch", func() error {
		items, err := replay.Items(s.kv, ids)
		for _, it := range items {
			recs = append(recs, replay.Record{Item: it, Bytes: s.bytes[it.LogID]})
		}
		return err
	})
	return recs, err
}

func (s *foldStore) PutBlob(ctx context.Context, data []byte) (d string, err error) {
	err = s.do(ctx, "putblob", func() error {
		d = model.BlobDigest(data)
		s.blobs[d] = data
		return nil
	})
	return d, err
}

func (s *foldStore) GetBlob(ctx context.Context, d string) (data []byte, err error) {
	err = s.do(ctx, "getblob", func() error {
		var ok bool
		if data, ok = s.blobs[d]; !ok {
			return fmt.Errorf("%w: blob %s", replay.ErrNotFound, d)
		}
		return nil
	})
	return data, err
}

func (s *foldStore) Step(ctx context.Context, name string, n uint64) (rec replay.StepRecord, err error) {
	err = s.do(ctx, "step", func() (err error) { rec, err = replay.Step(s.kv, name, n); return err })
	return rec, err
}

func (s *foldStore) RequestEval(ctx context.Context, q replay.EvalRequest) error {
	return s.do(ctx, "eval", func() error { s.evals = append(s.evals, q); return nil })
}

// append stores logs as workers do.
func (s *foldStore) append(logs ...*eventlog.Log) {
	s.t.Helper()
	var items []replay.Item
	for _, l := range logs {
		data, err := eventlog.Encode(l)
		require.NoError(s.t, err)
		lo, hi, n := l.PolicyVersions()
		rw, ok := l.EpisodeReward()
		m := l.Meta
		items = append(items, replay.Item{LogID: l.ID, Run: m.Run, Table: m.Table, Group: m.Group, Member: m.Member, GroupSize: m.GroupSize, Source: m.Source, Task: m.Task,
			Attempt: m.Attempt, Worker: m.Worker, Status: uint8(m.Status), Cause: m.Cause, MinVersion: lo, MaxVersion: hi, Tokens: uint32(n), Reward: rw, HasReward: ok,
			Digest: l.Digest(), Size: uint32(len(data)), Created: time.Now()})
		s.mu.Lock()
		s.bytes[l.ID] = data
		s.mu.Unlock()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.must(replay.AppendItemsCmd{Now: time.Now(), Items: items})
}

// tickets takes up to n groups to roll out.
func (s *foldStore) tickets(n int) []replay.Ticket {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.must(replay.TakeTicketsCmd{Now: time.Now(), Run: run, Worker: "w", N: n}).Tickets
}

// work rolls out up to n groups with the adapter of the ticket's version and
// returns their ids.
func (s *foldStore) work(n int) []string {
	s.t.Helper()
	var ids []string
	for _, tk := range s.tickets(n) {
		s.mu.Lock()
		p, err := replay.PolicyAt(s.kv, run, tk.Version)
		require.NoError(s.t, err)
		params := make([]float32, vocab*vocab)
		if p.Adapter != "" {
			a, err := model.DecodeAdapter(s.blobs[p.Adapter])
			require.NoError(s.t, err)
			params = a.Params
		}
		s.mu.Unlock()
		rng := rand.New(rand.NewPCG(tk.Seed, tk.Index))
		var logs []*eventlog.Log
		for m := range tk.GroupSize {
			logs = append(logs, rollout(s.t, rng, params, tk.Version, tk.Group, m, tk.GroupSize))
		}
		s.append(logs...)
		ids = append(ids, tk.Group)
	}
	return ids
}

var errInjected = errors.New("injected")
