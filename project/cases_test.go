package project

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/actors"
	"github.com/skein-rl/skein/learner"
	"github.com/skein-rl/skein/learner/watch"
	"github.com/skein-rl/skein/model"
	"github.com/skein-rl/skein/replay"
)

// cases/training.tsv fallback: "GPU reward model silently runs on CPU": a device
// that is not there is an error at start, whatever this binary was built with,
// and never another backend; the run's summary names the one that computed.
func TestCaseFallbackAMissingDeviceIsAnError(t *testing.T) {
	t.Setenv("PJRT_PLUGIN_LIBRARY_PATH", t.TempDir())
	m, err := OpenModel(EmbeddedTiny)
	require.NoError(t, err)
	for _, backend := range []string{"xla:cuda", "xla:cpu", "gpu"} {
		c := DefaultConfig()
		c.Backend = backend
		b, err := OpenBackend(c, m, slog.New(slog.DiscardHandler))
		require.Error(t, err, backend)
		require.Nil(t, b, backend)
	}
	c := DefaultConfig()
	c.Backend = "cuda"
	require.ErrorContains(t, c.Validate(), `backend: "cuda"`)

	dir := t.TempDir()
	require.NoError(t, Summary{Run: "r", Backend: "xla:cpu"}.Save(dir))
	text, err := os.ReadFile(filepath.Join(dir, "summary.json"))
	require.NoError(t, err)
	require.Contains(t, string(text), `"backend": "xla:cpu"`)
}

// registry is the part of a store that progress and reports read.
type registry struct {
	replay.Store
	steps []replay.StepRecord
	evals map[uint64]replay.EvalStatus
}

func (r *registry) Status(context.Context, string) (replay.RunStatus, error) {
	s := replay.RunStatus{}
	if n := len(r.steps); n > 0 {
		s.LastStep = &r.steps[n-1]
		s.Latest.Version = r.steps[n-1].Version
	}
	return s, nil
}

func (r *registry) Step(_ context.Context, _ string, n uint64) (replay.StepRecord, error) {
	return r.steps[n-1], nil
}

func (r *registry) EvalStatus(_ context.Context, _ string, v uint64) (replay.EvalStatus, error) {
	e, ok := r.evals[v]
	if !ok {
		return e, fmt.Errorf("%w: evaluation of version %d", replay.ErrNotFound, v)
	}
	return e, nil
}

// cases/training.tsv logging: "steps logged out of order are discarded by the
// sink": evaluations end in any order, those of version 3 before those of
// version 0, and every point is told once and is in the summary and the report.
func TestCaseLoggingOutOfOrderPointsAreKept(t *testing.T) {
	st := &registry{evals: map[uint64]replay.EvalStatus{0: {Requested: 2, Done: 1}, 3: {Requested: 2, Done: 2, Success: 0.5}}}
	for n := uint64(1); n <= 3; n++ {
		st.steps = append(st.steps, replay.StepRecord{Step: n, Version: n, Metrics: map[string]float64{rewardMetric: float64(n)}})
	}
	w := watcher{detector: watch.NewDetector(DefaultConfig().Watch.Config)}
	news, _ := w.poll(t.Context(), st, "r", 3)
	told := strings.Join(news, "\n")
	require.Contains(t, told, "v3 ")
	require.NotContains(t, told, "v0 ")
	require.Equal(t, 3, strings.Count(told, "step "))
	news, _ = w.poll(t.Context(), st, "r", 3)
	require.Empty(t, news)

	st.evals[0] = replay.EvalStatus{Requested: 2, Done: 2, Success: 0.25} // late
	news, _ = w.poll(t.Context(), st, "r", 3)
	require.Len(t, news, 1)
	require.Contains(t, news[0], "v0 ")
	require.Contains(t, news[0], "0.250")

	s, err := Summarize(t.Context(), st, "r")
	require.NoError(t, err)
	require.Len(t, s.StepsLog, 3)
	require.Equal(t, []EvalPoint{{Version: 0, Success: 0.25, Done: 2}, {Version: 3, Success: 0.5, Done: 2}}, s.Evals)
	require.Equal(t, [2]float64{0.25, 0.5}, [2]float64{s.HeldoutBefore, s.HeldoutAfter})

	// A chart draws every point it is given, in whatever order.
	var drawn []int
	for _, steps := range [][]uint64{{0, 3}, {3, 0}} {
		s := Summary{}
		for _, n := range steps {
			s.StepsLog = append(s.StepsLog, StepPoint{Step: n, Metrics: map[string]float64{"entropy": 1}})
		}
		svg, ok, err := draw(chart{Title: "t", Metrics: []string{"entropy"}}, s)
		require.NoError(t, err)
		require.True(t, ok)
		drawn = append(drawn, bytes.Count([]byte(svg), []byte("<path")))
	}
	require.Equal(t, drawn[0], drawn[1])
}

// cases/training.tsv resume: "resume with another dataset silently skips its
// first N rows": the identity that a checkpoint is bound to names the source and
// covers what its options change. Refusal by it is the learner's test.
func TestCaseResumeIdentityCoversTheDataset(t *testing.T) {
	identity := func(options map[string]string) (string, string) {
		c := DefaultConfig()
		c.Task.Options = options
		src, err := OpenSource(c)
		require.NoError(t, err)
		p := parts{cfg: c, model: &model.Model{Digest: "blake3:base"}, source: src}
		id := p.identity("r")
		require.Equal(t, "r", id.Run)
		require.Equal(t, "blake3:base", id.Base)
		require.True(t, id.LoRA.Equal(c.LoRA))
		return id.Dataset.Name, id.Dataset.Digest
	}
	name, digest := identity(nil)
	require.Equal(t, "store", name)
	require.Contains(t, digest, "blake3:")
	_, again := identity(nil)
	require.Equal(t, digest, again)
	_, other := identity(map[string]string{"seed": "1"})
	require.NotEqual(t, digest, other)
}

// cases/training.tsv empty-batch: "later the opposite (stall forever) was
// chosen": the learner's bounds end a single-process run with their error; they
// are not reset by a restart. What a restart can cure is restarted.
func TestCaseEmptyBatchEndsTheRun(t *testing.T) {
	for verdict, restarted := range map[error]bool{
		learner.ErrIdle: false, learner.ErrTooManyEmpty: false, learner.ErrDiverged: false, replay.ErrUnavailable: true,
	} {
		sys := actors.NewSystem(slog.New(slog.DiscardHandler))
		var runs atomic.Int32
		h, err := sys.Spawn(soleLearner(func(context.Context) error {
			if runs.Add(1) > 1 {
				return nil
			}
			return fmt.Errorf("%w: failed=4 (tool=4)", verdict)
		}), actors.Restart{Max: 3, Within: time.Minute, Backoff: time.Millisecond})
		require.NoError(t, err)
		select {
		case <-h.Done():
		case <-time.After(10 * time.Second):
			t.Fatalf("%v: the learner did not end", verdict)
		}
		if restarted {
			require.NoError(t, h.Err())
			require.EqualValues(t, 2, runs.Load())
		} else {
			require.ErrorIs(t, h.Err(), verdict)
			require.ErrorContains(t, h.Err(), "failed=4 (tool=4)")
			require.EqualValues(t, 1, runs.Load(), "%v was restarted", verdict)
		}
		require.NoError(t, sys.Close())
	}
}
