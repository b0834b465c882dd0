package learner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/skein-rl/skein/model"
)

// pipe is both ends of a channel in memory.
type pipe struct {
	out, in chan []byte
	once    *sync.Once
	gone    chan struct{} // closed by either end
	limit   *atomic.Int64 // messages left before it breaks
}

func newPipe(limit int64) (a, b *pipe) {
	x, y, gone := make(chan []byte, 1), make(chan []byte, 1), make(chan struct{})
	left := &atomic.Int64{}
	left.Store(limit)
	once := &sync.Once{}
	return &pipe{x, y, once, gone, left}, &pipe{y, x, once, gone, left}
}

func (p *pipe) Send(msg []byte) error {
	if p.limit.Add(-1) < 0 {
		_ = p.Close()
	}
	select {
	case <-p.gone:
		return errors.New("broken pipe")
	default:
	}
	select {
	case p.out <- msg:
		return nil
	case <-p.gone:
		return errors.New("broken pipe")
	}
}

func (p *pipe) Recv() ([]byte, error) {
	select {
	case m := <-p.in:
		return m, nil
	case <-p.gone:
		return nil, io.EOF
	}
}

func (p *pipe) Close() error {
	p.once.Do(func() { close(p.gone) })
	return nil
}

// lend makes another learner of the same run help l; after limit messages the
// channel breaks.
func lend(t testing.TB, l *Learner, c Config, start []float32, limit int64) *Lender {
	t.Helper()
	other, _ := newLearner(t, c, start)
	lender := other.Lend("table")
	enlisted(t, l, lender, limit)
	return lender
}

func enlisted(t testing.TB, l *Learner, lender *Lender, limit int64) {
	t.Helper()
	mine, theirs := newPipe(limit)
	var wg sync.WaitGroup
	wg.Go(func() { _ = lender.Serve(context.Background(), theirs) })
	t.Cleanup(func() { _ = mine.Close(); wg.Wait() })
	h, err := connect(t.Context(), fmt.Sprint("h", len(l.helpers)), mine, l.Lend("table").hello)
	require.NoError(t, err)
	l.helpers = append(l.helpers, h)
}

// manyGroups pack into several micro-batches.
func manyGroups(t testing.TB, n int) (out []Group) {
	for i := range n {
		g := Group{ID: fmt.Sprint("g", i), Index: uint64(i)}
		for m, rw := range []float64{1, 0, float64(i) / 10} {
			g.Logs = append(g.Logs, entry{group: g.ID, member: uint32(m), size: 3, parts: []part{pol(0, int32(3+i%3), int32(m), 5)}, reward: r(rw)}.log(t))
		}
		out = append(out, g)
	}
	return out
}

func sameResult(t testing.TB, want, got StepResult) {
	t.Helper()
	for k, v := range want.Metrics {
		if !strings.HasPrefix(k, "time/") {
			require.Equal(t, v, got.Metrics[k], k)
		}
	}
}

// A step gives the same bits whoever computes its micro-batches, and whenever a
// helper breaks.
func TestHelpersChangeNoBit(t *testing.T) {
	grpo, ppo := small(3), ppoConfig(3)
	grpo.TokenBudget, grpo.Beta, grpo.NumIterations = 4, .1, 2
	ppo.TokenBudget, ppo.NumIterations, ppo.NumMiniBatches = 4, 2, 2
	online := DefaultOnlineConfig(OnlineDPO)
	online.NumGenerations, online.GroupsPerStep, online.TokenBudget, online.LearningRate = 3, 2, 1, .1
	bco := DefaultOnlineConfig(OnlineBCO) // whose loss sees the whole step first
	bco.NumGenerations, bco.GroupsPerStep, bco.TokenBudget, bco.LearningRate = 3, 2, 1, .1
	for _, c := range []Config{grpo, ppo, online, bco} {
		t.Run(c.Algorithm, func(t *testing.T) { helpersChangeNoBit(t, c) })
	}
}

func helpersChangeNoBit(t *testing.T, c Config) {
	start := noisy(5)
	alone, _ := newLearner(t, c, start)
	groups := manyGroups(t, 6)
	want := [...]StepResult{step(t, alone, groups...), {}}
	second := manyGroups(t, 6)
	want[1] = step(t, alone, second...)
	rapid.Check(t, func(rt *rapid.T) {
		l, _ := newLearner(t, c, start)
		for range rapid.IntRange(1, 3).Draw(rt, "helpers") {
			lend(t, l, c, start, rapid.Int64Range(2, 60).Draw(rt, "messages"))
		}
		sameResult(t, want[0], step(t, l, groups...))
		sameResult(t, want[1], step(t, l, second...))
		require.Equal(t, alone.Params(), l.Params())
		require.Equal(t, alone.CriticParams(), l.CriticParams())
	})
}

