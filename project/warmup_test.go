package project

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/cluster"
	"github.com/skein-rl/skein/eventlog"
	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/project/supervised"
	"github.com/skein-rl/skein/replay"
	"github.com/skein-rl/skein/rollout"
)

// tinyWarmup is a run whose warm-up takes a second.
func tinyWarmup() Config {
	c := DefaultConfig()
	c.Warmup.Examples, c.Eval.Tasks, c.Rollout.Slots = 4, 2, 4
	c.LoRA.Rank, c.Training.MaxCompletionLength = 2, 64
	c.Limits.MaxIdle = time.Minute
	return c
}

func openTest(t *testing.T, c Config, dir string) (*parts, replay.Store) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	p, err := openParts(c, log)
	require.NoError(t, err)
	node, err := cluster.OpenLocal(localNode(dir, log))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, errors.Join(node.Close(), p.Close())) })
	return p, node.Store()
}

// teller calls seen with every line of progress.
type teller func(line string)

func (f teller) Write(b []byte) (int, error) {
	f(string(b))
	return len(b), nil
}

// A warm-up that is stopped at its end, and again and again, goes on to a run
// that starts from its adapter and a base run that is evaluated and finished.
func TestWarmupIsEnteredAgain(t *testing.T) {
	dir := t.TempDir()
	p, st := openTest(t, tinyWarmup(), dir)
	opt := LocalOptions{Dir: dir, Log: slog.New(slog.DiscardHandler)}
	for range 2 {
		ctx, cancel := context.WithCancel(t.Context())
		opt.Progress = teller(func(line string) {
			if strings.Contains(line, "warm-up done") {
				cancel()
			}
		})
		require.ErrorIs(t, p.prepareLocal(ctx, st, opt), context.Canceled)
		_, err := st.Status(t.Context(), "run")
		require.ErrorIs(t, err, replay.ErrNotFound)
	}
	opt.Progress = teller(func(string) {})
	for range 2 {
		require.NoError(t, p.prepareLocal(t.Context(), st, opt))
	}
	s, err := st.Status(t.Context(), "run")
	require.NoError(t, err)
	require.NotEmpty(t, s.Spec.StartAdapter)
	a, err := p.startAdapter(t.Context(), st, s.Spec)
	require.NoError(t, err)
	require.Equal(t, s.Spec.StartAdapter, a.Digest())
	base, err := st.Status(t.Context(), BaseRun("run"))
	require.NoError(t, err)
	require.True(t, base.Finished)
	e, err := st.EvalStatus(t.Context(), BaseRun("run"), 0)
	require.NoError(t, err)
	require.Equal(t, 2, e.Done)
	// What the start adapter was trained on stands in the store, once.
	items, _, err := st.Scan(t.Context(), BaseRun("run"), rollout.TableDemonstrations, "", 1000)
	require.NoError(t, err)
	require.Len(t, items, p.cfg.Warmup.Examples)
	recs, err := st.Fetch(t.Context(), []string{items[0].LogID})
	require.NoError(t, err)
	l, err := eventlog.Decode(recs[0].Bytes)
	require.NoError(t, err)
	_, err = supervised.Row(l)
	require.NoError(t, err)
}

// noDecoder is a backend on which nothing can be rolled out.
type noDecoder struct{ model.Backend }

var errNoDecoder = errors.New("no memory for a cache")

func (noDecoder) NewDecoder(model.DecoderConfig) (model.Decoder, error) { return nil, errNoDecoder }

// A worker that cannot evaluate the base model ends the warm-up, which would
// wait for it otherwise.
func TestWarmupEndsWithItsWorkersError(t *testing.T) {
	dir := t.TempDir()
	p, st := openTest(t, tinyWarmup(), dir)
	p.backend = noDecoder{p.backend}
	err := p.prepareLocal(t.Context(), st, LocalOptions{Dir: dir, Log: slog.New(slog.DiscardHandler), Progress: teller(func(string) {})})
	require.ErrorIs(t, err, errNoDecoder)
}

// evals is a store with one evaluation.
type evals struct {
	replay.Store
	mu    sync.Mutex
	asked int
	state replay.EvalStatus
	err   error
}

func (s *evals) RequestEval(_ context.Context, q replay.EvalRequest) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	s.state.Requested = int(q.Count)
	return s.err
}

func (s *evals) EvalStatus(context.Context, string, uint64) (replay.EvalStatus, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.asked == 0 {
		return s.state, replay.ErrNotFound
	}
	return s.state, s.err
}

// A learner that died between its last commit and its asking for the evaluation
// leaves that to whoever finishes the run.
func TestEvaluateAsksAndEnds(t *testing.T) {
	c := DefaultConfig()
	c.Eval.Tasks = 3
	synctest.Test(t, func(t *testing.T) {
		st := &evals{}
		go func() {
			for range 3 { // each within the bound, all together beyond it
				time.Sleep(c.Limits.MaxIdle - time.Minute)
				st.mu.Lock()
				st.state.Done++
				st.mu.Unlock()
			}
		}()
		require.NoError(t, evaluate(t.Context(), st, "r", 7, c))
		require.Equal(t, 1, st.asked)
	})
	for _, err := range []error{nil, fmt.Errorf("%w: no leader", replay.ErrUnavailable)} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			got := evaluate(t.Context(), &evals{err: err}, "r", 7, c)
			require.ErrorIs(t, got, ErrNotEvaluated)
			require.ErrorContains(t, got, "version 7 of run r: 0 of 3 tasks done")
			require.Equal(t, ExitVerdict, ExitStatus(got))
			require.Less(t, time.Since(began), c.Limits.MaxIdle+time.Second)
		})
	}
}

// runs is a store of unfinished runs.
type runs struct {
	replay.Store
	names []string
	over  map[string]bool
}

func (s runs) Runs(context.Context) ([]string, error) { return s.names, nil }

func (s runs) Status(_ context.Context, run string) (replay.RunStatus, error) {
	return replay.RunStatus{Spec: replay.RunSpec{Run: run}, Finished: s.over[run]}, nil
}

// A learner trains its own run before others of the cluster, and never a base
// run, which workers do evaluate.
func TestRunsAreChosenByRole(t *testing.T) {
	own := DefaultConfig()
	own.Run = "own"
	for _, c := range []struct {
		kind   string
		config *Config
		runs   string
		want   string
	}{
		{cluster.RoleLearner, &own, "another own own-base", "own"},
		{cluster.RoleLearner, &own, "another", "another"},
		{cluster.RoleLearner, nil, "another own", "another"},
		{cluster.RoleLearner, nil, "own-base", ""},
		{cluster.RoleLearner, nil, "over own", "own"},
	} {
		m := &member{kind: c.kind, opt: NodeOptions{Config: c.config}}
		spec, ok, err := openRun(t.Context(), runs{names: strings.Fields(c.runs), over: map[string]bool{"over": true}}, m.wants)
		require.NoError(t, err)
		require.Equal(t, c.want != "", ok)
		require.Equal(t, c.want, spec.Run, c.runs)
	}
}