// waiting is an own trainer that does not begin before a helper is done once.
type waiting struct {
	model.Trainer
	until <-chan struct{}
}

func (w waiting) Forward(ctx context.Context, g []model.PrefixGroup, temp float64) (model.Scores, error) {
	select {
	case <-w.until:
		return w.Trainer.Forward(ctx, g, temp)
	case <-time.After(10 * time.Second):
		return model.Scores{}, errors.New("no helper was dealt anything")
	}
}

// telling is a helper's trainer that says when it has made a gradient.
type telling struct {
	model.Trainer
	done func()
}

func (h telling) Grad() []float32 {
	h.done()
	return h.Trainer.Grad()
}

func TestHelpersCompute(t *testing.T) {
	c := small(3)
	c.TokenBudget = 4
	l, b := newLearner(t, c, nil)
	until := make(chan struct{})
	l.tr = waiting{b, until}
	other, ob := newLearner(t, c, nil)
	other.tr = telling{ob, sync.OnceFunc(func() { close(until) })}
	enlisted(t, l, other.Lend("table"), 1<<40)
	res := step(t, l, manyGroups(t, 6)...)
	require.Positive(t, res.Metrics["time/helped_micro_batches"])
	require.Equal(t, 1., res.Metrics["time/helpers"])
}

// A critic's micro-batches are dealt like the policy's.
func TestHelpersComputeTheCritic(t *testing.T) {
	c := ppoConfig(3)
	c.TokenBudget, c.CriticWarmup = 4, 10 // the critic alone is trained
	l, _ := newLearner(t, c, nil)
	until := make(chan struct{})
	l.critic.tr = waiting{l.critic.tr, until}
	other, _ := newLearner(t, c, nil)
	other.critic.tr = telling{other.critic.tr, sync.OnceFunc(func() { close(until) })}
	enlisted(t, l, other.Lend("table"), 1<<40)
	res := step(t, l, manyGroups(t, 6)...)
	require.Positive(t, res.Metrics["time/helped_micro_batches"])
	require.Positive(t, res.Metrics["critic/grad_norm"])
}

// A learner without a critic cannot help one that has one.
func TestHelperWithoutCritic(t *testing.T) {
	l, _ := newLearner(t, ppoConfig(3), nil)
	other, _ := newLearner(t, small(3), nil)
	mine, theirs := newPipe(1 << 40)
	served := make(chan error, 1)
	go func() { served <- other.Lend("table").Serve(context.Background(), theirs) }()
	_, err := connect(t.Context(), "h", mine, l.Lend("table").hello)
	require.ErrorContains(t, err, "cannot help")
	require.Error(t, <-served)
	// Nor does it know a critic's place when a message names it.
	s := &session{l: other.Lend("table"), guest: 1}
	s.l.guest = 1
	require.ErrorContains(t, s.answer(t.Context(), &message{Op: opParams, Place: placeCritic, Vector: 1, vectors: [][]float32{{1}}}, &message{}), "place 2")
	require.ErrorContains(t, s.answer(t.Context(), &message{Op: opGradient, vectors: scoreVectors(model.Scores{})}, &message{}), "without a forward pass")
	require.ErrorContains(t, s.answer(t.Context(), &message{Op: opGradient}, &message{}), "0 vectors")
}

func TestHelperRefuses(t *testing.T) {
	c := small(3)
	l, _ := newLearner(t, c, nil)
	other, _ := newLearner(t, c, nil)
	lender := other.Lend("another kind")
	mine, theirs := newPipe(1 << 40)
	served := make(chan error, 1)
	go func() { served <- lender.Serve(context.Background(), theirs) }()
	_, err := connect(t.Context(), "h", mine, l.Lend("table").hello)
	require.ErrorIs(t, err, errHelperLost)
	require.ErrorContains(t, err, "another kind")
	require.ErrorContains(t, <-served, "another kind")
}

// While the own learner trains, and when a newer guest has come, a lender's
// trainer is not a guest's; what it was dealt is computed by the others.
func TestLenderKeepsItsTrainer(t *testing.T) {
	c := small(3)
	c.TokenBudget = 4
	l, _ := newLearner(t, c, nil)
	lender := lend(t, l, c, nil, 1<<40)
	ask := func(l *Learner) error {
		return l.helpers[0].give(t.Context(), l.numbered(placePolicy, l.params))
	}
	require.NoError(t, ask(l))
	give := lender.take()
	require.ErrorContains(t, ask(l), "in use")
	step(t, l, manyGroups(t, 4)...)
	require.True(t, l.helpers[0].lost())
	give()

	newer, _ := newLearner(t, c, nil)
	l.helpers = nil
	enlisted(t, l, lender, 1<<40)
	enlisted(t, newer, lender, 1<<40)
	require.ErrorIs(t, ask(l), errHelperLost)
	require.NoError(t, ask(newer))
	lender.Close()
	require.ErrorIs(t, ask(newer), errHelperLost)
}

// A helper that does not answer is given up when its time is over.
func TestHelperTimesOut(t *testing.T) {
	mine, _ := newPipe(1 << 40)
	h := &helper{id: "h", ch: mine}
	ctx, done := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer done()
	_, err := h.forward(ctx, nil, 1, &paramVector{id: 1, data: []float32{1}})
	require.ErrorIs(t, err, errHelperLost)
	require.True(t, h.lost())
}

func TestQueue(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	q := newQueue(ctx, 3)
	take := func(want int) {
		k, ok := q.take()
		require.True(t, ok)
		require.Equal(t, want, k)
	}
	require.Equal(t, helpFirst, q.limit())
	take(0)
	take(1)
	q.back(0)
	take(0)
	q.took(time.Second)
	require.Equal(t, helpSlack+helpFactor*time.Second, q.limit())
	q.done()
	q.done()
	take(2)
	// The last is out: whoever asks waits, for it may come back.
	got := make(chan bool)
	go func() { _, ok := q.take(); got <- ok }()
	q.done()
	require.False(t, <-got)
	require.NoError(t, q.err())

	q = newQueue(ctx, 2)
	take(0)
	q.fail(ErrDiverged)
	_, ok := q.take()
	require.False(t, ok)
	require.ErrorIs(t, q.err(), ErrDiverged)

	q = newQueue(ctx, 1)
	take(0)
	go func() { _, ok := q.take(); got <- ok }()
	stop()
	require.False(t, <-got)
	require.ErrorIs(t, q.err(), context.Canceled)
}

// The sum's bits are those of adding in order.
func TestGradSumOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	grads := make([][]float32, 9)
	want := make([]float32, 5)
	for k := range grads {
		grads[k] = make([]float32, 5)
		for i := range grads[k] {
			grads[k][i] = float32(rng.NormFloat64())
			want[i] += grads[k][i]
		}
	}
	for range 20 {
		g := newGradSum(5)
		for _, k := range rng.Perm(len(grads)) {
			g.add(k, grads[k])
		}
		require.Equal(t, want, g.sum)
		require.Empty(t, g.early)
	}
}

func TestMessage(t *testing.T) {
	m := &message{Op: opForward, Vector: 3, Place: 1, Temperature: .7, Groups: []model.PrefixGroup{{Prompt: []int32{1}, Members: []model.Sequence{{Tokens: []int32{2}, Train: []bool{true}}}}},
		vectors: [][]float32{{1, 2.5}, nil, {}}}
	raw, err := m.encode()
	require.NoError(t, err)
	got, err := decodeMessage(raw)
	require.NoError(t, err)
	require.Equal(t, m, got)
	for n := range raw {
		_, err := decodeMessage(raw[:n])
		require.ErrorIs(t, err, errMessage)
	}
	_, err = decodeMessage(append(raw, 0))
	require.ErrorIs(t, err, errMessage)
}

func FuzzMessage(f *testing.F) {
	for _, m := range []*message{{Op: opHello, Hello: &Hello{Run: "r"}}, {Op: opGradient, vectors: [][]float32{{1}, nil}}} {
		raw, err := m.encode()
		require.NoError(f, err)
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		m, err := decodeMessage(raw)
		if err != nil {
			return
		}
		again, err := m.encode()
		require.NoError(t, err)
		_, err = decodeMessage(again)
		require.NoError(t, err)
	})
}
